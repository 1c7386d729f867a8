"""Packet costs: elements, words and positions of each segment of each block at each hop.

If the number of elements determines the number of words, costs equal :mod:`sim.golden.ring`'s exactly; for
zero-value compression with a given density they are expected values. No gradients are needed, so costs are available
for rings of any size, segment by segment. In short segments with zeros in the same positions on all nodes, the number
of nonzero elements per block follows a binomial distribution, and all blocks wait for the fullest one. If gradients
are available, :class:`CountedCosts` counts their zeros.
"""

import dataclasses
import enum
import functools
import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hdl.choices import choice_error
from hdl.compression.registry import RAW, ZERO_VALUE
from sim.golden.codecs import CODECS, GRADIENT_CODECS, WEIGHT_CODECS, is_agreed
from sim.golden.ring import GROUP, segment_indices

__all__ = ["Costs", "CountedCosts", "Format", "Zeros", "check_gradients"]

Numbers: TypeAlias = npt.NDArray[np.int64]

#: Fractional part of the golden ratio; its multiples modulo 1 are evenly spread but irregular.
_GOLDEN = (math.sqrt(5) - 1) / 2


def check_gradients(name: str) -> None:
    """Raise ``ValueError`` unless the packets of a gradient codec can be predicted.

    Codecs that sum integers cannot be predicted, because their packets also contain exponents of other segments.
    """
    if name not in GRADIENT_CODECS:
        names = [known for known, codec in GRADIENT_CODECS.items() if not is_agreed(codec)]
        raise ValueError(choice_error("Codec of gradients", names, name))
    if is_agreed(GRADIENT_CODECS[name]):
        raise ValueError(f"Codec of gradients must not sum integers to be predicted, as {name} does (packets also "
                         f"contain the exponents of other segments): choose another one, such as {RAW}")


