"""Golden model of shared-exponent integers: MX9, MX6, MX4 and flat block floating point.

The formats are from "With Shared Microexponents, A Little Shifting Goes a Long Way" (Rouhani et al., ISCA 2023): each
block has one exponent, each subset one difference from it, and each element a sign and an integer.
"""

import dataclasses

from sim.golden.features.mx.block_format import BlockFormat, Rounding
from sim.golden.parameters import check_integer, check_power

__all__ = ["BFP8", "MX4", "MX6", "MX9", "SharedExponent"]

#: Exponent bias of binary32.
_BIAS = 127


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedExponent(BlockFormat):
    """Signed integers with a shared exponent per block and a difference from it per subset."""

    #: Elements per block (up to 256) and per subset; both are powers of two.
    block: int = 16
    subset: int = 2
    exponent_bits: int = 8  # width of the block's exponent; 2 to 8
    difference_bits: int = 1  # width of a difference, 0 to 4; None for flat block floating point
    mantissa_bits: int = 7  # width of a magnitude; 1 to 16
    rounding: Rounding = Rounding.NEAREST_EVEN
    seed: int = 1

    top_field = 1
    complement = False
    infinities = False
    nan_magnitude = None

    def __post_init__(self) -> None:
        self.check()
        check_power("Block", self.block, 2, 256)
        check_power("Subset", self.subset, 1, self.block)
        check_integer("Exponent width", self.exponent_bits, 2, 8)
        check_integer("Difference width", self.difference_bits, 0, 4)
        check_integer("Mantissa width", self.mantissa_bits, 1, 16)
        if self.block_bits < 32:
            raise ValueError(f"Block must be of at least 32 bits, not {self.block_bits!r}")

    @property
    def magnitude_bits(self) -> int:  # type: ignore[override]
        """Number of bits of a magnitude."""
        return self.mantissa_bits

    @property
    def fraction_bits(self) -> int:  # type: ignore[override]
        """Number of magnitude bits below the highest magnitude bit."""
        return self.mantissa_bits - 1

    @property
    def largest(self) -> int:  # type: ignore[override]
        """Largest magnitude, with all bits set."""
        return (1 << self.mantissa_bits) - 1

    @property
    def lowest(self) -> int:  # type: ignore[override]
        """Smallest block exponent for ``exponent_bits`` bits, with the binary32 bias."""
        return _BIAS - ((1 << self.exponent_bits - 1) - 1)


MX9 = SharedExponent(mantissa_bits=7)
MX6 = SharedExponent(mantissa_bits=4)
MX4 = SharedExponent(mantissa_bits=2)
BFP8 = SharedExponent(difference_bits=0, mantissa_bits=7)
