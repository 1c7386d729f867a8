"""Lists of layers that nodes may run once their activation memory has a plan."""

from collections.abc import Iterable

__all__ = ["PlanError", "PlannedLists"]


class PlanError(ValueError):
    """An impossible plan of a memory, or lists of another plan."""


class PlannedLists:
    """Lists of a memory plan: once there is one, nodes run only these."""

    def __init__(self) -> None:
        self._starts: frozenset[int] | None = None

    def set(self, starts: Iterable[int]) -> None:
        """Allow only the lists that start at these elements."""
        self._starts = frozenset(starts)

    def check(self, lists: Iterable[int]) -> None:
        """Raise a PlanError if a list is not of the plan."""
        for base in lists:
            if self._starts is not None and base not in self._starts:
                raise PlanError(f"List must be one of the program of the memory plan, not the one at {base:,}: write "
                                f"it with a plan of its own")
