# amaranth: UnusedElaboratable=no
import ml_dtypes
import numpy as np
import pytest

from hdl.floating.format import BF16, FP16, FP32, FloatFormat
from hdl.floating.square_root import FloatSquareRoot
from sim.golden import floating
from sim.verilated.vectors import Unit
from tests.hdl.floating import operands, pipeline

NARROW = [(4, 3), (5, 2), (2, 5), (2, 1), (3, 1), (3, 7), (4, 6)]
ONE, TWO, FOUR, NINE, ROOT = 0x3F800000, 0x40000000, 0x40800000, 0x41100000, 0x3FB504F3
SIGN, INFINITY, NAN = 0x80000000, 0x7F800000, 0x7FC00000
LARGEST, SMALLEST_NORMAL, SMALLEST = 0x7F7FFFFF, 0x00800000, 0x00000001

BY_HAND = [
    (ONE, ONE), (TWO, ROOT), (FOUR, TWO), (NINE, 0x40400000), (0x3F000000, 0x3F3504F3), (0x3E800000, 0x3F000000),
    (ONE + 1, ONE), (ONE + 2, ONE + 1), (ONE - 1, ONE - 1), (ONE - 2, ONE - 1), (FOUR - 1, TWO - 1),
    (0x4B7FFFFE, 0x457FFFFF), (SMALLEST, 0x1A3504F3), (2, 0x1A800000), (8, 0x1B000000), (SMALLEST_NORMAL, 0x20000000),
    (SMALLEST_NORMAL - 1, 0x1FFFFFFF), (LARGEST, 0x5F7FFFFF), (0, 0), (SIGN, SIGN), (INFINITY, INFINITY),
    (SIGN | INFINITY, NAN), (SIGN | SMALLEST, NAN), (SIGN | ONE, NAN), (SIGN | LARGEST, NAN), (NAN, NAN),
    (INFINITY + 1, NAN), (0xFFFFFFFF, NAN), (0xFF800001, NAN),
]


def check(format, a, want, unit=None):
    root = FloatSquareRoot(format=format)
    got = (unit or Unit(root)).run({"a": a}, drain=root.latency)["o"][root.latency:]
    assert operands.differences(a, want, got, want) == []


def single(format, a, dtype, unsigned):
    """Roots of an independent implementation."""
    with np.errstate(all="ignore"):
        root = np.sqrt(a.astype(unsigned).view(dtype))
        return np.where(np.isnan(root), format.canonical_nan, root.view(unsigned))


def squares():
    """Exact squares of all numbers of 12 bits, at every scale, and their neighbours."""
    exact = np.arange(1, 1 << 12, dtype=np.float64) ** 2
    scales = 2.0 ** np.arange(-148, 104, 2)
    bits = np.outer(scales, exact).ravel().astype(np.float32).view(np.uint32)
    return np.concatenate([bits - np.uint32(1), bits, bits + np.uint32(1)])


def near_halves(generator, count=operands.COUNT):
    """Numbers on either side of the squared midpoint of two numbers."""
    half = 2 * generator.integers(1 << 23, 1 << 24, count) + 1
    square = half * half
    odd = square >> 49
    significand = (square >> (25 + odd)) + generator.integers(0, 2, count)
    # The exponent field less one, since the hidden bit adds one.
    field = 2 * generator.integers(0, 127, count) + odd
    return ((field << 23) + significand).astype(np.uint32)


@pytest.mark.parametrize("format", [None, 32, (8, 23)])
def test_format(format):
    with pytest.raises(TypeError, match=r"^Format must be a FloatFormat, not "):
        FloatSquareRoot(format=format)


@pytest.mark.parametrize(("format", "latency"), [(FP32, 21), (FP16, 11), (BF16, 8)])
def test_latency(format, latency):
    assert FloatSquareRoot(format=format).latency == latency
    assert FloatSquareRoot(format=format).format == format


@pytest.mark.parametrize(("a", "want"), BY_HAND)
def test_golden_by_hand(a, want):
    assert floating.square_root(a) == want
    assert floating.square_root_exact(a, exponent_bits=8, fraction_bits=23) == want


def test_golden():
    generator = np.random.default_rng(1)
    random = operands.uniform(FP32, generator, 1 << 12)
    a = np.concatenate([squares()[::97], near_halves(generator, 1 << 12), *random])
    want = floating.square_root(a)
    got = floating.square_root_exact(a, exponent_bits=8, fraction_bits=23)
    assert operands.differences(a, want, got, want) == []


@pytest.mark.parametrize(("exponent_bits", "fraction_bits", "dtype"), [
    (4, 3, ml_dtypes.float8_e4m3), (5, 2, ml_dtypes.float8_e5m2), (3, 4, ml_dtypes.float8_e3m4)])
