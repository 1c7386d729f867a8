"""Forward and backward passes of binary32 layers are bit-identical to golden additions in the specified order."""

import numpy as np
import pytest

from host.models.layers import Attention, Embedding, LayerNorm, Linear, ReLU, mask, perceptron
from sim.arithmetic.functions import cross_entropy
from sim.golden import summation as golden
from tests.host.models.tiny import same, single


def draw(layer, shape, seed=1):
    """Random parameters and input, gradient buffers, and the generator for the upstream gradient."""
    generator = np.random.default_rng(seed)
    parameters = single(layer.shapes, generator.standard_normal)
    x = generator.standard_normal(shape).astype(np.float32)
    gradients = {name: np.full_like(view, np.nan) for name, view in parameters.items()}
    return parameters, x, gradients, generator


def test_linear():
    layer = Linear(9, 5)
    parameters, x, gradients, generator = draw(layer, (7, 9))
    output, cache = layer.forward(x, parameters)
    assert same(output, golden.product(x, parameters["weight"].T, np.tile(parameters["bias"], (7, 1))))
    upstream = generator.standard_normal(output.shape).astype(np.float32)
    inward = layer.backward(upstream, cache, parameters, gradients)
    assert same(gradients["weight"], golden.product(upstream.T, x))
    assert same(gradients["bias"], golden.column_sums(upstream))
    assert same(inward, golden.product(upstream, parameters["weight"]))


def test_linear_of_sequences():
    layer = Linear(6, 4)
    parameters, x, gradients, generator = draw(layer, (3, 5, 6))
    output, cache = layer.forward(x, parameters)
    assert same(output, golden.product(
        x, np.tile(parameters["weight"].T, (3, 1, 1)), np.tile(parameters["bias"], (3, 5, 1))))
    upstream = generator.standard_normal(output.shape).astype(np.float32)
    layer.backward(upstream, cache, parameters, gradients)
    assert same(gradients["weight"], golden.product(upstream.reshape(15, 4).T, x.reshape(15, 6)))


def test_relu():
    """The ReLU selects gradients rather than multiplying them by zero, so infinite gradients do not become NaN."""
    x = np.array([-1, -0.0, 0.0, 1e-45, 2, np.inf, -np.inf, np.nan], np.float32)
    output, cache = ReLU().forward(x, {})
    assert output.view(np.uint32).tolist()[:7] == np.array(
        [0, 0, 0, 1e-45, 2, np.inf, 0], np.float32).view(np.uint32).tolist()
    assert np.isnan(output[7])
    upstream = np.full(8, -np.inf, np.float32)
    assert ReLU().backward(upstream, cache, {}, {}).tolist() == [0, 0, 0, -np.inf, -np.inf, -np.inf, 0, 0]


def test_cross_entropy():
    generator = np.random.default_rng(2)
    scores = (generator.standard_normal((30, 10)) * 4).astype(np.float32)
    labels = generator.integers(0, 10, 30)
    loss, gradient = cross_entropy(scores, labels)
    expected = golden.cross_entropy(scores, labels)
    assert loss == expected[0]
    assert same(gradient, expected[1])


def test_layer_norm():
    layer = LayerNorm(6)
    parameters, x, gradients, generator = draw(layer, (3, 5, 6))
    output, cache = layer.forward(x, parameters)
    normal, deviation = golden.normalize(x, 1e-5)
    assert same(output, normal * parameters["scale"] + parameters["shift"])
    upstream = generator.standard_normal(output.shape).astype(np.float32)
    inward = layer.backward(upstream, cache, parameters, gradients)
    assert same(gradients["scale"], golden.column_sums((upstream * normal).reshape(15, 6)))
    assert same(gradients["shift"], golden.column_sums(upstream.reshape(15, 6)))
    scaled = upstream * parameters["scale"]
    assert same(inward, (scaled - golden.mean(scaled) - normal * golden.mean(scaled * normal)) * deviation)


def test_embedding():
    layer = Embedding(4, 6, 3)
    parameters, upstream, gradients, generator = draw(layer, (5, 4, 3))
    x = generator.integers(0, 4, (5, 4))
    layer.backward(upstream, x, parameters, gradients)
    characters = np.zeros((4, 3), np.float32)
    for row, character in zip(upstream.reshape(20, 3), x.reshape(20), strict=True):
        characters[character] += row
    assert same(gradients["character"], characters)
    positions = np.zeros((6, 3), np.float32)
    for sequence in upstream:
        positions[:4] += sequence
    assert same(gradients["position"], positions)


def test_attention():
    layer = Attention(6, 2)
    parameters, x, gradients, generator = draw(layer, (2, 4, 6))
    output, (_, heads, parts, weights) = layer.forward(x, parameters, np.array([4, 2]))

    def matrix(a, b):
        return golden.product(a.reshape(8, -1), b).reshape(2, 4, -1)

    assert same(parts, layer._split(matrix(x, parameters["inward"]), 3))
    scores, _ = layer.scores(x, parameters)
    query, key, value = parts
    assert same(scores, golden.product(query, key.swapaxes(-1, -2)) * np.float32(1 / np.sqrt(3)))
    assert same(weights, golden.softmax(mask(scores, np.array([4, 2]))))
    assert same(heads, layer._join(golden.product(weights, value)[None]))
    assert same(output, matrix(heads, parameters["outward"]))
    upstream = generator.standard_normal(output.shape).astype(np.float32)
    inward = layer.backward(upstream, (x, heads, parts, weights), parameters, gradients)
    assert same(gradients["outward"], golden.product(heads.reshape(8, 6).T, upstream.reshape(8, 6)))
    back = layer._split(matrix(upstream, parameters["outward"].T), 1)[0]
    shares = golden.product(back, value.swapaxes(-1, -2))
    to_scores = weights * (shares - golden.row_sums(shares * weights)) * np.float32(1 / np.sqrt(3))
    joined = layer._join(np.stack([golden.product(to_scores, key), golden.product(to_scores.swapaxes(-1, -2), query),
                                   golden.product(weights.swapaxes(-1, -2), back)]))
    assert same(gradients["inward"], golden.product(x.reshape(8, 6).T, joined.reshape(8, 18)))
    assert same(inward, matrix(joined, parameters["inward"].T))


@pytest.mark.parametrize("size", [1e20, np.inf, np.nan])
def test_nans_are_canonical(size):
    """If inputs overflow or are NaN, all NaNs in the gradients have the same bit pattern."""
    model = perceptron(5, (4,), 3)
    model.initialize(1)
    model.parameters[:20] *= np.float32(size)
    _, gradient = model.differentiate(np.full((6, 5), size, np.float32), np.zeros(6, int))
    assert np.isnan(gradient).any()
    assert set(gradient[np.isnan(gradient)].view(np.uint32).tolist()) == {0x7FC0_0000}
