"""Golden model of the codec that encodes weights with tables of exponents and fractions."""

import dataclasses

import numpy as np
import numpy.typing as npt

from sim.golden.codecs import Span, codebook_of
from sim.golden.features.table.lookup_table import LookupTable
from sim.golden.planes import GROUP

__all__ = ["TableCodec"]

Bits = npt.NDArray[np.uint32]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableCodec:
    """Table-encoded weights: exact sign and exponent, and the centroid nearest to the fraction."""

    code: int
    centroids: int  # number of centroids for fractions
    codebook: tuple[int, ...] = ()  # fractions in ascending order; all zero by default

    weights = True
    gradients = False
    exact = False
    sums_coded = False
    agreed = False
    block = GROUP

    @property
    def table(self) -> LookupTable:
        """Parameters of the packet format with preloaded centroids."""
        return LookupTable(mantissas=self.centroids, centroids=True, loaded=True)

    @property
    def codebook_words(self) -> int:
        """Number of words in a node's codebook: the bounds, one unused word, and the centroids."""
        return 2 * self.centroids

    def max_words(self, count: int) -> int:
        """Return the number of words in a packet of ``count`` elements with ``distinct`` exponents."""
        return self.table.words(count, min(count, 256)) if count else 0

    def bind(self, centroids: npt.ArrayLike) -> "TableCodec":
        """Return the codec with the given codebook, a list of fractions in ascending order."""
        numbers = codebook_of(centroids, self.centroids)
        self.table.bounds(numbers)
        return dataclasses.replace(self, codebook=numbers)

    @property
    def _codebook(self) -> tuple[int, ...]:
        return self.codebook or (0,) * self.centroids

    def encode(self, bits: npt.ArrayLike) -> Bits:
        """Return the words of a packet of elements; with no elements, there are no words."""
        elements = np.asarray(bits, np.uint32)
        return self.table.encode(elements, self._codebook) if len(elements) else np.zeros(0, np.uint32)

    def decode(self, words: npt.ArrayLike, count: int | None = None) -> Bits:
        """Return the elements of a packet: the first ``count``, or whole groups."""
        packet = np.asarray(words, np.uint32)
        return self.table.decode(packet, count, self._codebook) if len(packet) else np.zeros(0, np.uint32)

    def span(self, words: npt.ArrayLike, count: int) -> Span:
        """Find the span of a packet of ``count`` elements, with missing data counted in groups.

        A word is invalid if its exponents are not in ascending order.
        """
        stream = np.asarray(words, np.uint32)
        groups = -(-count // GROUP)
        if not groups:
            return 0, 0, False
        exponents: list[int] = []
        for position, exponent in enumerate(stream.astype("<u4").view(np.uint8).tolist()):
            if exponents and exponent < exponents[-1]:
                return position // 4, groups, True
            if exponents and exponent == exponents[-1]:
                break
            exponents.append(exponent)
        else:
            return len(stream), groups, False
        width, start = self.table.code_width(len(exponents)), position // 4 + 1
        whole = min((len(stream) - start) // width, groups)
        return min(len(stream), start + width * groups), groups - whole, False
