"""Integers with a shared exponent: MX9, MX6, MX4, and flat block floating point.

See :mod:`hdl.features.mx.format` for the scale rule and the layout of words.
"""

import dataclasses

from hdl.features.mx.format import BIAS, BlockCodec, check_integer, check_power

__all__ = ["BFP8", "MX4", "MX6", "MX9", "SharedExponent"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedExponent(BlockCodec):
    """Signed integers, relative to a block's exponent and a subset's difference from it.

    Parameters
    ----------
    block : int
        Elements in a block: a power of two up to 256.
    subset : int
        Elements with a common difference: a power of two, at most a block. No effect without differences.
    exponent_bits : int
        Width of the block's exponent; 2 to 8.
    difference_bits : int
        Width of a difference; 0 to 4. Width 0, for no differences, gives flat block floating point.
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
        check_power("Block", self.block, 2, 256)
        check_power("Subset", self.subset, 1, self.block)
        check_integer("Exponent width", self.exponent_bits, 2, 8)
        check_integer("Difference width", self.difference_bits, 0, 4)
        check_integer("Mantissa width", self.mantissa_bits, 1, 16)
        self._check_block()

    @property
    def magnitude_bits(self):
        """Number of bits of a magnitude."""
        return self.mantissa_bits

    @property
    def fraction_bits(self):
        """Number of bits of a magnitude below its highest bit."""
        return self.mantissa_bits - 1

    @property
    def top_field(self):
        """Value of the field above the fraction bits in the largest magnitude."""
        return 1

    @property
    def largest(self):
        """The largest magnitude."""
        return (1 << self.mantissa_bits) - 1

    @property
    def lowest(self):
        """Smallest exponent that a block can have."""
        return BIAS - ((1 << (self.exponent_bits - 1)) - 1)

    @property
    def complement(self):
        """Whether elements are in two's complement."""
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
BFP8 = SharedExponent(difference_bits=0, mantissa_bits=7)
