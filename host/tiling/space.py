"""Space of the factors of a matrix product: states, the moves between them, and random ones.

A state has for each of m, k and n as many factors as there are levels, powers of two whose product is the size
(US20210200521A1; arXiv 1909.10616). States are neighbours if one follows from the other by moving a factor of two
from one level of a dimension to another.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator

import numpy as np

__all__ = ["Move", "Space", "State"]

#: Base-2 logarithms of the factors of m, k and n, that of the outermost level first.
State = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Move:
    """Factor of two that goes from a level of a dimension to another."""

    dimension: int
    source: int
    target: int


@dataclasses.dataclass(frozen=True)
class Space:
    """All states of a product.

    Parameters
    ----------
    sizes : tuple of int
        m, k and n: powers of two.
    depths : tuple of int
        Levels of each.

    Raises
    ------
    ValueError
        A size is not a power of two, or a dimension has no level.
    """

    sizes: tuple[int, int, int]
    depths: tuple[int, int, int]

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
        """All states."""
        for state in itertools.product(*(_splits(exponent, depth)
                                         for exponent, depth in zip(self.exponents, self.depths, strict=True))):
            yield state[0], state[1], state[2]

    @property
    def moves(self) -> list[Move]:
        """All moves, of which a state allows those whose source has a factor of two."""
        return [Move(dimension, source, target) for dimension, depth in enumerate(self.depths)
                for source, target in itertools.permutations(range(depth), 2)]

    @property
    def outermost(self) -> State:
        """State with all factors in the outermost levels."""
        m, k, n = ((exponent, *(0,) * (depth - 1))
                   for exponent, depth in zip(self.exponents, self.depths, strict=True))
        return m, k, n

    def contains(self, state: State) -> bool:
        """Whether this is a state of the space."""
        return all(len(factors) == depth and sum(factors) == exponent and min(factors) >= 0
                   for factors, depth, exponent in zip(state, self.depths, self.exponents, strict=True))

    @staticmethod
    def step(state: State, move: Move) -> State | None:
        """The neighbour that a move leads to, if there is one."""
        factors = list(state[move.dimension])
        if not factors[move.source]:
            return None
        factors[move.source] -= 1
        factors[move.target] += 1
        m, k, n = (tuple(factors) if dimension == move.dimension else given for dimension, given in enumerate(state))
        return m, k, n

    def neighbours(self, state: State) -> list[State]:
        """All neighbours of a state."""
        return [found for found in (self.step(state, move) for move in self.moves) if found is not None]

    def random(self, generator: np.random.Generator) -> State:
        """A state, each with the same probability."""
        m, k, n = (self.split(exponent, sorted(generator.choice(exponent + depth - 1, depth - 1, replace=False)))
                   for exponent, depth in zip(self.exponents, self.depths, strict=True))
        return m, k, n

    @staticmethod
    def split(exponent: int, bars: list[int]) -> tuple[int, ...]:
        """Factors that different bars in ascending order cut out of so many twos in a row, bars among them."""
        ends = [-1, *map(int, bars), exponent + len(bars)]
        return tuple(after - before - 1 for before, after in itertools.pairwise(ends))


def _splits(exponent: int, depth: int) -> list[tuple[int, ...]]:
    """All factors of a dimension."""
    return [Space.split(exponent, list(bars))
            for bars in itertools.combinations(range(exponent + depth - 1), depth - 1)]
