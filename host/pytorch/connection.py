"""Connection of a rank to a ring of any kind."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from host.pytorch.messages import RING, Request, Save

__all__ = ["Connection"]


class Connection:
    """Connection of a rank to a ring.

    Members
    -------
    one_machine : bool
        Whether all ranks are known to be on this machine.
    gloo : dict
        Number of calls, number of bytes, and number of calls that add floating-point numbers, of each collective of
        this rank over gloo.
    seconds : float
        Seconds that a rank of a ring in software has spent in operations since it last told the launcher.
    """

    one_machine = False

    @property
    def keeps(self) -> bool:
        """Whether the ring keeps back parts of gradients and adds them to later gradients."""
        raise NotImplementedError

    def __init__(self) -> None:
        self.gloo: dict[str, tuple[int, int, int]] = {}
        self.seconds = 0.0

    def join(self, rank: int, ranks: int, timeout: float, *, backend: str = RING) -> None:
        """Join the group of all ranks over a backend; repeated calls with the same backend have no effect."""

    def connect(self, backend: Callable[[], Any], rank: int, ranks: int) -> None:
        """Connect the ranks of a new group of all ranks with each other, if the ring needs this.

        ``backend`` creates a gloo backend for this purpose.
        """

    def disconnect(self) -> None:
        """End what :meth:`connect` began, when the process group ends."""

    def begin(self, request: Request | Save) -> "Future[Any]":
        """Request an operation; return a future for its result. Raises ``RingError`` before :meth:`join`."""
        raise NotImplementedError

    def ask(self, request: Request | Save) -> Any:
        """Request an operation and wait for its result."""
        return self.begin(request).result()

    def count(self, name: str, size: int, *, rounds: bool) -> None:
        """Count a collective over gloo, its number of bytes, and whether it adds floating-point numbers."""
        calls, before, sums = self.gloo.get(name, (0, 0, 0))
        self.gloo[name] = (calls + 1, before + size, sums + rounds)
