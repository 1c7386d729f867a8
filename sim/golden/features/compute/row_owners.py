"""Golden model of the buffer tags on activation memory rows: :mod:`hdl.features.compute.row_owners`."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

__all__ = ["Owned", "RowOwners"]

#: Row numbers, and the number of the buffer for which these rows are read or written.
Owned = tuple[npt.ArrayLike, int]


class RowOwners:
    """Number of the buffer for which each row was written; 0 stands for any buffer."""

    def __init__(self, rows: int):
        self.numbers: npt.NDArray[np.uint8] = np.zeros(rows, np.uint8)

    def write(self, rows: npt.ArrayLike, owner: int = 0) -> None:
        """Tag the written rows with their buffer; rows written by the host can be read for any buffer."""
        self.numbers[np.asarray(rows, np.int64)] = owner

    def dead(self, rows: npt.ArrayLike, owner: int) -> int | None:
        """Return the lowest row that was written for a different buffer than it is read for, or None."""
        asked = np.asarray(rows, np.int64)
        writers = self.numbers[asked]
        wrong = asked[(owner != 0) & (writers != 0) & (writers != owner)]
        return int(wrong.min()) if wrong.size else None

    def run(self, sources: Iterable[Owned], targets: Iterable[Owned]) -> int | None:
        """Check the rows that an instruction reads and tag the rows that it writes; return the lowest dead row."""
        dead_rows = [row for rows, owner in sources if (row := self.dead(rows, owner)) is not None]
        for rows, owner in targets:
            self.write(rows, owner)
        return min(dead_rows, default=None)
