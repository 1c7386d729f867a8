# amaranth: UnusedElaboratable=no
import ml_dtypes
import numpy as np
import pytest

from hdl.floating.add import FloatAdder
from hdl.floating.format import BF16, FP16, FP32, FloatFormat
from sim.golden import floating
from sim.verilated.vectors import Unit
from tests.hdl.floating import operands, pipeline

NARROW = [(4, 3), (5, 2), (2, 5), (2, 1)]


def check(format, a, b, want):
    adder = FloatAdder(format=format)
    got = pipeline.simulate(Unit(adder), adder.latency, a, b)
    assert operands.differences(a, b, got, want) == []


@pytest.mark.parametrize("format", [None, 32, (8, 23)])
def test_format(format):
    with pytest.raises(TypeError, match=r"^Format must be a FloatFormat, not "):
        FloatAdder(format=format)


def test_corners():
    a, b = operands.pairs(operands.corners(FP32))
    check(FP32, a, b, floating.add(a, b))


@pytest.mark.parametrize("draw", [operands.uniform, operands.near_exponents])
@pytest.mark.parametrize("seed", [1, 2])
def test_random(draw, seed):
    a, b = draw(FP32, np.random.default_rng(seed))
    check(FP32, a, b, floating.add(a, b))


@pytest.mark.parametrize(("exponent_bits", "fraction_bits"), NARROW)
def test_exhaustive(exponent_bits, fraction_bits):
    format = FloatFormat(exponent_bits=exponent_bits, fraction_bits=fraction_bits)
    a, b = operands.pairs(np.arange(1 << format.width, dtype=np.uint32))
    check(format, a, b, floating.add_exact(a, b, exponent_bits=exponent_bits, fraction_bits=fraction_bits))


@pytest.mark.parametrize(("format", "dtype"), [(FP16, np.float16), (BF16, ml_dtypes.bfloat16)])
@pytest.mark.parametrize("draw", [operands.uniform, operands.near_exponents])
def test_half(format, dtype, draw):
    a, b = draw(format, np.random.default_rng(1), 1 << 18)
    x, y = (bits.astype(np.uint16).view(dtype) for bits in (a, b))
    with np.errstate(all="ignore"):
        total = x + y
        want = np.where(np.isnan(total), format.canonical_nan, total.view(np.uint16))
    check(format, a, b, want)


@pytest.mark.parametrize(("exponent_bits", "fraction_bits"), [(5, 26), (9, 22)])
def test_other_format(exponent_bits, fraction_bits):
    format = FloatFormat(exponent_bits=exponent_bits, fraction_bits=fraction_bits)
    a, b = operands.near_exponents(format, np.random.default_rng(1), 1 << 14)
    check(format, a, b, floating.add_exact(a, b, exponent_bits=exponent_bits, fraction_bits=fraction_bits))


def test_timing():
    a, b = operands.uniform(FP32, np.random.default_rng(1), 200)
    pipeline.check(FloatAdder(), {"a": a, "b": b}, {"o": floating.add(a, b)})
