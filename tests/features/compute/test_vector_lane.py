# amaranth: UnusedElaboratable=no

import numpy as np
import pytest

from hdl.features.compute.vector_lane import VectorLane
from sim.golden import floating
from sim.verilated.vectors import Unit
from tests.features.compute.terms import KINDS, draw
from tests.refusals import refuses


def test_parameters():
    refuses("DSP block count must be 4, 2 or 1, not 3", VectorLane, dsps=3)


@pytest.mark.parametrize("dsps", [4, 1])
def test_products_and_sums(dsps):
    """Every result of a lane appears after the stated latency, with operands that change in every cycle."""
    component = VectorLane(dsps=dsps)
    unit = Unit(component)
    latency = component.latency
    assert latency == {4: 14, 1: 15}[dsps]
    generator = np.random.default_rng(dsps)
    for kind in KINDS:
        a, b, c = (draw(generator, kind, 20_000) for _ in range(3))
        c[::5] = 0x8000_0000
        b[1::5] = 0x3F80_0000
        out = unit.run({"a": a, "b": b, "c": c}, drain=latency)["o"][latency:]
        np.testing.assert_array_equal(out, floating.add(floating.multiply(a, b), c), kind)
