"""Transports that carry packets to nodes, and pending answers."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from hdl.control.protocol import Opcode
from host.driver.errors import DeviceError
from host.driver.words import Words

__all__ = ["Line", "NodeTransport", "Pending", "Request", "Transport", "results_of"]

T = TypeVar("T")


class Transport(Protocol):
    """Transport to one node: packets of 32-bit words in both directions, in order and without loss."""

    def send(self, packet: Words) -> None:
        """Queue one request packet without waiting for the node, which may itself wait for :meth:`receive`."""

    def receive(self, timeout_cycles: int) -> Words:
        """Receive the next response packet, waiting for at most ``timeout_cycles`` node clock cycles.

        Raises ``TimeoutError`` if no packet arrives, with the state of queues and links as far as known.
        """

    def close(self) -> None:
        """Free the transport's resources."""


class Line(Protocol):
    """Transport to several nodes, selected by number."""

    def send(self, node: int, packet: Words) -> None:
        """Queue one request packet for a node; see :meth:`Transport.send`."""

    def receive(self, node: int, timeout_cycles: int) -> Words:
        """Receive the next response packet of a node; see :meth:`Transport.receive`."""


class NodeTransport:
    """Transport to one node over a shared line, which stays open when the transport is closed."""

    def __init__(self, line: Line, node: int) -> None:
        self._line, self._node = line, node

    def send(self, packet: Words) -> None:
        """Queue one request packet."""
        self._line.send(self._node, packet)

    def receive(self, timeout_cycles: int) -> Words:
        """Receive the next response packet of the node."""
        return self._line.receive(self._node, timeout_cycles)

    def close(self) -> None:
        """Do nothing: the line is shared with other transports."""


@dataclasses.dataclass(eq=False)
class Request:
    """A request in progress, with the expected form of its response and, once it has arrived, the response."""

    opcode: Opcode
    tag: int
    asked: str
    answer: int
    patience: int
    payload: Words | None = None
    error: DeviceError | None = None

    @property
    def done(self) -> bool:
        return self.payload is not None or self.error is not None


@dataclasses.dataclass(frozen=True, eq=False)
class Pending(Generic[T]):
    """An answer that is still pending."""

    _complete: Callable[[Request], None]  # receives responses in request order, up to the response to this request
    _requests: Sequence[Request]
    _combine: Callable[[list[Words]], T]  # combines the payloads of the responses into the answer

    def result(self) -> T:
        """Wait for the answer and return it; later calls return the same answer.

        Raises ``DeviceError`` if the node rejected the request or did not answer; after a time-out, call it again.
        """
        for request in self._requests:
            self._complete(request)
        for request in self._requests:
            if request.error is not None:
                raise request.error
        return self._combine([request.payload for request in self._requests if request.payload is not None])


def results_of(pending: Sequence[Pending[T]]) -> list[T]:
    """Wait for several answers, in order."""
    return [answer.result() for answer in pending]
