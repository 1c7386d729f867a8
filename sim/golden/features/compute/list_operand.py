"""Operands of list instructions in a node's memories."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from hdl.features.compute.layer_list import Place

__all__ = ["Memories", "Operand"]

#: Number of words of each operand memory.
Memories = Mapping[Place, npt.NDArray[np.uint32]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operand:
    """Matrix in memory: rows of ``columns`` elements, ``stride`` elements apart; ``owner`` is its buffer tag."""

    place: Place
    base: int
    rows: int
    columns: int
    stride: int
    owner: int = dataclasses.field(default=0, compare=False)

    @property
    def end(self) -> int:
        """Address after the operand's last element."""
        return self.base + (self.rows - 1) * self.stride + self.columns

    def meets(self, other: "Operand") -> bool:
        """Return whether the address range overlaps another operand's range."""
        return self.place == other.place and max(self.base, other.base) < min(self.end, other.end)

    def index(self) -> npt.NDArray[np.int64]:
        """Addresses of the elements, as an array of shape (rows, columns)."""
        return self.base + self.stride * np.arange(self.rows)[:, None] + np.arange(self.columns)

    def read(self, memories: Memories) -> npt.NDArray[np.float32]:
        """Return the operand's elements, as an array of shape (rows, columns)."""
        if self.place is Place.ONES:
            return np.ones((self.rows, self.columns), np.float32)
        return memories[self.place][self.index()].view(np.float32)

    def write(self, memories: Memories, elements: npt.NDArray[np.float32]) -> None:
        """Write the elements of the operand to memory."""
        memories[self.place][self.index()] = np.ascontiguousarray(elements, np.float32).view(np.uint32)
