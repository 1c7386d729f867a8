"""Lists of perceptrons: the golden engine computes the model's gradients and losses, and invalid lists are
rejected."""

import dataclasses

import numpy as np
import pytest

from hdl.control.protocol import EventStatus
from hdl.features.compute.layer_list import INSTRUCTION_WORDS, MULTIPLIED_BIT, Place
from hdl.group import GROUP
from host.features.codebook_layers.layers import shared
from host.features.compute.instructions import Array
from host.features.compute.lists import Activations, Shared, compile_lists
from host.models.layer_shapes import layers_of
from host.models.layers import perceptron
from sim.golden.features.compute.compute import Engine
from tests.refusals import refuses

WORDS = 8192
#: Number of centroids in the tables for which the engines are built.
CENTROIDS = 16


def engine_of(array):
    return Engine(rows=array.rows, lanes=array.lanes, blocks=array.blocks, operands=array.operands,
                  centroids=CENTROIDS)


def memories_of(model, lists, words=WORDS):
    """Return memories that contain the parameters and the lists. Words that the lists will write are initially
    NaN."""
    empty = np.full(words, 0x7FC0_0001, np.uint32)
    gradients = np.zeros(model.size, np.uint32)
    gradients[model.places] = empty[0]
    memories = {Place.GRADIENTS: gradients, Place.WEIGHTS: model.parameters.view(np.uint32).copy(),
                Place.ACTIVATIONS: empty}
    memories[Place.ACTIVATIONS][lists.places.lists:lists.end] = lists.words
    return memories


def give(memories, lists, x, labels):
    """Write a batch of examples to memories, as the host does."""
    places = lists.places
    rows = np.zeros((len(x), places.stride(x.shape[1])), np.float32)
    rows[:, :x.shape[1]] = x
    memories[Place.ACTIVATIONS][places.outputs[0]:places.outputs[0] + rows.size] = rows.ravel().view(np.uint32)
    memories[Place.ACTIVATIONS][places.labels:places.labels + len(labels)] = labels


def run(memories, lists, array, length):
    """Run all lists and return the details of the events they produce."""
    engine, details = engine_of(array), []
    for command in lists.commands:
        outcome = engine.run(memories, base=command.fields["weight_base"], length=length)
        assert outcome.status is EventStatus.OK, (command.name, outcome)
        details.append(outcome.detail)
    return details


@pytest.mark.parametrize(("widths", "array", "most", "batches"), [
    ((64, 64, 10), Array(rows=4, lanes=4), 30, (30, 29, 1)),
    ((8, 4, 12, 3), Array(rows=1, lanes=4), 9, (9, 4)),
    ((16, 8, 8, 8, 5), Array(rows=2, lanes=8, operands="bf16"), 7, (7, 2)),
    ((24, 8, 5), Array(rows=2, lanes=4, operands="nvfp4"), 7, (7, 2)),
    ((6, 9), Array(rows=2, lanes=2), 5, (5, 3)),
    ((8, 16, 1), Array(rows=2, lanes=4, blocks=8), 6, (6,)),
], ids=str)
def test_are_the_model(widths, array, most, batches):
    """Losses and all gradients match the model bit for bit, for several batch sizes and arbitrary values."""
    inputs, *hidden, outputs = widths
    layers = layers_of(widths)
    model = perceptron(inputs, hidden, outputs, align=GROUP, operands=array.operands)
    generator = np.random.default_rng(0)
    lists = compile_lists(layers, array=array, examples=most, words=WORDS)
    for seed, count in enumerate(batches):
        model.initialize(seed)
        model.parameters[model.places] += generator.standard_normal(len(model.places)).astype(np.float32) / 8
        x = generator.standard_normal((count, inputs)).astype(np.float32)
        labels = generator.integers(0, outputs, count)
        if seed == 1:  # this input gives an infinite score and NaNs
            x[0, 0], x[-1, -1] = np.inf, -0.0
        memories = memories_of(model, lists)
        give(memories, lists, x, labels)
        run(memories, lists, array, count)
        loss, gradient = model.differentiate(x, labels)
        assert memories[Place.ACTIVATIONS][lists.places.loss] == np.float32(loss).view(np.uint32)
        np.testing.assert_array_equal(memories[Place.GRADIENTS], gradient.view(np.uint32))
        for number, region in enumerate(map(lists.places.output, range(len(widths)))):
            assert region.base + count * lists.places.stride(widths[number]) <= region.base + region.length


