"""Cycle-accurate golden model of the row requests of a memory reader.

Mirrors :class:`hdl.row_transfer.RowReader` with a queue of nine rows.
"""

import collections

__all__ = ["RowReads"]

#: Latency in cycles from the grant of a read to the arrival of its row, and number of rows read ahead.
_READ, _DEPTH = 2, 9


class RowReads:
    """Row requests of a job: rows not yet requested, rows in flight, and rows waiting."""

    def __init__(self) -> None:
        self._end = self._left = 0
        self._waiting: collections.deque[int] = collections.deque()
        self._coming: collections.deque[tuple[int, int]] = collections.deque()  # rows in flight, and cycles left

    def begin(self, first: int, rows: int) -> None:
        """Begin a job that becomes active in the next cycle."""
        self._end, self._left = first + rows, rows

    @property
    def asked(self) -> int | None:
        """Number of the row requested in this cycle, or None."""
        if self._left and len(self._waiting) + len(self._coming) < _DEPTH:
            return self._end - self._left
        return None

    @property
    def waits(self) -> bool:
        """Whether a row has arrived and can be taken."""
        return bool(self._waiting)

    def take(self) -> int:
        """Take the oldest row that has arrived."""
        return self._waiting.popleft()

    def step(self, asked: int | None, ready: bool) -> None:
        """End a cycle; called after :meth:`take`.

        Parameters
        ----------
        asked : int or None
            Value of :attr:`asked` at the start of the cycle.
        ready : bool
            Whether the memory granted the request.
        """
        if self._coming and self._coming[0][1] == 0:
            self._waiting.append(self._coming.popleft()[0])
        self._coming = collections.deque((row, left - 1) for row, left in self._coming)
        if asked is not None and ready:
            self._coming.append((asked, _READ - 1))
            self._left -= 1
