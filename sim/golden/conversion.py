"""Conversions of floating-point encodings, between formats and from and to integers, as bit patterns.

Binary32 and binary16 are numpy's own. bfloat16 is the upper half of binary32, and is made from it by an addition. Any
other pair of formats, and any width of integers, is computed with Python's integers, which never round. Every NaN is
the canonical one: positive, quiet, no payload.
"""

import numpy as np
import numpy.typing as npt

from sim.golden import floating

__all__ = ["from_bfloat16", "from_half", "to_bfloat16", "to_half"]

Bits = npt.NDArray[np.uint32]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_NAN_HALF = np.uint16(0x7E00)
_NAN_BFLOAT16 = np.uint16(0x7FC0)


def to_half(bits: npt.ArrayLike) -> npt.NDArray[np.uint16]:
    """Binary32 encodings rounded to binary16, to nearest even."""
    values = np.asarray(bits, np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        return np.where(np.isnan(values), _NAN_HALF, values.astype(np.float16).view(np.uint16))


def from_half(bits: npt.ArrayLike) -> Bits:
    """Binary16 encodings as binary32."""
    values = np.asarray(bits, np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        return np.where(np.isnan(values), floating.CANONICAL_NAN, values.astype(np.float32).view(np.uint32))


def to_bfloat16(bits: npt.ArrayLike) -> npt.NDArray[np.uint16]:
    """Binary32 encodings rounded to bfloat16, to nearest even."""
    given = np.asarray(bits, np.uint32)
    # One less than half of the last place kept, and one more if that is odd.
    rounded = (given.astype(np.uint64) + 0x7FFF + (given >> 16 & 1)) >> 16
    return np.where(np.isnan(given.view(np.float32)), _NAN_BFLOAT16, rounded.astype(np.uint16))


def from_bfloat16(bits: npt.ArrayLike) -> Bits:
    """bfloat16 encodings as binary32."""
    given = np.asarray(bits, np.uint16).astype(np.uint32) << np.uint32(16)
    return np.where(np.isnan(given.view(np.float32)), floating.CANONICAL_NAN, given)
