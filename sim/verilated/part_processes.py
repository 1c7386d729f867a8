"""The processes of a ring that has several: on this host, which are started for it, or those of MPI."""

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from sim.verilated.exchange import Exchange, MpiExchange, SharedExchange
from sim.verilated.parts import Channel, Processes, Setup, serve
from sim.verilated.toolchain import ROOT, ToolError

__all__ = ["LocalProcesses", "MpiProcesses", "mpi_rank", "mpi_size", "serve_here", "serve_mpi"]

#: Seconds that a process has to end, before it is killed.
_GRACE = 2.0


class LocalProcesses(Processes):
    """Processes of this host, which exchange words by shared memory.

    Parameters
    ----------
    number : int
        Number of all processes, this one included.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._started: list[subprocess.Popen[bytes]] = []
        self._channels: list[Connection] = []

    def start(self, setup: Setup) -> Exchange:
        memory = SharedExchange.create(self.number)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(
            [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
        for process in range(1, self.number):
            ours, theirs = socket.socketpair()
            with theirs:
                self._channels.append(Connection(ours.detach()))
                command = f"from {serve_here.__module__} import serve_here; serve_here({theirs.fileno()}, {process})"
                self._started.append(subprocess.Popen([sys.executable, "-c", command], env=environment,
                                                      stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(), memory)))
            self._channels[-1].send((setup, memory))
        return SharedExchange(memory, 0, self.number)

    def channel(self, process: int) -> Channel:
        return self._channels[process - 1]

    def name(self, process: int) -> str:
        started = self._started[process - 1]
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.wait(_GRACE)
        code = started.returncode
        end = ("" if code is None else f", {signal.Signals(-code).name}" if code < 0 else f", exit code {code}")
        return f"process {process} of {self.number} (PID {started.pid}{end})"

    def finish(self, *, busy: bool) -> None:
        for channel in self._channels:
            with contextlib.suppress(OSError):
                channel.send(None)
            channel.close()
        limit = time.monotonic() + (0 if busy else _GRACE)
        for process in self._started:
            try:
                process.wait(max(0, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._channels, self._started = [], []


def serve_here(descriptor: int, process: int) -> None:
    """Serve, in a process of :class:`LocalProcesses`, until process 0 is done."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is process 0 that is interrupted
    channel = Connection(descriptor)
    try:
        setup, memory = channel.recv()
        serve(channel, setup, lambda setup: SharedExchange(memory, process, len(setup.bounds) - 1))
    except (EOFError, ConnectionError):
        sys.exit(f"process {process} ends, since process 0 has ended")
    except RuntimeError as error:
        sys.exit(f"process {process} ends: {error}")


# ---------------------------------------------------------------------------------------------------------------------
# MPI
# ---------------------------------------------------------------------------------------------------------------------

#: Variables in which launchers tell a process the number of all, and its own: Open MPI, then MPICH and others.
_SIZES, _RANKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"), ("OMPI_COMM_WORLD_RANK", "PMI_RANK")


def mpi_size() -> int:
    """Number of processes that ``mpirun`` has started, this one among them; 1 without it."""
    return _number(_SIZES, 1)


def mpi_rank() -> int:
    """Number of this one among them; 0 without it."""
    return _number(_RANKS, 0)


def _number(names: tuple[str, ...], default: int) -> int:
    return next((int(os.environ[name]) for name in names if name in os.environ), default)


def _world() -> Any:
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise ToolError(f"mpi4py is needed for processes of mpirun: {error}; 'make .venv/.mpi' installs it") from None
    return MPI.COMM_WORLD


class _MpiChannel:
    """Calls and answers by MPI. Who waits sleeps between looks, for longer as time passes."""

    def __init__(self, other: int) -> None:
        self._world, self._other = _world(), other

    def send(self, item: Any, /) -> None:
        self._world.send(item, self._other)

    def recv(self) -> Any:
        pause = 0.0
        while not self._world.iprobe(self._other):
            time.sleep(pause)
            pause = min(pause + 1e-6, 5e-4)
        return self._world.recv(source=self._other)


class MpiProcesses(Processes):
    """Processes that ``mpirun`` has started, of which this one is rank 0. The others must call :func:`serve_mpi`; they
    are released when this one exits."""

    def __init__(self) -> None:
        self._world = _world()
        self.number = self._world.size
        self._channels = [_MpiChannel(process) for process in range(self.number)]
        atexit.register(self._release)

    def start(self, setup: Setup) -> Exchange:
        for process in range(1, self.number):
            self._channels[process].send(setup)
        return MpiExchange()

    def channel(self, process: int) -> Channel:
        return self._channels[process]

    def name(self, process: int) -> str:
        return f"process {process} of {self.number}"

    def finish(self, *, busy: bool) -> None:
        if busy:  # the others wait within a run, and cannot hear
            print(f"error: {sys.exception() or 'a run was interrupted'}; all processes end", file=sys.stderr, flush=True)
            self._world.Abort(1)
        self._release()

    def _release(self) -> None:
        for process in range(1, self.number):
            self._channels[process].send(None)


def serve_mpi(announce: Callable[[str], None] = print) -> None:
    """Serve rings, one after the other, in a process of MPI other than the first, until that one exits."""
    channel = _MpiChannel(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while (setup := channel.recv()) is not None:
        try:
            serve(channel, setup, lambda setup: MpiExchange())
        except BaseException as error:
            announce(f"process {mpi_rank()} ends: {error}")
            _world().Abort(1)
