"""Golden model of the exponential function and the logarithm, using only binary32 products and sums.

Every product and every sum is rounded, so gateware with one multiplier and one adder gives the same bits as numpy and
the kernels of :mod:`sim.arithmetic`. Coefficients are given as binary32 bit patterns.
"""

import numpy as np
import numpy.typing as npt

__all__ = ["EXP", "LEAST", "LN2_HIGH", "LN2_LOW", "LOG", "LOG2_E", "MAGIC", "ROOT_HALF", "exp", "log"]

Numbers = npt.NDArray[np.float32]

#: 1 / ln 2; 1.5 * 2^23, which rounds a number to an integer when added to it.
LOG2_E, MAGIC = 0x3FB8_AA3B, 0x4B40_0000
#: ln 2, split into two parts; the product of the first part and an exponent is exact.
LN2_HIGH, LN2_LOW = 0x3F31_7200, 0x35BF_BE8E
#: Polynomial coefficients of (exp(r) - 1 - r) / r^2 and of (log(1 + m) - m) / m^2, lowest power first.
EXP = (0x3F00_0000, 0x3E2A_AA6E, 0x3D2A_AA75, 0x3C09_05B8, 0x3AB6_A193)
LOG = (0xBEFF_FFFF, 0x3EAA_AAA7, 0xBE80_0103, 0x3E4C_D1F6, 0xBE2A_4441, 0x3E11_4B9D, 0xBE06_2926, 0x3E03_4B72,
       0xBDA1_1BFE)
#: Largest argument with an exponential of +0.0: -104.
LEAST = 0xC2D0_0000
#: Smallest significand that the polynomial of the logarithm is used for: the square root of 1/2.
ROOT_HALF = 0x3F35_04F3


def _number(bits: int) -> np.float32:
    return np.float32(np.array(bits, np.uint32).view(np.float32))


def _power(exponents: npt.NDArray[np.int32]) -> Numbers:
    """Two to the power of an exponent in the range -126 to 127."""
    return np.asarray((exponents + 127) << 23, np.int32).view(np.float32)


def _polynomial(coefficients: tuple[int, ...], x: Numbers) -> Numbers:
    result = np.full_like(x, _number(coefficients[-1]))
    for bits in coefficients[-2::-1]:
        result = result * x + _number(bits)
    return result


def exp(x: npt.ArrayLike) -> Numbers:
    """Exponential of numbers up to zero: +0.0 for -104 and below; a NaN gives the canonical NaN.

    With n the integer nearest to x / ln 2, and r = x - n ln 2, the result is (((p(r) r) r + r) + 1) 2^n. The factor
    2^n is applied in two multiplications, of which only the second can round.
    """
    argument = np.asarray(x)
    if argument.dtype != np.float32:
        raise ValueError(f"Numbers must be binary32, not {argument.dtype}")
    if (argument > 0).any():
        raise ValueError(f"Argument of exp must be at most zero, not {argument[argument > 0][0]!s}")
    x = np.where(argument > _number(LEAST), argument, _number(LEAST))
    shifted = x * _number(LOG2_E) + _number(MAGIC)
    n = shifted - _number(MAGIC)
    exponents = shifted.view(np.int32) - np.int32(MAGIC)
    r = (x - n * _number(LN2_HIGH)) - n * _number(LN2_LOW)
    y = ((_polynomial(EXP, r) * r) * r + r) + np.float32(1)
    half = exponents >> 1
    y = (y * _power(half)) * _power(exponents - half)
    return np.where(np.isnan(argument), np.float32(np.nan), y)


def log(x: npt.ArrayLike) -> Numbers:
    """Natural logarithm of finite numbers of at least 1; a NaN gives the canonical NaN.

    With x = (1 + m) 2^n and 1 + m between sqrt(1/2) and sqrt(2), the result is (((p(m) m) m + n l) + m) + n h, where
    h + l is ln 2.
    """
    argument = np.asarray(x)
    if argument.dtype != np.float32:
        raise ValueError(f"Numbers must be binary32, not {argument.dtype}")
    wrong = (argument < 1) | (argument == np.inf)
    if wrong.any():
        raise ValueError(f"Argument of log must be finite and at least 1, not {argument[wrong][0]!s}")
    bits = np.where(np.isnan(argument), np.float32(1), argument).view(np.int32)
    exponents = (bits - np.int32(ROOT_HALF)) >> 23
    m = (bits - (exponents << 23)).view(np.float32) - np.float32(1)
    n = exponents.astype(np.float32)
    y = (_polynomial(LOG, m) * m) * m
    y = ((y + n * _number(LN2_LOW)) + m) + n * _number(LN2_HIGH)
    return np.where(np.isnan(argument), np.float32(np.nan), y)
