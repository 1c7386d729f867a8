# amaranth: UnusedElaboratable=no
import functools
import operator

import numpy as np
import pytest

from hdl.floating.format import FP16, FP32, FloatFormat
from hdl.floating.multiply import FloatMultiplier
from hdl.floating.product import Product
from sim.golden import floating
from tests.hdl.floating import operands, pipeline
from tests.refusals import refused, refused_values

DSPS = [{"dsps": 4}, {"dsps": 2}, {"dsps": 1}]

BENCH = pipeline.Operation(FloatMultiplier, floating.multiply, floating.multiply_exact, operator.mul)
test_format = BENCH.formats()
test_parameters = refused(FloatMultiplier, {}, [
    *(({"dsps": dsps}, f"DSP block count must be 4, 2 or 1, not {dsps}") for dsps in (0, 3, 5, None)),
    ({"format": FloatFormat(exponent_bits=8, fraction_bits=36)}, "Fraction width must be at most 35, not 36")])
test_golden = BENCH.golden(functools.partial(operands.corner_pairs, FP32), *(functools.partial(
    draw, FP32, np.random.default_rng(1), 1 << 12) for draw in (operands.uniform, operands.near_borders)))
test_random = BENCH.random(operands.uniform, operands.near_exponents, operands.near_borders, options=DSPS)
test_exhaustive = BENCH.exhaustive([(4, 3), (5, 2), (2, 5), (2, 1)])
test_half = BENCH.halves(operands.uniform, operands.near_borders)
test_other_format = BENCH.others([(5, 20), (9, 22)], operands.near_borders)
test_timing = BENCH.timing([DSPS[0], DSPS[2]])
test_product_width = refused_values(Product, {"dsps": 4}, "width", [0, 37, 8.0],
                                    "Width must be an integer between 1 and 36")
test_product_dsps = refused_values(Product, {"width": 24}, "dsps", [3], "DSP block count must be 4, 2 or 1")


@pytest.mark.parametrize(("dsps", "latency"), [(4, 6), (2, 7), (1, 7)])
def test_latency(dsps, latency):
    assert FloatMultiplier(dsps=dsps).latency == latency
    assert FloatMultiplier(format=FP16, dsps=dsps).latency == 6


@pytest.mark.parametrize("dsps", [4, 2, 1])
@pytest.mark.parametrize("width", [18, 19, 29])
def test_product(width, dsps):
    generator = np.random.default_rng(width)
    a, b = generator.integers(0, 1 << width, (2, 1 << 16), dtype=np.uint64)
    ones = np.uint64((1 << width) - 1)
    a[:256:2], b[:256:3] = ones, ones
    pipeline.Operation(Product, operator.mul, None, None).check((a, b), a * b, width=width, dsps=dsps)
