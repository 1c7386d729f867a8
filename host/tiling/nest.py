"""Levels of a product on a node: what the factors of a state mean to the engine, and which states it can carry out.

| level | m and n | k |
|---|---|---|
| tile | register tile: 4 x 32, 8 x 16 and so on, outputs of the array at a time | |
| panel | tiles of a panel | terms of a panel |
| outer | panels, one after the other, k innermost | the same |
| products | products of their own: instructions of a list | |

A state of two levels has panel and outer loops; its tile is, of those that fit into the panel, the one with the
fewest operands per term, and the lower of two like that. A state of three levels has the tile too, and one of four
products in front. Levels of k are always outer loops and panel. Operands in blocks along k need panels with whole
blocks, unless a panel is one tile or has all terms.
"""

import dataclasses
import enum

from hdl.compute.layer_list import MOST_INSTRUCTIONS
from host.compute.factors import Array
from host.tiling.space import Space, State
from sim.golden.gemm import GemmJob
from sim.golden.mac_array import SLOTS
from sim.golden.operands import operands_of

__all__ = ["Level", "Levels", "Nest", "Plan"]


class Level(enum.Enum):
    """Level of loops."""

    PRODUCTS = "products"
    OUTER = "outer"
    PANEL = "panel"
    TILE = "tile"


#: Levels of m and of n, the outermost first.
Levels = tuple[Level, ...]

#: Levels by their number, unless a space asks for others.
_LEVELS: dict[int, Levels] = {
    2: (Level.OUTER, Level.PANEL),
    3: (Level.OUTER, Level.PANEL, Level.TILE),
    4: (Level.PRODUCTS, Level.OUTER, Level.PANEL, Level.TILE),
}

#: Base-2 logarithm of the products that a list has room for beside its END.
_PRODUCTS: int = (MOST_INSTRUCTIONS - 1).bit_length() - 1


@dataclasses.dataclass(frozen=True)
class Plan:
    """Products that carry a state out, all alike.

    Members
    -------
    rows, columns : int
        Products that m and n are cut into.
    job : GemmJob
        Sizes and factors of each.
    """

    rows: int
    columns: int
    job: GemmJob

    @property
    def products(self) -> int:
        return self.rows * self.columns


@dataclasses.dataclass(frozen=True)
class Nest:
    """States of a space on an array.

    Parameters
    ----------
    space : Space
        With two levels of k.
    job : GemmJob
        Product without factors; its sizes may be below those of the space.
    levels : tuple of Level, optional
        Levels of m and n; by default those of their number.
    """

    space: Space
    array: Array
    job: GemmJob
    levels: Levels = ()

    def __post_init__(self) -> None:
        rows, terms, columns = self.space.depths
        if rows != columns or terms != 2 or not (self.levels or rows in _LEVELS):
            raise ValueError(f"Levels of m, k and n must be 2, 2 and 2, 3, 2 and 3, or 4, 2 and 4, not {rows}, "
                             f"{terms} and {columns}")
        if self.levels and len(self.levels) != rows:
            raise ValueError(f"Levels must be {rows} by name, not {len(self.levels)}")
        sizes = self.job.m, self.job.k, self.job.n
        if any(given > size for given, size in zip(sizes, self.space.sizes, strict=True)):
            raise ValueError(f"Sizes of a product must be at most those of its space, {self.space.sizes}, not "
                             f"{sizes}")
        if Level.PRODUCTS in self.names and sizes != self.space.sizes:
            raise ValueError(f"Sizes of a product that is cut into products must be {self.space.sizes}, not {sizes}")

    @property
    def names(self) -> Levels:
        """Levels of m and n, the outermost first."""
        return self.levels or _LEVELS[self.space.depths[0]]

    def plan(self, state: State) -> Plan | int:
        """Products that carry a state out, or by how many factors of two it does not fit."""
        m, n = (dict(zip(self.names, factors, strict=True)) for factors in (state[0], state[2]))
        rounds: int = state[1][1]
        tile, misfit = self._tile(m, n)
        # Blocks of panels, and products.
        inside = [sizes[Level.PANEL] + sizes.get(Level.TILE, 0) for sizes in (m, n)]
        lanes, room = (number.bit_length() - 1 for number in (self.array.lanes, self.array.blocks))
        misfit += sum(max(0, max(0, size - lanes) + max(0, rounds - lanes) - room) for size in inside)
        products = [sizes.get(Level.PRODUCTS, 0) for sizes in (m, n)]
        misfit += max(0, sum(products) - _PRODUCTS)
        # Panels that begin inside a row of memory: where there are several, and lines run along k or m.
        loops = self.job.loops
        if loops.align_k and state[1][0] and self.job.k > 1 << rounds:
            misfit += max(0, lanes - rounds)
        if loops.align_m and self.job.m > 1 << inside[0]:
            misfit += max(0, lanes - inside[0])
        # Panels that would part a block of operands: a panel of one tile may, since its sums stay in the array.
        block = operands_of(self.array.operands).terms.bit_length() - 1
        if inside != list(self._shape(tile)) and self.job.k > 1 << rounds:
            misfit += max(0, block - rounds)
        if misfit:
            return misfit
        job: GemmJob = dataclasses.replace(
            self.job, m=-(-self.job.m >> products[0]), n=-(-self.job.n >> products[1]), tile=tile, rounds=rounds,
            row_tiles=inside[0] - self._shape(tile)[0], column_tiles=inside[1] - self._shape(tile)[1])
        return Plan(1 << products[0], 1 << products[1], job)

    def _shape(self, tile: int) -> tuple[int, int]:
        """Base-2 logarithms of rows and columns of a tile."""
        rows, columns = self.array.rows << tile, self.array.lanes * (SLOTS >> tile)
        return rows.bit_length() - 1, columns.bit_length() - 1

    def _tile(self, m: dict[Level, int], n: dict[Level, int]) -> tuple[int, int]:
        """The form of a tile, and by how many factors of two the nearest one does not fit."""
        found = []
        for tile in range(SLOTS.bit_length()):
            rows, columns = self._shape(tile)
            if Level.TILE in m:
                misfit = abs(m[Level.TILE] - rows) + abs(n[Level.TILE] - columns)
            else:
                misfit = max(0, rows - m[Level.PANEL]) + max(0, columns - n[Level.PANEL])
            found.append((misfit, (1 << rows) + (1 << columns), rows, tile))
        misfit, _, _, tile = min(found)
        return tile, misfit
