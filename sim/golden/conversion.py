"""Convert floating-point encodings, as bit patterns, between formats and to and from integers.

Binary32 and binary16 are converted with numpy. bfloat16 is the upper half of binary32, rounded by an addition. All
other pairs of formats, and integers of any width, are converted with Python integers, which are exact. Rounding is
always to nearest even, and every NaN is the canonical one: positive, quiet and without payload.
"""

import numpy as np
import numpy.typing as npt

from sim.golden import floating

__all__ = ["convert_exact", "from_bfloat16", "from_half", "from_integer", "from_integer_exact", "to_bfloat16",
           "to_half", "to_integer", "to_integer_exact"]

Bits = npt.NDArray[np.uint32]
Halves = npt.NDArray[np.uint16]
Wide = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_NAN_HALF = np.uint16(0x7E00)
_NAN_BFLOAT16 = np.uint16(0x7FC0)


def to_half(bits: npt.ArrayLike) -> Halves:
    """Round binary32 encodings to binary16."""
    values = np.asarray(bits, np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        return np.where(np.isnan(values), _NAN_HALF, values.astype(np.float16).view(np.uint16))


def from_half(bits: npt.ArrayLike) -> Bits:
    """Convert binary16 encodings to binary32, exactly."""
    values = np.asarray(bits, np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        return np.where(np.isnan(values), floating.CANONICAL_NAN, values.astype(np.float32).view(np.uint32))


def to_bfloat16(bits: npt.ArrayLike) -> Halves:
    """Round binary32 encodings to bfloat16."""
    encodings = np.asarray(bits, np.uint32)
    # Add just under half the weight of the last bit kept, plus one if that bit is odd.
    rounded = (encodings.astype(np.uint64) + 0x7FFF + (encodings >> 16 & 1)) >> 16
    return np.where(np.isnan(encodings.view(np.float32)), _NAN_BFLOAT16, rounded.astype(np.uint16))


def from_bfloat16(bits: npt.ArrayLike) -> Bits:
    """Convert bfloat16 encodings to binary32, exactly."""
    encodings = np.asarray(bits, np.uint16).astype(np.uint32) << np.uint32(16)
    return np.where(np.isnan(encodings.view(np.float32)), floating.CANONICAL_NAN, encodings)


def to_integer(bits: npt.ArrayLike, *, width: int = 32) -> tuple[Integers, Flags]:
    """Round binary32 encodings to signed integers of up to 32 bits, with saturation; NaN becomes zero.

    Returns
    -------
    integers : array of int64
    invalid : array of bool
        Whether the number was a NaN or out of range after rounding.
    """
    with np.errstate(invalid="ignore"):
        rounded = np.rint(np.asarray(bits, np.uint32).view(np.float32).astype(np.float64))
    low, high = -(1 << (width - 1)), (1 << (width - 1)) - 1
    nan = np.isnan(rounded)
    integers: Integers = np.where(nan, 0, np.clip(rounded, low, high)).astype(np.int64)
    return integers, nan | (rounded < low) | (rounded > high)


def from_integer(integers: npt.ArrayLike) -> Bits:
    """Round integers of up to 64 bits to binary32."""
    return np.asarray(integers, np.int64).astype(np.float32).view(np.uint32)


def convert_exact(bits: npt.ArrayLike, *, source: tuple[int, int], target: tuple[int, int]) -> Wide:
    """Convert encodings from one format to another, using exact integers.

    Parameters
    ----------
    bits : array
        Encodings of up to 64 bits.
    source, target : tuple of int
        Number of exponent and fraction bits of each format.
    """
    origin, wanted = floating._Format(*source), floating._Format(*target)
    scale = origin.scale - wanted.scale

    def convert(encoding: int) -> int:
        sign, absolute = origin.sign(encoding), origin.absolute(encoding)
        if absolute > origin.infinity:
            return wanted.nan
        if absolute == origin.infinity:
            return sign << wanted.sign_shift | wanted.infinity
        return wanted.round(sign, origin.magnitude(encoding) << max(-scale, 0), max(scale, 0))

    values = np.asarray(bits, np.uint64)
    return np.fromiter(map(convert, values.tolist()), np.uint64, len(values))


def to_integer_exact(bits: npt.ArrayLike, *, exponent_bits: int, fraction_bits: int,
                     width: int) -> tuple[Integers, Flags]:
    """Round encodings of any format to signed integers of up to 64 bits, like :func:`to_integer`."""
    origin = floating._Format(exponent_bits, fraction_bits)
    low, high = -(1 << (width - 1)), (1 << (width - 1)) - 1

    def convert(encoding: int) -> tuple[int, bool]:
        sign, absolute = origin.sign(encoding), origin.absolute(encoding)
        if absolute > origin.infinity:
            return 0, True
        if absolute == origin.infinity:
            return low if sign else high, True
        integer, remainder = divmod(origin.magnitude(encoding), 1 << origin.scale)
        integer += 2 * remainder + (integer & 1) > 1 << origin.scale
        integer = -integer if sign else integer
        return min(max(integer, low), high), not low <= integer <= high

    pairs = [convert(encoding) for encoding in np.asarray(bits, np.uint64).tolist()]
    return np.array([integer for integer, _ in pairs], np.int64), np.array([wrong for _, wrong in pairs], np.bool_)


def from_integer_exact(integers: npt.ArrayLike, *, exponent_bits: int, fraction_bits: int) -> Wide:
    """Round integers of up to 64 bits to any format."""
    wanted = floating._Format(exponent_bits, fraction_bits)
    values = np.asarray(integers, np.int64)
    # The number 1 is 2^`scale` times the smallest subnormal.
    return np.fromiter((wanted.round(int(value < 0), abs(value) << wanted.scale, 0) for value in values.tolist()),
                       np.uint64, len(values))
