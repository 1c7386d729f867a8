"""Test the golden model of layer streaming: sums along the workers, and training as on one worker."""

import numpy as np
import pytest

from host.models.layers import perceptron
from sim.arithmetic import functions
from sim.golden import ring, summation
from sim.golden.codecs import WEIGHT_CODECS
from sim.golden.features.streaming.streaming import (
    Counts,
    Server,
    Unit,
    accesses,
    counts,
    push_sum,
    resident_set,
    streaming_set,
    units_of,
)
from tests.refusals import refuses

RULES = {"sgd": dict(rule=0), "momentum": dict(rule=1, first_decay=0.9),
         "adam": dict(rule=2, first_decay=0.9, first_gain=0.1, second_decay=0.99, second_gain=0.01, epsilon=1e-6)}


def settings(rule="sgd", *, examples=8, rate=0.1):
    return ring.settings(gradient_scale=1 / examples, learning_rate=rate, clip=np.inf, **RULES[rule])


def server(units, *, planes=2, seed=0):
    generator = np.random.default_rng(seed)
    masters = []
    for unit in units:
        master = np.zeros(unit.length, np.float32)
        used = (unit.inputs + 1) * unit.outputs
        master[:used] = generator.normal(size=used) * np.sqrt(2 / unit.inputs)
        masters.append(master.view(np.uint32))
    return Server(units, masters, planes=planes)


def shares(workers, examples, *, inputs, classes, seed=0):
    generator = np.random.default_rng(seed)
    return [(generator.random((examples, inputs), np.float32), generator.integers(classes, size=examples))
            for _ in range(workers)]


def state_of(model):
    return [np.concatenate([*model.masters, *(plane for planes in model.state for plane in planes)])]


def test_zeros_of_a_block():
    """In a block with the values 2^0 to 2^-15, each format rounds the expected number of elements to zero."""
    block = ring.bits(2.0 ** -np.arange(16))
    assert [counts(block, codec).zeros for codec in ("mx4", "mx6", "mx9")] == [13, 11, 8]
    assert counts(block).zeros == 0


def test_saturations():
    numbers = ring.bits([1.99, 1, 1, 1, *[0] * 12])
    assert [counts(numbers, codec).saturations for codec in ("mx4", "mx6", "mx9")] == [1, 1, 1]
    assert counts(ring.bits([np.inf, np.nan, 1, 0])) == Counts(4, 1, 2)


def test_order_of_sums():
    small, large = np.float32(1), np.float32(2**24)
    assert ring.floats(push_sum(ring.bits([[large], [small], [small]])))[0] == large  # small number is rounded away
    assert ring.floats(push_sum(ring.bits([[small], [small], [large]])))[0] == large + 2
    assert push_sum(ring.bits([[-0.0], [-0.0]]))[0] == 0
    assert push_sum(np.array([[0xFFC0_1234], [0x3F80_0000]], np.uint32))[0] == 0x7FC0_0000
    assert push_sum(np.array([[0x8000_0000]], np.uint32))[0] == 0


@pytest.mark.parametrize(("workers", "differs"), [(1, False), (2, False), (4, True)])
def test_sums_beside_those_of_a_ring(workers, differs):
    gradients = ring.bits(np.random.default_rng(7).normal(size=(workers, 4160)))
    weights = np.zeros(4160, np.uint32)
    update = ring.fused_update(gradients, weights, [], settings())
    assert np.any(update.total != push_sum(gradients)) == differs


@pytest.mark.parametrize(("workers", "count"), [(2, 0), (3, 14_158), (4, 21_183)])
def test_how_many_sums_differ(workers, count):
    gradients = ring.bits(np.random.default_rng(0).normal(size=(4, 16 * 4160)))[:workers]
    update = ring.fused_update(gradients, np.zeros(16 * 4160, np.uint32), [], settings())
    assert np.count_nonzero(update.total != push_sum(gradients)) == count


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("layers", [4, 8, 16])
def test_relay_is_resident(layers, workers, rule):
    units = units_of([16] * layers + [10])
    resident, streamed = server(units), server(units)
    for number in range(3):
        data = shares(workers, 7, inputs=16, classes=10, seed=number)
        loss = resident_set(resident, data, settings(rule), microbatch=3, functions=functions)
        streamed_loss, moved = streaming_set(streamed, data, settings(rule), microbatch=3, functions=functions)
        assert loss == streamed_loss
        assert np.isfinite(np.uint32(loss).view(np.float32))
        assert np.array_equal(state_of(resident), state_of(streamed))
    assert {moved[0].forward[number] for number in range(layers - 1)} == {7 * 32}
    assert {moved[0].backward[number] for number in range(1, layers - 1)} == {7 * 48}


def test_words_of_a_microbatch():
    """In the forward pass, an inner layer moves its inputs and outputs; in the backward pass, inputs and both
    gradients.
    """
    host = server(units_of([64, 64, 64, 64, 10]))
    _, moved = streaming_set(host, shares(1, 8, inputs=64, classes=10), settings(), microbatch=8, functions=functions)
    assert (moved[0].forward[1], moved[0].backward[1]) == (1024, 1536)


