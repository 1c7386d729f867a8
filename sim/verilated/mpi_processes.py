"""Processes started by ``mpirun`` for a ring with nodes in all of them."""

import atexit
import signal
import sys
import time
from typing import Any

from sim.verilated.exchange import Exchange, MpiExchange
from sim.verilated.mpi_environment import mpi_rank
from sim.verilated.part_server import Channel, Processes, Setup, serve
from sim.verilated.toolchain import ToolError

__all__ = ["MpiProcesses", "serve_mpi"]


def _world() -> Any:
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise ToolError(f"mpi4py is needed for processes of mpirun: {error}; 'make .venv/.mpi' installs it") from None
    return MPI.COMM_WORLD


class _MpiChannel:
    """Channel for calls and answers over MPI; the receiver sleeps for increasingly long times between polls."""

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
    """Processes started by ``mpirun``, as seen by the first process.

    The other processes must call :func:`serve_mpi`; they are released when the first process exits.
    """

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
        if busy:  # the other processes wait within a run and cannot receive calls
            reason = sys.exception() or "a run was interrupted"
            print(f"error: {reason}; all processes of the ring end", file=sys.stderr, flush=True)
            self._world.Abort(1)
        self._release()

    def _release(self) -> None:
        for process in range(1, self.number):
            self._channels[process].send(None)


def serve_mpi() -> None:
    """Serve one ring after another in an MPI process other than the first, until the first process exits."""
    channel = _MpiChannel(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while (setup := channel.recv()) is not None:
        try:
            serve(channel, setup, lambda setup: MpiExchange())
        except BaseException as error:
            print(f"process {mpi_rank()} of the ring ends: {error}", file=sys.stderr, flush=True)
            _world().Abort(1)
