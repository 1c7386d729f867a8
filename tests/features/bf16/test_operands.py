# amaranth: UnusedElaboratable=no

import ml_dtypes
import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.features.bf16.operands import BFloat16Multiplier, BFloat16Rounder
from hdl.floating.format import BF16, FP32
from sim.golden import operands as golden
from sim.verilated.vectors import Unit
from tests.features.compute.terms import KINDS, draw
from tests.hdl.floating import operands
from tests.refusals import refused_values

NAN = 0x7FC0_0000


class Pair(wiring.Component):
    """Test unit: a row rounder and a column rounder, connected to a multiplier."""

    latency = BFloat16Rounder.latency + BFloat16Multiplier.latency

    def __init__(self):
        super().__init__({"a": In(32), "b": In(32), "opens": In(1), "o": Out(32)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.multiplier = multiplier = BFloat16Multiplier()
        for name, exact in (("a", False), ("b", True)):
            m.submodules[f"rounder_{name}"] = rounder = BFloat16Rounder(exact=exact)
            m.d.comb += [rounder.i.eq(getattr(self, name)), rounder.opens.eq(self.opens),
                         getattr(multiplier, name).eq(rounder.o)]
        m.d.comb += self.o.eq(multiplier.o)
        return m


@pytest.fixture(scope="module")
def pair():
    return Unit(Pair())


def products(pair, a, b, opens=0):
    """Multiply pairs of numbers with the unit, one pair per cycle."""
    length = len(a) + Pair.latency
    inputs = {name: np.resize(np.asarray(values, np.uint32), length) for name, values in
              (("a", a), ("b", b), ("opens", opens))}
    return pair.run(inputs)["o"][Pair.latency:]


def library(a, b):
    """Products of ml_dtypes-rounded operands, computed in binary64, with subnormals flushed to zero."""
    with np.errstate(all="ignore"):
        left, right = (np.asarray(x, np.uint32).view(np.float32).astype(ml_dtypes.bfloat16) for x in (a, b))
        left, right = (np.where(np.abs(x.astype(np.float64)) < 2.0**-126, np.copysign(0, x.astype(np.float64)),
                                x.astype(np.float64)) for x in (left, right))
        exact = left * right
        rounded = np.where(np.abs(exact) < 2.0**-126, np.copysign(0, exact), exact).astype(np.float32)
        return np.where(np.isnan(rounded), np.uint32(NAN), rounded.view(np.uint32))


test_parameters = refused_values(BFloat16Rounder, {}, "exact", [None, 1], "exact must be True or False")


def test_products(pair):
    """Products are correct for all kinds of numbers, and near the smallest and largest normal numbers."""
    for seed, kind in enumerate(KINDS, start=1):
        print(f"seed {seed}")
        generator = np.random.default_rng(seed)
        a, b = draw(generator, kind, 2, 30_000)
        near = generator.random(30_000) < 0.3
        edges = np.where(generator.random(30_000) < 0.5, 127, 381) + generator.integers(-3, 4, 30_000)
        exponents = np.clip(edges - (a >> 23 & 255).astype(np.int64), 0, 255).astype(np.uint32)
        b = np.where(near, b & 0x807F_FFFF | exponents << 23, b).astype(np.uint32)
        actual = products(pair, a, b)
        np.testing.assert_array_equal(actual, library(a, b), f"{seed=}")
        np.testing.assert_array_equal(actual, golden.OPERANDS["bf16"].multiply(a, b), f"{seed=}")


def test_corners(pair):
    """Products are correct for all pairs of bfloat16 and binary32 corner cases, and for midpoints."""
    corners = np.unique(np.concatenate([
        operands.corners(BF16).astype(np.uint32) << 16, operands.corners(FP32),
        np.array([0x3F80_7FFF, 0x3F80_8000, 0x3F80_8001, 0x3F81_8000, 0x007F_8000, 0x007F_7FFF, 0x7F7F_8000,
                  0x7F7F_7FFF], np.uint32)]).astype(np.uint32))
    a, b = np.repeat(corners, len(corners)), np.tile(corners, len(corners))
    np.testing.assert_array_equal(products(pair, a, b), library(a, b))


def test_numbers_that_open_a_sum(pair):
    """The initial value of a sum passes through unchanged, regardless of the other operand."""
    generator = np.random.default_rng(1)
    a, b = draw(generator, "bits", 2, 20_000)
    opens = generator.random(20_000) < 0.5
    np.testing.assert_array_equal(products(pair, a, b, opens), np.where(opens, b, library(a, b)))
