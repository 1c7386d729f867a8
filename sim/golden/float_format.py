"""Binary floating-point formats of elements."""

import dataclasses

__all__ = ["BF16", "FP32", "FloatFormat"]


@dataclasses.dataclass(frozen=True)
class FloatFormat:
    """An IEEE 754 format: sign, biased exponent and fraction, from the highest bit down.

    Parameters
    ----------
    exponent_bits, fraction_bits : int
        Widths of the fields in bits.
    """

    exponent_bits: int
    fraction_bits: int

    @property
    def width(self) -> int:
        """Number of bits of an encoding."""
        return self.exponent_bits + self.fraction_bits + 1

    @property
    def exponent_ones(self) -> int:
        """Exponent field of infinities and NaNs."""
        return (1 << self.exponent_bits) - 1


FP32 = FloatFormat(8, 23)
BF16 = FloatFormat(8, 7)
