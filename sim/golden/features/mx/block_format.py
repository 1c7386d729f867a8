"""Golden model of block formats with a shared exponent: parameters, codes and words.

Elements are binary32 bit patterns or, optionally, bfloat16. docs/compression/shared_exponent.md describes the scale
rule and the word layout. The individual formats are in :mod:`sim.golden.features.mx.shared_exponent` and
:mod:`sim.golden.features.mx.microscaling`.
"""

import dataclasses
import enum

import numpy as np
import numpy.typing as npt

from sim.golden import floating
from sim.golden.features.mx.random_bits import RANDOM_BITS, RandomBits
from sim.golden.parameters import check_integer

__all__ = ["BlockFormat", "Blocks", "Rounding"]

Bits = npt.NDArray[np.uint32]
Integers = npt.NDArray[np.int64]

_WORD = 32
_ONES = 255
_BIAS = 127

#: A shift by this amount removes all significand bits and random bits.
_FAR = 24 + RANDOM_BITS + 1


class Rounding(enum.Enum):
    """Rounding of the bits below the last place: to nearest even, or stochastic."""

    NEAREST_EVEN = "nearest even"
    STOCHASTIC = "stochastic"


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Fields of blocks: stored exponents, differences (blocks, subsets) and codes (blocks, elements)."""

    exponents: Integers
    differences: Integers
    codes: Integers


class BlockFormat:
    """Format with a shared exponent per block: its parameters and derived values.

    A magnitude is an exponent field and ``fraction_bits`` fraction bits; a zero field has no hidden bit.
    """

    #: Number of elements per shared exponent, and per difference from it.
    block: int
    subset: int
    exponent_bits: int
    difference_bits: int
    magnitude_bits: int
    fraction_bits: int
    #: Exponent field of the largest magnitude, and the largest magnitude itself.
    top_field: int
    largest: int
    lowest: int  # smallest exponent of a block
    complement: bool  # whether elements are in two's complement
    infinities: bool  # whether the highest exponent field encodes infinities and NaNs
    nan_magnitude: int | None  # magnitude that encodes a NaN
    rounding: Rounding
    seed: int  # for stochastic rounding; at most 64 bits

    @property
    def above(self) -> int | None:
        """Largest binary32 fraction that does not raise the exponent of a block; None if no fraction does."""
        return None

    def check(self) -> None:
        """Raise TypeError or ValueError if a parameter that all formats share is invalid."""
        if not isinstance(self.rounding, Rounding):
            raise TypeError(f"Rounding must be a Rounding, not {self.rounding!r}")
        check_integer("Seed", self.seed, 0, (1 << 64) - 1)

    @property
    def code_bits(self) -> int:
        """Number of bits per element: sign and magnitude."""
        return 1 + self.magnitude_bits

    @property
    def subsets(self) -> int:
        """Number of subsets in a block; 0 for formats without differences."""
        return self.block // self.subset if self.difference_bits else 0

    @property
    def header_bits(self) -> int:
        """Number of bits for a block's exponent and differences."""
        return self.exponent_bits + self.difference_bits * self.subsets

    @property
    def block_bits(self) -> int:
        """Number of bits of an encoded block."""
        return self.header_bits + self.code_bits * self.block

    @property
    def highest(self) -> int:
        """Largest block exponent, which must be below the NaN code and below the exponent of binary32 infinities."""
        return min(self.lowest + self.nan - 1, _ONES - 1)

    @property
    def nan(self) -> int:
        """Stored exponent of a NaN block."""
        return (1 << self.exponent_bits) - 1

    def words(self, count: int) -> int:
        """Return the number of words in a packet of ``count`` elements."""
        blocks = (count + self.block - 1) // self.block
        return (blocks * self.block_bits + _WORD - 1) // _WORD

    def random(self) -> RandomBits:
        """Generator of a unit's random bits, in its state after reset."""
        return RandomBits(self.seed)

    def quantise(self, bits: npt.ArrayLike, *, random: RandomBits | None = None, bf16: bool = False) -> Blocks:
        """Quantize binary32 or bfloat16 elements to blocks, padding the last block with +0. By default, stochastic
        rounding uses the random bits that follow a reset."""
        values = np.asarray(bits, np.uint32)
        count = -(-len(values) // self.block)
        elements = np.zeros((count, self.block), np.int64)
        elements.reshape(-1)[:len(values)] = values.astype(np.int64) << (16 if bf16 else 0)
        sign, exponent, fraction = elements >> 31, elements >> 23 & _ONES, elements & 0x7F_FFFF
        special = (exponent == _ONES).any(axis=1)
        above = exponent > self.highest
        exponent, fraction = np.where(above, self.highest, exponent), np.where(above, 0x7F_FFFF, fraction)
        significand = np.where(exponent == 0, 0, fraction | 1 << 23)

        peaks = exponent
        if self.above is not None:
            peaks = exponent + ((fraction > self.above) & (exponent > 0) & (exponent < _ONES - 1))
        shared = np.maximum(peaks.max(axis=1, initial=0), self.lowest)
        if self.difference_bits:
            peaks = exponent.reshape(count, self.subsets, self.subset).max(axis=2, initial=0)
            differences = np.minimum(shared[:, np.newaxis] - peaks, (1 << self.difference_bits) - 1)
        else:
            differences = np.zeros((count, 0), np.int64)
        # Exponent field of each element in its block (below 1 if subnormal), and number of bits that do not fit.
        lowered = np.repeat(differences, self.subset, axis=1) if self.difference_bits else 0
        field = exponent - (shared[:, np.newaxis] - lowered - self.top_field + 1)
        shift = np.minimum(23 - self.fraction_bits + np.maximum(-field, 0), _FAR)
        if self.rounding is Rounding.STOCHASTIC:
            source = self.random() if random is None else random
            noise = source.take(elements.size).reshape(elements.shape)
            places = (significand << RANDOM_BITS >> shift) + noise >> RANDOM_BITS
        else:
            places = significand >> shift
            twice = (significand - (places << shift)) << 1
            places += (twice + (places & 1)) > 1 << shift
        magnitude = np.where(significand == 0, 0, np.maximum(field, 0) << self.fraction_bits) + places
        codes = self._code(sign, np.minimum(magnitude, self.largest))
        return Blocks(
            np.where(special, self.nan, shared - self.lowest),
            np.where(special[:, np.newaxis], 0, differences), np.where(special[:, np.newaxis], 0, codes))

    def _code(self, sign: Integers, magnitude: Integers) -> Integers:
        if self.complement:
            return np.where(sign, -magnitude, magnitude) & (1 << self.code_bits) - 1
        return sign << self.magnitude_bits | magnitude

    def dequantise(self, blocks: Blocks, *, bf16: bool = False) -> Bits:
        """Decode the elements of blocks."""
        sign = blocks.codes >> self.magnitude_bits
        magnitude = blocks.codes & (1 << self.magnitude_bits) - 1
        if self.complement:
            magnitude = np.where(sign, (1 << self.magnitude_bits) - magnitude, magnitude)
        shared = blocks.exponents[:, np.newaxis] + self.lowest
        if self.difference_bits:
            shared = shared - np.repeat(blocks.differences, self.subset, axis=1)
        # Represent each number as an integer times a power of two.
        integer, power = self._open(magnitude)
        length = np.frexp(integer.astype(np.float64))[1].astype(np.int64)
        exponent = shared - self.top_field - self.fraction_bits + power + length - 1
        fraction = integer << 24 - length & 0x7F_FFFF
        result = sign << 31 | np.where((integer == 0) | (exponent <= 0), 0, np.where(
            exponent >= _ONES, _ONES << 23, exponent << 23 | fraction))
        nan = np.broadcast_to(blocks.exponents[:, np.newaxis] == self.nan, sign.shape)
        if self.infinities:
            top = (magnitude >> self.fraction_bits) == self.top_field + 1
            rest = magnitude & (1 << self.fraction_bits) - 1
            result = np.where(top, sign << 31 | _ONES << 23, result)
            nan = nan | (top & (rest != 0))
        if self.nan_magnitude is not None:
            nan = nan | (magnitude == self.nan_magnitude)
        elements: Bits = np.where(nan, floating.CANONICAL_NAN, result).astype(np.uint32).reshape(-1)
        if bf16:
            elements >>= np.uint32(16)
        return elements

    def _open(self, magnitude: Integers) -> tuple[Integers, Integers]:
        """Split a magnitude into an integer and a power of two, relative to the last place of a subnormal number."""
        if self.top_field == 1:
            return magnitude, np.ones_like(magnitude)
        field, fraction = magnitude >> self.fraction_bits, magnitude & (1 << self.fraction_bits) - 1
        return fraction | (field != 0).astype(np.int64) << self.fraction_bits, np.maximum(field, 1)

    def integers(self, codes: Integers) -> Integers:
        """Convert elements to integers, in units of the format's smallest positive number."""
        sign, magnitude = codes >> self.magnitude_bits, codes & (1 << self.magnitude_bits) - 1
        if self.complement:
            magnitude = np.where(sign, (1 << self.magnitude_bits) - magnitude, magnitude)
        integer, power = self._open(magnitude)
        numbers: Integers = np.where(sign, -1, 1) * (integer << power - 1)
        return numbers

    def scales(self, exponents: Integers) -> tuple[Integers, Integers]:
        """Return integers s and e per block: an element is s * 2**e times its value in :meth:`integers`."""
        return np.ones_like(exponents), exponents + self.lowest - (_BIAS + self.top_field - 1 + self.fraction_bits)

    def pack(self, blocks: Blocks) -> Bits:
        """Pack blocks into words."""
        parts = [_spread(blocks.exponents[:, np.newaxis], self.exponent_bits),
                 _spread(blocks.differences, self.difference_bits), _spread(blocks.codes, self.code_bits)]
        flat = np.concatenate(parts, axis=1).reshape(-1)
        padded = np.zeros(-(-len(flat) // _WORD) * _WORD, np.uint8)
        padded[:len(flat)] = flat
        return np.packbits(padded, bitorder="little").view("<u4").astype(np.uint32)

    def unpack(self, words: npt.ArrayLike) -> Blocks:
        """Unpack words into whole blocks."""
        flat = np.unpackbits(np.asarray(words, np.uint32).astype("<u4").view(np.uint8), bitorder="little")
        count = len(flat) // self.block_bits
        rows = flat[:count * self.block_bits].reshape(count, self.block_bits)
        exponent, difference, code = np.split(rows, [self.exponent_bits, self.header_bits], axis=1)
        return Blocks(_gather(exponent, self.exponent_bits, 1)[:, 0],
                      _gather(difference, self.difference_bits, self.subsets),
                      _gather(code, self.code_bits, self.block))

    def encode(self, bits: npt.ArrayLike, *, random: RandomBits | None = None, bf16: bool = False) -> Bits:
        """Encode elements as the words of a packet; see :meth:`quantise`."""
        return self.pack(self.quantise(bits, random=random, bf16=bf16))

    def decode(self, words: npt.ArrayLike, count: int | None = None, *, bf16: bool = False) -> Bits:
        """Decode a packet into ``count`` elements, or into all elements of its blocks."""
        elements = self.dequantise(self.unpack(words), bf16=bf16)
        if count is None:
            return elements
        if not len(elements) - self.block < count <= len(elements):
            raise ValueError(f"Element count must end in the last block of {len(elements)} elements, not {count!r}")
        return elements[:count]


def _spread(values: Integers, width: int) -> npt.NDArray[np.uint8]:
    """Expand the numbers of each row into bits, lowest bit first."""
    bits = values[:, :, np.newaxis] >> np.arange(width) & 1
    return bits.reshape(len(values), values.shape[1] * width).astype(np.uint8)


def _gather(bits: npt.NDArray[np.uint8], width: int, columns: int) -> Integers:
    """Combine the bits of each row into numbers, lowest bit first: the inverse of :func:`_spread`."""
    numbers: Integers = bits.reshape(len(bits), columns, width).astype(np.int64) @ (1 << np.arange(width))
    return numbers
