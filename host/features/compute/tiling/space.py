"""Search space of a matrix product's factors: states, moves, and their effect on a node's engine.

A state consists of a factor for each level of m, k and n: powers of two with the size as their product
(US20210200521A1; arXiv 1909.10616). States are neighbours if one results from the other by moving a factor of two
from one level of a dimension to another.

| level | m and n | k |
|---|---|---|
| tile | register tile: 4 x 32, 8 x 16 and so on, outputs that the array computes at a time | |
| panel | tiles of a panel | terms of a panel |
| outer | panels, one after another, with k innermost | the same |
| products | separate products: instructions of a list | |

A state with two levels has panel and outer loops; its tile is the one that fits into the panel with the fewest
operands per term, or the one with fewer rows if two are equal. A state with three levels also has the tile, and a
state with four levels has the products as the outermost level. The levels of k are always outer loops and panel.
Operands in blocks along k require panels of whole blocks, unless a panel is a single tile or contains all terms.
"""

import dataclasses
import enum
import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np

from hdl.features.compute.layer_list import MAX_INSTRUCTIONS
from host.features.compute.instructions import Array
from sim.golden.features.compute.gemm import GemmJob
from sim.golden.features.compute.mac_array import SLOTS
from sim.golden.operands import operands_of

__all__ = ["Cost", "Evaluations", "ExhaustedError", "Level", "Levels", "Move", "Nest", "Plan", "Space", "State"]

#: Base-2 logarithms of the factors of m, k and n, from the outermost level to the innermost.
State = tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class Move:
    """Move of a factor of two from one level of a dimension to another."""

    dimension: int
    source: int
    target: int


@dataclasses.dataclass(frozen=True)
class Space:
    """All states of a product; raises ``ValueError`` if a size is not a power of two or a level is missing."""

    sizes: tuple[int, int, int]  # m, k and n: powers of two
    depths: tuple[int, int, int]  # number of levels of m, k and n

    def __post_init__(self) -> None:
        for size in self.sizes:
            if size < 1 or size & (size - 1):
                raise ValueError(f"Sizes of a space must be powers of two, not {size!r}")
        if min(self.depths) < 1:
            raise ValueError(f"Levels of a dimension must be at least 1, not {min(self.depths)!r}")

    @property
    def exponents(self) -> tuple[int, ...]:
        """Base-2 logarithms of the sizes."""
        return tuple(size.bit_length() - 1 for size in self.sizes)

    def __len__(self) -> int:
        """Number of states."""
        return math.prod(math.comb(exponent + depth - 1, depth - 1)
                         for exponent, depth in zip(self.exponents, self.depths, strict=True))

    def __iter__(self) -> Iterator[State]:
        """Iterate over all states."""
        return itertools.product(*(
            [self.split(exponent, list(bars))
             for bars in itertools.combinations(range(exponent + depth - 1), depth - 1)]
            for exponent, depth in zip(self.exponents, self.depths, strict=True)))

    @property
    def moves(self) -> list[Move]:
        """All moves of a factor of two between two levels of a dimension. A move is possible only in a state whose
        source level contains a factor of two."""
        return [Move(dimension, source, target) for dimension, depth in enumerate(self.depths)
                for source, target in itertools.permutations(range(depth), 2)]

    @staticmethod
    def step(state: State, move: Move) -> State | None:
        """Return the neighbour that a move leads to, or None if the move is not possible."""
        factors = list(state[move.dimension])
        if not factors[move.source]:
            return None
        factors[move.source] -= 1
        factors[move.target] += 1
        return (*state[:move.dimension], tuple(factors), *state[move.dimension + 1:])

    def neighbours(self, state: State) -> list[State]:
        """Return all neighbours of a state."""
        return [other for move in self.moves if (other := self.step(state, move)) is not None]

    def random(self, generator: np.random.Generator) -> State:
        """Return a random state; all states are equally likely."""
        return tuple(self.split(exponent, sorted(generator.choice(exponent + depth - 1, depth - 1, replace=False)))
                     for exponent, depth in zip(self.exponents, self.depths, strict=True))

    @staticmethod
    def split(exponent: int, bars: list[int]) -> tuple[int, ...]:
        """Split ``exponent`` factors of two at the sorted positions ``bars`` (stars and bars). Returns the number of
        factors in each part."""
        ends = [-1, *map(int, bars), exponent + len(bars)]
        return tuple(after - before - 1 for before, after in itertools.pairwise(ends))


class Level(enum.Enum):
    """Loop levels of a matrix product."""

    PRODUCTS = "products"
    OUTER = "outer"
    PANEL = "panel"
    TILE = "tile"


#: Levels of m and n, from the outermost to the innermost.
Levels = tuple[Level, ...]

#: Default levels, keyed by their number.
_LEVELS: dict[int, Levels] = {
    2: (Level.OUTER, Level.PANEL),
    3: (Level.OUTER, Level.PANEL, Level.TILE),
    4: (Level.PRODUCTS, Level.OUTER, Level.PANEL, Level.TILE),
}

#: Base-2 logarithm of the maximum number of products in a list; the last instruction of a list is END.
_PRODUCTS: int = (MAX_INSTRUCTIONS - 1).bit_length() - 1


@dataclasses.dataclass(frozen=True)
class Plan:
    """Grid of equal products that implements a state of the search space."""

    #: Number of equal parts into which each of the dimensions m and n is divided.
    rows: int
    columns: int
    job: GemmJob  # sizes and factors of each product

    @property
    def products(self) -> int:
        return self.rows * self.columns


