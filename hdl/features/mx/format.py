# amaranth: UnusedElaboratable=no
"""Shared-exponent formats: blocks of numbers with a common exponent.

A **block** consists of ``block`` elements. It has one exponent; for each subset of ``subset`` elements the difference
by which the subset's exponent is lower; and for each element a sign and a magnitude. The formats of
:mod:`hdl.features.mx.shared_exponent` have integers as magnitudes; those in :mod:`hdl.features.mx.microscaling` are
the formats of OCP MX, with integers or small floating-point numbers. The units work with any of them:
:mod:`hdl.features.mx.quantizer` and :mod:`hdl.features.mx.dequantizer` convert between numbers and blocks,
:mod:`hdl.features.mx.packing` between blocks and words, and :mod:`hdl.features.mx.coding` combines them.

The scale rule
--------------
Exponents are biased by 127, as in binary32, and e(x) is the exponent field of an element.

1. E is the largest e(x) of the block, or the codec's ``lowest`` if all are smaller. E - ``lowest`` is stored. If
   scales are rounded up, e(x) is increased by one here if the fraction of x exceeds the fraction of the format's
   largest number, unless e(x) is 0 or 254.
2. A block with an e(x) of 255, an infinity or a NaN, is NaN as a whole: its exponent is stored as ones, and
   everything else as zeros.
3. For each subset, D is E minus the largest e(x) of the subset, but at most 2 ** ``difference_bits`` - 1.
4. The magnitude is |x| / 2 ** (E - D - 127), rounded to the element's format but at most its largest number: a number
   that would round to a larger one is not rounded up, and rounding never changes E or D.
5. Subnormal numbers become zeros, before all other steps of encoding and after decoding; a number of 2 ** 128 or
   more, which no encoder produces, decodes as an infinity. A zero keeps its sign if the element's format has one.
6. Missing elements in the last block of a packet are +0.

With integers of m bits the value is (-1) ** s * 2 ** (E - D - 127) * 2 ** (1 - m) * M. An exponent of d < 8 bits is
biased by 2 ** (d - 1) - 1 instead of 127; smaller numbers have fewer significant bits, and larger ones saturate.

Stochastic rounding truncates the number :data:`RANDOM_BITS` bits below the last place, and adds random bits there;
they come from a shift register, which advances by :data:`RANDOM_BITS` for every element of every block, and continues
from packet to packet.

On the wire
-----------
The bits of a block are its exponent, its differences, and its elements in order, each lowest bit first; an element is
its magnitude and then its sign. Blocks follow each other without gaps, starting at bit 0 of the first word; only the
last word of a packet is padded with zeros. So n elements take ceil(ceil(n / block) * block_bits / 32) words.
"""

import dataclasses
import enum

from amaranth.lib import data
from amaranth.lib.wiring import In

from hdl.floating.format import BF16, FP32

__all__ = ["BIAS", "ONES", "RANDOM_BITS", "STATE_BITS", "WORD", "BlockCodec", "Rounding", "block_layout",
           "check_among", "check_codec", "check_integer", "check_power", "choice_port", "random_state"]

#: Number of bits of a word.
WORD = 32

#: Random bits per element of stochastic rounding.
RANDOM_BITS = 8

#: Width of the shift register for stochastic rounding: bit t is the XOR of bits t - 127 and t - 64.
STATE_BITS = 127

#: Bias of binary32's exponents.
BIAS = 127
#: Exponent field of infinities and NaNs.
ONES = 255


class Rounding(enum.Enum):
    """How bits below the last place are rounded."""

    NEAREST_EVEN = "nearest even"
    STOCHASTIC = "stochastic"


def random_state(seed):
    """Initial state of the shift register for stochastic rounding: the seed, mixed by splitmix64."""
    state, mask = 0, (1 << 64) - 1
    for part in range(2):
        seed = (seed + 0x9E3779B97F4A7C15) & mask
        word = seed
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & mask
        word = (word ^ word >> 27) * 0x94D049BB133111EB & mask
        state |= (word ^ word >> 31) << 64 * part
    return state & ((1 << STATE_BITS) - 1) or 1


def check_integer(name, value, low, high):
    """Raise ValueError unless a parameter is an integer within the given bounds."""
    if not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name} must be an integer between {low} and {high}, not {value!r}")


