"""The text model as a sequence of node operations: buffers, memory plans and stored results."""

import numpy as np
import pytest

from host.features.compute.memory.checker import dead_reads, overlaps
from host.features.compute.memory.plan import make_plan, peak, planned
from host.features.compute.text_steps import text_program
from host.models.text import Batch
from host.models.transformer import Transformer, TransformerConfig
from sim.arithmetic.functions import column_sums

#: For each program, its options, and its numbers of words: without sharing of memory, with strict sharing, with
#: sharing, and words that are live at once.
PROGRAMS = {
    "as it is": ({}, 27_024, 13_888, 9_344, 9_344),
    "normals scaled again": ({"scaled_again": True}, 28_560, 14_400, 7_808, 7_808),
    "in place": ({"in_place": True}, 15_776, 9_344, 8_320, 8_320),
    "both": ({"scaled_again": True, "in_place": True}, 17_312, 9_312, 7_760, 7_264),
}
SMALL = TransformerConfig(width=8, heads=4, layers=2, hidden=12, context=6, characters=10)


@pytest.mark.parametrize("name", PROGRAMS)
def test_words(name):
    """Words of memory per sequence for each method of planning; the search needs only the words that are live."""
    options, naive, strict, shared, live = PROGRAMS[name]
    profile = text_program(**options).profile
    peaks = {method: peak(profile.lifetimes, places) for method, places in planned(profile.lifetimes).items()}
    assert (profile.naive, peaks["strict"], peaks["shared"], profile.live) == (naive, strict, shared, live)
    assert peaks["search"] == live
    plan = make_plan(profile)
    assert plan.peak == live
    assert not overlaps(profile, plan.places)
    assert not dead_reads(profile, plan.places)


def test_multiplications():
    """For a sequence of 16, the backward pass takes twice the multiplications of the forward pass."""
    steps = text_program().steps
    dense = 32 * 96 + 32 * 32 + 2 * 32 * 96 + 32 * 64
    assert sum(step.multiplications for step in steps) == 3 * (16 * dense + 2 * 2 * 16 * 16 * 16) == 638_976


def differentiated(model, length, **options):
    """Loss and gradient of a random sequence, computed by the host and by steps with planned memory."""
    generator, context = np.random.default_rng(length), model.config.context
    tokens, labels = generator.integers(0, model.config.characters, (2, context))
    tokens[length:] = labels[length:] = 0
    expected = model.differentiate(Batch(inputs=tokens[None], targets=labels[None], lengths=np.array([length])))
    gradient = np.full(model.size, np.nan, np.float32)
    program = text_program(model.config, parameters=model.parameters, gradient=gradient, length=length, **options)
    places = make_plan(program.profile, rounds=100).places
    results = program.run(places, {"tokens": tokens[:, None], "labels": labels[:, None]})
    return expected, (float(column_sums(results["losses"][:length])[0]), gradient)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(("config", "lengths"), [(TransformerConfig(), (16, 11)), (SMALL, (6, 1))],
                         ids=["text", "small"])
def test_same_bits(config, lengths, name):
    """Loss and gradient in the planned memory match the host bit for bit, with or without padding."""
    options = PROGRAMS[name][0]
    model = Transformer(config)
    model.initialize(3)
    for length in lengths:
        (loss, gradient), (actual, own) = differentiated(model, length, **options)
        assert actual == loss
        np.testing.assert_array_equal(own.view(np.uint32), gradient.view(np.uint32))


def test_too_few_words():
    """The results change if two buffers are made to overlap."""
    model = Transformer(SMALL)
    model.initialize(0)
    gradients = []
    for move in (0, -1):
        gradients.append(np.zeros(model.size, np.float32))
        program = text_program(SMALL, parameters=model.parameters, gradient=gradients[-1])
        places = dict(make_plan(program.profile, rounds=100).places)
        highest = max((name for name in places if name.startswith(("normal", "parts"))), key=places.get)
        places[highest] += move * program.profile.words[highest] // 2
        assert bool(dead_reads(program.profile, places)) == bool(move)
        zeros = np.zeros((SMALL.context, 1), int)
        program.run(places, {"tokens": zeros, "labels": zeros})
    assert not np.array_equal(*gradients)
