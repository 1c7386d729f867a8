# amaranth: UnusedElaboratable=no

import pytest
from amaranth.sim import Simulator

from boards.top import ResetHold
from tests.refusals import refused_values


def outputs(levels, *, cycles):
    """Return the reset output just before each clock edge; each input level is set after the previous edge."""
    unit = ResetHold(cycles=cycles)
    seen = []

    async def bench(ctx):
        for level in levels:
            ctx.set(unit.i, level)
            _, _, held = await ctx.tick("start").sample(unit.o)
            seen.append(held)

    simulator = Simulator(unit)
    simulator.add_clock(1e-6, domain="start")
    simulator.add_testbench(bench)
    simulator.run()
    return seen


@pytest.mark.parametrize("cycles", [2, 5, 64])
def test_held_for_a_while(cycles):
    seen = outputs([1] * 10 + [0] * (cycles + 10), cycles=cycles)
    assert seen == [1] * (10 + cycles + 2) + [0] * 8


def test_a_button_that_bounces():
    cycles = 20
    seen = outputs([0] * 40 + [1] + [0] * 10 + [1] * 3 + [0] * 40, cycles=cycles)
    quiet, held = [0] * (40 - cycles - 2), [1] * (14 + cycles + 2 - 1)
    assert seen == [1] * (cycles + 2) + quiet + [0] + held + [0] * (len(seen) - 41 - len(held))


test_parameters = refused_values(ResetHold, {}, "cycles", [1, 2.0], "Cycles must be an integer of 2 or more")
