"""Programs with compute commands give the same weights under every schedule and in every order."""

import numpy as np
import pytest

from hdl.features.compute.layer_list import Place
from hdl.group import GROUP
from host.cycles.estimate import Costs
from host.features.compute.instructions import Array
from host.features.compute.lists import compile_lists
from host.features.programs.schedules import Computed, Copies, Schedule, build
from host.models.layer_shapes import layers_of
from host.models.layers import perceptron
from sim.golden import ring
from sim.golden.features.compute.compute import Engine
from sim.golden.features.programs.program_nodes import ProgramNodes
from tests.host.features.compute.test_lists import WORDS, give
from tests.refusals import refuses

WIDTHS = (16, 8, 12, 5)
SHARES = (7, 6, 6)
NODES = len(SHARES)


@pytest.fixture
def model():
    network = perceptron(16, (8, 12), 5, align=GROUP)
    network.initialize(2)
    return network


def compiled(schedule, lists, lengths=SHARES):
    return build(Schedule.parse(schedule), layers_of(WIDTHS), nodes=NODES, costs=Costs(examples=max(SHARES)),
                 computed=Computed(lists.commands, lengths))


@pytest.mark.parametrize("schedule", ["none", "strict", "layers", "chunks:2"])
def test_a_step_is_that_of_the_host(model, schedule):
    """Steps run by a program match fused updates that use gradients computed on the host."""
    layers = layers_of(WIDTHS)
    lists = compile_lists(layers, array=Array(rows=2, lanes=4), examples=max(SHARES), words=WORDS)
    program = compiled(schedule, lists)
    assert [task.name for task in program.tasks[:6]] == [
        "forward 1", "forward 2", "forward 3", "backward 3", "backward 2", "backward 1"]
    assert [command.length for command in program.commands(1, NODES)[0]] == [SHARES[1]] * 6
    generator = np.random.default_rng(1)
    nodes = ProgramNodes(NODES, gradient_words=model.size, weights=model.parameters.view(np.uint32), planes=1,
                  engine=Engine(rows=2, lanes=4), activation_words=WORDS)
    nodes.activations[:, lists.places.lists:lists.end] = lists.words
    nodes.settings = ring.settings(1, learning_rate=0.5, gradient_scale=1 / sum(SHARES), first_decay=0.9,
                                   first_gain=1)
    weights, state = model.parameters.view(np.uint32).copy(), [np.zeros(model.size, np.uint32)]
    for step in range(3):
        batches = [(generator.standard_normal((count, 16)).astype(np.float32), generator.integers(0, 5, count))
                   for count in SHARES]
        for rank, (x, labels) in enumerate(batches):
            give({Place.ACTIVATIONS: nodes.activations[rank]}, lists, x, labels)
        nodes.run(program.placed(NODES), seed=step)
        model.parameters[...] = weights.view(np.float32)
        losses, gradients = zip(*(model.differentiate(*batch) for batch in batches), strict=True)
        update = ring.fused_update(np.stack(gradients).view(np.uint32), weights, state, nodes.settings)
        weights, state = update.weights, update.state
        np.testing.assert_array_equal(nodes.weights, np.tile(weights, (NODES, 1)))
        assert nodes.activations[:, lists.places.loss].view(np.float32).tolist() == list(losses)


