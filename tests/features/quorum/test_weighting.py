# amaranth: UnusedElaboratable=no
import functools

import numpy as np
import pytest

from hdl.features.quorum.weighting import Weighting
from hdl.floating.format import FP32
from sim.golden import floating
from sim.golden.features.quorum.rounds import ONE
from sim.verilated.vectors import Unit
from tests.hdl.floating import operands

WEIGHTS = np.arange(1, ONE + 1, dtype=np.uint32)


@functools.cache
def unit():
    return Unit(Weighting())


def check(values):
    """Multiply every value by every weight, one pair per cycle, and check the products."""
    a, weight = (grid.ravel() for grid in np.meshgrid(values, WEIGHTS))
    factor = (weight / np.float32(ONE)).astype(np.float32).view(np.uint32)
    got = unit().run({"a": a, "weight": weight}, drain=Weighting.latency)["o"][Weighting.latency:]
    assert operands.differences(a, factor, got, floating.multiply(a, factor)) == []


def test_corners():
    check(operands.corners(FP32))


@pytest.mark.parametrize("most", [1 << 32, 1 << 27])
def test_random(most):
    """Random numbers over all magnitudes and around the smallest normal number are weighted correctly."""
    generator = np.random.default_rng(most)
    values = generator.integers(0, most, 1 << 16, dtype=np.uint32)
    check(values | generator.integers(0, 2, len(values), dtype=np.uint32) << np.uint32(31))
