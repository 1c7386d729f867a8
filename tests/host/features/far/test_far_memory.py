"""Simulated nodes with far memory: a step under each policy, and a far memory that does not respond."""

import numpy as np
import pytest

from hdl.control.protocol import Operation
from hdl.group import GROUP
from host.driver.command import Command
from host.features.far.steps import run_policies
from host.models.layer_shapes import layers_of
from host.models.layers import perceptron
from sim.golden.features.far.mover import move_cycles
from tests.host import rings
from tests.host.features.far.test_lists import WIDTHS, batch

CONFIG = rings.CONFIGS["centroid"]


def test_policies():
    """Under each policy, gradients and losses match the host; moved words and cycles match the timeline.

    The timeline has no gaps between commands, but includes every cycle of a move's last row.
    """
    model = perceptron(WIDTHS[0], WIDTHS[1:-1], WIDTHS[-1], align=GROUP, operands=CONFIG.compute.operands)
    model.initialize(0)
    with rings.open_nodes(2, config=CONFIG, host_port=False) as (ring, simulation):
        results = run_policies(ring, simulation, model, layers_of(WIDTHS), [batch(rank) for rank in range(2)],
                               share=0.6, rate=1 / 16)
    cycles = {result.kind: result.cycles for result in results}
    assert list(cycles) == ["keep", "swap", "recompute", "mixed"]
    for result in results:
        assert result.same, result
        assert result.far_words == result.planned, result
        assert result.peak <= result.budget, result
        assert abs(result.cycles / result.timeline - 1) <= 0.03, result
    assert cycles["keep"] < cycles["mixed"] < min(cycles["swap"], cycles["recompute"]), cycles


@pytest.mark.parametrize(("rate", "latency"), [(4, 1), (4, 25), (2, 16), (1, 30), (1 / 2, 5), (1 / 8, 100)])
def test_cycles_of_moves(rate, latency):
    """Moves that are delayed only by the far memory take the modelled number of cycles."""
    with rings.open_nodes(1, config=CONFIG, host_port=False) as (ring, simulation):
        device = ring.devices[0]
        simulation.set_far_speed(latency=latency, rate=rate)
        for operation in (Operation.MOVE_OUT, Operation.MOVE_IN):
            for length in (0, 1, 32, 101, 512):
                simulation.run(300)
                device.push(Command(operation=operation, weight_base=0, state_base=32, length=length))
                event = device.pop_event(40_000).check(device.name)
                assert event.detail == length
                assert event.cycles == move_cycles(length, lanes=CONFIG.lanes, rate=rate, latency=latency,
                                                   back=operation is Operation.MOVE_IN), (operation, length)


def test_a_far_memory_that_says_nothing():
    with rings.open_nodes(1, config=CONFIG, host_port=False) as (ring, simulation):
        near = np.arange(1, 129, dtype=np.uint32)
        ring.memory.write_activations([near], 0)
        device = ring.devices[0]
        device.push(Command(operation=Operation.MOVE_OUT, weight_base=0, state_base=32, length=101))
        assert device.pop_event(4000).check(device.name).detail == 101
        far, _, written = simulation.far_memory(0)
        np.testing.assert_array_equal(far[32:133], near[:101])
        assert (written, far[133]) == (101, 0)
        simulation.set_far_speed(latency=16, rate=0)
        ring.devices.write_register("TIMEOUT", 500)
        device.push(Command(operation=Operation.MOVE_IN, weight_base=256, state_base=32, length=96, tag=3))
        with pytest.raises(Exception, match="the far memory said nothing for TIMEOUT cycles, after 0 elements"):
            device.pop_event(4000).check(device.name)
        simulation.set_far_speed(latency=16, rate=1)
        device.push(Command(operation=Operation.MOVE_IN, weight_base=256, state_base=32, length=101))
        device.pop_event(4000).check(device.name)
        np.testing.assert_array_equal(ring.memory.read_activations(256, 101)[0].view(np.uint32), near[:101])
        for fields in ({"weight_base": 2048, "state_base": 0}, {"weight_base": 0, "state_base": 4096}):
            device.push(Command(operation=Operation.MOVE_OUT, length=32, **fields))
            with pytest.raises(Exception, match="BAD_LENGTH"):
                device.pop_event(4000).check(device.name)
        assert simulation.far_memory(0)[2] == 101
        for rate, message in ((5, "between 0 and 4 words"), (-1, "between 0 and 4 words")):
            with pytest.raises(ValueError, match=message):
                simulation.set_far_speed(latency=1, rate=rate)
