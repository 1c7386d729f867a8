"""Sequence layers: gradients checked against finite differences, and attention weights."""

import numpy as np
import pytest

from host.models.layers import Attention, Embedding, LayerNorm, Linear, keep
from tests.host.models.tiny import single, slope
from tests.refusals import refuses


@pytest.mark.parametrize(("layer", "shape"), [
    (Linear(5, 3), (2, 4, 5)), (LayerNorm(5), (2, 3, 5)),
    (Attention(6, 2), (2, 4, 6)), (Attention(3, 1), (1, 1, 3)),
], ids=["linear", "layer_norm", "attention", "attention_1"])
def test_layer(layer, shape):
    generator = np.random.default_rng(1)
    x = generator.standard_normal(shape)
    parameters = {name: generator.standard_normal(shape) for name, shape in layer.shapes.items()}
    lengths = {"lengths": np.array([3, 4][:shape[0]])} if shape == (2, 4, 6) else {}
    output, cache = layer.forward(x, parameters, **lengths)
    upstream = generator.standard_normal(output.shape)
    gradients = {name: np.full(shape, np.nan) for name, shape in layer.shapes.items()}
    inward = layer.backward(upstream, cache, parameters, gradients)
    for index in np.ndindex(x.shape):
        expected = slope(lambda x: (layer.forward(x, parameters, **lengths)[0] * upstream).sum(), x, index)
        assert inward[index] == pytest.approx(expected, rel=1e-6, abs=1e-7)
    for name, view in parameters.items():
        def value(parameter, name=name):
            return (layer.forward(x, {**parameters, name: parameter}, **lengths)[0] * upstream).sum()

        for index in np.ndindex(view.shape):
            assert gradients[name][index] == pytest.approx(slope(value, view, index), rel=1e-6, abs=1e-7)


def test_embedding():
    generator = np.random.default_rng(2)
    layer = Embedding(4, 6, 3)
    x = np.array([[1, 2, 1, 0], [2, 2, 2, 2]])
    parameters = {name: generator.standard_normal(shape) for name, shape in layer.shapes.items()}
    output, cache = layer.forward(x, parameters)
    upstream = generator.standard_normal(output.shape)
    gradients = {name: np.full(shape, np.nan) for name, shape in layer.shapes.items()}
    layer.backward(upstream, cache, parameters, gradients)
    for name, view in parameters.items():
        def value(parameter, name=name):
            return (layer.forward(x, {**parameters, name: parameter})[0] * upstream).sum()

        for index in np.ndindex(view.shape):
            assert gradients[name][index] == pytest.approx(slope(value, view, index), rel=1e-6, abs=1e-7)
    assert not gradients["character"][3].any()
    assert not gradients["position"][4:].any()


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_attention(heads):
    generator = np.random.default_rng(heads)
    layer = Attention(8, heads)
    parameters = single(layer.shapes, generator.standard_normal)
    lengths = np.array([6, 1, 3])
    _, (*_, weights) = layer.forward(generator.standard_normal((3, 6, 8)).astype(np.float32), parameters, lengths)
    assert weights.dtype == np.float32
    assert weights.shape == (3, heads, 6, 6)
    kept = np.broadcast_to(keep(6, lengths)[:, None], weights.shape)
    assert not weights[~kept].any()
    assert (weights[kept] > 0).all()
    assert weights.sum(axis=-1) == pytest.approx(1, abs=1e-6)


def test_heads():
    refuses("Width must be a multiple of heads, not (6, 4)", Attention, 6, 4)
