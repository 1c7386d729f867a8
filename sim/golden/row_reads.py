"""Golden model of the rows that a reader of memory asks for, cycle by cycle.

Mirrors :class:`hdl.row_transfer.RowReader` with a queue of nine rows.
"""

import collections

__all__ = ["RowReads"]

#: Cycles from the grant of a read to its row; rows that are read ahead.
_READ, _DEPTH = 2, 9


class RowReads:
    """Rows of a job: those to ask for, those that come, and those that wait."""

    def __init__(self) -> None:
        self._end = self._left = 0
        self._waiting: collections.deque[int] = collections.deque()
        self._coming: collections.deque[tuple[int, int]] = collections.deque()  # rows, and cycles until they come

    def begin(self, first: int, rows: int) -> None:
        """Begin a job in the next cycle."""
        self._end, self._left = first + rows, rows

    @property
    def asked(self) -> int | None:
        """Row that is asked for in this cycle."""
        if self._left and len(self._waiting) + len(self._coming) < _DEPTH:
            return self._end - self._left
        return None

    @property
    def waits(self) -> bool:
        """Whether a row is there."""
        return bool(self._waiting)

    def take(self) -> int:
        """Take the row that came first."""
        return self._waiting.popleft()

    def step(self, asked: int | None, ready: bool) -> None:
        """End a cycle, behind :meth:`take`.

        Parameters
        ----------
        asked : int or None
            :attr:`asked` at its begin.
        ready : bool
            Whether the memory has granted that.
        """
        if self._coming and self._coming[0][1] == 0:
            self._waiting.append(self._coming.popleft()[0])
        self._coming = collections.deque((row, left - 1) for row, left in self._coming)
        if asked is not None and ready:
            self._coming.append((asked, _READ - 1))
            self._left -= 1
