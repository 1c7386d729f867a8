"""Processes that each simulate some nodes of a ring: calls from process 0 and their execution."""

import abc
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from sim.verilated.build import Library
from sim.verilated.exchange import Exchange, Part
from sim.verilated.links import End
from sim.verilated.ring import VerilatedRing

__all__ = ["Call", "Channel", "Failure", "Processes", "Setup", "serve"]


class Channel(Protocol):
    """Channel for calls and answers between process 0 and one other process."""

    def send(self, item: Any, /) -> None:
        """Send an object to the other process."""

    def recv(self) -> Any:
        """Wait for an object from the other process; raise ``EOFError`` if that process has ended."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """Setup of a process that simulates part of a ring.

    Members
    -------
    libraries : sequence of Library
        Library of each node.
    threads : int
        Number of threads in the process.
    wiring : sequence or None
    bounds : tuple of int
    memory : int
        Descriptor of the shared memory, if the processes use it.
    """

    libraries: Sequence[Library]
    threads: int
    wiring: Sequence[tuple[End, End]] | None
    bounds: tuple[int, ...]
    memory: int = -1


class Processes(abc.ABC):
    """The other processes of a ring, as seen from process 0.

    Members
    -------
    number : int
        Total number of processes, including this one.
    """

    number: int

    @abc.abstractmethod
    def start(self, setup: Setup) -> Exchange:
        """Send each process its setup; return this process's exchange, usable once all processes have answered."""

    @abc.abstractmethod
    def channel(self, process: int) -> Channel:
        """Channel to another process."""

    @abc.abstractmethod
    def name(self, process: int) -> str:
        """Name of a process for messages, including how it ended if it has ended."""

    @abc.abstractmethod
    def finish(self, *, busy: bool) -> None:
        """End the other processes' parts of the ring; if ``busy``, they may be waiting for this process."""


@dataclasses.dataclass(frozen=True)
class Call:
    """Call to a method of the ring or of one of its links; it is answered only if requested."""

    method: str
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = dataclasses.field(default_factory=dict)
    link: int | None = None
    answered: bool = True


@dataclasses.dataclass(frozen=True)
class Failure:
    """Failure of a call: an exception that is sent instead of an answer."""

    error: Exception


class _Served(VerilatedRing):
    """Part of a ring, with methods through which process 0 accesses data that it cannot reach directly."""

    exchange: Exchange | None = None

    def read(self, method: str, arguments: tuple[int, ...], part: slice) -> np.ndarray:
        """Return a copy of a slice of the array that a method returns."""
        return np.array(getattr(self, method)(*arguments)[part])

    def write(self, method: str, arguments: tuple[int, ...], part: slice, values: Any) -> None:
        """Write values to a slice of the array that a method returns."""
        getattr(self, method)(*arguments)[part] = values

    def form(self, method: str, arguments: tuple[int, ...]) -> tuple[int, np.dtype[Any]]:
        """Return the size and element type of the array that a method returns."""
        array = getattr(self, method)(*arguments)
        return array.size, array.dtype

    def far(self, node: int) -> tuple[np.ndarray, int, int]:
        """Return a copy of a node's far memory, and its counters."""
        memory, read, written = self.far_memory(node)
        return memory.copy(), read, written

    def times(self) -> tuple[float, float]:
        """Return the processor time in seconds of this process and of its exchanges."""
        assert self.exchange is not None
        return time.process_time(), self.exchange.used

    def time_exchange(self, size: int) -> float:
        """Return the time of an exchange in seconds; see :meth:`~sim.verilated.exchange.Exchange.time`."""
        assert self.exchange is not None
        return self.exchange.time(size)

    def known(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return each node's number of memory spaces and far memory width; both 0 for nodes of other processes."""
        return self.spaces, self.far_widths


def serve(channel: Channel, setup: Setup, open_exchange: Callable[[Setup], Exchange]) -> None:
    """Serve a part of a ring until process 0 has finished.

    Raises
    ------
    EOFError
        Process 0 has ended.
    RuntimeError
        Another process has ended.
    """
    exchange = open_exchange(setup)
    try:
        part = Part(setup.bounds, exchange)
        with _Served(setup.libraries, threads=setup.threads, wiring=setup.wiring, part=part) as ring:
            ring.exchange = exchange
            channel.send(ring.known())
            while (call := channel.recv()) is not None:
                answer: Any = None
                try:
                    target = ring if call.link is None else ring.links[call.link]
                    answer = getattr(target, call.method)(*call.arguments, **call.keywords)
                except Exception as error:
                    if exchange.first_ended() is not None:
                        raise
                    if not call.answered and call.method != "run":  # a run fails identically in all processes
                        raise
                    answer = Failure(error)
                if call.answered:
                    channel.send(answer)
    finally:
        exchange.close()
