"""Watch over ranks that have not called ``init_process_group()``."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from host.pytorch.messages import ADDRESS
from host.pytorch.server import Patience, RingServer
from sim.verilated.processes import status

__all__ = ["Arrivals", "starters"]

#: Ways of a script to start ranks of its own, by a word of the new processes' command lines.
_WAYS = {"multiprocessing.spawn": "torch.multiprocessing.spawn", "multiprocessing.forkserver": "multiprocessing",
         "torch.distributed.run": "torchrun", "torchrun": "torchrun"}

#: Processes of multiprocessing that run no code of the script.
_HELPERS = ("resource_tracker", "semaphore_tracker")

#: Seconds more for ranks that import PyTorch, before they begin with the script.
_IMPORTS = 60.0


class Arrivals:
    """Ranks that are awaited in ``init_process_group()``.

    Parameters
    ----------
    ranks : sequence of Popen
        The ranks' processes.
    patience : Patience
        Seconds after which the launcher reports that it waits, and after which it ends.
    say : callable
        Called with a line.
    """

    def __init__(self, server: RingServer, ranks: Sequence["subprocess.Popen[bytes]"], patience: Patience,
                 say: Callable[[str], None]) -> None:
        self._server, self._ranks, self._patience, self._say = server, ranks, patience, say
        self._said = False

    def look(self) -> None:
        """Report that ranks are awaited, or end them."""
        missing = [number for number, rank in enumerate(self._ranks)
                   if number not in self._server.backends and rank.poll() is None]
        waited = time.monotonic() - self._server.since
        if self._server.begun < len(self._ranks):
            waited -= _IMPORTS
        if not missing or waited <= self._patience.slow:
            return
        who = "a rank" if len(missing) == len(self._ranks) else f"rank {', rank '.join(map(str, missing))}"
        if waited > self._patience.timeout:
            children, cause = self._cause()
            for child in children:
                with contextlib.suppress(OSError):
                    os.kill(child, signal.SIGTERM)
            remedies = [cause] if cause else []
            self._server.fail(f"{who[0].upper()}{who[1:]} must call init_process_group() within "
                              f"{self._patience.timeout:g} seconds: "
                              f"{', or '.join([*remedies, 'give gradring launch a longer --timeout'])}")
        elif not self._said:
            self._said = True
            cause = self._cause()[1]
            self._say(f"gradring launch has waited {waited:.1f} s for {who} in init_process_group()"
                      f"{': ' if cause else ''}{cause}")

    def _cause(self) -> tuple[list[int], str]:
        """Processes that ranks have started, and the remedy, if that is the cause."""
        begun = starters([rank.pid for rank in self._ranks])
        if not begun:
            return [], ""
        way = ", ".join(sorted(set(begun.values())))
        return list(begun), (f"the script starts processes of its own by {way}, and the ranks are there already: "
                             f"call the function of a rank directly")


def starters(parents: Sequence[int]) -> dict[int, str]:
    """Processes that ranks have started with their own environment, and the way of each.

    There are none where the system does not list processes in /proc.
    """
    begun: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int(status(int(folder.name))[1])
            if parent not in parents or f"{ADDRESS}=".encode() not in (folder / "environ").read_bytes():
                continue
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if any(word in line for word in _HELPERS):
                continue
            ways = [way for word, way in _WAYS.items() if word in line]
            same = line == Path(f"/proc/{parent}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if ways or same:
                begun[int(folder.name)] = ways[0] if ways else "multiprocessing"
    return begun
