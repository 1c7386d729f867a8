"""Models of a memory's pacing and of row fetches in flight."""

import dataclasses
from collections import deque
from collections.abc import Callable

__all__ = ["READ", "Memory", "RowFetch"]

#: Flag that marks an access, or a row in flight, as a read from memory.
READ = 1


def _always(_cycle: int) -> bool:
    return True


@dataclasses.dataclass(frozen=True)
class Memory:
    """Memory pacing: each function returns whether a transfer can happen in the given cycle."""

    latency: int = 2  # minimum number of cycles from accepting a request to its response
    #: Whether a request (``request``) or a write (``write``) can be accepted.
    request: Callable[[int], bool] = _always
    response: Callable[[int], bool] = _always  # whether a response can arrive, if its latency has elapsed
    write: Callable[[int], bool] = _always
    #: Whether the oldest write reaches the memory; checked from the cycle after it was accepted.
    commit: Callable[[int], bool] = _always


class RowFetch:
    """Row fetches in flight: remaining steps, tags in request order, and number of responses received."""

    def __init__(self, depth: int) -> None:
        self.steps: deque[int] = deque()
        self.tags: deque[int] = deque()
        self.answers = 0
        self.level = 0  # number of tags at the start of the cycle
        self._depth = depth

    def requests(self) -> bool:
        """Whether a row is requested in this cycle."""
        return bool(self.steps) and self.steps[0] & READ != 0 and self.level < self._depth

    def moves(self, granted: bool) -> bool:
        """Whether the sequence of access steps advances in this cycle."""
        return bool(self.steps) and self.level < self._depth and (granted or not self.steps[0] & READ)

    def offers(self) -> bool:
        """Whether a fetched row is being offered."""
        return bool(self.tags) and (self.answers > 0 or not self.tags[0] & READ)

    def take(self) -> int:
        """Take the row that is being offered."""
        tag = self.tags.popleft()
        self.answers -= tag & READ
        return tag
