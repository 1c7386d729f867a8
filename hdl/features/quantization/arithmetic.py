"""Integer arithmetic of inference: codes, offsets, requantisation and their widths.

A weight is the integer A = Z + Q or A = Z - Q, where Q is an unsigned code and Z its output's offset. An output is
the bias plus the sum of A * X, in 32 bits; between layers it is multiplied, rounded, shifted and clamped to 8 bits.

A sum of at most :data:`LENGTH_MAX` inputs with a bias of :data:`BIAS_BITS` bits does not overflow: |A| is at most
256, X is at most 255, and 32768 * 256 * 255 + 2 ** 23 is 2 ** 31.
"""

import enum

__all__ = ["ACCUMULATOR_BITS", "ADJUSTED_BITS", "BIAS_BITS", "INPUT_BITS", "LENGTH_MAX", "MULTIPLIER_BITS",
           "OFFSET_BITS", "SHIFT_BITS", "SHIFT_MAX", "Form", "Variant"]

INPUT_BITS = 8
"""Bits per input, unsigned or signed."""

ACCUMULATOR_BITS = 32
"""Bits per sum, signed."""

OFFSET_BITS = 9
"""Bits per offset in a node, signed."""

ADJUSTED_BITS = 9
"""Bits per adjusted weight in a node, signed."""

BIAS_BITS = 24
"""Bits per bias, signed; with a bias of this width the longest sum does not overflow."""

LENGTH_MAX = 1 << 15
"""Inputs of the longest sum that cannot overflow."""

MULTIPLIER_BITS = 16
"""Bits per multiplier, unsigned."""

SHIFT_BITS = 6
"""Number of bits of the shift amount in hardware."""

SHIFT_MAX = 47
"""Largest useful shift: a product shifted by this amount is 0 or, if rounded up, 1."""


class Variant(enum.StrEnum):
    """Mapping of a code to a weight."""

    MIN = "min"
    """Z + Q, with Z as the integer of the lowest weight."""
    MAX = "max"
    """Z - Q, with Z as the integer of the highest weight."""


class Form(enum.StrEnum):
    """Choice between two implementations of the multiplication in hardware, which give the same results."""

    ADJUSTED = "adjusted"
    """A * X: a multiplier is one bit wider than a code."""
    SEPARATE = "separate"
    """Q * X, and the sum of X, which is multiplied by Z once per output."""
