"""Start the processes of a ring on this host; each process simulates a range of nodes."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from multiprocessing.connection import Connection

from sim.verilated.exchange import Exchange, SharedExchange
from sim.verilated.part_server import Channel, Processes, Setup, serve
from sim.verilated.toolchain import ROOT

__all__ = ["LocalProcesses", "serve_here"]

#: Time in seconds that a process is given to end before it is killed.
_GRACE = 2.0


class LocalProcesses(Processes):
    """Processes on this host that exchange words through shared memory.

    Parameters
    ----------
    number : int
        Number of processes, including this one.
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
                self._started.append(subprocess.Popen([sys.executable, "-P", "-c", command], env=environment,
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
    """Run one of the processes of :class:`LocalProcesses` until process 0 has finished."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only process 0 handles interrupts
    channel = Connection(descriptor)
    try:
        setup, memory = channel.recv()
        serve(channel, setup, lambda setup: SharedExchange(memory, process, len(setup.bounds) - 1))
    except (EOFError, ConnectionError):
        sys.exit(f"process {process} ends, since process 0 has ended")
    except RuntimeError as error:
        sys.exit(f"process {process} ends: {error}")
