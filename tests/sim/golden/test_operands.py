"""Operand formats: rounding and products agree with an independent library and exact fractions."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from sim.arithmetic import functions
from sim.golden import operands, summation
from sim.golden.features.bf16.operands import bfloat16
from sim.golden.features.block_operands.operands import block_numbers, block_terms
from sim.golden.features.nvfp4.nvfp4 import NVFP4
from tests.features.nvfp4.golden.test_nvfp4 import blocks_of, defined
from tests.words import bits_of


@pytest.mark.parametrize(("number", "wanted"), [
    (1.0, 1.0), (1 + 2**-8, 1.0), (1 + 3 * 2**-8, 1 + 2**-6), (1 + 2**-8 + 2**-20, 1 + 2**-7),
    (2.0**-126, 2.0**-126), (2.0**-127, 0.0), (-(2.0**-130), -0.0), (3.4e38, np.inf), (-np.inf, -np.inf),
    (2.0**-126 * (1 - 2**-9), 2.0**-126), (2.0**-126 * (1 - 2**-7), 0.0)])
def test_bfloat16(number, wanted):
    assert bfloat16(bits_of(number)) == bits_of(wanted)


def test_bfloat16_is_the_librarys():
    patterns = np.random.default_rng(1).integers(1 << 32, size=200_000, dtype=np.uint32)
    with np.errstate(all="ignore"):
        wanted = patterns.view(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)
    wanted = np.where(np.abs(wanted) < 2.0**-126, np.copysign(np.float32(0), wanted), wanted)
    wanted = np.where(np.isnan(wanted), np.uint32(0x7FC0_0000), wanted.view(np.uint32))
    np.testing.assert_array_equal(bfloat16(patterns), wanted)


def test_products_are_exact():
    """Products of two rounded numbers are exact, as checked in fractions for all exponents."""
    generator = np.random.default_rng(2)
    a, b = (bfloat16(generator.integers(1 << 32, size=3000, dtype=np.uint32)) for _ in "ab")
    products = operands.OPERANDS["bf16"].multiply(a, b).view(np.float32)
    compared = 0
    for x, y, product in zip(a.view(np.float32), b.view(np.float32), products, strict=True):
        if np.isfinite(x) and np.isfinite(y):
            exact = Fraction(float(x)) * Fraction(float(y))
            if abs(exact) < Fraction(2) ** -126:
                assert product == 0
                assert np.signbit(product) == (np.signbit(x) ^ np.signbit(y))
            elif abs(exact) >= Fraction(2) ** 128:
                assert np.isinf(product)
            else:
                assert Fraction(float(product)) == exact
                compared += 1
    assert compared > 1000


def test_sums():
    """Known sums show that factors are rounded to the format, but not initial values and sums."""
    near = 1 + 2.0**-9  # this number is rounded to 1
    a, b = np.array([[near, 3]], np.float32), np.array([[1], [near]], np.float32)
    assert operands.product(a, b, operands="bf16")[0, 0] == 4
    start = np.array([[2.0**-20]], np.float32)
    assert operands.product(a, b, start, operands="bf16")[0, 0] == np.float32(4 + 2.0**-20)
    assert operands.product(a, b, operands="fp32")[0, 0] == np.float32(near + np.float32(3 * near))


def dot_product(left, right, tensor_scale):
    """Compute the dot product of two NVFP4 blocks from the definition of scales and elements, in exact fractions."""
    (scale, row), (other, column) = (defined(numbers, tensor_scale) for numbers in (left, right))
    return sum(x * y for x, y in zip(row, column, strict=True)) * scale * other * Fraction(tensor_scale) ** 2


@pytest.mark.parametrize(("tensor_scale", "seed", "pairs"), [
    (1.0, 1, 5500), (2.0**-8, 2, 400), (2.0**-60, 3, 400), (2.0**60, 4, 400)])
def test_dot_products_of_nvfp4(tensor_scale, seed, pairs):
    """A dot product is exact, without rounding to binary32, but becomes zero or infinity if it is out of range."""
    model = NVFP4(tensor_scale=tensor_scale)
    left = blocks_of(seed, pairs, tensor_scale)
    right = np.random.default_rng(seed).permutation(left)
    (rows, row_scales), (columns, column_scales) = (block_terms(model, bits_of(x)) for x in (left, right))
    totals = np.einsum("pbk,pbk->pb", rows, columns)
    numbers = block_numbers(model, totals, row_scales, column_scales)[:, 0]
    ends = {"zero": 0, "infinity": 0}
    for row, column, number in zip(left.tolist(), right.tolist(), numbers, strict=True):
        exact = dot_product(row, column, tensor_scale)
        if 0 < abs(exact) < Fraction(2) ** -126:
            ends["zero"] += 1
            assert number == 0
            assert np.signbit(number) == (exact < 0)
        elif abs(exact) >= Fraction(2) ** 128:
            ends["infinity"] += 1
            assert number == (np.inf if exact > 0 else -np.inf)
        else:
            assert Fraction(float(number)) == exact
            assert exact or not np.signbit(number)
    assert (ends["zero"] > 20, ends["infinity"] > 20) == (tensor_scale < 2.0**-50, tensor_scale > 2.0**50)


def test_sums_of_nvfp4():
    """Dot products of blocks are added to an initial number, which is not rounded, and each sum is rounded."""
    generator = np.random.default_rng(4)
    for k in (1, 15, 16, 17, 50):
        a, b = (generator.standard_normal(shape).astype(np.float32) for shape in ((3, k), (k, 4)))
        start = generator.standard_normal((3, 4)).astype(np.float32)
        result = operands.product(a, b, start, operands="nvfp4")
        for row, column in np.ndindex(3, 4):
            total = start[row, column]
            for begin in range(0, k, 16):
                part = [np.pad(x, (0, -len(x) % 16)).tolist() for x in (a[row, begin:begin + 16],
                                                                        b[begin:begin + 16, column])]
                total = np.float32(total + np.float32(float(dot_product(*part, 1))))
            assert total == result[row, column], f"{k=}"
    for left, right, wanted in (
            ([6, 0.25, 0.75], [6, 6, 6], 42),  # 0.25 is a tie between 0 and 0.5, and 0.75 rounds to 1, which is even
            ([1, 0], [6, 0], 6 + 3 * 2.0**-4),  # one sixth is rounded to 11 / 64
            ([2688, 448], [1, 6], 5376), ([3000, 0], [6, 6], 2688 * 6),  # largest number, and a larger one
            ([2.0**-12], [6], 0), ([2.0**-10], [6], 6 * 2.0**-10), ([1e-40], [1e38], 0),
            ([np.inf, 1], [0, 1], np.nan), ([1], [np.nan], np.nan)):
        a, b = np.array([left], np.float32), np.array([right], np.float32).T
        np.testing.assert_equal(operands.product(a, b, operands="nvfp4")[0, 0], np.float32(wanted))


@pytest.mark.parametrize("scale", [1.0, 2.0**-64])
def test_compiled_products(scale):
    """Compiled sums are bit-identical to the golden model, even if products are flushed to zero or are NaNs."""
    generator = np.random.default_rng(3)
    for case in range(40):
        m, k, n = generator.integers(1, 20, 3)
        a, b = (np.float32(scale) * generator.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
        if case % 8 == 7:
            a.flat[0] = np.nan
        start = generator.standard_normal((m, n)).astype(np.float32) if case % 2 else None
        wanted = operands.product(a, b, start, operands="bf16")
        np.testing.assert_array_equal(functions.product(a, b, start, operands="bf16").view(np.uint32),
                                      wanted.view(np.uint32), f"{case=}")
        rounded = [x.astype(ml_dtypes.bfloat16).astype(np.float32) for x in (a, b)]
        if scale == 1 and case % 8 != 7:
            np.testing.assert_array_equal(wanted, summation.product(*rounded, start))


def test_double_precision_is_refused():
    with pytest.raises(ValueError, match=r"^Arrays must be of float32 for operands in bf16, not of float64$"):
        functions.product(np.ones((1, 1)), np.ones((1, 1)), operands="bf16")
