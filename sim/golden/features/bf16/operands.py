"""Golden model of operands rounded to bfloat16: :mod:`hdl.features.bf16.operands`."""

import numpy as np
import numpy.typing as npt

from sim.golden import conversion, floating
from sim.golden.operands import Operands

__all__ = ["BF16", "bfloat16", "multiply"]

Bits = npt.NDArray[np.uint32]

_SIGN = np.uint32(1 << 31)
#: Encoding of the smallest normal number, 2^-126.
_LEAST = np.uint32(1 << 23)


def _flushed(bits: Bits) -> Bits:
    """Flush subnormal numbers to zeros of the same sign."""
    return np.where(bits & ~_SIGN < _LEAST, bits & _SIGN, bits)


def bfloat16(bits: npt.ArrayLike) -> Bits:
    """Round binary32 encodings to bfloat16 and return binary32; subnormal results become zeros of the same sign."""
    return _flushed(conversion.from_bfloat16(conversion.to_bfloat16(bits)))


def multiply(a: npt.ArrayLike, b: npt.ArrayLike) -> Bits:
    """Multiply operands rounded to bfloat16. Products are exact, but those below 2^-126 become signed zeros.

    Binary32 can represent all 16 bits of a product exactly, even of a subnormal product just below 2^-126, so no
    product is rounded up to this limit.
    """
    return _flushed(floating.multiply(bfloat16(a), bfloat16(b)))


BF16 = Operands(1, bfloat16, multiply)
