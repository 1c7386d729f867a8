"""Golden model of weights stored as centroid indices: packet format and nearest-centroid assignment.

The centroids in packets may be any 32-bit words.
"""

import dataclasses
import itertools

import numpy as np
import numpy.typing as npt

from sim.golden import planes

__all__ = ["CentroidTable"]

Bits = npt.NDArray[np.uint32]
Integers = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CentroidTable:
    """Parameters of the packet format, and quantities derived from them."""

    centroids: int = 16  # number of centroids in a table: 4, 8, 16, 32 or 64
    loaded: bool = False  # whether the host preloads the table into the decoders, so packets omit it

    def __post_init__(self) -> None:
        if self.centroids not in (4, 8, 16, 32, 64):
            raise ValueError(f"Centroid count must be 4, 8, 16, 32 or 64, not {self.centroids!r}")
        if self.loaded not in (False, True):
            raise ValueError(f"Loading must be True or False, not {self.loaded!r}")

    @property
    def index_bits(self) -> int:
        """Width of a centroid index in bits."""
        return (self.centroids - 1).bit_length()

    @property
    def table_words(self) -> int:
        """Number of words that the table occupies in each packet."""
        return 0 if self.loaded else self.centroids

    def bits(self, count: int) -> int:
        """Return the number of bits that ``count`` weights and their table occupy."""
        return count * self.index_bits + 32 * self.table_words

    def words(self, count: int) -> int:
        """Return the number of words in a packet with ``count`` weights."""
        groups = (count + planes.GROUP - 1) // planes.GROUP
        return self.table_words + groups * self.index_bits

    def encode(self, indices: npt.ArrayLike, centroids: npt.ArrayLike | None = None) -> Bits:
        """Encode a packet: the table, unless it is preloaded, followed by one or more indices."""
        values = np.asarray(indices)
        table = np.asarray([] if centroids is None else centroids, np.uint32)
        if len(table) != self.table_words:
            raise ValueError(f"Centroids must be {self.table_words!r}, not {len(table)!r}")
        if not len(values):
            raise ValueError("Indices must be at least one, not none")
        low, high = int(values.min()), int(values.max())
        if low < 0 or high >= self.centroids:
            raise ValueError(f"Indices must be less than {self.centroids!r}, not {low!r} to {high!r}")
        return np.concatenate([table, planes.pack(values, self.index_bits)])

    def indices(self, words: npt.ArrayLike) -> Bits:
        """Unpack the centroid indices of a packet, in whole groups."""
        packet = np.asarray(words, np.uint32)
        if len(packet) <= self.table_words:
            raise ValueError(f"Packet must be of more than {self.table_words!r} words, not {len(packet)!r}")
        return planes.unpack(packet[self.table_words:], self.index_bits)

    def decode(self, words: npt.ArrayLike, count: int | None = None,
               centroids: npt.ArrayLike | None = None) -> Bits:
        """Decode ``count`` elements of a packet, or all of them; a preloaded table must be ``centroids``."""
        packet = np.asarray(words, np.uint32)
        table = np.asarray(centroids, np.uint32) if self.loaded else packet[:self.centroids]
        elements: Bits = table[self.indices(packet)]
        if count is None:
            return elements
        if not len(elements) - planes.GROUP < count <= len(elements):
            raise ValueError(f"Element count must end in the last group of {len(elements)} elements, not {count!r}")
        return elements[:count]

    def bounds(self, centroids: npt.ArrayLike) -> Bits:
        """Return the bounds between centroids: each is the smallest binary32 number nearer to the upper centroid.

        Bounds and centroids are bit patterns; centroids are finite and in ascending order. A bound of zero is -0.0.
        """
        table = [_scaled(bits) for bits in _ordered(np.asarray(centroids, np.uint32)).tolist()]
        if len(table) != self.centroids:
            raise ValueError(f"Centroids must be {self.centroids!r}, not {len(table)!r}")
        if any(abs(number) >= _scaled(0xFF80_0000) for number in table) or table != sorted(table):
            raise ValueError("Centroids must be finite numbers in ascending order, not others")
        positions = [_first_above(low + high) for low, high in itertools.pairwise(table)]
        ordered = np.array(positions, np.uint32)
        bounds: Bits = np.where(ordered >> 31, ordered ^ np.uint32(0x8000_0000), ~ordered)
        return bounds

    def nearest(self, elements: npt.ArrayLike, bounds: npt.ArrayLike) -> Integers:
        """Return the index of each number's nearest centroid, given the bounds; ties choose the lower one."""
        numbers, edges = _ordered(np.asarray(elements, np.uint32)), _ordered(np.asarray(bounds, np.uint32))
        indices: Integers = np.searchsorted(edges, numbers, side="right").astype(np.int64)
        return indices


def _ordered(bits: Bits) -> Bits:
    """Map binary32 bit patterns to unsigned integers that sort in the same order as the numbers."""
    result: Bits = np.where(bits >> 31, ~bits, bits ^ np.uint32(0x8000_0000))
    return result


def _scaled(position: int) -> int:
    """Number at a position of :func:`_ordered`, as a multiple of the smallest subnormal number. The positions of
    infinity and NaNs continue the sequence of finite numbers."""
    magnitude = position ^ 0x8000_0000 if position >> 31 else position ^ 0x7FFF_FFFF
    exponent, fraction = magnitude >> 23, magnitude & 0x7F_FFFF
    number = (fraction | 0x80_0000) << (exponent - 1) if exponent else fraction
    return number if position >> 31 else -number


def _first_above(twice: int) -> int:
    """Find the smallest ``position`` at which 2 * ``_scaled(position)`` is greater than ``twice``."""
    low, high = 0, 1 << 32
    while low < high:
        middle = (low + high) // 2
        if 2 * _scaled(middle) > twice:
            high = middle
        else:
            low = middle + 1
    return low
