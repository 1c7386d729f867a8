"""Nodes with a far memory: a step under each policy, on simulated nodes, and a far memory that says nothing."""

import numpy as np
import pytest

from hdl.control.protocol import Operation
from hdl.group import GROUP
from host.compute.factors import Array
from host.compute.far_lists import compile_far, layers_chain_of
from host.driver.command import Command
from host.memory.policy_search import decide
from host.models.layers import perceptron
from host.program.schedules import layers_of
from tests.host import rings
from tests.host.compute.test_far_lists import EXAMPLES, WIDTHS, batch, program_of

CONFIG = rings.CONFIGS["centroid"]
ARRAY = Array(rows=CONFIG.compute, lanes=CONFIG.lanes, operands=CONFIG.operands)
NODES, RATE, SHARE = 2, 1 / 16, 0.6
LAYERS = layers_of(WIDTHS)
LATENCY = 40


def lists_of(kind, cycles=None):
    chain = layers_chain_of(LAYERS, examples=EXAMPLES, lanes=CONFIG.lanes, cycles=cycles)
    budget = chain.words if kind == "keep" else int(SHARE * chain.words)
    return compile_far(LAYERS, array=ARRAY, examples=EXAMPLES, words=CONFIG.activation_words,
                       far_words=CONFIG.far_words, chain=chain, budget=budget,
                       decision=decide(chain, budget=budget, rate=RATE, kind=kind))


def give(ring, lists, model):
    """Write weights, lists, inputs and labels."""
    ring.write_activations([lists.words] * NODES, lists.places.lists)
    shares = [batch(rank) for rank in range(NODES)]
    ring.write_activations([x.ravel().view(np.uint32) for x, _ in shares], lists.places.outputs[0])
    ring.write_activations([labels.astype(np.uint32) for _, labels in shares], lists.places.labels)
    ring.write_gradients([np.zeros(model.size, np.uint32)] * NODES)
    return shares


def test_policies():
    """Gradients and losses are the model's under each policy; moved words, and cycles, are the timeline's."""
    model = perceptron(WIDTHS[0], WIDTHS[1:-1], WIDTHS[-1], align=GROUP, operands=CONFIG.operands)
    model.initialize(0)
    with rings.open_nodes(NODES, config=CONFIG, host_port=False) as (ring, simulation):
        simulation.set_far_speed(latency=LATENCY, rate=RATE)
        ring.write_weights(model.parameters)
        kept = lists_of("keep")
        give(ring, kept, model)
        outcomes = ring.run_layers([one.fields["weight_base"] for one in kept.commands], [EXAMPLES] * NODES)
        cycles = {one.name: found.cycles for one, found in zip(kept.commands, outcomes, strict=True)}
        found = {}
        for kind in ("keep", "swap", "recompute", "mixed"):
            lists = lists_of(kind, cycles)
            shares = give(ring, lists, model)
            program = program_of(LAYERS, lists, NODES)
            commands = [[[one for one in queue if one.operation in (
                Operation.LAYERS, Operation.MOVE_OUT, Operation.MOVE_IN)] for queue in program.commands(rank, NODES)]
                for rank in range(NODES)]
            before = [simulation.far_memory(rank)[1:] for rank in range(NODES)]
            ring.load_programs(commands)
            passes = ring.run_programs(collectives=0)
            for rank, (x, labels) in enumerate(shares):
                loss, gradient = model.differentiate(x, labels)
                np.testing.assert_array_equal(ring.read_gradients(model.size)[rank].view(np.uint32),
                                              gradient.view(np.uint32))
                assert ring.read_activations(lists.places.loss, 1)[rank, 0] == np.float32(loss)
                read, written = (after - earlier for after, earlier in zip(
                    simulation.far_memory(rank)[1:], before[rank], strict=True))
                assert read + written == lists.decision.run.far_words, kind
            found[kind] = passes.outcome.cycles
            # The timeline has no cycles between commands, and has all cycles of a move's last row.
            assert abs(found[kind] / lists.decision.run.cycles - 1) <= 0.03, (kind, lists.decision.run.cycles, found)
        assert found["keep"] < found["mixed"] < min(found["swap"], found["recompute"]), found


def test_a_far_memory_that_says_nothing():
    with rings.open_nodes(1, config=CONFIG, host_port=False) as (ring, simulation):
        near = np.arange(1, 129, dtype=np.uint32)
        ring.write_activations([near], 0)
        device = ring.devices[0]
        device.push(Command(operation=Operation.MOVE_OUT, weight_base=0, state_base=32, length=101))
        assert device.pop_event(4000).check(device.name).detail == 101
        far, _, written = simulation.far_memory(0)
        np.testing.assert_array_equal(far[32:133], near[:101])
        assert (written, far[133]) == (101, 0)
        simulation.set_far_speed(latency=16, rate=0)
        ring._write_register("TIMEOUT", 500)
        device.push(Command(operation=Operation.MOVE_IN, weight_base=256, state_base=32, length=96, tag=3))
        with pytest.raises(Exception, match="the far memory said nothing for TIMEOUT cycles, after 0 elements"):
            device.pop_event(4000).check(device.name)
        simulation.set_far_speed(latency=16, rate=1)
        device.push(Command(operation=Operation.MOVE_IN, weight_base=256, state_base=32, length=101))
        device.pop_event(4000).check(device.name)
        np.testing.assert_array_equal(ring.read_activations(256, 101)[0].view(np.uint32), near[:101])
        for fields in ({"weight_base": 2048, "state_base": 0}, {"weight_base": 0, "state_base": 4096}):
            device.push(Command(operation=Operation.MOVE_OUT, length=32, **fields))
            with pytest.raises(Exception, match="BAD_LENGTH"):
                device.pop_event(4000).check(device.name)
        assert simulation.far_memory(0)[2] == 101
        for rate, message in ((5, "between 0 and 4 words"), (-1, "between 0 and 4 words")):
            with pytest.raises(ValueError, match=message):
                simulation.set_far_speed(latency=1, rate=rate)