def shared_layers(model, centroids=CENTROIDS):
    """Return the layers of a model with tables, including the addresses of their parameters."""
    layers, base = [], 0
    for number, layer in enumerate(model.layers[::2], start=1):
        outputs, inputs = layer.codebook.indices.shape
        layers.append(Shared(number, inputs, outputs, base, layer.codebook.indices, centroids))
        base += layers[-1].length
    assert base == model.size
    return layers


@pytest.mark.parametrize(("widths", "array", "most", "batches"), [
    ((64, 64, 10), Array(rows=4, lanes=4), 30, (30, 1)), ((8, 4, 12, 3), Array(rows=1, lanes=2), 9, (9, 4)),
    ((16, 8, 5), Array(rows=2, lanes=8), 17, (17, 8)), ((4, 9), Array(rows=2, lanes=4), 5, (5,))], ids=str)
def test_tables(widths, array, most, batches):
    """Layers with tables of k centroids match the model, and need k products for each output."""
    inputs, *hidden, outputs = widths
    generator = np.random.default_rng(1)
    for seed, count in enumerate(batches):
        dense = perceptron(inputs, hidden, outputs)
        dense.initialize(seed)
        model = shared(dense, CENTROIDS, lanes=array.lanes, align=GROUP)
        model.initialize(seed)
        lists = compile_lists(shared_layers(model), array=array, examples=most, words=WORDS)
        x = generator.standard_normal((count, inputs)).astype(np.float32)
        labels = generator.integers(0, outputs, count)
        memories = memories_of(model, lists)
        give(memories, lists, x, labels)
        details = run(memories, lists, array, count)
        loss, gradient = model.differentiate(x, labels)
        assert memories[Place.ACTIVATIONS][lists.places.loss] == np.float32(loss).view(np.uint32)
        np.testing.assert_array_equal(memories[Place.GRADIENTS], gradient.view(np.uint32))
        # Products for outputs are needed in the forward pass and for the gradients of tables; products for the inputs
        # of inner layers are needed in the backward pass.
        made = 2 * sum(-(-width // array.lanes) for width in widths[1:]) + sum(
            width // array.lanes for width in widths[1:-1])
        assert sum(detail >> MULTIPLIED_BIT for detail in details) == CENTROIDS * made * -(-count // 8) * 8


def test_tables_are_whole_rows():
    layer = Shared(1, 8, 4, 0, np.zeros((4, 8), np.int64), 4)
    refuses("Centroids of a table must be a multiple of the 8 lanes of nodes that compute, not 4", compile_lists,
            [layer], array=Array(rows=1, lanes=8), examples=4, words=WORDS)


@pytest.mark.parametrize("tables", [False, True])
def test_regions_are_true(tables):
    """A command changes only the regions that it declares as written, and depends only on those that it declares as
    read."""
    widths, array = (8, 8, 4, 5), Array(rows=2, lanes=4)
    layers = layers_of(widths)
    model = perceptron(8, (8, 4), 5, align=GROUP)
    model.initialize(3)
    if tables:
        model = shared(model, CENTROIDS, align=GROUP)
        model.initialize(3)
        layers = shared_layers(model)
    lists = compile_lists(layers, array=array, examples=6, words=WORDS)
    generator = np.random.default_rng(5)
    memories = memories_of(model, lists)
    give(memories, lists, generator.standard_normal((6, 8)).astype(np.float32), generator.integers(0, 5, 6))
    names = {"gradients": Place.GRADIENTS, "weights": Place.WEIGHTS, "activations": Place.ACTIVATIONS}
    for command in lists.commands:
        inside = {space: np.zeros(len(memory), bool) for space, memory in memories.items()}
        kept = {space: np.zeros(len(memory), bool) for space, memory in memories.items()}
        for region in command.writes:
            inside[names[region.space]][region.base:region.base + region.length] = True
        for region in command.reads:
            kept[names[region.space]][region.base:region.base + region.length] = True
        poisoned = {space: np.where(kept[space], memory, 0x7FC0_0002).astype(np.uint32)
                    for space, memory in memories.items()}
        before = {space: memory.copy() for space, memory in memories.items()}
        for contents in (memories, poisoned):
            assert engine_of(array).run(contents, base=command.fields["weight_base"],
                                        length=6).status is EventStatus.OK
        for space, memory in memories.items():
            changed = memory != before[space]
            assert not (changed & ~inside[space]).any(), command.name
            np.testing.assert_array_equal(poisoned[space][changed], memory[changed], command.name)


def test_lists():
    lists = compile_lists(layers_of((64, 64, 10)), array=Array(rows=4, lanes=4), examples=30, words=WORDS)
    assert [command.name for command in lists.commands] == ["forward 1", "forward 2", "backward 2", "backward 1"]
    assert {command.operation for command in lists.commands} == {"LAYERS"}
    # The four lists have 2, 4, 4 and 4 instructions, including END. A group of 32 words holds two instructions.
    assert np.diff([command.fields["weight_base"] for command in lists.commands]).tolist() == [32, 64, 64]
    assert len(lists.words) == (2 + 4 + 4 + 4) * INSTRUCTION_WORDS
    # Scores have no buffer of their own; they use the buffer of the hidden layer's gradients.
    assert lists.end == 30 * (64 + 64 + 64) + 384 + 32 + 32 + len(lists.words)


@pytest.mark.parametrize(("widths", "examples", "words", "message"), [
    ((63, 8, 4), 4, WORDS, r"^Inputs and widths of hidden layers must be multiples of the 4 lanes of nodes that "
                           r"compute, not 63$"),
    ((64, 10, 4), 4, WORDS, r"multiples of the 4 lanes of nodes that compute, not 10$"),
    ((4, 65), 4, WORDS, r"^Outputs of the last layer must be at most 64 on nodes that compute, not 65$"),
    ((4, 4096), 4, 1 << 20, r"^Layers and examples of nodes that compute must be at most 4,095, not 4,096$"),
    ((4, 4), 4096, 1 << 20, r"must be at most 4,095, not 4,096$"),
    ((64, 64, 10), 40, WORDS, r"^Activations of 40 examples and lists must take at most the 8,192 elements of a "
                              r"node's activation memory, not 8,\d\d\d: take smaller batches or narrower layers, an "
                              r"example has 140 elements and its gradients$"),
])
def test_errors(widths, examples, words, message):
    with pytest.raises(ValueError, match=message):
        compile_lists(layers_of(widths), array=Array(rows=4, lanes=4), examples=examples, words=words)


def test_bases_that_operands_have_no_bits_for():
    layers = [dataclasses.replace(layer, base=layer.base + (1 << 20)) for layer in layers_of((8, 4, 3))]
    refuses("Operands of nodes that compute must begin below element 1,048,576, not at 1,048,576: take narrower "
            "layers or smaller batches", compile_lists, layers, array=Array(rows=1, lanes=4), examples=4, words=WORDS)


def test_numbers_of_buffers():
    """Buffers get numbers from 1 in plan order, followed by the lists. Numbers above 255 are replaced with 0."""
    few, many = (Activations(layers=layers_of([8] * count), examples=1, lanes=4) for count in (3, 130))
    assert [few.owner(name) for name in (*few.rooms, "lists")] == list(range(1, len(few.rooms) + 2))
    numbers = [many.owner(name) for name in (*many.rooms, "lists")]
    assert numbers == [*range(1, 256), *[0] * (len(numbers) - 255)]
    assert len(numbers) > 255
