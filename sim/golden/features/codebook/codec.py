"""Golden model of the codec that encodes weights as indices of centroids."""

import dataclasses

import numpy as np
import numpy.typing as npt

from sim.golden.codecs import Span, codebook_of, whole_words
from sim.golden.features.codebook.centroid import CentroidTable
from sim.golden.planes import GROUP

__all__ = ["CentroidCodec"]

Bits = npt.NDArray[np.uint32]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CentroidCodec:
    """Codec that sends weights as indices of the nearest centroids."""

    code: int
    centroids: int
    codebook: tuple[int, ...] = ()  # centroids as binary32 bits, in ascending order; all zero by default
    bounds: tuple[int, ...] = ()  # bounds between centroids, as bits

    weights = True
    gradients = False
    exact = False
    sums_coded = False
    agreed = False
    block = GROUP

    @property
    def table(self) -> CentroidTable:
        """Parameters of the packet format with preloaded centroids."""
        return CentroidTable(centroids=self.centroids, loaded=True)

    @property
    def codebook_words(self) -> int:
        """Number of words in a node's codebook, which holds the bounds, an unused word and the centroids."""
        return 2 * self.centroids

    def max_words(self, count: int) -> int:
        """Return the number of words in a packet of ``count`` elements."""
        return self.table.words(count)

    def bind(self, centroids: npt.ArrayLike) -> "CentroidCodec":
        """Return this codec with a codebook, given as the bits of finite binary32 numbers in ascending order."""
        numbers = codebook_of(centroids, self.centroids)
        return dataclasses.replace(self, codebook=numbers, bounds=tuple(self.table.bounds(numbers).tolist()))

    def encode(self, bits: npt.ArrayLike) -> Bits:
        """Return the words of a packet of elements; an empty packet has no words."""
        elements = np.asarray(bits, np.uint32)
        if not len(elements):
            return np.zeros(0, np.uint32)
        return self.table.encode(self.table.nearest(elements, self.bounds or (0,) * (self.centroids - 1)))

    def decode(self, words: npt.ArrayLike, count: int | None = None) -> Bits:
        """Return the elements of a packet: the first ``count``, or all of its groups."""
        packet = np.asarray(words, np.uint32)
        if not len(packet):
            return np.zeros(0, np.uint32)
        return self.table.decode(packet, count, self.codebook or (0,) * self.centroids)

    def span(self, words: npt.ArrayLike, count: int) -> Span:
        """Return the span of a packet of ``count`` elements, with missing data counted in words."""
        return whole_words(self.max_words(count), len(np.asarray(words)))
