"""Binary floating-point formats, described by Python objects."""

from dataclasses import dataclass

from amaranth.lib import data

__all__ = ["BF16", "FP16", "FP32", "FloatFormat"]


@dataclass(frozen=True, kw_only=True)
class FloatFormat:
    """A binary floating-point format that follows the rules of IEEE 754.

    From the most significant bit, an encoding consists of sign, biased exponent and fraction. An exponent of zero
    encodes zeros and subnormal numbers; all ones encode infinities (zero fraction) and NaNs (nonzero fraction).

    Parameters
    ----------
    exponent_bits : int
        Width of the exponent field; at least 2.
    fraction_bits : int
        Width of the fraction field, without the hidden bit; at least 1.
    """

    exponent_bits: int
    fraction_bits: int

    def __post_init__(self):
        if not isinstance(self.exponent_bits, int) or self.exponent_bits < 2:
            raise ValueError(f"Exponent width must be an integer of at least 2, not {self.exponent_bits!r}")
        if not isinstance(self.fraction_bits, int) or self.fraction_bits < 1:
            raise ValueError(f"Fraction width must be a positive integer, not {self.fraction_bits!r}")

    @property
    def width(self):
        """Width of an encoding in bits."""
        return 1 + self.exponent_bits + self.fraction_bits

    @property
    def bias(self):
        """Exponent field of 1.0."""
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def exponent_ones(self):
        """Exponent field of infinities and NaNs."""
        return (1 << self.exponent_bits) - 1

    @property
    def infinity(self):
        """Encoding of positive infinity."""
        return self.exponent_ones << self.fraction_bits

    @property
    def canonical_nan(self):
        """Encoding of the only NaN that the arithmetic units produce: positive, quiet and without payload."""
        return self.infinity | 1 << (self.fraction_bits - 1)

    @property
    def layout(self):
        """Structure layout of an encoding: ``fraction``, ``exponent`` and ``sign``."""
        return data.StructLayout({"fraction": self.fraction_bits, "exponent": self.exponent_bits, "sign": 1})


FP32 = FloatFormat(exponent_bits=8, fraction_bits=23)
FP16 = FloatFormat(exponent_bits=5, fraction_bits=10)
BF16 = FloatFormat(exponent_bits=8, fraction_bits=7)
