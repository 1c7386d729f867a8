"""Golden model of table-based compression, from elements to words and back.

Elements are bit patterns; words are ``uint32``. A mantissa is represented by the index of its bin or of the nearest
centroid. Only the highest :data:`COMPARED` bits of a fraction are compared with the bounds between centroids.
"""

import dataclasses

import numpy as np
import numpy.typing as npt

from sim.golden import planes
from sim.golden.float_format import FP32, FloatFormat

__all__ = ["COMPARED", "LookupTable"]

Bits = npt.NDArray[np.uint32]

#: Number of high fraction bits used to select the nearest centroid.
COMPARED = 12


@dataclasses.dataclass(frozen=True, kw_only=True)
class LookupTable:
    """Parameters of the format, and quantities derived from them."""

    format: FloatFormat = FP32  # format of the elements
    mantissas: int = 32  # number of representatives of the fractions: 8, 16, 32, 64 or 128
    centroids: bool = False  # whether mantissas are represented by centroids, not by midpoints of equally wide bins
    exponents: int = 256  # maximum number of exponents in a table
    loaded: bool = False  # whether the host loads the centroids into decoders, so that packets omit them

    def __post_init__(self) -> None:
        if self.mantissas not in (8, 16, 32, 64, 128):
            raise ValueError(f"Mantissa count must be 8, 16, 32, 64 or 128, not {self.mantissas!r}")
        if self.loaded and not self.centroids:
            raise ValueError(f"Loading must be False without centroids, not {self.loaded!r}")

    @property
    def sent(self) -> bool:
        """Whether centroids are included in every packet."""
        return self.centroids and not self.loaded

    @property
    def mantissa_bits(self) -> int:
        """Width of a mantissa index in bits."""
        return (self.mantissas - 1).bit_length()

    @property
    def width(self) -> int:
        """Maximum number of bits in a code."""
        return self.code_width(self.exponents)

    def code_width(self, exponents: int) -> int:
        """Return the bits per code (sign, mantissa, exponent) with ``exponents`` distinct exponents."""
        return 1 + self.mantissa_bits + (exponents - 1).bit_length()

    def bits(self, count: int, exponents: int) -> int:
        """Return the number of bits of ``count`` elements and their tables, without the end mark."""
        centroids = self.mantissas * self.format.fraction_bits if self.sent else 0
        return count * self.code_width(exponents) + 8 * exponents + centroids

    def words(self, count: int, exponents: int) -> int:
        """Return the number of words for ``count`` elements with ``exponents`` distinct exponents."""
        centroid_bytes = self.mantissas * self.format.fraction_bits // 8 if self.sent else 0
        front = exponents + 1 + centroid_bytes
        groups = (count + planes.GROUP - 1) // planes.GROUP
        return (front + 3) // 4 + groups * self.code_width(exponents)

    def encode(self, elements: npt.ArrayLike, centroids: npt.ArrayLike | None = None) -> Bits:
        """Compress one or more elements, given as bit patterns in the format. Pass centroids (one fraction per
        mantissa index, in ascending order) only if the parameters require them."""
        values = np.asarray(elements, np.uint32)
        if not len(values):
            raise ValueError("Elements must be at least one, not none")
        table = np.unique(self.exponents_of(values))
        if len(table) > self.exponents:
            raise ValueError(f"Distinct exponents must be at most {self.exponents!r}, not {len(table)!r}")
        return np.concatenate([self.preamble(table, centroids), planes.pack(
            self.codes(values, table, centroids), self.code_width(len(table)))])

    def decode(self, words: npt.ArrayLike, count: int | None = None, centroids: npt.ArrayLike | None = None) -> Bits:
        """Decode ``count`` elements, or whole groups, from words; pass ``centroids`` only if they are loaded."""
        stream = np.asarray(words, np.uint32)
        data = stream.astype("<u4").view(np.uint8)
        table: list[int] = []
        for exponent in data.tolist():
            if table and exponent <= table[-1]:
                break
            table.append(exponent)
        else:
            raise ValueError("Stream must hold a table of exponents, not end inside of it")
        if exponent != table[-1] or len(table) > self.exponents:
            raise ValueError(f"Exponents must be at most {self.exponents!r} in ascending order, not "
                             f"{[*table, exponent]!r}")
        start = len(table) + 1
        bits = self.format.fraction_bits
        if self.sent:
            stop = start + bits * self.mantissas // 8
            centroids = planes.fields(data[start:stop], bits, self.mantissas)
            start = stop
        codes = planes.unpack(stream[-(-start // 4):], self.code_width(len(table)))
        elements = self.elements(codes, np.array(table, np.uint32), centroids)
        if count is None:
            return elements
        if not len(elements) - planes.GROUP < count <= len(elements):
            raise ValueError(f"Element count must end in the last group of {len(elements)} elements, not {count!r}")
        return elements[:count]

    def exponents_of(self, elements: npt.ArrayLike) -> Bits:
        """Extract the exponent field of each element."""
        values = np.asarray(elements, np.uint32)
        exponents: Bits = (values >> self.format.fraction_bits & self.format.exponent_ones).astype(np.uint32)
        return exponents

    def preamble(self, table: npt.ArrayLike, centroids: npt.ArrayLike | None = None) -> Bits:
        """Words before the codes: the exponents, with the last one repeated as an end mark, and the centroids."""
        exponents = np.asarray(table, np.uint8)
        parts = [exponents, exponents[-1:]]
        if self.sent:
            parts.append(planes.field_bytes(self._checked(centroids), self.format.fraction_bits))
        return planes.bytes_to_words(np.concatenate(parts))

    def codes(self, elements: npt.ArrayLike, table: npt.ArrayLike, centroids: npt.ArrayLike | None = None) -> Bits:
        """Code of each element, which consists of sign, mantissa index and exponent index, from the lowest bit up."""
        values = np.asarray(elements, np.uint32)
        exponents = self.exponents_of(values)
        sign = values >> (self.format.width - 1)
        codes = (sign | self.mantissa_indices(values, centroids) << 1
                 | np.searchsorted(table, exponents).astype(np.uint32) << (1 + self.mantissa_bits))
        return codes.astype(np.uint32)

    def mantissa_indices(self, elements: npt.ArrayLike, centroids: npt.ArrayLike | None = None) -> Bits:
        """Compute the mantissa index of each element."""
        values = np.asarray(elements, np.uint32)
        bits = self.format.fraction_bits
        fractions = values & ((1 << bits) - 1)
        if self.centroids:
            indices = np.searchsorted(self.bounds(centroids), fractions >> self.compared_shift, side="right")
        else:
            indices = fractions >> (bits - self.mantissa_bits)
        exponents = self.exponents_of(values)
        special = (exponents == 0) | (exponents == self.format.exponent_ones)
        kept = np.where(fractions == 0, 0, np.maximum(indices, 1))
        result: Bits = np.where(special, kept, indices).astype(np.uint32)
        return result

    @property
    def compared_shift(self) -> int:
        """Number of low fraction bits that are ignored when searching for the centroid."""
        shift: int = max(self.format.fraction_bits - COMPARED, 0)
        return shift

    def bounds(self, centroids: npt.ArrayLike | None) -> Bits:
        """Bounds between centroids, with only the compared bits. A bound is just above the midpoint of two
        centroids."""
        table = self._checked(centroids).astype(np.int64)
        shift = self.compared_shift
        # Fractions with equal compared bits form a range, which is represented by its midpoint.
        middle = 1 << shift if shift else 0
        bounds = (table[:-1] + table[1:] - middle) // (2 << shift) + 1
        limited: Bits = np.minimum(bounds, (1 << (self.format.fraction_bits - shift)) - 1).astype(np.uint32)
        return limited

    def load_words(self, centroids: npt.ArrayLike) -> Bits:
        """Words that the host loads into encoders: the bounds and, if packets carry them, the centroids."""
        if not self.sent:
            return self.bounds(centroids)
        packed = planes.field_bytes(self._checked(centroids), self.format.fraction_bits)
        return np.concatenate([self.bounds(centroids), planes.bytes_to_words(packed)])

    def mantissa_table(self, centroids: npt.ArrayLike | None = None) -> Bits:
        """Fraction that each mantissa index represents: a centroid, or the midpoint of a bin."""
        if self.centroids:
            return self._checked(centroids)
        dropped = self.format.fraction_bits - self.mantissa_bits
        table: Bits = (np.arange(self.mantissas, dtype=np.uint32) << dropped).astype(np.uint32)
        return table | np.uint32(1 << (dropped - 1)) if dropped else table

    def elements(self, codes: npt.ArrayLike, table: npt.ArrayLike, centroids: npt.ArrayLike | None = None) -> Bits:
        """Decode codes to elements."""
        values = np.asarray(codes, np.uint32)
        indices = values >> 1 & (self.mantissas - 1)
        places = values >> (1 + self.mantissa_bits)
        exponents = np.asarray(table, np.uint32)
        if len(places) and places.max() >= len(exponents):
            raise ValueError(f"Exponent index must be less than {len(exponents)!r}, not {int(places.max())!r}")
        chosen = exponents[places]
        zero = ((chosen == 0) | (chosen == self.format.exponent_ones)) & (indices == 0)
        fractions = np.where(zero, 0, self.mantissa_table(centroids)[indices])
        bits = self.format.fraction_bits
        elements: Bits = ((values & 1) << (self.format.width - 1) | chosen << bits | fractions).astype(np.uint32)
        return elements

    def _checked(self, centroids: npt.ArrayLike | None) -> Bits:
        if centroids is None:
            raise ValueError("Centroids must be given for a table of centroids, not None")
        table = np.asarray(centroids, np.uint32)
        # Loaded centroids are all zero until the host writes them.
        least = 0 if self.loaded else 1
        if len(table) != self.mantissas or (np.diff(table.astype(np.int64)) < least).any():
            raise ValueError(f"Centroids must be {self.mantissas!r} in ascending order, not {table.tolist()!r}")
        if table[-1] >> self.format.fraction_bits:
            raise ValueError(f"Centroids must be of {self.format.fraction_bits!r} bits, not {int(table[-1])!r}")
        return table
