"""Layer lists that nodes may run under a plan of their activation memory."""

from collections.abc import Iterable

__all__ = ["PlanError", "PlannedLists"]


class PlanError(ValueError):
    """Raised if a memory plan is impossible, or if instruction lists do not belong to the plan."""


class PlannedLists:
    """Layer lists of a memory plan. Once a plan is set, nodes run only its lists."""

    def __init__(self) -> None:
        self._starts: frozenset[int] | None = None

    def set(self, starts: Iterable[int]) -> None:
        """Allow only instruction lists that start at the given elements of the weight memory."""
        self._starts = frozenset(starts)

    def check(self, lists: Iterable[int]) -> None:
        """Raise ``PlanError`` if an instruction list does not belong to the plan."""
        for base in lists:
            if self._starts is not None and base not in self._starts:
                raise PlanError(f"List must be one of the program of the memory plan, not the one at {base:,}: write "
                                f"it with a plan of its own")
