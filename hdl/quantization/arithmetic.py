"""The integers of inference: what codes, offsets and requantisation mean, and how wide they are.

A weight is the integer A = Z + Q or A = Z - Q, of an unsigned code Q and the offset Z of its output. An output is the
bias and the sum of A * X, in 32 bits; between layers it is multiplied, rounded, shifted and clamped to 8 bits.

No sum overflows that has at most :data:`LENGTH_MAX` inputs and a bias of :data:`BIAS_BITS`: |A| is at most 256, X is
at most 255, and 32768 * 256 * 255 + 2 ** 23 is 2 ** 31.
"""

import enum

__all__ = ["ACCUMULATOR_BITS", "ADJUSTED_BITS", "BIAS_BITS", "INPUT_BITS", "LENGTH_MAX", "MULTIPLIER_BITS",
           "OFFSET_BITS", "SHIFT_BITS", "SHIFT_MAX", "Form", "Variant"]

INPUT_BITS = 8
"""Bits of an input, unsigned or signed."""

ACCUMULATOR_BITS = 32
"""Bits of a sum, signed."""

OFFSET_BITS = 9
"""Bits of an offset in a node, signed."""

ADJUSTED_BITS = 9
"""Bits of an adjusted weight in a node, signed."""

BIAS_BITS = 24
"""Bits of a bias, signed, with which the longest sum does not overflow."""

LENGTH_MAX = 1 << 15
"""Inputs of the longest sum that cannot overflow."""

MULTIPLIER_BITS = 16
"""Bits of a multiplier, unsigned."""

SHIFT_BITS = 6
"""Bits of a shift in hardware."""

SHIFT_MAX = 47
"""Largest shift: with it, every product is 0 or, rounded up, 1."""


class Variant(enum.StrEnum):
    """How a code becomes a weight."""

    MIN = "min"
    """Z + Q, where Z is that of the lowest weight."""
    MAX = "max"
    """Z - Q, where Z is that of the highest weight."""


class Form(enum.StrEnum):
    """How hardware multiplies; results are the same."""

    ADJUSTED = "adjusted"
    """A * X: a multiplier is one bit wider than a code."""
    SEPARATE = "separate"
    """Q * X beside the sum of X, and one more multiplication per output, by Z."""
