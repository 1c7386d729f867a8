"""Golden model of table-based compression: words, elements, and every cycle of the encoder and the decoder.

Elements are bit patterns, words ``uint32``. A mantissa is represented by the number of its bin or by that of the
nearest centroid. Fractions are compared with the bounds between centroids by their highest :data:`COMPARED` bits.
"""

import dataclasses

import numpy as np
import numpy.typing as npt

from hdl.compression import lookup_table as hardware
from sim.golden import planes

__all__ = ["COMPARED", "LookupTable"]

Bits = npt.NDArray[np.uint32]

#: Highest bits of a fraction by which the nearest centroid is found.
COMPARED = 12


@dataclasses.dataclass(frozen=True, kw_only=True)
class LookupTable(hardware.LookupTable):
    """The parameters, and the values that come of them."""

    def encode(self, elements: npt.ArrayLike, centroids: npt.ArrayLike | None = None) -> Bits:
        """Compress elements, of which there is at least one.

        Parameters
        ----------
        elements : array
            Encodings of the format.
        centroids : array or None
            Fractions in ascending order, as many as there are mantissas; only where the parameters say so.
        """
        given = np.asarray(elements, np.uint32)
        if not len(given):
            raise ValueError("Elements must be at least one, not none")
        table = np.unique(self.exponents_of(given))
        if len(table) > self.exponents:
            raise ValueError(f"Distinct exponents must be at most {self.exponents!r}, not {len(table)!r}")
        return np.concatenate([self.preamble(table, centroids), planes.pack(
            self.codes(given, table, centroids), self.code_width(len(table)))])

    def decode(self, words: npt.ArrayLike, count: int | None = None) -> Bits:
        """Elements from words: ``count`` of them, or whole groups."""
        given = np.asarray(words, np.uint32)
        data = given.astype("<u4").view(np.uint8)
        table: list[int] = []
        for place, exponent in enumerate(data.tolist()):
            if table and exponent <= table[-1]:
                break
            table.append(exponent)
        else:
            raise ValueError("Stream must hold a table of exponents, not end inside of it")
        if exponent != table[-1] or len(table) > self.exponents:
            raise ValueError(f"Exponents must be at most {self.exponents!r} in ascending order, not "
                             f"{[*table, exponent]!r}")
        start = place + 1
        bits = self.format.fraction_bits
        centroids = None
        if self.centroids:
            stop = start + bits * self.mantissas // 8
            centroids = planes.fields(data[start:stop], bits, self.mantissas)
            start = stop
        codes = planes.unpack(given[-(-start // 4):], self.code_width(len(table)))
        elements = self.elements(codes, np.array(table, np.uint32), centroids)
        if count is None:
            return elements
        if not len(elements) - planes.GROUP < count <= len(elements):
            raise ValueError(f"Element count must end in the last group of {len(elements)} elements, not {count!r}")
        return elements[:count]

    def exponents_of(self, elements: npt.ArrayLike) -> Bits:
        """Exponent field of each element."""
        given = np.asarray(elements, np.uint32)
        exponents: Bits = given >> self.format.fraction_bits & self.format.exponent_ones
        return exponents

    def preamble(self, table: npt.ArrayLike, centroids: npt.ArrayLike | None = None) -> Bits:
        """The words in front of the codes: exponents, the last of them once more, and centroids."""
        exponents = np.asarray(table, np.uint8)
        parts = [exponents, exponents[-1:]]
        if self.centroids:
            parts.append(planes.field_bytes(self._checked(centroids), self.format.fraction_bits))
        return planes.bytes_to_words(np.concatenate(parts))

    def codes(self, elements: npt.ArrayLike, table: npt.ArrayLike, centroids: npt.ArrayLike | None = None) -> Bits:
        """Code of each element: sign, index of the mantissa, index of the exponent, from the lowest bit on."""
        given = np.asarray(elements, np.uint32)
        exponents = self.exponents_of(given)
        sign = given >> (self.format.width - 1)
        codes: Bits = (sign | self.mantissa_indices(given, centroids) << 1
                       | np.searchsorted(table, exponents).astype(np.uint32) << (1 + self.mantissa_bits))
        return codes

    def mantissa_indices(self, elements: npt.ArrayLike, centroids: npt.ArrayLike | None = None) -> Bits:
        """Index of the mantissa of each element."""
        given = np.asarray(elements, np.uint32)
        bits = self.format.fraction_bits
        fractions = given & ((1 << bits) - 1)
        if self.centroids:
            indices = np.searchsorted(self.bounds(centroids), fractions >> self.compared_shift, side="right")
        else:
            indices = fractions >> (bits - self.mantissa_bits)
        exponents = self.exponents_of(given)
        special = (exponents == 0) | (exponents == self.format.exponent_ones)
        kept = np.where(fractions == 0, 0, np.maximum(indices, 1))
        return np.where(special, kept, indices).astype(np.uint32)

    @property
    def compared_shift(self) -> int:
        """Lowest bits of a fraction that are not looked at to find its centroid."""
        shift: int = max(self.format.fraction_bits - COMPARED, 0)
        return shift

    def bounds(self, centroids: npt.ArrayLike | None) -> Bits:
        """Where each centroid but the first begins, in the bits that are compared: behind the middle of two."""
        table = self._checked(centroids).astype(np.int64)
        shift = self.compared_shift
        # Of each range of equal compared bits, its middle counts.
        middle = 1 << shift if shift else 0
        bounds = (table[:-1] + table[1:] - middle) // (2 << shift) + 1
        return np.minimum(bounds, (1 << (self.format.fraction_bits - shift)) - 1).astype(np.uint32)

    def load_words(self, centroids: npt.ArrayLike) -> Bits:
        """What the host gives an encoder: the bounds, and the centroids as they are sent."""
        packed = planes.field_bytes(self._checked(centroids), self.format.fraction_bits)
        return np.concatenate([self.bounds(centroids), planes.bytes_to_words(packed)])

    def mantissa_table(self, centroids: npt.ArrayLike | None = None) -> Bits:
        """Fraction that stands for each index: a centroid, or the middle of a bin."""
        if self.centroids:
            return self._checked(centroids)
        dropped = self.format.fraction_bits - self.mantissa_bits
        table: Bits = np.arange(self.mantissas, dtype=np.uint32) << dropped
        return table | np.uint32(1 << (dropped - 1)) if dropped else table

    def elements(self, codes: npt.ArrayLike, table: npt.ArrayLike, centroids: npt.ArrayLike | None = None) -> Bits:
        """Elements of codes."""
        given = np.asarray(codes, np.uint32)
        indices = given >> 1 & (self.mantissas - 1)
        places = given >> (1 + self.mantissa_bits)
        exponents = np.asarray(table, np.uint32)
        if len(places) and places.max() >= len(exponents):
            raise ValueError(f"Exponent index must be less than {len(exponents)!r}, not {int(places.max())!r}")
        chosen = exponents[places]
        zero = ((chosen == 0) | (chosen == self.format.exponent_ones)) & (indices == 0)
        fractions = np.where(zero, 0, self.mantissa_table(centroids)[indices])
        bits = self.format.fraction_bits
        return ((given & 1) << (self.format.width - 1) | chosen << bits | fractions).astype(np.uint32)

    def _checked(self, centroids: npt.ArrayLike | None) -> Bits:
        if centroids is None:
            raise ValueError("Centroids must be given for a table of centroids, not None")
        table = np.asarray(centroids, np.uint32)
        if len(table) != self.mantissas or (np.diff(table.astype(np.int64)) <= 0).any():
            raise ValueError(f"Centroids must be {self.mantissas!r} in ascending order, not {table.tolist()!r}")
        if table[-1] >> self.format.fraction_bits:
            raise ValueError(f"Centroids must be of {self.format.fraction_bits!r} bits, not {int(table[-1])!r}")
        return table
