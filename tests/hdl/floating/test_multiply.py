# amaranth: UnusedElaboratable=no
import ml_dtypes
import numpy as np
import pytest

from hdl.floating.format import BF16, FP16, FP32, FloatFormat
from hdl.floating.multiply import FloatMultiplier
from hdl.floating.product import Product
from sim.golden import floating
from sim.verilated.vectors import Unit
from tests.hdl.floating import operands, pipeline

NARROW = [(4, 3), (5, 2), (2, 5), (2, 1)]


def check(format, a, b, want, dsps=4):
    multiplier = FloatMultiplier(format=format, dsps=dsps)
    got = pipeline.simulate(Unit(multiplier), multiplier.latency, a, b)
    assert operands.differences(a, b, got, want) == []


@pytest.mark.parametrize("format", [None, 32, (8, 23)])
def test_format(format):
    with pytest.raises(TypeError, match=r"^Format must be a FloatFormat, not "):
        FloatMultiplier(format=format)


@pytest.mark.parametrize("dsps", [0, 3, 5, None])
def test_dsps(dsps):
    with pytest.raises(ValueError, match=f"^DSP block count must be 4, 2 or 1, not {dsps}$"):
        FloatMultiplier(dsps=dsps)


def test_width():
    with pytest.raises(ValueError, match=r"^Fraction width must be at most 35, not 36$"):
        FloatMultiplier(format=FloatFormat(exponent_bits=8, fraction_bits=36))


@pytest.mark.parametrize(("dsps", "latency"), [(4, 6), (2, 7), (1, 7)])
def test_latency(dsps, latency):
    assert FloatMultiplier(dsps=dsps).latency == latency
    assert FloatMultiplier(format=FP16, dsps=dsps).latency == 6


@pytest.mark.parametrize("dsps", [4, 2, 1])
def test_corners(dsps):
    a, b = operands.pairs(operands.corners(FP32))
    check(FP32, a, b, floating.multiply(a, b), dsps)


@pytest.mark.parametrize("draw", [operands.uniform, operands.near_exponents, operands.near_borders])
@pytest.mark.parametrize("dsps", [4, 2, 1])
def test_random(draw, dsps):
    a, b = draw(FP32, np.random.default_rng(dsps))
    check(FP32, a, b, floating.multiply(a, b), dsps)


@pytest.mark.parametrize(("exponent_bits", "fraction_bits"), NARROW)
def test_exhaustive(exponent_bits, fraction_bits):
    format = FloatFormat(exponent_bits=exponent_bits, fraction_bits=fraction_bits)
    a, b = operands.pairs(np.arange(1 << format.width, dtype=np.uint32))
    check(format, a, b, floating.multiply_exact(a, b, exponent_bits=exponent_bits, fraction_bits=fraction_bits))


@pytest.mark.parametrize(("format", "dtype"), [(FP16, np.float16), (BF16, ml_dtypes.bfloat16)])
@pytest.mark.parametrize("draw", [operands.uniform, operands.near_borders])
def test_half(format, dtype, draw):
    a, b = draw(format, np.random.default_rng(1), 1 << 18)
    x, y = (bits.astype(np.uint16).view(dtype) for bits in (a, b))
    with np.errstate(all="ignore"):
        product = x * y
        want = np.where(np.isnan(product), format.canonical_nan, product.view(np.uint16))
    check(format, a, b, want)


@pytest.mark.parametrize(("exponent_bits", "fraction_bits"), [(5, 20), (9, 22)])
def test_other_format(exponent_bits, fraction_bits):
    format = FloatFormat(exponent_bits=exponent_bits, fraction_bits=fraction_bits)
    a, b = operands.near_borders(format, np.random.default_rng(1), 1 << 14)
    check(format, a, b, floating.multiply_exact(a, b, exponent_bits=exponent_bits, fraction_bits=fraction_bits))


@pytest.mark.parametrize("dsps", [4, 2, 1])
@pytest.mark.parametrize("width", [18, 19, 29])
def test_product(width, dsps):
    generator = np.random.default_rng(width)
    a, b = generator.integers(0, 1 << width, (2, 1 << 16), dtype=np.uint64)
    ones = np.uint64((1 << width) - 1)
    a[:256:2], b[:256:3] = ones, ones
    product = Product(width=width, dsps=dsps)
    assert (pipeline.simulate(Unit(product), product.latency, a, b) == a * b).all()


@pytest.mark.parametrize("width", [0, 37, 8.0])
def test_product_width(width):
    with pytest.raises(ValueError, match=rf"^Width must be an integer between 1 and 36, not {width}$"):
        Product(width=width, dsps=4)


def test_product_dsps():
    with pytest.raises(ValueError, match=r"^DSP block count must be 4, 2 or 1, not 3$"):
        Product(width=24, dsps=3)


@pytest.mark.parametrize("dsps", [4, 1])
def test_timing(dsps):
    a, b = operands.uniform(FP32, np.random.default_rng(1), 200)
    pipeline.check(FloatMultiplier(dsps=dsps), {"a": a, "b": b}, {"o": floating.multiply(a, b)})
