# amaranth: UnusedElaboratable=no
import ml_dtypes
import numpy as np
import pytest

from hdl.floating.divide import FloatDivider
from hdl.floating.format import BF16, FP16, FP32, FloatFormat
from sim.golden import floating
from sim.verilated.vectors import Unit
from tests.hdl.floating import operands, pipeline

NARROW = [(4, 3), (5, 2), (2, 5), (2, 1)]
ONE, TWO, THREE, HALF, THIRD = 0x3F800000, 0x40000000, 0x40400000, 0x3F000000, 0x3EAAAAAB
SIGN, INFINITY, NAN = 0x80000000, 0x7F800000, 0x7FC00000
LARGEST, SMALLEST_NORMAL, SMALLEST = 0x7F7FFFFF, 0x00800000, 0x00000001

BY_HAND = [
    (ONE, THREE, THIRD), (THREE, TWO, 0x3FC00000), (SIGN | ONE, TWO, SIGN | HALF), (0x3FFFFFFF, 0x3FFFFFFE, ONE | 1),
    (SMALLEST, TWO, 0), (3, TWO, 2), (5, TWO, 2), (SMALLEST, 0x3FFFFFFF, SMALLEST), (SIGN | SMALLEST, LARGEST, SIGN),
    (SMALLEST_NORMAL, TWO, 0x00400000), (0x00FFFFFF, TWO, SMALLEST_NORMAL), (0x00FFFFFD, TWO, 0x007FFFFE),
    (SMALLEST, SMALLEST, ONE), (3, SMALLEST, THREE), (SMALLEST, SMALLEST_NORMAL, 0x34000000),
    (LARGEST, HALF, INFINITY), (LARGEST, 0x3F7FFFFF, INFINITY), (LARGEST, SIGN | SMALLEST, SIGN | INFINITY),
    (0x7F7FFFFE, 0x3F7FFFFF, LARGEST), (0x7F000000, 0x3F800001, 0x7EFFFFFE),
    (0, ONE, 0), (SIGN, ONE, SIGN), (0, SIGN | INFINITY, SIGN), (ONE, SIGN | INFINITY, SIGN),
    (ONE, 0, INFINITY), (ONE, SIGN, SIGN | INFINITY), (INFINITY, 0, INFINITY),
    (SIGN | INFINITY, LARGEST, SIGN | INFINITY), (0, 0, NAN), (SIGN, 0, NAN), (INFINITY, SIGN | INFINITY, NAN),
    (0xFFFFFFFF, ONE, NAN), (INFINITY, 0x7F800001, NAN),
    (0, 0x7F800001, NAN),
]


def check(format, a, b, want):
    divider = FloatDivider(format=format)
    got = Unit(divider).run({"a": a, "b": b}, drain=divider.latency)["o"][divider.latency:]
    assert operands.differences(a, b, got, want) == []


def dtype_quotients(format, dtype, a, b):
    x, y = (bits.astype(np.uint16).view(dtype) for bits in (a, b))
    with np.errstate(all="ignore"):
        quotient = x / y
        return np.where(np.isnan(quotient), format.canonical_nan, quotient.view(np.uint16))


def near_quotients(generator, count=operands.COUNT):
    """Pairs whose quotients lie around the smallest subnormal, the smallest normal and the largest number."""
    format = FP32
    a, b = operands.near_borders(format, generator, count)
    # Mirror the exponent of the other factor around the exponent of 1.
    field = b >> np.uint32(format.fraction_bits) & np.uint32(format.exponent_ones)
    mirrored = np.clip(2 * format.bias - field.astype(np.int64), 0, format.exponent_ones - 1).astype(np.uint32)
    rest = np.uint32(1 << (format.width - 1) | ((1 << format.fraction_bits) - 1))
    return a, b & rest | mirrored << np.uint32(format.fraction_bits)


