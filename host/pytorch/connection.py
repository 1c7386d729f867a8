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
    shards : bool
        Whether the ring sums vectors of one shard per rank.
    gloo : dict
        Number of calls, number of bytes, and number of calls that add floating-point numbers, of each collective of
        this rank over gloo.
    seconds : float
        Seconds that a rank of a ring in software has spent in operations since its previous announcement.
    """

    one_machine = False
    shards = False

    @property
    def keeps(self) -> bool:
        """Whether the ring keeps back parts of gradients and adds them to later gradients."""
        raise NotImplementedError

    @property
    def codes_weights(self) -> bool:
        """Whether the ring changes weights, of which ranks have shards, by a codec."""
        return False

    def __init__(self) -> None:
        self.gloo: dict[str, tuple[int, int, int]] = {}
        self.seconds = 0.0

    def join(self, rank: int, ranks: int, timeout: float, *, backend: str = RING) -> None:
        """Join the group of all ranks over a backend; repeated calls with the same backend have no effect."""

    def of_some(self) -> "Connection | None":
        """Return a connection for a group of only some ranks, or None if these have no ring."""
        return None

    def connect(self, backend: Callable[[], Any], rank: int, ranks: int, *, number: int) -> None:
        """Connect the ranks of a new group with each other, if the ring needs this.

        ``backend`` creates a gloo backend for this purpose. ``rank`` is the rank in the group, and ``number`` the
        rank among all ranks, which messages name.
        """

    def finish(self) -> None:
        """Wait for requested operations that :meth:`disconnect`, or the end of the script, would interrupt."""

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
