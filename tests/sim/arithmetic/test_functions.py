"""Compiled kernels are bit-identical to the golden model for random shapes, layouts and numbers of every kind."""

import numpy as np
import pytest

from sim.arithmetic import functions
from sim.golden import summation as golden
from tests.refusals import refuses

pytestmark = pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")

SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.1754942e-38, 3.4e38, -3.4e38, 2**-70, 1, -1],
                   np.float32)


def numbers(generator, shape, share=0.0):
    """Draw normally distributed numbers of various magnitudes, and special numbers, including all kinds of NaN."""
    values = (generator.standard_normal(shape) * 2.0 ** generator.integers(-12, 12, shape)).astype(np.float32)
    special = SPECIAL[generator.integers(0, len(SPECIAL), shape)]
    values = np.where(generator.random(shape) < share, special, values)
    odd = generator.integers(0x7F80_0001, 0x8000_0000, shape).astype(np.uint32).view(np.float32)
    return np.where(generator.random(shape) < share / 50, odd, values)


def laid_out(generator, x):
    """Return matrices of equal values in a random memory layout: contiguous, transposed, or a view of a larger
    array."""
    kind = generator.integers(0, 3)
    if kind == 0:
        return np.ascontiguousarray(x)
    if kind == 1:
        return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    around = np.full((*x.shape[:-2], 2 * x.shape[-2] + 1, 3 * x.shape[-1] + 2), 7, np.float32)
    part = around[..., 1::2, 2::3]
    part[...] = x
    return part


def same(actual, expected, *, case):
    assert actual.dtype == np.float32
    np.testing.assert_array_equal(actual.view(np.uint32), np.asarray(expected, np.float32).view(np.uint32),
                                  err_msg=case)


@pytest.mark.parametrize("share", [0, 0.02, 0.3], ids=["normal", "some special", "many special"])
def test_products(share):
    """Products match the model in all four combinations of transposed operands, in batches, with initial values, and
    if they are empty."""
    generator = np.random.default_rng(round(100 * share))
    for case in range(250):
        batch = tuple(generator.integers(1, 4, generator.integers(0, 3)).tolist())
        m, k, n = (int(length) for length in generator.integers(0 if case % 10 == 0 else 1, 40, 3))
        a, b = numbers(generator, (*batch, m, k), share), numbers(generator, (*batch, k, n), share)
        initial = numbers(generator, (*batch, m, n), share) if generator.random() < 0.5 else None
        actual = functions.product(laid_out(generator, a), laid_out(generator, b), initial)
        same(actual, golden.product(a, b, initial), case=f"{share=} {case=} {a.shape} {b.shape}")


def test_large_product():
    generator = np.random.default_rng(5)
    a, b = numbers(generator, (129, 515), 0.001), numbers(generator, (515, 67), 0.001)
    same(functions.product(a, b), golden.product(a, b), case="large")


@pytest.mark.parametrize("share", [0, 0.02], ids=["normal", "special"])
def test_sums(share):
    generator = np.random.default_rng(6)
    for case in range(100):
        rows, columns = generator.integers(0 if case % 10 == 0 else 1, 40, 2).tolist()
        x = numbers(generator, (rows, columns), share)
        source = laid_out(generator, x)
        places = generator.integers(0, 5, rows)
        name = f"{share=} {case=} {x.shape}"
        same(functions.row_sums(source), golden.row_sums(x), case=name)
        same(functions.column_sums(source), golden.column_sums(x), case=name)
        same(functions.gather_sums(source, places, 5), golden.gather_sums(x, places, 5), case=name)
        if columns:
            same(functions.mean(source), golden.mean(x), case=name)
            for actual, expected in zip(functions.normalize(source, 1e-5), golden.normalize(x, 1e-5), strict=True):
                np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected), err_msg=name)
                same(golden.canonical(actual), golden.canonical(expected), case=name)


@pytest.mark.parametrize("share", [0, 0.02], ids=["normal", "special"])
def test_softmax(share):
    generator = np.random.default_rng(7)
    for case in range(60):
        shape = (*generator.integers(1, 4, generator.integers(0, 3)), *generator.integers(1, 40, 2))
        scores = numbers(generator, shape, share)
        name = f"{share=} {case=} {shape}"
        same(functions.softmax(laid_out(generator, scores)), golden.softmax(scores), case=name)
        flat = scores.reshape(-1, shape[-1])
        labels = generator.integers(0, shape[-1], len(flat))
        actual, expected = (module.cross_entropy(flat, labels) for module in (functions, golden))
        same(actual[0], expected[0], case=name)
        same(golden.canonical(actual[1]), golden.canonical(expected[1]), case=name)


def test_exponentials_and_logarithms():
    """For every 997th number of the domain, and for special numbers, exp and log give the golden result."""
    special = np.array([np.nan, -np.inf, -0.0, 0.0, -104, -103.97], np.float32)
    x = np.concatenate([np.arange(0x8000_0000, 0xFF80_0000, 997).astype(np.uint32).view(np.float32), special])
    same(functions.exp(x), golden.exp(x), case="exp")
    x = np.append(np.arange(0x3F80_0000, 0x7F80_0000, 997).astype(np.uint32).view(np.float32), np.float32(np.nan))
    same(functions.log(x), golden.log(x), case="log")


def test_binary64():
    """For binary64 arrays, the golden model is used, without rounding to binary32."""
    generator = np.random.default_rng(8)
    a, b = generator.standard_normal((3, 4)), generator.standard_normal((4, 5))
    labels = np.array([0, 4, 2])
    pairs = [(functions.product(a, b), golden.product(a, b)), (functions.row_sums(a), golden.row_sums(a)),
             (functions.column_sums(a), golden.column_sums(a)), (functions.exp(-np.abs(a)), golden.exp(-np.abs(a))),
             (functions.log(1 + np.abs(a)), golden.log(1 + np.abs(a))),
             (functions.softmax(a), golden.softmax(a)),
             (functions.cross_entropy(a @ b, labels)[1], golden.cross_entropy(a @ b, labels)[1])]
    for actual, expected in pairs:
        assert actual.dtype == np.float64
        np.testing.assert_array_equal(actual, expected)


def test_errors():
    a, b = np.zeros((2, 3), np.float32), np.zeros((3, 4), np.float32)
    for call, message in (
            (lambda: functions.product(a, a),
             "Matrices must be (…, m, k) and (…, k, n), not (2, 3) and (2, 3)"),
            (lambda: functions.product(a, b[0]),
             "Matrices must be (…, m, k) and (…, k, n), not (2, 3) and (4,)"),
            (lambda: functions.product(a, b, a), "Initial sums must be of shape (2, 4), not (2, 3)"),
            (lambda: functions.product(a, b.astype(np.float64)),
             "Arrays must be all of float32 or all of float64, not float32, float64"),
            (lambda: functions.row_sums(a.astype(int)), "Arrays must be all of float32 or all of float64, not int64"),
            (lambda: functions.gather_sums(a, np.zeros(3, int), 1),
             "Rows and their places must be (rows, columns) and (rows), not (2, 3) and (3,)"),
            (lambda: functions.gather_sums(a, np.array([0, 4]), 4),
             "Places must be at least 0 and below 4, not 0 to 4"),
            (lambda: functions.exp(a + 1), "Argument of exp must be at most zero, not 1.0"),
            (lambda: functions.log(a), "Argument of log must be finite and at least 1, not 0.0")):
        refuses(message, call)
