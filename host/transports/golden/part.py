"""Part that a feature has in golden nodes."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from hdl.control.protocol import EventStatus, Operation
from host.driver.command import Command

__all__ = ["Ended", "GoldenPart", "LocalOperation"]


class Ended(NamedTuple):
    """End of a command on a node, and the growth of its counters."""

    status: EventStatus = EventStatus.OK
    detail: int = 0
    counts: Mapping[str, int] = {}


#: Carries out a command on the node of a rank.
LocalOperation = Callable[[int, Command], Ended]


class GoldenPart:
    """Base of parts; by default a part adds nothing."""

    def operations(self) -> Mapping[Operation, LocalOperation]:
        """Operations that a node carries out by itself."""
        return {}

    def written(self, rank: int, space: str, base: int, count: int) -> None:
        """Note that elements of a node's memory were written by the host, or brought from the far memory."""

    def cycles(self, command: Command) -> int | None:
        """Cycles of a command that a node carries out by itself; None if this part has no model of them."""
        return None