@pytest.mark.parametrize("behind", [0, 1, 2, 3])
def test_passes_that_overlap(model, behind):
    """Layers use the newest weights, or weights one update older, exactly as on the host. Even and odd passes use
    separate addresses for inputs, labels and lists."""
    layers = layers_of(WIDTHS)
    distance = 1024
    copies = Copies(layers=behind, distance=distance)
    lists = compile_lists(layers, array=Array(rows=2, lanes=4), examples=max(SHARES), words=WORDS, copies=copies)
    program = build(Schedule.parse(f"delayed:{behind}"), layers, nodes=NODES, costs=Costs(examples=max(SHARES)),
                    computed=Computed(lists.commands, SHARES), distance=distance)
    generator = np.random.default_rng(behind)
    weights = model.parameters.view(np.uint32).copy()
    nodes = ProgramNodes(NODES, gradient_words=model.size, weights=weights, planes=1, mastered=True,
                  engine=Engine(rows=2, lanes=4), activation_words=WORDS)
    nodes.weights = np.hstack([nodes.weights, np.zeros((NODES, distance - model.size), np.uint32), nodes.weights])
    nodes.weight_stride = distance
    for odd, words in enumerate((lists.words, lists.odd)):
        base = lists.places.lists + odd * distance
        nodes.activations[:, base:base + len(words)] = words
    nodes.settings = ring.settings(1, learning_rate=0.5, gradient_scale=1 / sum(SHARES), first_decay=0.9,
                                   first_gain=1)
    apart = sum(layer.length for layer in layers[:behind])
    older, state = weights.copy(), [np.zeros(model.size, np.uint32)]
    for step in range(5):
        batches = [(generator.standard_normal((count, 16)).astype(np.float32), generator.integers(0, 5, count))
                   for count in SHARES]
        for rank, (x, labels) in enumerate(batches):
            further = nodes.activations[rank][step % 2 * distance:]
            give({Place.ACTIVATIONS: further}, lists, x, labels)
        nodes.run(program.placed(NODES), seed=step, parity=step % 2)
        model.parameters[...] = np.concatenate([older[:apart], weights[apart:]]).view(np.float32)
        losses, gradients = zip(*(model.differentiate(*batch) for batch in batches), strict=True)
        update = ring.fused_update(np.stack(gradients).view(np.uint32), weights, state, nodes.settings)
        older, weights, state = weights, update.weights, update.state
        newest = nodes.weights[:, step % 2 * distance:][:, :apart]
        np.testing.assert_array_equal(newest, np.tile(weights[:apart], (NODES, 1)))
        np.testing.assert_array_equal(nodes.weights[:, apart:model.size], np.tile(weights[apart:], (NODES, 1)))
        assert nodes.activations[:, lists.places.loss].view(np.float32).tolist() == list(losses)


def test_waits(model):
    """A layer's update waits for its backward command, and its next forward command waits for the update."""
    lists = compile_lists(layers_of(WIDTHS), array=Array(rows=1, lanes=4), examples=7, words=WORDS)
    program = compiled("layers", lists)
    waits = {(program.tasks[index].name, wait.after, wait.lag) for index, _, wait in program.waits()}
    # In the order of their queues, backward commands are numbers 4 to 6 and updates are numbers 2 to 4.
    assert {("update 3", 4, 0), ("update 2", 5, 0), ("forward 1", 4, 1)} <= waits


def test_distance(model):
    with pytest.raises(ValueError, match=r"^Inputs, labels and lists of odd passes must lie at least [\d,]+ elements "
                                         r"further on, not 512$"):
        compile_lists(layers_of(WIDTHS), array=Array(rows=1, lanes=4), examples=7, words=WORDS,
                      copies=Copies(layers=1, distance=512))


@pytest.mark.parametrize(("lengths", "message"), [
    ((4, 4), r"^Lengths must be one per node, 3, not 2$"),
    (None, r"^Staged gradients must have a place where no engine computes$"),
])
def test_errors(model, lengths, message):
    lists = compile_lists(layers_of(WIDTHS), array=Array(rows=1, lanes=4), examples=7, words=WORDS)
    computed = None if lengths is None else Computed(lists.commands, lengths)
    with pytest.raises(ValueError, match=message):
        build(Schedule.parse("none"), layers_of(WIDTHS), nodes=NODES, costs=Costs(examples=7), computed=computed)


def test_a_node_without_engine(model):
    lists = compile_lists(layers_of(WIDTHS), array=Array(rows=1, lanes=4), examples=7, words=WORDS)
    nodes = ProgramNodes(NODES, gradient_words=model.size, weights=model.parameters.view(np.uint32))
    refuses("Nodes must have an engine for LAYERS", nodes.run, compiled("none", lists).placed(NODES))
    nodes = ProgramNodes(NODES, gradient_words=model.size, weights=model.parameters.view(np.uint32),
                  engine=Engine(rows=1, lanes=4), activation_words=WORDS)
    with pytest.raises(ValueError, match=r"^LAYERS must end well, not with BAD_LENGTH 1$"):
        nodes.run(compiled("none", lists, lengths=(7, 0, 0)).placed(NODES))