@dataclasses.dataclass(frozen=True)
class Nest:
    """Maps the states of a space of tiling factors to products on an array."""

    #: Search space, in which k has two levels.
    space: Space
    array: Array
    job: GemmJob  # product without tiling factors; its sizes may be smaller than the sizes of the space
    levels: Levels = ()  # levels of m and n; the default depends on how many there are

    def __post_init__(self) -> None:
        rows, terms, columns = self.space.depths
        if rows != columns or terms != 2 or not (self.levels or rows in _LEVELS):
            raise ValueError(f"Levels of m, k and n must be 2, 2 and 2, 3, 2 and 3, or 4, 2 and 4, not {rows}, "
                             f"{terms} and {columns}")
        if self.levels and len(self.levels) != rows:
            raise ValueError(f"Levels must be {rows} by name, not {len(self.levels)}")
        sizes = self.job.m, self.job.k, self.job.n
        if any(actual > size for actual, size in zip(sizes, self.space.sizes, strict=True)):
            raise ValueError(f"Sizes of a product must be at most those of its space, {self.space.sizes}, not "
                             f"{sizes}")
        if Level.PRODUCTS in self.names and sizes != self.space.sizes:
            raise ValueError(f"Sizes of a product that is cut into products must be {self.space.sizes}, not {sizes}")

    @property
    def names(self) -> Levels:
        """Levels of m and n, from the outermost to the innermost."""
        return self.levels or _LEVELS[self.space.depths[0]]

    def plan(self, state: State) -> Plan | int:
        """Return the plan for a state. If it does not fit, return by how many factors of two it is too large."""
        m, n = (dict(zip(self.names, factors, strict=True)) for factors in (state[0], state[2]))
        rounds: int = state[1][1]
        tile, misfit = self._tile(m, n)
        # Add the factors of two by which panels exceed their blocks, and products exceed their limit.
        inside = [sizes[Level.PANEL] + sizes.get(Level.TILE, 0) for sizes in (m, n)]
        lanes, room = (number.bit_length() - 1 for number in (self.array.lanes, self.array.blocks))
        misfit += sum(max(0, max(0, size - lanes) + max(0, rounds - lanes) - room) for size in inside)
        products = [sizes.get(Level.PRODUCTS, 0) for sizes in (m, n)]
        misfit += max(0, sum(products) - _PRODUCTS)
        # If operands are stored in lines along k or m, each panel must start at the beginning of a memory row.
        loops = self.job.loops
        if loops.align_k and state[1][0] and self.job.k > 1 << rounds:
            misfit += max(0, lanes - rounds)
        if loops.align_m and self.job.m > 1 << inside[0]:
            misfit += max(0, lanes - inside[0])
        # Panels must not split a block of operands, but a single tile may, since its sums stay in the array.
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
        """Return log2 of the number of rows and of columns of a tile."""
        rows, columns = self.array.rows << tile, self.array.lanes * (SLOTS >> tile)
        return rows.bit_length() - 1, columns.bit_length() - 1

    def _tile(self, m: dict[Level, int], n: dict[Level, int]) -> tuple[int, int]:
        """Return the number of the tile shape closest to a state, and how many factors of two they differ by."""
        forms = []
        for tile in range(SLOTS.bit_length()):
            rows, columns = self._shape(tile)
            if Level.TILE in m:
                misfit = abs(m[Level.TILE] - rows) + abs(n[Level.TILE] - columns)
            else:
                misfit = max(0, rows - m[Level.PANEL]) + max(0, columns - n[Level.PANEL])
            forms.append((misfit, (1 << rows) + (1 << columns), rows, tile))
        misfit, _, _, tile = min(forms)
        return tile, misfit


#: Function that returns the number of cycles for the products of a plan.
Cost = Callable[[Plan], int]


class ExhaustedError(Exception):
    """The budget is exhausted, or all states have been evaluated."""


class Evaluations:
    """Evaluated states of a search with their costs, limited by a budget of evaluations.

    A state that does not fit the array also counts as an evaluation. It costs more than any state that fits, and more
    for each excess factor of two, which guides a search that starts there to states that fit.
    """

    def __init__(self, nest: Nest, cost: Cost, budget: int):
        self.nest = nest
        self._cost = cost
        self._most = min(budget, len(nest.space))
        self.costs: dict[State, int] = {}  # cost of each state, in order of evaluation
        self.measured = 0  # number of evaluations of states that fit
        #: Lowest cost after each evaluation. Until a state fits, costs of states that do not fit are included.
        self.curve: list[int] = []
        self.best: State | None = None  # first state with the lowest cost

    @property
    def worst(self) -> int:
        """Number of cycles that a single unit would take: an upper bound for any plan."""
        job = self.nest.job
        return 8 * job.m * job.k * job.n

    @property
    def left(self) -> int:
        """Number of evaluations that remain."""
        return self._most - len(self.costs)

    def cost(self, state: State) -> int:
        """Return the cost of a state; raises ``ExhaustedError`` if it is unknown and the budget is exhausted."""
        if state in self.costs:
            return self.costs[state]
        if not self.left:
            raise ExhaustedError
        plan = self.nest.plan(state)
        self.measured += isinstance(plan, Plan)
        cost = self.costs[state] = self._cost(plan) if isinstance(plan, Plan) else self.worst * (1 + plan)
        if not self.curve or cost < self.curve[-1]:
            self.best = state
        self.curve.append(min([cost, *self.curve[-1:]]))
        return cost

    def reward(self, state: State) -> float:
        """Efficiency of a state: number of cycles that a fully used array would need, divided by the cost of the
        state."""
        job, array = self.nest.job, self.nest.array
        return job.m * job.k * job.n / (array.rows * array.lanes) / self.cost(state)
