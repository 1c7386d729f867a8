# amaranth: UnusedElaboratable=no
import numpy as np
import pytest

from hdl.streams.delay import DelayLine
from sim.verilated.vectors import Unit
from tests.refusals import refused_values

test_cycles = refused_values(DelayLine, {"shape": 8}, "cycles", [-1, 1.0, None], "Delay must be zero or more cycles")


@pytest.mark.parametrize("cycles", [1, 3, 4, 5, 16, 17, 100])
def test_delay(cycles):
    """Delay lines have the right length, whether they use flip-flops or memory. Lengths around the limit between both
    are tested."""
    line = DelayLine(shape=12, cycles=cycles)
    assert line.latency == cycles
    values = np.random.default_rng(cycles).integers(1 << 12, size=1000)
    unit = Unit(line)
    assert (unit.run({"i": values}, drain=cycles)["o"][cycles:] == values).all()
    unit.reset()
    assert (unit.run({"i": values}, drain=cycles)["o"][cycles:] == values).all()


def test_no_delay():
    values = np.arange(256)
    assert (Unit(DelayLine(shape=8, cycles=0)).run({"i": values})["o"] == values).all()


@pytest.mark.parametrize("cycles", [1, 3, 4, 16, 17, 40])
def test_paced(cycles):
    """The delay counts only cycles in which the random signal `step` is high."""
    generator = np.random.default_rng(cycles)
    values = generator.integers(1 << 12, size=1000)
    step = generator.integers(2, size=1000)
    got = Unit(DelayLine(shape=12, cycles=cycles, paced=True)).run({"i": values, "step": step})["o"]
    steps = np.cumsum(step) - step  # number of enabled steps before each cycle
    late = steps >= cycles
    assert late.sum() > 300
    assert (got[late] == values[step == 1][steps[late] - cycles]).all()
