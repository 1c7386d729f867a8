"""Processes that each have a share of a ring: calls from process 0, and their service."""

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
    """Protocol of a channel of calls and answers between process 0 and another process."""

    def send(self, item: Any, /) -> None:
        """Send an object."""

    def recv(self) -> Any:
        """Wait for an object; ``EOFError`` if the other side has ended."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """Description of a ring for a process that has a share of it.

    Members
    -------
    libraries : sequence of Library
        Library of each node.
    threads : int
        Threads of the process.
    wiring : sequence or None
    bounds : tuple of int
    memory : int
        Descriptor of shared memory, if the processes use it.
    """

    libraries: Sequence[Library]
    threads: int
    wiring: Sequence[tuple[End, End]] | None
    bounds: tuple[int, ...]
    memory: int = -1


class Processes(abc.ABC):
    """The other processes of a ring, for process 0.

    Members
    -------
    number : int
        Number of all processes, this one included.
    """

    number: int

    @abc.abstractmethod
    def start(self, setup: Setup) -> Exchange:
        """Send each process its setup, and return this one's end of the exchange, for use once all have answered."""

    @abc.abstractmethod
    def channel(self, process: int) -> Channel:
        """The channel to another process."""

    @abc.abstractmethod
    def name(self, process: int) -> str:
        """Name of a process in messages, with its end if it has ended."""

    @abc.abstractmethod
    def finish(self, *, busy: bool) -> None:
        """End the other processes' parts, which may wait for this one if it is ``busy``."""


@dataclasses.dataclass(frozen=True)
class Call:
    """Call of a method of the ring or of one of its links, with or without an answer."""

    method: str
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = dataclasses.field(default_factory=dict)
    link: int | None = None
    answered: bool = True


@dataclasses.dataclass(frozen=True)
class Failure:
    """An exception in place of an answer."""

    error: Exception


class _Served(VerilatedRing):
    """A share of a ring, with methods for data that process 0 cannot reach."""

    exchange: Exchange | None = None

    def read(self, method: str, arguments: tuple[int, ...], part: slice) -> np.ndarray:
        """Copy a part of an array that a method returns."""
        return np.array(getattr(self, method)(*arguments)[part])

    def write(self, method: str, arguments: tuple[int, ...], part: slice, values: Any) -> None:
        """Write a part of such an array."""
        getattr(self, method)(*arguments)[part] = values

    def form(self, method: str, arguments: tuple[int, ...]) -> tuple[int, np.dtype[Any]]:
        """Number of elements of such an array, and their type."""
        array = getattr(self, method)(*arguments)
        return array.size, array.dtype

    def far(self, node: int) -> tuple[np.ndarray, int, int]:
        """Copy of a far memory, and its counters."""
        memory, read, written = self.far_memory(node)
        return memory.copy(), read, written

    def times(self) -> tuple[float, float]:
        """Processor seconds of this process, and of its exchanges."""
        assert self.exchange is not None
        return time.process_time(), self.exchange.used

    def time_exchange(self, size: int) -> float:
        """Seconds of an exchange: see :meth:`~sim.verilated.exchange.Exchange.time`."""
        assert self.exchange is not None
        return self.exchange.time(size)

    def known(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Memory spaces, and widths of far memories; 0 for nodes of other processes."""
        return self.spaces, self.far_widths


def serve(channel: Channel, setup: Setup, open_exchange: Callable[[Setup], Exchange]) -> None:
    """Serve a share of a ring until process 0 has finished.

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
                    if not call.answered and call.method != "run":  # a run fails in all processes alike
                        raise
                    answer = Failure(error)
                if call.answered:
                    channel.send(answer)
    finally:
        exchange.close()
