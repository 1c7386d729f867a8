"""Golden model of the formats that operands of a matrix product are rounded to.

Mirrors :mod:`hdl.compute.operands`. Sums are in binary32 in every format, in the order of
:mod:`sim.golden.summation`, and numbers that a sum begins with are never rounded.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sim.golden import conversion, floating, summation

__all__ = ["BF16", "FP32", "OPERANDS", "Operands", "bfloat16", "exact", "operands_of", "product", "rounded"]

Bits = npt.NDArray[np.uint32]
Array = npt.NDArray[np.floating]

#: Names of formats.
FP32, BF16 = "fp32", "bf16"

_SIGN = np.uint32(1 << 31)
#: Encoding of the least normal number, 2^-126.
_LEAST = np.uint32(1 << 23)


def _flushed(bits: Bits) -> Bits:
    """Subnormal numbers as zeros of their signs."""
    return np.where(bits & ~_SIGN < _LEAST, bits & _SIGN, bits)


def bfloat16(bits: npt.ArrayLike) -> Bits:
    """Binary32 encodings rounded to bfloat16, as binary32; what is subnormal then is a zero of its sign."""
    return _flushed(conversion.from_bfloat16(conversion.to_bfloat16(bits)))


def _multiply_bfloat16(a: npt.ArrayLike, b: npt.ArrayLike) -> Bits:
    """Products of operands rounded to bfloat16: exact, but zeros of their signs below 2^-126.

    Binary32 has room for all 16 bits of a product, and for those of a subnormal one that is just below 2^-126 too, so
    that none is rounded up to it.
    """
    return _flushed(floating.multiply(bfloat16(a), bfloat16(b)))


@dataclasses.dataclass(frozen=True)
class Operands:
    """Format of operands.

    Members
    -------
    code : int
        Number of the format in an instruction.
    round : callable
        Encodings rounded to the format.
    multiply : callable
        Products of encodings that are rounded to the format first, as encodings.
    """

    code: int
    round: Callable[[npt.ArrayLike], Bits]
    multiply: Callable[[npt.ArrayLike, npt.ArrayLike], Bits]


#: Formats by their names.
OPERANDS = {FP32: Operands(0, np.asarray, floating.multiply), BF16: Operands(1, bfloat16, _multiply_bfloat16)}


def operands_of(name: str) -> Operands:
    """Format of a name; ValueError if there is none."""
    if name not in OPERANDS:
        raise ValueError(f"Operands must be one of {', '.join(OPERANDS)}, not {name!r}")
    return OPERANDS[name]


def rounded(x: Array, operands: str) -> Array:
    """Numbers of binary32 rounded to a format."""
    found: Array = operands_of(operands).round(np.ascontiguousarray(x, np.float32).view(np.uint32)).view(np.float32)
    return found


def exact(a: Array, b: Array) -> bool:
    """Whether no product of two rounded numbers lies below 2^-126, so that binary32 multiplies them likewise."""
    least = [np.abs(x[x != 0]).min(initial=np.float32(np.inf)) for x in (a, b)]
    return bool(float(least[0]) * float(least[1]) >= 2.0**-126)


def product(a: Array, b: Array, initial: Array | None = None, *, operands: str = FP32) -> Array:
    """Matrix products (…, m, k) by (…, k, n) of binary32, of operands in a format; else as
    :func:`sim.golden.summation.product`."""
    multiply = operands_of(operands).multiply
    if operands == FP32:
        return summation.product(a, b, initial)
    total = np.zeros((*a.shape[:-1], b.shape[-1]), np.float32) if initial is None else np.array(initial, np.float32)
    left, right = (np.ascontiguousarray(x, np.float32).view(np.uint32) for x in (a, b))
    for k in range(a.shape[-1]):
        total = total + multiply(left[..., :, k, None], right[..., None, k, :]).view(np.float32)
    return summation.canonical(total)
