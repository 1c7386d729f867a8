"""Transport of packets to one node, and pending answers."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from hdl.control.protocol import Opcode
from host.driver.errors import DeviceError
from host.driver.words import Words

__all__ = ["Completes", "Pending", "Request", "Transport"]

T = TypeVar("T")


class Transport(Protocol):
    """Transport to one node: packets of 32-bit words in both directions, in order and without loss."""

    def send(self, packet: Words) -> None:
        """Queue one request packet. Must not wait for the node, which may itself wait for a response to be taken."""

    def receive(self, timeout_cycles: int) -> Words:
        """Take the next response packet, after at most ``timeout`` cycles of the node's clock.

        Raises
        ------
        TimeoutError
            No packet came. The message says who waits for whom, as far as the transport can see.
        """

    def close(self) -> None:
        """Free the transport's resources."""


@dataclasses.dataclass(eq=False)
class Request:
    """A request on its way: the form of its response and, later, the response."""

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


class Completes(Protocol):
    """Protocol of a taker of responses, in the order of their requests."""

    def complete(self, request: Request) -> None:
        """Take responses up to the response to this request."""


class Pending(Generic[T]):
    """A pending answer."""

    def __init__(self, device: Completes, requests: Sequence[Request],
                 combine: Callable[[list[Words]], T]) -> None:
        self._device = device
        self._requests = requests
        self._combine = combine

    def result(self) -> T:
        """Wait for the answer and return it. A second call returns the same answer.

        Raises
        ------
        DeviceError
            The node refused, or did not answer. After a time-out, ``result`` may be called again.
        """
        for request in self._requests:
            self._device.complete(request)
        for request in self._requests:
            if request.error is not None:
                raise request.error
        return self._combine([request.payload for request in self._requests if request.payload is not None])
