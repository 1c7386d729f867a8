import bisect
import operator
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from hdl.floating.format import BF16, FP16, FP32, FloatFormat
from sim.golden import floating
from tests.hdl.floating import operands

ONE, TWO, THREE, HALF = 0x3F800000, 0x40000000, 0x40400000, 0x3F000000
SIGN, INFINITY, NAN = 0x80000000, 0x7F800000, 0x7FC00000
LARGEST, SMALLEST_NORMAL, SMALLEST = 0x7F7FFFFF, 0x00800000, 0x00000001


@pytest.mark.parametrize(("a", "b", "want"), [
    (ONE, TWO, THREE),
    (0, SIGN, 0), (SIGN, SIGN, SIGN), (SIGN, ONE, ONE), (ONE, SIGN | ONE, 0),
    (ONE, 0x33800000, ONE),  # half of the last place: to even
    (ONE | 1, 0x33800000, ONE | 2),
    (ONE, 0x33800001, ONE | 1),  # just above half
    (SMALLEST, SMALLEST, 2), (SMALLEST_NORMAL, SIGN | SMALLEST, SMALLEST_NORMAL - 1),
    (SMALLEST_NORMAL - 1, SMALLEST, SMALLEST_NORMAL),
    (LARGEST, LARGEST, INFINITY), (LARGEST, 0x73000000, INFINITY), (LARGEST, 0x72FFFFFF, LARGEST),
    (INFINITY, SIGN | LARGEST, INFINITY), (INFINITY, SIGN | INFINITY, NAN), (SIGN | INFINITY,) * 3,
    (0xFFFFFFFF, ONE, NAN), (ONE, 0x7F800001, NAN),
])
def test_add_by_hand(a, b, want):
    assert floating.add(a, b) == floating.add(b, a) == want
    assert floating.add_exact(a, b, exponent_bits=8, fraction_bits=23) == want


@pytest.mark.parametrize(("a", "b", "want"), [
    (THREE, HALF, 0x3FC00000), (SIGN | ONE, TWO, SIGN | TWO), (SIGN, 0, SIGN), (SIGN, SIGN, 0),
    (SMALLEST, HALF, 0), (3, HALF, 2), (SMALLEST, HALF | 1, SMALLEST), (SMALLEST_NORMAL, HALF, 0x00400000),
    (SMALLEST, 0x4B000000, SMALLEST_NORMAL), (SMALLEST, SMALLEST, 0), (SMALLEST_NORMAL - 1, TWO, 0x00FFFFFE),
    (0x3F7FFFFF, SMALLEST_NORMAL, SMALLEST_NORMAL), (LARGEST, TWO, INFINITY),
    (LARGEST, SIGN | LARGEST, SIGN | INFINITY),
    (INFINITY, 0, NAN), (INFINITY, SIGN | SMALLEST, SIGN | INFINITY), (0xFFC00000, 0, NAN),
])
def test_multiply_by_hand(a, b, want):
    assert floating.multiply(a, b) == floating.multiply(b, a) == want
    assert floating.multiply_exact(a, b, exponent_bits=8, fraction_bits=23) == want


def dtype_values(dtype, unsigned, format, operation, a, b):
    with np.errstate(all="ignore"):
        result = operation(a.astype(unsigned).view(dtype), b.astype(unsigned).view(dtype))
        return np.where(np.isnan(result), format.canonical_nan, result.view(unsigned))


OPERATIONS = [(operator.add, floating.add_exact), (operator.mul, floating.multiply_exact)]


@pytest.mark.parametrize(("operation", "exact"), OPERATIONS)
@pytest.mark.parametrize(("exponent_bits", "fraction_bits", "dtype"), [
    (4, 3, ml_dtypes.float8_e4m3), (5, 2, ml_dtypes.float8_e5m2), (3, 4, ml_dtypes.float8_e3m4)])
def test_exact_narrow(exponent_bits, fraction_bits, dtype, operation, exact):
    format = FloatFormat(exponent_bits=exponent_bits, fraction_bits=fraction_bits)
    a, b = operands.pairs(np.arange(256, dtype=np.uint32))
    got = exact(a, b, exponent_bits=exponent_bits, fraction_bits=fraction_bits)
    assert operands.differences(a, b, got, dtype_values(dtype, np.uint8, format, operation, a, b)) == []


@pytest.mark.parametrize(("operation", "exact"), OPERATIONS)
@pytest.mark.parametrize(("format", "dtype", "unsigned"), [
    (FP32, np.float32, np.uint32), (FP16, np.float16, np.uint16), (BF16, ml_dtypes.bfloat16, np.uint16)])
def test_exact_wide(format, dtype, unsigned, operation, exact):
    draws = [operands.uniform, operands.near_exponents, operands.near_borders]
    for seed, draw in enumerate(draws):
        a, b = draw(format, np.random.default_rng(seed), 1 << 12)
        got = exact(a, b, exponent_bits=format.exponent_bits, fraction_bits=format.fraction_bits)
        assert operands.differences(a, b, got, dtype_values(dtype, unsigned, format, operation, a, b)) == []


@pytest.mark.parametrize(("operation", "exact"), OPERATIONS)
@pytest.mark.parametrize(("exponent_bits", "fraction_bits"), [(2, 1), (3, 2), (2, 3)])
def test_exact_is_nearest(exponent_bits, fraction_bits, operation, exact):
    """The result is the nearest of all finite numbers and one more above them that stands for infinity."""
    format = FloatFormat(exponent_bits=exponent_bits, fraction_bits=fraction_bits)
    sign = 1 << (format.width - 1)
    smallest = Fraction(1, 1 << (format.bias - 1 + fraction_bits))
    numbers = []
    for bits in range(format.infinity + 1):
        field, fraction = divmod(bits, 1 << fraction_bits)
        numbers.append(smallest * (fraction if not field else (fraction + (1 << fraction_bits)) * 2 ** (field - 1)))

    finite = np.array([bits for bits in range(2 * sign) if bits % sign < format.infinity], np.uint32)
    a, b = operands.pairs(finite)
    got = exact(a, b, exponent_bits=exponent_bits, fraction_bits=fraction_bits)
    for x, y, result in zip(a.tolist(), b.tolist(), got.tolist(), strict=True):
        value = operation(*((-1) ** (bits // sign) * numbers[bits % sign] for bits in (x, y)))
        above = min(bisect.bisect_left(numbers, abs(value)), format.infinity)
        candidates = [max(above - 1, 0), above]
        nearest = min(candidates, key=lambda bits: (abs(numbers[bits] - abs(value)), bits & 1))
        assert result % sign == nearest
        if value:
            assert result // sign == (value < 0)


def test_shapes():
    table = floating.add(np.zeros((3, 1), np.uint32), np.full(4, ONE))
    assert table.dtype == np.uint32
    assert table.tolist() == [[ONE] * 4] * 3
    exact = floating.multiply_exact(np.full((2, 1), TWO), [ONE, HALF], exponent_bits=8, fraction_bits=23)
    assert exact.dtype == np.uint32
    assert exact.tolist() == [[TWO, ONE]] * 2