def near_halves(generator, count=operands.COUNT):
    """Pairs whose quotients are as near as possible to the middle of two numbers, or to a number, from either side.

    The lowest bit of a 25-bit quotient is half of a unit in the last place. The remainder is chosen as a few units,
    and the divisor's inverse modulo 2 ** 25 gives the quotient.
    """
    divisor = generator.integers(1 << 22, 1 << 23, count).astype(np.uint64) * np.uint64(2) + np.uint64(1)
    remainder = generator.integers(1, 8, count) * generator.choice([-1, 1], count)
    inverse = divisor.copy()
    for _ in range(4):
        inverse *= np.uint64(2) - divisor * inverse
    quotient = (-remainder).astype(np.uint64) * inverse % np.uint64(1 << 25)
    dividend = (quotient.astype(np.int64) * divisor.astype(np.int64) + remainder) >> 25
    scale = 2.0 ** generator.integers(-20, 20, (2, count))
    return tuple((significand * factor).astype(np.float32).view(np.uint32)
                 for significand, factor in ((dividend, scale[0]), (divisor.astype(np.int64), scale[1])))


def halves(generator, count=operands.COUNT):
    """Pairs whose quotients are halfway between two subnormal numbers, or would be with a neighbouring dividend.

    The quotient is a few bits and a one below the last place; the dividend is its product with a short divisor.
    """
    places = generator.integers(2, 13, count)
    quotient = 2 * generator.integers(0, 1 << (places - 1)) + 1
    divisor = 2 * generator.integers(0, 1 << 11, count) + 1
    a = (quotient * divisor).astype(np.float64) * 2.0 ** -80
    b = divisor.astype(np.float64) * 2.0 ** (150 - 80)
    beside = generator.integers(-1, 2, count).astype(np.int64)
    return ((a.astype(np.float32).view(np.uint32) + beside).astype(np.uint32), b.astype(np.float32).view(np.uint32))


@pytest.mark.parametrize("format", [None, 32, (8, 23)])
def test_format(format):
    with pytest.raises(TypeError, match=r"^Format must be a FloatFormat, not "):
        FloatDivider(format=format)


@pytest.mark.parametrize(("format", "latency"), [(FP32, 23), (FP16, 15), (BF16, 12)])
def test_latency(format, latency):
    assert FloatDivider(format=format).latency == latency
    assert FloatDivider(format=format).format == format


@pytest.mark.parametrize(("a", "b", "want"), BY_HAND)
def test_golden_by_hand(a, b, want):
    assert floating.divide(a, b) == want
    assert floating.divide_exact(a, b, exponent_bits=8, fraction_bits=23) == want


@pytest.mark.parametrize("draw", [near_quotients, near_halves, halves])
def test_golden(draw):
    a, b = draw(np.random.default_rng(1), 1 << 12)
    got = floating.divide_exact(a, b, exponent_bits=8, fraction_bits=23)
    assert operands.differences(a, b, got, floating.divide(a, b)) == []


@pytest.mark.parametrize(("exponent_bits", "fraction_bits", "dtype"), [
    (4, 3, ml_dtypes.float8_e4m3), (5, 2, ml_dtypes.float8_e5m2), (3, 4, ml_dtypes.float8_e3m4)])
def test_golden_narrow(exponent_bits, fraction_bits, dtype):
    format = FloatFormat(exponent_bits=exponent_bits, fraction_bits=fraction_bits)
    a, b = operands.pairs(np.arange(256, dtype=np.uint32))
    got = floating.divide_exact(a, b, exponent_bits=exponent_bits, fraction_bits=fraction_bits)
    with np.errstate(all="ignore"):
        quotient = a.astype(np.uint8).view(dtype) / b.astype(np.uint8).view(dtype)
        want = np.where(np.isnan(quotient), format.canonical_nan, quotient.view(np.uint8))
    assert operands.differences(a, b, got, want) == []


def test_by_hand():
    a, b, want = np.array(BY_HAND, np.uint32).T
    check(FP32, a, b, want)


def test_corners():
    a, b = operands.pairs(operands.corners(FP32))
    check(FP32, a, b, floating.divide(a, b))


@pytest.mark.parametrize("draw", [operands.uniform, operands.near_exponents, operands.near_borders])
def test_random(draw):
    a, b = draw(FP32, np.random.default_rng(1))
    check(FP32, a, b, floating.divide(a, b))