def check_power(name, value, low, high):
    """Raise ValueError unless a parameter is a power of two within the given bounds."""
    if not isinstance(value, int) or not low <= value <= high or value & (value - 1):
        raise ValueError(f"{name} must be a power of two between {low} and {high}, not {value!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockCodec:
    """Base class of all formats with one exponent per block.

    A magnitude has a field above its ``fraction_bits`` lowest bits, as in a floating-point number; the field of an
    integer is its highest bit. Numbers with a field of zero have no hidden bit.

    Parameters
    ----------
    rounding : Rounding
    seed : int
        Seed for stochastic rounding; at most 64 bits.
    """

    rounding: Rounding = Rounding.NEAREST_EVEN
    seed: int = 1

    def __post_init__(self):
        if not isinstance(self.rounding, Rounding):
            raise TypeError(f"Rounding must be a Rounding, not {self.rounding!r}")
        check_integer("Seed", self.seed, 0, (1 << 64) - 1)

    @property
    def rounds_up(self):
        """Whether a block's exponent is increased by one if a number of the block would otherwise exceed the format's
        largest number."""
        return False

    @property
    def code_bits(self):
        """Number of bits of an element."""
        return 1 + self.magnitude_bits

    @property
    def subsets(self):
        """Number of differences in a block."""
        return self.block // self.subset if self.difference_bits else 0

    @property
    def header_bits(self):
        """Total number of bits of a block's exponent and differences."""
        return self.exponent_bits + self.subsets * self.difference_bits

    @property
    def block_bits(self):
        """Number of bits of a block."""
        return self.header_bits + self.block * self.code_bits

    @property
    def block_words(self):
        """Number of words per block; may be fractional."""
        return self.block_bits / WORD

    @property
    def highest(self):
        """Largest exponent of a block; larger numbers saturate."""
        return min(self.lowest + (1 << self.exponent_bits) - 2, ONES - 1)

    @property
    def nan(self):
        """Stored exponent of a NaN block."""
        return (1 << self.exponent_bits) - 1

    def words(self, count):
        """Number of words in a packet of ``count`` elements."""
        return -(-(-(-count // self.block) * self.block_bits) // WORD)

    def _check_block(self):
        if self.block_bits < WORD:
            raise ValueError(f"Block must be of at least {WORD} bits, not {self.block_bits!r}")


def block_layout(codec, lanes):
    """Layout of a beat: codes of some of a block's elements, in order, and values common to the block.

    Exponent and differences belong to the whole block and are repeated in all of its beats. A block takes block /
    lanes beats; ``first`` marks the first beat of a block, and ``last`` the last beat of a packet.

    Parameters
    ----------
    codec : BlockCodec
    lanes : int
        Number of elements per beat: a power of two, at most a block.
    """
    check_power("Lane count", lanes, 1, codec.block)
    differences = {"differences": data.ArrayLayout(codec.difference_bits, codec.subsets)} if codec.subsets else {}
    return data.StructLayout({"exponent": codec.exponent_bits, **differences,
                              "codes": data.ArrayLayout(codec.code_bits, lanes), "first": 1, "last": 1})


def check_codec(codec, lanes, format=FP32):
    """Raise TypeError or ValueError unless units can be built for this codec, lane count and format."""
    if not isinstance(codec, BlockCodec):
        raise TypeError(f"Codec must be a BlockCodec, not {codec!r}")
    check_power("Lane count", lanes, 1, codec.block)
    if format not in (FP32, BF16):
        raise ValueError(f"Format must be FP32 or BF16, not {format!r}")
    if codec.magnitude_bits > format.fraction_bits + 1:
        raise ValueError(f"Magnitudes must be of at most {format.fraction_bits + 1} bits, not "
                         f"{codec.magnitude_bits!r}")


def check_among(codec, among):
    """Return the formats that a unit can select at run time; raise ValueError unless they differ only in integer
    width and ``codec`` is the widest."""
    among = tuple(among)
    if among and (codec.top_field > 1 or codec.difference_bits != 1 or codec.rounding is not Rounding.NEAREST_EVEN):
        raise ValueError(f"Codec must have integers, a bit per difference and rounding to nearest, not {codec!r}")
    if among and (codec not in among or any(
            other.mantissa_bits > codec.mantissa_bits
            or dataclasses.replace(other, mantissa_bits=codec.mantissa_bits) != codec for other in among)):
        raise ValueError(f"Formats must be as the codec, which is one of them, but for narrower mantissas, not "
                         f"{among!r}")
    return among


def choice_port(among):
    """Member that selects the format of a unit's packets, as an index into ``among``. It must not change while the
    unit is not empty."""
    return {"choice": In(range(max(len(among), 2)))} if among else {}
