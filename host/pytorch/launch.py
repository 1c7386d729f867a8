"""Launcher of a PyTorch script on a simulated ring: one process per rank, with the ring in the launcher's process."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hdl.compression.registry import GRADIENT_CODECS
from host.errors import ExpectedError
from host.pytorch.choice import Choice
from host.pytorch.jobs import Jobs, Kind, Operations, Options, WatchedJobs
from host.pytorch.messages import ADDRESS, GRADIENTS, KEEPS, PACKED_STATE, REPLACE, SOFTWARE, STORE, WEIGHTS
from host.pytorch.server import Patience, RingServer
from host.pytorch.software.record import AnnouncedOperations
from host.sockets.folder import socket_folder
from sim.verilated.processes import EndedError, status

__all__ = ["MODULE", "Arrivals", "LaunchError", "Launched", "launch", "starters"]


#: Ways in which a script can start ranks itself, keyed by a word in the command lines of the new processes.
_WAYS = {"multiprocessing.spawn": "torch.multiprocessing.spawn", "multiprocessing.forkserver": "multiprocessing",
         "torch.distributed.run": "torchrun", "torchrun": "torchrun"}

#: Helper processes of multiprocessing, which do not run code from the script.
_HELPERS = ("resource_tracker", "semaphore_tracker")

#: Extra time in seconds for ranks to import PyTorch before they run the script.
_IMPORTS = 60.0


class Arrivals:
    """Ranks that must call ``init_process_group()``: missing ranks are reported and, after a time limit, ended."""

    def __init__(self, server: RingServer, ranks: Sequence["subprocess.Popen[bytes]"], patience: Patience,
                 say: Callable[[str], None]) -> None:
        self._server, self._ranks, self._patience, self._say = server, ranks, patience, say
        self._said = False

    def look(self) -> None:
        """Report ranks that are slow to arrive, and end all ranks after the time limit."""
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
            self._server.fail(f"{who[0].upper()}{who[1:]} must call init_process_group() within "
                              f"{self._patience.timeout:g} seconds: {f'{cause}, or ' if cause else ''}give gradring "
                              f"launch a longer --timeout")
        elif not self._said:
            self._said = True
            cause = self._cause()[1]
            self._say(f"gradring launch has waited {waited:.1f} s for {who} in init_process_group()"
                      f"{': ' if cause else ''}{cause}")

    def _cause(self) -> tuple[list[int], str]:
        """Return the processes started by ranks, and a text that names them as the cause, with a remedy."""
        begun = starters([rank.pid for rank in self._ranks])
        if not begun:
            return [], ""
        way = ", ".join(sorted(set(begun.values())))
        return list(begun), (f"the script starts processes of its own by {way}, and the ranks are there already: "
                             f"call the function of a rank directly")


def starters(parents: Sequence[int]) -> dict[int, str]:
    """Find processes that ranks have started with the ranks' own environment; return how each was started, keyed by
    process ID. The result is empty on systems without /proc."""
    begun: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int(status(int(folder.name))[1])
            if parent not in parents or f"{ADDRESS}=".encode() not in (folder / "environ").read_bytes():
                continue
            line = _command_line(folder.name)
            ways = [way for word, way in _WAYS.items() if word in line]
            if not any(word in line for word in _HELPERS) and (ways or line == _command_line(parent)):
                begun[int(folder.name)] = ways[0] if ways else "multiprocessing"
    return begun


def _command_line(process: int | str) -> str:
    return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


MODULE = "host.pytorch.rank"

#: Program that runs a module of a git clone regardless of PYTHONPATH. A wheel needs none: its names are unique.
_NAMES = Path(__file__).parents[2] / "gradring" / "names.py"
_STARTER = [str(_NAMES)] if _NAMES.is_file() else ["-m"]

#: Seconds between checks of the ranks' processes, seconds for ranks to end on their own, and seconds to end after
#: SIGTERM. The total is below two seconds, within which all ranks must end after one has failed.
_LOOK, _GRACE, _TERM = 0.1, 1.0, 0.5


class LaunchError(ExpectedError, RuntimeError):
    """Raised if a rank has ended with an error, or the ranks disagree. The message names the first such rank."""


class Launched(NamedTuple):
    """A launched script, which is running or has ended."""

    jobs: Operations
    server: RingServer
    kind: Kind


@contextlib.contextmanager
def _ranks(script: Sequence[str], options: Options, address: Path,
           *, replace: bool, variables: Mapping[str, str]) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Context manager that starts the processes of all ranks and ends them when its block is left."""
    codec = GRADIENT_CODECS[options.gradients]
    keeps = options.density is not None or not (codec.exact or codec.agreed)
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        with socket.create_server(("127.0.0.1", 0)) as store:
            # Rank 0 serves PyTorch's store on this socket, since a port that is free now may be taken later. PyTorch
            # treats it as a store provided by the launcher.
            environment = {**os.environ, **variables, "WORLD_SIZE": str(options.nodes),
                           "LOCAL_WORLD_SIZE": str(options.nodes),
                           "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.getsockname()[1]),
                           "GROUP_RANK": "0", "TORCHELASTIC_USE_AGENT_STORE": str(True), ADDRESS: str(address),
                           KEEPS: "1" if keeps else "0", REPLACE: "1" if replace else "0", STORE: str(store.fileno())}
            environment.setdefault("OMP_NUM_THREADS", "1")
            environment.update(_of_software(options))
            for rank in range(options.nodes):
                ranks.append(subprocess.Popen([sys.executable, "-P", *_STARTER, MODULE, *script],
                                              env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                                              pass_fds=[] if rank else [store.fileno()]))
        yield ranks
    finally:
        _end(ranks, 0)