@pytest.mark.parametrize("codec", ["raw", "mx4", "mx6", "mx9"])
def test_formats(codec):
    units = [Unit(unit.layer, unit.inputs, unit.outputs, 0, codec) for unit in units_of([16, 16, 10])]
    resident, streamed = server(units), server(units)
    data = shares(2, 5, inputs=16, classes=10)
    assert resident_set(resident, data, settings(), microbatch=4) == streaming_set(
        streamed, data, settings(), microbatch=4)[0]
    assert np.array_equal(state_of(resident), state_of(streamed))
    decoded, master = resident.decoded(0), resident.masters[0]
    assert np.array_equal(decoded, master) == (codec == "raw")
    assert np.array_equal(WEIGHT_CODECS[codec].decode(WEIGHT_CODECS[codec].encode(decoded), len(decoded)), decoded)


def test_microbatches_change_no_gradient():
    """The gradients of a share do not depend on the microbatch size, and equal the gradients of host layers."""
    units = units_of([16, 16, 10])
    data = shares(1, 9, inputs=16, classes=10)
    results = []
    for microbatch in (1, 2, 4, 9):
        streamed = server(units)
        streaming_set(streamed, data, settings(), microbatch=microbatch)
        results.append(np.concatenate(streamed.masters))
    assert all(np.array_equal(results[0], other) for other in results)
    model, fresh = perceptron(16, [16], 10, align=32), server(units)
    model.parameters[...] = ring.floats(np.concatenate(fresh.masters))
    _, gradient = model.differentiate(*data[0])
    update = ring.fused_update(ring.bits([gradient]), np.concatenate(fresh.masters), [], settings())
    assert np.array_equal(update.weights, results[0])


def test_two_workers_are_a_ring():
    units = units_of([16, 16, 16, 10])
    streamed, model = server(units), perceptron(16, [16, 16], 10, align=32)
    weights = np.concatenate(streamed.masters)
    for number in range(3):
        data = shares(2, 6, inputs=16, classes=10, seed=number)
        model.parameters[...] = ring.floats(weights)
        gradients = ring.bits(np.stack([model.differentiate(*share)[1] for share in data]))
        weights = ring.fused_update(gradients, weights, [], settings()).weights
        streaming_set(streamed, data, settings(), microbatch=2, functions=functions)
        assert np.array_equal(np.concatenate(streamed.masters), weights)


@pytest.mark.parametrize("layer", [1, 2])
def test_parts_of_a_layer_change_no_bits(layer):
    whole = server(units_of([16, 16, 16, 10]))
    units = [item for unit in whole.units for item in (
        [Unit(unit.layer, 16, 8, first) for first in (0, 8)] if unit.layer == layer else [unit])]
    masters = []
    for unit in units:
        master = whole.masters[unit.layer - 1]
        weights, biases = master[:unit.inputs * (10 if unit.layer == 3 else 16)], master[unit.inputs * (
            10 if unit.layer == 3 else 16):]
        part = slice(unit.first, unit.first + unit.outputs)
        words = np.concatenate([weights.reshape(-1, unit.inputs)[part].ravel(), biases[part]])
        masters.append(np.concatenate([words, np.zeros(unit.length - len(words), np.uint32)]))
    cut, resident = (Server(units, masters, planes=2) for _ in range(2))
    data = shares(2, 6, inputs=16, classes=10)
    losses = [*(streaming_set(item, data, settings(), microbatch=4)[0] for item in (whole, cut)),
              resident_set(resident, data, settings(), microbatch=4)]
    assert len(set(losses)) == 1
    assert all(map(np.array_equal, cut.masters, resident.masters))
    for number, unit in enumerate(units):
        count = unit.inputs * unit.outputs
        expected = whole.masters[unit.layer - 1][unit.first * unit.inputs:][:count]
        assert np.array_equal(cut.masters[number][:count], expected)


def test_order_of_units():
    units = [Unit(1, 64, 64), Unit(2, 64, 32), Unit(2, 64, 32, 32), Unit(3, 64, 10)]
    assert accesses(units) == ([0, 1, 2, 3], [3, 1, 2, 0])


def test_compiled_sums_are_the_models():
    assert functions.product is not summation.product
    plain, compiled = (server(units_of([16, 16, 10])) for _ in range(2))
    data = shares(1, 5, inputs=16, classes=10)
    assert (streaming_set(plain, data, settings(), microbatch=2)[0]
            == streaming_set(compiled, data, settings(), microbatch=2, functions=functions)[0])
    assert np.array_equal(state_of(plain), state_of(compiled))


def test_wrong_parameters():
    refuses("Widths must be two or more, not [4]", units_of, [4])
    refuses("Masters of layer 1 must be 288 words, not (3,)",
            Server, units_of([16, 16]), [np.zeros(3, np.uint32)], planes=0)