class Zeros(enum.Enum):
    """Positions of the zeros in gradients."""

    TOGETHER = "together"
    """Zeros are in the same positions on all nodes, so sums have the same number of zeros."""
    APART = "apart"
    """Zeros are in random positions, different on each node, so sums have fewer zeros after each hop."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
    """Encodings of gradients and weights on the links."""

    #: Codec names for gradients and for weights.
    gradients: str = ZERO_VALUE
    weights: str = RAW
    #: Fraction of nonzero gradients on each node.
    density: float = 1.0
    #: Positions of the zeros in gradients.
    zeros: Zeros = Zeros.TOGETHER

    def __post_init__(self) -> None:
        check_gradients(self.gradients)
        if self.weights not in WEIGHT_CODECS:
            raise ValueError(choice_error("Codec of weights", WEIGHT_CODECS, self.weights))
        if not 0 <= self.density <= 1:
            raise ValueError(f"Density must be from 0 to 1, not {self.density!r}")

    def after(self, gradients: int) -> float:
        """Density of a sum of ``gradients`` gradients."""
        if gradients == 0:
            return 0.0
        return self.density if self.zeros is Zeros.TOGETHER else 1 - (1 - self.density) ** gradients


@functools.cache
def _binomial(count: int, density: float) -> npt.NDArray[np.float64]:
    """Return the probabilities that at most 0, 1, … of ``count`` elements are nonzero."""
    terms = np.ones(1)
    for _ in range(count):  # products and sums only, which are identical on every processor
        terms = np.append(terms * (1 - density), 0) + np.append(0, terms * density)
    return np.asarray(np.minimum(np.cumsum(terms), 1))


class Costs:
    """Costs of all packets that transfer a vector.

    Methods take a segment and a block's distance from the rank, and return an array over ranks.

    Parameters
    ----------
    length, nodes, segment : int
        Number of elements in the vector, number of ranks, and number of elements in a segment.
    sums : bool
        Whether sums are gathered, as in an all-reduce, instead of weights.
    """

    def __init__(self, form: Format, *, length: int, nodes: int, segment: int, sums: bool):
        self.form, self.length, self.nodes, self.segment, self.sums = form, length, nodes, segment, sums
        if nodes < 2:
            raise ValueError(f"Ring must have at least 2 nodes, not {nodes!r}")
        if length < 1:
            raise ValueError(f"Vector must have at least one element, not {length!r}")
        groups, rest = divmod(length, GROUP)
        each, more = divmod(groups, nodes)
        self.ranks = np.arange(nodes)
        self.sizes = GROUP * (each + (self.ranks < more)) + rest * (self.ranks == more)
        self.segments = int(-(-self.sizes.max(initial=0) // segment))
        self._spread: dict[int, Numbers] = {}
        #: Number of words in a packet, indexed by its number of elements.
        self._tables = {
            name: np.array([CODECS[name].max_words(count) for count in range(segment + 1)], dtype=np.int64)
            for name in (form.gradients, form.weights) if not CODECS[name].sums_coded}

    def elements(self, segment: int, distance: int) -> Numbers:
        """Return, for each rank, the number of elements in a segment of block rank + ``distance``."""
        blocks = (self.ranks + distance) % self.nodes
        return np.asarray(np.clip(self.sizes[blocks] - self.segment * segment, 0, self.segment))

    @property
    def full(self) -> int:
        """Number of leading segments with the same costs in every block."""
        return int(self.sizes.min() // self.segment)

    def scatter(self, hop: int, segment: int, distance: int) -> Numbers:
        """Return the number of payload words of packets with sums of ``hop`` + 1 gradients."""
        elements = self.elements(segment, distance)
        if self.form.gradients in self._tables:
            return np.asarray(self._tables[self.form.gradients][elements])
        return np.asarray(-(-elements // GROUP) + self._nonzeros(hop, segment, distance))

    def positions(self, hop: int, segment: int, distance: int) -> Numbers:
        """Count the positions that are nonzero in a sum of ``hop`` gradients or in the gradient added to it."""
        return self._nonzeros(hop, segment, distance)

    def own(self, hop: int, segment: int, distance: int) -> Numbers:
        """Number of words, in zero-value form, of the gradient that is added to a sum of ``hop`` gradients."""
        return self.scatter(0, segment, distance)

    def gather(self, segment: int, distance: int) -> Numbers:
        """Payload words of packets with finished blocks."""
        if self.sums:
            return self.scatter(self.nodes - 1, segment, distance)
        return np.asarray(self._tables[self.form.weights][self.elements(segment, distance)])

    def _nonzeros(self, hop: int, segment: int, distance: int) -> Numbers:
        """Return the number of nonzero elements in a sum of ``hop`` + 1 gradients."""
        if self.form.zeros is Zeros.TOGETHER and 0 < self.form.density < 1 and segment >= self.full:
            if segment not in self._spread:
                self._spread[segment] = self._spread_over(segment)
            return np.asarray(self._spread[segment][(self.ranks + distance) % self.nodes])
        return np.asarray(np.rint(self.form.after(hop + 1) * self.elements(segment, distance)).astype(np.int64))

    def _spread_over(self, segment: int) -> Numbers:
        """Model the number of nonzero elements of a segment in each block: quantiles of a binomial distribution,
        assigned to the blocks in an irregular order."""
        elements = np.clip(self.sizes - self.segment * segment, 0, self.segment)
        nonzeros = np.zeros(self.nodes, dtype=np.int64)
        for count in np.unique(elements):
            ranks = np.flatnonzero(elements == count)
            order = np.argsort((ranks + segment * self.nodes) * _GOLDEN % 1)
            quantiles = (np.arange(len(ranks)) + 0.5) / len(ranks)
            nonzeros[ranks[order]] = np.searchsorted(_binomial(int(count), self.form.density), quantiles)
        return nonzeros


class CountedCosts(Costs):
    """Costs of zero-value gradients of shape (nodes, length), with zeros counted instead of predicted from a
    density."""

    def __init__(self, form: Format, gradients: npt.NDArray[np.float32], *, segment: int, sums: bool):
        nodes, length = gradients.shape
        super().__init__(form, length=length, nodes=nodes, segment=segment, sums=sums)
        there = gradients != 0
        shape = nodes, self.segments, nodes
        self._sums, self._own = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        for block, parts in enumerate(segment_indices(length, nodes, segment)):
            for number, index in enumerate(parts):
                order = there[:, index][(np.arange(nodes) + block) % nodes]
                self._own[:, number, block] = order.sum(axis=1)
                self._sums[:, number, block] = np.logical_or.accumulate(order).sum(axis=1)

    @property
    def full(self) -> int:
        """Number of leading segments with equal costs. It is zero, because counted segments all differ."""
        return 0

    def own(self, hop: int, segment: int, distance: int) -> Numbers:
        blocks = (self.ranks + distance) % self.nodes
        return np.asarray(-(-self.elements(segment, distance) // GROUP) + self._own[hop, segment, blocks])

    def _nonzeros(self, hop: int, segment: int, distance: int) -> Numbers:
        return np.asarray(self._sums[hop, segment, (self.ranks + distance) % self.nodes])
