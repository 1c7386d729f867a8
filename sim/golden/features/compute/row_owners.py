"""Golden model of the owners of rows of the activation memory: :mod:`hdl.features.compute.row_owners`."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

__all__ = ["Owned", "RowOwners"]

#: Rows, and the number of the buffer that they are read or written as.
Owned = tuple[npt.ArrayLike, int]


class RowOwners:
    """Number of the buffer that has written each row; 0 is that of any buffer."""

    def __init__(self, rows: int):
        self.numbers: npt.NDArray[np.uint8] = np.zeros(rows, np.uint8)

    def write(self, rows: npt.ArrayLike, owner: int = 0) -> None:
        """Stamp rows that are written; those that the host writes belong to any buffer."""
        self.numbers[np.asarray(rows, np.int64)] = owner

    def dead(self, rows: npt.ArrayLike, owner: int) -> int | None:
        """Lowest of the rows that another buffer has written than the one they are read as; None if there is none."""
        asked = np.asarray(rows, np.int64)
        found = self.numbers[asked]
        wrong = asked[(owner != 0) & (found != 0) & (found != owner)]
        return int(wrong.min()) if wrong.size else None

    def run(self, sources: Iterable[Owned], targets: Iterable[Owned]) -> int | None:
        """Rows that an instruction reads, and then those that it writes; return the lowest dead one."""
        found = [row for rows, owner in sources if (row := self.dead(rows, owner)) is not None]
        for rows, owner in targets:
            self.write(rows, owner)
        return min(found, default=None)