@pytest.mark.parametrize("draw", [near_quotients, near_halves, halves])
def test_borders(draw):
    a, b = draw(np.random.default_rng(2))
    check(FP32, a, b, floating.divide(a, b))


def test_divided_by_itself():
    """A number divided by itself is 1, and a neighbouring dividend gives a quotient next to 1."""
    b = np.random.default_rng(1).integers(1, FP32.infinity - 1, operands.COUNT, dtype=np.uint32)
    for step in (-1, 0, 1):
        a = (b.astype(np.int64) + step).astype(np.uint32)
        check(FP32, a, b, floating.divide(a, b))


@pytest.mark.parametrize(("exponent_bits", "fraction_bits"), NARROW)
def test_exhaustive(exponent_bits, fraction_bits):
    format = FloatFormat(exponent_bits=exponent_bits, fraction_bits=fraction_bits)
    a, b = operands.pairs(np.arange(1 << format.width, dtype=np.uint32))
    check(format, a, b, floating.divide_exact(a, b, exponent_bits=exponent_bits, fraction_bits=fraction_bits))


@pytest.mark.parametrize(("format", "dtype"), [(FP16, np.float16), (BF16, ml_dtypes.bfloat16)])
@pytest.mark.parametrize("draw", [operands.uniform, operands.near_exponents, operands.near_borders])
def test_half(format, dtype, draw):
    a, b = draw(format, np.random.default_rng(1), 1 << 18)
    check(format, a, b, dtype_quotients(format, dtype, a, b))


@pytest.mark.parametrize(("exponent_bits", "fraction_bits"), [(5, 20), (9, 22), (2, 12), (3, 25)])
def test_other_format(exponent_bits, fraction_bits):
    format = FloatFormat(exponent_bits=exponent_bits, fraction_bits=fraction_bits)
    for draw in (operands.near_exponents, operands.near_borders):
        a, b = draw(format, np.random.default_rng(1), 1 << 14)
        check(format, a, b, floating.divide_exact(a, b, exponent_bits=exponent_bits, fraction_bits=fraction_bits))


@pytest.mark.parametrize("interval", [0, 3, 16, None])
def test_interval(interval):
    with pytest.raises(ValueError, match=rf"^Interval must be 1, 2, 4 or 8, not {interval!r}$"):
        FloatDivider(interval=interval)


@pytest.mark.parametrize(("interval", "latency"), [(2, 33), (4, 35), (8, 31)])
def test_in_turns(interval, latency):
    """A folded divider computes the same bits."""
    divider = FloatDivider(interval=interval)
    assert (divider.latency, divider.interval) == (latency, interval)
    generator = np.random.default_rng(interval)
    count = 1 << 17
    drawn = [np.array(BY_HAND, np.uint32).T[:2], operands.pairs(operands.corners(FP32)[::3]),
             *(draw(FP32, generator, count)
               for draw in (operands.uniform, operands.near_exponents, operands.near_borders)),
             *(draw(generator, count) for draw in (near_quotients, near_halves, halves))]
    a, b = (np.concatenate(values) for values in zip(*drawn, strict=True))
    got = pipeline.in_turns(divider, {"a": a, "b": b})
    assert operands.differences(a, b, got, floating.divide(a, b)) == []


@pytest.mark.parametrize("interval", [2, 4, 8])
@pytest.mark.parametrize(("exponent_bits", "fraction_bits"), NARROW)
def test_exhaustive_in_turns(interval, exponent_bits, fraction_bits):
    format = FloatFormat(exponent_bits=exponent_bits, fraction_bits=fraction_bits)
    a, b = operands.pairs(np.arange(1 << format.width, dtype=np.uint32))
    got = pipeline.in_turns(FloatDivider(format=format, interval=interval), {"a": a, "b": b})
    want = floating.divide_exact(a, b, exponent_bits=exponent_bits, fraction_bits=fraction_bits)
    assert operands.differences(a, b, got, want) == []


def test_timing():
    a, b = operands.uniform(FP32, np.random.default_rng(1), 200)
    pipeline.check(FloatDivider(), {"a": a, "b": b}, {"o": floating.divide(a, b)})