def _of_software(options: Options) -> dict[str, str]:
    """Environment variables that make the ranks a ring in software, if this is asked for."""
    if options.transport not in (Kind.SOFTWARE, None):
        return {SOFTWARE: "0"}
    return {SOFTWARE: "1", GRADIENTS: options.gradients, WEIGHTS: options.weights,
            PACKED_STATE: "1" if options.packed_state else "0"}


def _end(ranks: list["subprocess.Popen[bytes]"], grace: float) -> None:
    """End the processes that are still running after ``grace`` seconds."""
    _await(ranks, grace)
    for rank in ranks:
        rank.terminate()  # has no effect on a process that has ended
    _await(ranks, _TERM)
    for rank in ranks:
        rank.kill()
        rank.wait()


def launch(script: Sequence[str], options: Options, *, patience: Patience | None = None,
           replace: bool = False, variables: Mapping[str, str] | None = None,
           announce: Callable[[str], None] = lambda stage: None,
           say: Callable[[str], None] = lambda text: None) -> Launched:
    """Run a script once per node, and serve its ranks until all have ended. Raises ``LaunchError`` if a rank has
    ended with an error, after all other ranks have ended.

    ``script`` is the script and its arguments, or ``-m``, a module and its arguments. With ``replace``, the ring
    replaces the gloo backend if it is requested by name. ``variables`` are additional environment variables of the
    ranks. ``announce`` is called with the name of each stage of a build as it begins, and ``say`` with lines about
    slow ranks and jobs.
    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(socket_folder())
        jobs = _operations(options, stack, announce, say)
        ranks: list[subprocess.Popen[bytes]] = []
        watched = WatchedJobs(jobs, ended=lambda: _failure(ranks), tell=lambda reason: server.interrupt(reason),
                              end=lambda: _end(ranks, _GRACE), look=_LOOK)
        patience = patience or Patience()
        server = RingServer(folder / "ring", ranks=options.nodes, jobs=watched, patience=patience, say=say)
        stack.callback(server.close)
        ranks += stack.enter_context(_ranks(script, options, folder / "ring", replace=replace,
                                           variables=variables or {}))
        try:
            _serve(server, ranks, Arrivals(server, ranks, patience, say))
        except EndedError:
            if not watched.interrupted:
                raise
            server.fail(server.error or "")  # also answers ranks that have sent requests since then
            _end(ranks, _GRACE)
        chosen, kind = ((jobs.chosen, jobs.kind) if isinstance(jobs, Choice) else
                        (jobs, options.transport or Kind.VERILATED))
        chosen.spend(server.seconds)
        if server.error is not None:
            raise LaunchError(server.error)
        if (failure := _failure(ranks)) is not None:
            raise LaunchError(failure)
        return Launched(chosen, server, kind)


def _operations(options: Options, stack: contextlib.ExitStack, announce: Callable[[str], None],
                say: Callable[[str], None]) -> Operations | Choice:
    """Operations of the kind that the options name."""
    if options.transport is None:
        return Choice(options, stack, announce, say)
    if options.transport is Kind.SOFTWARE:
        return AnnouncedOperations(options, say)
    return Jobs(options, stack, announce, say)


def _failure(ranks: list["subprocess.Popen[bytes]"]) -> str | None:
    """Describe the rank that has ended with an error, if any. A rank that was ended by a signal is preferred, since
    it causes errors on other ranks."""
    codes = [(rank.poll() or 0, number) for number, rank in enumerate(ranks)]
    code, number = min(codes, key=lambda item: (item[0] == 0, item))
    ending = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    return f"Rank {number} has ended {ending}; the others cannot go on without it" if code else None


def _await(ranks: list["subprocess.Popen[bytes]"], seconds: float) -> None:
    """Wait for ranks to end on their own."""
    limit = time.monotonic() + seconds
    for rank in ranks:
        with contextlib.suppress(subprocess.TimeoutExpired):
            rank.wait(max(limit - time.monotonic(), 0))


def _serve(server: RingServer, ranks: list["subprocess.Popen[bytes]"], arrivals: Arrivals) -> None:
    """Serve requests until all ranks have ended, or for some time after one has failed."""
    limit: float | None = None
    looked = 0.0
    while any(rank.poll() is None for rank in ranks):
        server.poll(_LOOK)
        if server.error is None:
            if time.monotonic() - looked > _LOOK:
                looked = time.monotonic()
                # State T: stopped by a signal, not by a debugger. It is known only on systems with /proc.
                server.stopped([number for number, rank in enumerate(ranks) if status(rank.pid)[:1] == ["T"]])
            if (failure := _failure(ranks)) is not None:
                server.fail(failure)
            for number, rank in enumerate(ranks):
                if rank.poll() == 0:
                    server.ended(number, "without an error")
            arrivals.look()
        if server.error is not None and limit is None:
            limit = time.monotonic() + _GRACE
        if limit is not None and time.monotonic() > limit:
            break
    server.poll(0)
