import bisect
import operator
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from hdl.floating.format import BF16, FP16, FP32, FloatFormat
from sim.golden import floating
from tests.hdl.floating import operands

ONE, TWO, HALF = 0x3F800000, 0x40000000, 0x3F000000


def dtype_values(dtype, unsigned, format, operation, a, b):
    with np.errstate(all="ignore"):
        result = operation(a.astype(unsigned).view(dtype), b.astype(unsigned).view(dtype))
        return np.where(np.isnan(result), format.canonical_nan, result.view(unsigned))


OPERATIONS = [(operator.add, floating.add_exact), (operator.mul, floating.multiply_exact)]


@pytest.mark.parametrize(("operation", "exact"), OPERATIONS)
@pytest.mark.parametrize(("format", "dtype", "unsigned"), [
    (FP32, np.float32, np.uint32), (FP16, np.float16, np.uint16), (BF16, ml_dtypes.bfloat16, np.uint16)])
def test_exact_wide(format, dtype, unsigned, operation, exact):
    draws = [operands.uniform, operands.near_exponents, operands.near_borders]
    for a, b in (operands.corner_pairs(format), *(
            draw(format, np.random.default_rng(seed), 1 << 12) for seed, draw in enumerate(draws))):
        got = exact(a, b, exponent_bits=format.exponent_bits, fraction_bits=format.fraction_bits)
        assert operands.differences(a, b, got, dtype_values(dtype, unsigned, format, operation, a, b)) == []


@pytest.mark.parametrize(("operation", "exact"), OPERATIONS)
@pytest.mark.parametrize(("exponent_bits", "fraction_bits"), [(2, 1), (3, 2), (2, 3)])
def test_exact_is_nearest(exponent_bits, fraction_bits, operation, exact):
    """The result is the nearest of all finite numbers and infinity. Infinity counts as the number after the largest
    finite one."""
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
