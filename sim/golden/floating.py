"""Floating-point arithmetic on bit patterns.

Binary32 is computed with numpy. All other formats are computed exactly with Python integers: operands become a
significand times a power of two, the exact result is formed, and the remainder of one division decides the rounding.
A sticky bit represents the discarded bits if the exact result has infinitely many bits. Every NaN result is the
canonical one: positive, quiet and without payload.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

__all__ = ["CANONICAL_NAN", "add", "add_exact", "divide", "divide_exact", "multiply", "multiply_exact", "square_root",
           "square_root_exact"]

Bits = npt.NDArray[np.uint32]

CANONICAL_NAN = np.uint32(0x7FC0_0000)


def _binary32(operation: np.ufunc, *operands: npt.ArrayLike) -> Bits:
    numbers = [np.asarray(operand, dtype=np.uint32).view(np.float32) for operand in operands]
    with np.errstate(all="ignore"):
        result = np.asarray(operation(*numbers))
    return np.where(np.isnan(result), CANONICAL_NAN, result.view(np.uint32))


def add(a: npt.ArrayLike, b: npt.ArrayLike) -> Bits:
    """Add binary32 bit patterns."""
    return _binary32(np.add, a, b)


def multiply(a: npt.ArrayLike, b: npt.ArrayLike) -> Bits:
    """Multiply binary32 bit patterns."""
    return _binary32(np.multiply, a, b)


def divide(a: npt.ArrayLike, b: npt.ArrayLike) -> Bits:
    """Divide binary32 bit patterns: a / b."""
    return _binary32(np.divide, a, b)


def square_root(a: npt.ArrayLike) -> Bits:
    """Square roots of binary32 bit patterns."""
    return _binary32(np.sqrt, a)


class _Format:
    """Encoding and decoding of individual numbers in one format."""

    def __init__(self, exponent_bits: int, fraction_bits: int) -> None:
        self.fraction_bits = fraction_bits
        self.exponent_ones = (1 << exponent_bits) - 1
        self.sign_shift = exponent_bits + fraction_bits
        self.infinity = self.exponent_ones << fraction_bits
        self.nan = self.infinity | 1 << (fraction_bits - 1)
        # Exponent of 1.0 relative to the smallest subnormal number: 1.0 is that number times two to this power.
        self.scale = (1 << (exponent_bits - 1)) - 2 + fraction_bits

    def magnitude(self, bits: int) -> int:
        """Magnitude of a finite number, as a multiple of the smallest subnormal number."""
        field = bits >> self.fraction_bits & self.exponent_ones
        fraction = bits & ((1 << self.fraction_bits) - 1)
        return fraction if field == 0 else (fraction | 1 << self.fraction_bits) << (field - 1)

    def sign(self, bits: int) -> int:
        """Sign bit of an encoding: 1 for a negative number."""
        return bits >> self.sign_shift

    def absolute(self, bits: int) -> int:
        """Clear the sign bit of an encoding. The result is greater than ``infinity`` only for a NaN."""
        return bits & ((1 << self.sign_shift) - 1)

    def add(self, a: int, b: int) -> int:
        """Sum of two encodings."""
        x, y = self.absolute(a), self.absolute(b)
        if max(x, y) > self.infinity or (x == y == self.infinity and a != b):
            return self.nan
        if max(x, y) == self.infinity:
            return a if x == self.infinity else b
        signed = [-self.magnitude(bits) if self.sign(bits) else self.magnitude(bits) for bits in (a, b)]
        total = sum(signed)
        # An exact zero is positive unless both operands are negative zeros.
        sign = self.sign(a) & self.sign(b) if total == 0 else int(total < 0)
        return self.round(sign, abs(total), 0)

    def multiply(self, a: int, b: int) -> int:
        """Product of two encodings."""
        x, y = self.absolute(a), self.absolute(b)
        sign = self.sign(a) ^ self.sign(b)
        if max(x, y) > self.infinity or (max(x, y) == self.infinity and min(x, y) == 0):
            return self.nan
        if max(x, y) == self.infinity:
            return sign << self.sign_shift | self.infinity
        return self.round(sign, self.magnitude(a) * self.magnitude(b), self.scale)

    def divide(self, a: int, b: int) -> int:
        """Quotient of two encodings."""
        x, y = self.absolute(a), self.absolute(b)
        sign = self.sign(a) ^ self.sign(b)
        if max(x, y) > self.infinity or x == y == self.infinity or x == y == 0:
            return self.nan
        if x == self.infinity or y == 0:
            return sign << self.sign_shift | self.infinity
        if y == self.infinity:
            return sign << self.sign_shift
        dividend, divisor = self.magnitude(a), self.magnitude(b)
        places = divisor.bit_length() + self.fraction_bits + 2
        quotient, remainder = divmod(dividend << (places + self.scale), divisor)
        return self.round(sign, quotient << 1 | (remainder > 0), places + 1)

    def square_root(self, a: int) -> int:
        """Square root of an encoding."""
        x = self.absolute(a)
        if x == 0:
            return a
        if x > self.infinity or self.sign(a):
            return self.nan
        if x == self.infinity:
            return a
        places = self.fraction_bits + 2
        square = self.magnitude(a) << (self.scale + 2 * places)
        root = math.isqrt(square)
        return self.round(0, root << 1 | (root * root < square), places + 1)

    def round(self, sign: int, magnitude: int, scale: int) -> int:
        """Round ``magnitude`` * 2 ** -``scale``, in units of the smallest subnormal number, to nearest even."""
        # Drop bits below the smallest subnormal number and below the lowest bit of the significand.
        drop = max(scale, magnitude.bit_length() - (self.fraction_bits + 1))
        significand, remainder = divmod(magnitude, 1 << drop)
        significand += 2 * remainder + (significand & 1) > 1 << drop
        # A significand that reaches 2 ** (fraction_bits + 1), or a subnormal one that reaches the hidden bit, carries
        # into the exponent; an exponent above the largest one gives infinity.
        encoding = ((drop - scale) << self.fraction_bits) + significand
        return sign << self.sign_shift | min(encoding, self.infinity)


def _elementwise(operation: Callable[[_Format, int, int], int], a: npt.ArrayLike, b: npt.ArrayLike,
                 exponent_bits: int, fraction_bits: int) -> Bits:
    form = _Format(exponent_bits, fraction_bits)
    left, right = np.broadcast_arrays(np.asarray(a, dtype=np.uint32), np.asarray(b, dtype=np.uint32))
    pairs = zip(left.ravel().tolist(), right.ravel().tolist(), strict=True)
    results = np.fromiter((operation(form, x, y) for x, y in pairs), dtype=np.uint32, count=left.size)
    return results.reshape(left.shape)


def add_exact(a: npt.ArrayLike, b: npt.ArrayLike, *, exponent_bits: int, fraction_bits: int) -> Bits:
    """Sum of bit patterns in any format, computed with exact integers."""
    return _elementwise(_Format.add, a, b, exponent_bits, fraction_bits)


def multiply_exact(a: npt.ArrayLike, b: npt.ArrayLike, *, exponent_bits: int, fraction_bits: int) -> Bits:
    """Product of bit patterns in any format, computed with exact integers."""
    return _elementwise(_Format.multiply, a, b, exponent_bits, fraction_bits)


def divide_exact(a: npt.ArrayLike, b: npt.ArrayLike, *, exponent_bits: int, fraction_bits: int) -> Bits:
    """Quotient a / b of bit patterns in any format, computed with exact integers."""
    return _elementwise(_Format.divide, a, b, exponent_bits, fraction_bits)


def square_root_exact(a: npt.ArrayLike, *, exponent_bits: int, fraction_bits: int) -> Bits:
    """Square root of bit patterns in any format, computed with exact integers."""
    return _elementwise(lambda form, x, _: form.square_root(x), a, 0, exponent_bits, fraction_bits)
