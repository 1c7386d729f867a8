"""Weights after a step are the same for every schedule, and for every order of commands that a program allows.

If memories are equal before a step, they are equal after it under any schedule, and so after any number of steps with
any schedules.
"""

import numpy as np
import pytest

from host.cycles.estimate import Costs
from host.features.codebook.codebooks import codebook
from host.features.programs.schedules import Kind, Schedule, build, search
from host.models.layer_shapes import layers_of
from sim.golden import ring
from sim.golden.codecs import GRADIENT_CODECS, RAW, WEIGHT_CODECS, ZERO_VALUE
from sim.golden.features.programs.program import makespan, timeline
from sim.golden.features.programs.program_nodes import ProgramNodes

#: Ten layers of one or two groups each.
WIDTHS = [12, *[6] * 9, 5]
LAYERS = layers_of(WIDTHS)
LENGTH = LAYERS[-1].base + LAYERS[-1].length
STAGED = 1 << (LENGTH - 1).bit_length()
COSTS = Costs(examples=4)
STEPS = 36
SCHEDULES = [Schedule(Kind.LAYERS), *(Schedule(Kind.CHUNKS, size) for size in range(1, 11))]
NODES = (2, 3, 4, 8)


def program(schedule, nodes):
    return build(schedule, LAYERS, nodes=nodes, costs=COSTS, staged=STAGED)


def found(nodes):
    """The schedule that the search for chunk sizes selects."""
    outcome = search(len(LAYERS) - 1, lambda size: makespan(timeline(
        program(Schedule(Kind.CHUNKS, size), nodes).timed(), nodes=nodes)))
    return Schedule(Kind.CHUNKS, outcome.size)


def settings(generator):
    return ring.settings(1, learning_rate=float(generator.random()), gradient_scale=0.25, first_decay=0.9,
                         first_gain=1)


def compare(nodes, weight, gradient, schedules, seed, *, steps):
    """Run steps without a schedule and with each schedule, always from the same memories; results must be equal."""
    generator = np.random.default_rng(seed)
    weight_codec, gradient_codec = WEIGHT_CODECS[weight], GRADIENT_CODECS[gradient]
    weights = generator.standard_normal(LENGTH).astype(np.float32)
    if weight_codec.codebook_words:
        weight_codec = weight_codec.bind(codebook(weight, weights))
    golden = ProgramNodes(nodes, gradient_words=2 * STAGED, planes=1, weight_codec=weight_codec,
                   gradient_codec=gradient_codec, weights=ring.bits(weights))
    serial = program(Schedule(Kind.NONE), nodes).placed(nodes)
    compiled = [program(schedule, nodes).placed(nodes) for schedule in schedules]
    first = golden.arrays()
    for step in range(steps):
        golden.settings = settings(generator)
        golden.stage(ring.bits(generator.standard_normal((nodes, LENGTH)) * 2.0 ** generator.integers(-8, 8, LENGTH)),
                     STAGED)
        before = golden.arrays()
        golden.run(serial, seed=step)
        expected = golden.arrays()
        golden.restore(before)
        golden.run(compiled[step % len(compiled)], seed=step)
        for name, array in golden.arrays().items():
            assert np.array_equal(array, expected[name]), \
                f"seed {seed}, step {step}: {name} by {schedules[step % len(compiled)]}, {nodes} nodes"
    assert not np.array_equal(first["weights"], golden.weights)
    assert (golden.weights == golden.weights[0]).all()


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("gradient", [ZERO_VALUE, RAW])
def test_exact_gradients(nodes, gradient):
    compare(nodes, RAW, gradient, [*SCHEDULES, found(nodes), Schedule(Kind.STRICT)], 1, steps=STEPS)


@pytest.mark.parametrize(("number", "name"), list(enumerate(name for name in GRADIENT_CODECS if name != ZERO_VALUE)))
def test_gradient_codecs(number, name):
    compare(NODES[number % 4], RAW, name, [*SCHEDULES, found(NODES[number % 4])], 2, steps=12)


@pytest.mark.parametrize(("number", "name"), list(enumerate(name for name in WEIGHT_CODECS if name != RAW)))
def test_weight_codecs(number, name):
    compare(NODES[number % 4], name, ZERO_VALUE, [*SCHEDULES, found(NODES[number % 4]), Schedule(Kind.STRICT)], 3,
            steps=13)


def alternating(nodes, layers, weights, seed):
    """Golden nodes, and a function that runs passes of the program of a delayed schedule on them."""
    program_of = build(Schedule(Kind.DELAYED, layers), LAYERS, nodes=nodes, costs=COSTS, staged=STAGED,
                       distance=LENGTH).placed(nodes)
    golden = ProgramNodes(nodes, gradient_words=2 * STAGED, planes=1, weights=ring.bits(weights), mastered=True)
    golden.weights, golden.weight_stride = np.tile(golden.weights, 2), LENGTH
    return golden, lambda passes, parity, before=lambda number: None: golden.run(
        program_of, passes=passes, parity=parity, seed=seed, before=before)


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("layers", [0, 1, 2, 5, 10])
def test_stale(nodes, layers):
    """Updates with staged gradients match the schedule ``layers``; the second copy of the weights is one step
    older."""
    generator = np.random.default_rng(nodes * 100 + layers)
    weights = generator.standard_normal(LENGTH).astype(np.float32)
    golden, run = alternating(nodes, layers, weights, seed=nodes)
    expected = ProgramNodes(nodes, gradient_words=2 * STAGED, planes=1, weights=ring.bits(weights))
    serial = program(Schedule(Kind.LAYERS), nodes).placed(nodes)
    apart = LAYERS[layers - 1].base + LAYERS[layers - 1].length if layers else 0
    for step in range(5):
        expected.settings = golden.settings = settings(generator)
        gradients = ring.bits(generator.standard_normal((nodes, LENGTH)))
        for model in (golden, expected):
            model.stage(gradients, STAGED)
        before = expected.weights.copy()
        expected.run(serial, seed=step)
        run(1, step % 2)
        newest, other = (golden.weights[:, LENGTH * odd:][:, :LENGTH] for odd in (step % 2, 1 - step % 2))
        assert np.array_equal(newest[:, :apart], expected.weights[:, :apart])
        assert np.array_equal(golden.weights[:, apart:LENGTH], expected.weights[:, apart:])
        assert np.array_equal(other[:, :apart], before[:, :apart])


@pytest.mark.parametrize("seed", range(6))
def test_versions(seed):
    """If the first of two layers is delayed, four passes read versions 0, 0, 1 and 2 of its weights, and versions 0
    to 3 of the other layer's."""
    layers = layers_of([6, 5, 3])
    length = layers[-1].base + layers[-1].length
    placed = build(Schedule(Kind.DELAYED, 1), layers, nodes=3, costs=COSTS, staged=STAGED, distance=length).placed(3)
    golden = ProgramNodes(3, gradient_words=2 * STAGED, planes=1, weights=np.zeros(2 * length, np.uint32),
                          mastered=True)
    golden.weight_stride = length
    golden.settings = settings(np.random.default_rng(0))
    golden.run(placed, passes=4, seed=seed)
    for rank in range(3):
        versions = [[version for node, region, version in golden.found if (node, region) == (rank, number)]
                    for number in (1, 2)]
        # The forward and backward commands of a pass read the same weight version.
        assert versions == [[0, 0, 0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 2, 2, 3, 3]]