def test_golden_narrow(exponent_bits, fraction_bits, dtype):
    a = np.arange(256, dtype=np.uint32)
    want = single(FloatFormat(exponent_bits=exponent_bits, fraction_bits=fraction_bits), a, dtype, np.uint8)
    got = floating.square_root_exact(a, exponent_bits=exponent_bits, fraction_bits=fraction_bits)
    assert operands.differences(a, want, got, want) == []


def test_by_hand():
    a, want = np.array(BY_HAND, np.uint32).T
    check(FP32, a, want)


def test_corners():
    a = operands.corners(FP32)
    check(FP32, a, floating.square_root(a))


def test_squares():
    a = squares()
    check(FP32, a, floating.square_root(a))


def test_borders():
    a = near_halves(np.random.default_rng(1))
    check(FP32, a, floating.square_root(a))


@pytest.mark.parametrize("draw", [operands.uniform, operands.near_exponents, operands.near_borders])
def test_random(draw):
    a, b = draw(FP32, np.random.default_rng(1))
    unit = Unit(FloatSquareRoot())
    check(FP32, a, floating.square_root(a), unit)
    check(FP32, b, floating.square_root(b), unit)


@pytest.mark.parametrize("first", [0, ONE, TWO], ids=["subnormal", "odd", "even"])
def test_every_significand(first):
    """Roots are right for all subnormal numbers, and for all significands with an odd and with an even exponent."""
    unit = Unit(FloatSquareRoot())
    for start_of_run in range(first, first + (1 << 23), operands.COUNT):
        a = np.arange(start_of_run, start_of_run + operands.COUNT, dtype=np.uint32)
        check(FP32, a, floating.square_root(a), unit)


@pytest.mark.parametrize(("exponent_bits", "fraction_bits"), NARROW)
def test_exhaustive(exponent_bits, fraction_bits):
    format = FloatFormat(exponent_bits=exponent_bits, fraction_bits=fraction_bits)
    a = np.arange(1 << format.width, dtype=np.uint32)
    check(format, a, floating.square_root_exact(a, exponent_bits=exponent_bits, fraction_bits=fraction_bits))


@pytest.mark.parametrize(("format", "dtype"), [(FP16, np.float16), (BF16, ml_dtypes.bfloat16)])
def test_half(format, dtype):
    a = np.arange(1 << 16, dtype=np.uint32)
    check(format, a, single(format, a, dtype, np.uint16))


@pytest.mark.parametrize(("exponent_bits", "fraction_bits"), [(5, 20), (9, 22), (2, 12), (3, 25)])
def test_other_format(exponent_bits, fraction_bits):
    format = FloatFormat(exponent_bits=exponent_bits, fraction_bits=fraction_bits)
    a = np.concatenate(operands.near_borders(format, np.random.default_rng(1), 1 << 14))
    check(format, a, floating.square_root_exact(a, exponent_bits=exponent_bits, fraction_bits=fraction_bits))


@pytest.mark.parametrize("interval", [0, 3, 16, None])
def test_interval(interval):
    with pytest.raises(ValueError, match=rf"^Interval must be 1, 2, 4 or 8, not {interval!r}$"):
        FloatSquareRoot(interval=interval)


@pytest.mark.parametrize(("interval", "latency"), [(2, 27), (4, 25), (8, 29)])
def test_in_turns(interval, latency):
    """A folded square root computes the same bits."""
    root = FloatSquareRoot(interval=interval)
    assert (root.latency, root.interval) == (latency, interval)
    generator = np.random.default_rng(interval)
    drawn = [np.array(BY_HAND, np.uint32).T[0], operands.corners(FP32), squares()[::7], near_halves(generator)[::7],
             *(draw(FP32, generator, 1 << 17)[0]
               for draw in (operands.uniform, operands.near_exponents, operands.near_borders)),
             np.arange(0, 1 << 23, 61, dtype=np.uint32)]
    a = np.concatenate(drawn)
    got = pipeline.in_turns(root, {"a": a})
    want = floating.square_root(a)
    assert operands.differences(a, want, got, want) == []


@pytest.mark.parametrize("interval", [2, 4, 8])
@pytest.mark.parametrize(("exponent_bits", "fraction_bits"), NARROW)
def test_exhaustive_in_turns(interval, exponent_bits, fraction_bits):
    format = FloatFormat(exponent_bits=exponent_bits, fraction_bits=fraction_bits)
    a = np.arange(1 << format.width, dtype=np.uint32)
    got = pipeline.in_turns(FloatSquareRoot(format=format, interval=interval), {"a": a})
    want = floating.square_root_exact(a, exponent_bits=exponent_bits, fraction_bits=fraction_bits)
    assert operands.differences(a, want, got, want) == []


def test_timing():
    a, _ = operands.uniform(FP32, np.random.default_rng(1), 200)
    pipeline.check(FloatSquareRoot(), {"a": a}, {"o": floating.square_root(a)})
