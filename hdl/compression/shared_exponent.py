"""Shared-exponent formats: blocks of numbers that have one exponent in common, encoded and decoded as streams.

A **block** is ``block`` elements. It holds one exponent; for each subset of ``subset`` elements a difference to it,
which tells how far the subset's own exponent lies below; and for each element a sign and a magnitude. The formats of
this module have integers as magnitudes; :mod:`hdl.compression.microscaling` has those of OCP MX, where magnitudes may
be small floating-point numbers.

The scale rule
--------------
Exponents are those of binary32, biased by 127, and e(x) is the exponent field of an element.

1. E is the largest e(x) of the block, or the codec's ``lowest`` where all are smaller. E - ``lowest`` is stored.
2. A block in which some e(x) is 255, an infinity or a NaN, is NaN as a whole: ones are stored as its exponent, and
   zeros as everything else.
3. D, for each subset, is E less the largest e(x) of the subset, but at most 2 ** ``difference_bits`` - 1.
4. The magnitude is that of x / 2 ** (E - D - 127) in the element's format, rounded, and at most the largest one: what
   would be rounded up beyond it is not, and no rounding changes E or D.
5. Subnormal numbers are zeros, before all of this when encoded, and after it when decoded; a number of 2 ** 128 or
   more, which no encoder makes, decodes as an infinity. A zero keeps its sign where the element's format has one.
6. Elements that the last block of a packet lacks are +0.

With integers of m bits the value is (-1) ** s * 2 ** (E - D - 127) * 2 ** (1 - m) * M. An exponent of d bits, fewer
than 8, is biased by 2 ** (d - 1) - 1 in place of 127; smaller numbers have fewer significant bits, and larger ones
saturate.

Stochastic rounding adds :data:`RANDOM_BITS` random bits below the last place, to what is left of the number when its
lower bits are cut off; they come from a shift register which makes as many bits for every element of every block, and
runs on from packet to packet.

On the wire
-----------
The bits of a block are its exponent, its differences, and its elements in order, each lowest bit first; an element is
its magnitude and then its sign. Block follows block without a gap, from bit 0 of the first word on; only the last word
of a packet is filled up, with zeros. So n elements take ceil(ceil(n / block) * block_bits / 32) words.
"""

import dataclasses
import enum

__all__ = ["MX4", "MX6", "MX9", "RANDOM_BITS", "STATE_BITS", "BlockCodec", "Rounding", "SharedExponent",
           "random_state"]

WORD = 32

#: Random bits per element of stochastic rounding.
RANDOM_BITS = 8

#: Width of the shift register of stochastic rounding: bit t is the exclusive or of bits t - 127 and t - 64.
STATE_BITS = 127

_BIAS = 127
_ONES = 255


class Rounding(enum.Enum):
    """What becomes of the bits below the last place."""

    NEAREST_EVEN = "nearest even"
    STOCHASTIC = "stochastic"


def random_state(seed):
    """What the shift register of stochastic rounding starts with: the seed, mixed by splitmix64."""
    state, mask = 0, (1 << 64) - 1
    for part in range(2):
        seed = (seed + 0x9E3779B97F4A7C15) & mask
        word = seed
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & mask
        word = (word ^ word >> 27) * 0x94D049BB133111EB & mask
        state |= (word ^ word >> 31) << 64 * part
    return state & ((1 << STATE_BITS) - 1) or 1


def _check(name, value, low, high):
    if not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name} must be an integer between {low} and {high}, not {value!r}")


def _check_power(name, value, low, high):
    if not isinstance(value, int) or not low <= value <= high or value & (value - 1):
        raise ValueError(f"{name} must be a power of two between {low} and {high}, not {value!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockCodec:
    """What all formats with one exponent per block have in common.

    A magnitude is a field, and ``fraction_bits`` below it, as in a floating-point number; that of an integer is its
    highest bit. Numbers with the field zero have no hidden bit.

    Parameters
    ----------
    rounding : Rounding
    seed : int
        Of stochastic rounding; at most 64 bits.
    """

    rounding: Rounding = Rounding.NEAREST_EVEN
    seed: int = 1

    def __post_init__(self):
        if not isinstance(self.rounding, Rounding):
            raise TypeError(f"Rounding must be a Rounding, not {self.rounding!r}")
        _check("Seed", self.seed, 0, (1 << 64) - 1)

    @property
    def code_bits(self):
        """Bits of an element."""
        return 1 + self.magnitude_bits

    @property
    def subsets(self):
        """Differences in a block."""
        return self.block // self.subset if self.difference_bits else 0

    @property
    def header_bits(self):
        """Bits of a block's exponent and differences."""
        return self.exponent_bits + self.subsets * self.difference_bits

    @property
    def block_bits(self):
        """Bits of a block."""
        return self.header_bits + self.block * self.code_bits

    @property
    def block_words(self):
        """Words of a block, which need not be a whole number."""
        return self.block_bits / WORD

    @property
    def highest(self):
        """The largest exponent a block can have: what is above saturates."""
        return min(self.lowest + (1 << self.exponent_bits) - 2, _ONES - 1)

    @property
    def nan(self):
        """Exponent of a block that is NaN, as stored."""
        return (1 << self.exponent_bits) - 1

    def words(self, count):
        """Words of a packet of ``count`` elements."""
        return -(-(-(-count // self.block) * self.block_bits) // WORD)

    def _check_block(self):
        if self.block_bits < WORD:
            raise ValueError(f"Block must be of at least {WORD} bits, not {self.block_bits!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedExponent(BlockCodec):
    """Integers with a sign, below a block's exponent and a subset's difference to it.

    Parameters
    ----------
    block : int
        Elements in a block: a power of two up to 256.
    subset : int
        Elements with a difference in common: a power of two, at most a block. Without effect if there are none.
    exponent_bits : int
        Width of the block's exponent; 2 to 8.
    difference_bits : int
        Width of a difference; 0 to 4. None, that is 0, makes flat block floating point.
    mantissa_bits : int
        Width of a magnitude; 1 to 16.
    """

    block: int = 16
    subset: int = 2
    exponent_bits: int = 8
    difference_bits: int = 1
    mantissa_bits: int = 7

    def __post_init__(self):
        super().__post_init__()
        _check_power("Block", self.block, 2, 256)
        _check_power("Subset", self.subset, 1, self.block)
        _check("Exponent width", self.exponent_bits, 2, 8)
        _check("Difference width", self.difference_bits, 0, 4)
        _check("Mantissa width", self.mantissa_bits, 1, 16)
        self._check_block()

    @property
    def magnitude_bits(self):
        """Bits of a magnitude."""
        return self.mantissa_bits

    @property
    def fraction_bits(self):
        """Bits of a magnitude below its highest."""
        return self.mantissa_bits - 1

    @property
    def top_field(self):
        """What is above the fraction in the largest magnitude."""
        return 1

    @property
    def largest(self):
        """The largest magnitude."""
        return (1 << self.mantissa_bits) - 1

    @property
    def lowest(self):
        """The smallest exponent a block can have."""
        return _BIAS - ((1 << (self.exponent_bits - 1)) - 1)

    @property
    def complement(self):
        """Whether elements are of two's complement."""
        return False

    @property
    def infinities(self):
        """Whether the highest field holds infinities and NaNs, as in IEEE 754."""
        return False

    @property
    def nan_magnitude(self):
        """Magnitude that is a NaN, or None."""
        return None


MX9 = SharedExponent(mantissa_bits=7)
MX6 = SharedExponent(mantissa_bits=4)
MX4 = SharedExponent(mantissa_bits=2)
