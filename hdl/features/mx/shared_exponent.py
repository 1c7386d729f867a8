"""Integers with a shared exponent: MX9, MX6, MX4 and flat block floating point.

See :mod:`hdl.features.mx.format` for the scale rule and the word layout.
"""

import dataclasses

from hdl.features.mx.format import BIAS, BlockCodec, check_integer, check_power

__all__ = ["BFP8", "MX4", "MX6", "MX9", "SharedExponent"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedExponent(BlockCodec):
    """Signed integers scaled by the exponent of their block minus the difference of their subset.

    Parameters
    ----------
    block : int
        Number of elements in a block: a power of two up to 256.
    subset : int
        Number of elements that share a difference: a power of two, at most ``block``. No effect without differences.
    exponent_bits : int
        Width of the block exponent in bits; 2 to 8.
    difference_bits : int
        Width of a difference in bits; 0 to 4. With 0 there are no differences: flat block floating point.
    mantissa_bits : int
        Width of a magnitude in bits; 1 to 16.
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
        """Number of magnitude bits below the highest one."""
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
        """Whether the highest field value encodes infinities and NaNs, as in IEEE 754."""
        return False

    @property
    def nan_magnitude(self):
        """Magnitude that encodes NaN; None if the format has no such magnitude."""
        return None


MX9 = SharedExponent(mantissa_bits=7)
MX6 = SharedExponent(mantissa_bits=4)
MX4 = SharedExponent(mantissa_bits=2)
BFP8 = SharedExponent(difference_bits=0, mantissa_bits=7)
