"""Functions for the block scales of NVFP4: hdl/features/nvfp4/scale.py."""

from fractions import Fraction

import numpy as np
import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.mx.pipeline import Pipeline
from hdl.features.nvfp4.scale import KEY, find_scale, open_scale
from sim.golden.features.nvfp4.nvfp4 import NVFP4
from sim.verilated.vectors import Unit
from tests.hdl import pysim


class Finder(wiring.Component):
    """Unit that outputs the scale for a key after two cycles."""

    key: In(15)
    code: Out(7)

    def __init__(self, power):
        self._power = power
        super().__init__()

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.code.eq(find_scale(m, Pipeline(m, 1), data.View(KEY, self.key), self._power))
        return m


@pytest.mark.parametrize("power", [0, -115, 116])
def test_find_scale(power):
    """Every key, including the keys of infinities and NaNs, yields the golden codec's scale."""
    unit = Unit(Finder(power), name="ScaleFinder")
    keys = np.arange(1 << 15)
    trace = unit.lockstep(sources={}, sinks={}, inputs={"key": np.concatenate([keys, [0, 0]])}, cycles=len(keys) + 2)
    bits = (keys >> 7 << 23 | (keys >> 1 & 63) << 17 | keys & 1).astype(np.uint32)
    expected = NVFP4(tensor_scale=2.0 ** power).quantise(np.repeat(bits, 16)).exponents
    np.testing.assert_array_equal(trace["code"][2:], expected)


def test_open_scale():
    """Every nonzero scale is decoded into a significand from 1 to below 2 and a power of two."""
    m = Module()
    code = Signal(7)
    opened = open_scale(m, code)
    scales = []

    async def process(ctx):
        for number in range(1, 127):
            ctx.set(code, number)
            scales.append(Fraction(8 + ctx.get(opened.fraction), 8) * Fraction(2) ** (ctx.get(opened.field) - 7))

    pysim.simulate(m, process, clock=False)
    assert scales == [Fraction(number & 7 | (number > 7) << 3) * Fraction(2) ** (max(number >> 3, 1) - 10)
                      for number in range(1, 127)]
