"""Launcher of a PyTorch script on a simulated ring: one process per rank, and the ring in this one."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hdl.compression.registry import GRADIENT_CODECS
from host.pytorch.jobs import Jobs, Options
from host.pytorch.messages import ADDRESS, KEEPS
from host.pytorch.server import Patience, RingServer

__all__ = ["MODULE", "LaunchError", "Launched", "launch"]


MODULE = "host.pytorch.rank"

#: Seconds between looks at the ranks' processes, and those that ranks have to end by themselves, and by SIGTERM.
_LOOK, _GRACE, _TERM = 0.1, 0.5, 0.5


class LaunchError(RuntimeError):
    """A rank has ended by an error, or the ranks do not agree; the message names the first one."""


class Launched:
    """A script that has ended, or is under way.

    Members
    -------
    jobs : Jobs
    server : RingServer
    """

    def __init__(self, jobs: Jobs, server: RingServer) -> None:
        self.jobs, self.server = jobs, server


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _ending(code: int) -> str:
    """How a process has ended."""
    if code < 0:
        return f"by signal {signal.Signals(-code).name}"
    return f"with exit code {code}"


@contextlib.contextmanager
def _ranks(script: Sequence[str], options: Options, address: Path) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Processes of all ranks, which end with the block at the latest."""
    keeps = options.density is not None or not GRADIENT_CODECS[options.gradients].exact
    environment = {**os.environ, "WORLD_SIZE": str(options.nodes), "LOCAL_WORLD_SIZE": str(options.nodes),
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "GROUP_RANK": "0",
                   ADDRESS: str(address), KEEPS: "1" if keeps else "0"}
    environment.setdefault("OMP_NUM_THREADS", "1")
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(options.nodes):
            ranks.append(subprocess.Popen([sys.executable, "-P", "-m", MODULE, *script], start_new_session=False,
                                          env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}))
        yield ranks
    finally:
        _end(ranks)


def _end(ranks: list["subprocess.Popen[bytes]"]) -> None:
    """End processes that are left."""
    for wait, action in ((_TERM, subprocess.Popen.terminate), (None, subprocess.Popen.kill)):
        left = [rank for rank in ranks if rank.poll() is None]
        for rank in left:
            action(rank)
        limit = None if wait is None else time.monotonic() + wait
        for rank in left:
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.wait(None if limit is None else max(limit - time.monotonic(), 0))


def launch(script: Sequence[str], options: Options, *, patience: Patience | None = None,
           announce: Callable[[str], None] = lambda stage: None,
           say: Callable[[str], None] = lambda text: None) -> Launched:
    """Run a script once for each node, and serve its ranks until all have ended.

    Parameters
    ----------
    script : sequence of str
        The script and its arguments, or ``-m``, a module and its arguments.
    options : Options
    patience : Patience
    announce : callable
        Called with the name of each stage of a build as it begins.
    say : callable
        Called with a line about a rank that is slow.

    Raises
    ------
    LaunchError
        A rank has ended by an error. The others have been ended as well.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradring-")))
        jobs = Jobs(options, stack, announce)
        server = RingServer(folder / "ring", ranks=options.nodes, jobs=jobs,
                            patience=patience or Patience(), say=say)
        stack.callback(server.close)
        ranks = stack.enter_context(_ranks(script, options, folder / "ring"))
        _serve(server, ranks)
        return Launched(jobs, server)


def _serve(server: RingServer, ranks: list["subprocess.Popen[bytes]"]) -> None:
    """Serve requests until all ranks have ended, or one has ended by an error."""
    limit: float | None = None
    while any(rank.poll() is None for rank in ranks):
        server.poll(_LOOK)
        for number, rank in enumerate(ranks):
            if rank.poll() is not None and limit is None:
                if rank.returncode:
                    server.fail(f"Rank {number} has ended {_ending(rank.returncode)}; the others cannot go on "
                                f"without it")
                else:
                    server.ended(number, "without an error")
        if server.error is not None and limit is None:
            limit = time.monotonic() + _GRACE
        if limit is not None and time.monotonic() > limit:
            break
    server.poll(0)
    if server.error is not None:
        raise LaunchError(server.error)
    if failed := [number for number, rank in enumerate(ranks) if rank.returncode]:
        raise LaunchError(f"Rank {failed[0]} has ended {_ending(ranks[failed[0]].returncode)}")
