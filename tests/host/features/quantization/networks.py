"""A trained perceptron, and a comparison of quantized networks."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest

from host.features.quantization.network import float_layers
from host.models.digits import digits
from host.models.layers import perceptron
from sim.golden.features.quantization import quantization as golden


@functools.cache
def trained(seed=0, hidden=(64,), epochs=14, batch=128, learning_rate=0.5, momentum=0.9):
    """Return the digits, and the layers of a perceptron trained with the default settings of training on a ring."""
    data = digits()
    model = perceptron(data.train_x.shape[1], hidden, data.classes)
    model.initialize(seed)
    generator = np.random.default_rng((seed, 1))
    velocity = np.zeros_like(model.parameters)
    batches = -(-len(data.train_x) // batch)
    for number in range(epochs * batches):
        if number % batches == 0:
            parts = np.array_split(generator.permutation(len(data.train_x)), batches)
        part = parts[number % batches]
        _, gradient = model.differentiate(data.train_x[part], data.train_y[part])
        velocity = np.float32(momentum) * velocity + gradient / np.float32(len(part))
        model.parameters -= np.float32(learning_rate * (1 - number / (epochs * batches))) * velocity
    return data, float_layers(model)


class GoldenRing:
    """A ring of golden nodes that can inject an error into one sum."""

    nodes = 4
    inference = property(lambda self: self)

    def __init__(self, wrong=None):
        self._wrong = wrong

    def infer(self, layers, x):
        outputs = golden.infer([golden.Layer(**vars(layer)) for layer in layers], x)
        if self._wrong is not None:
            outputs[self._wrong] += 1
        return SimpleNamespace(outputs=outputs, cycles=90 * 300)


def assert_same(actual, other):
    """Check that two quantized networks have the same attributes."""
    assert (actual.scheme, actual.rounding, len(actual.layers)) == (other.scheme, other.rounding, len(other.layers))
    for first, second in zip(actual.layers, other.layers, strict=True):
        assert (first.input, first.output, first.relu) == (second.input, second.output, second.relu)
        assert (first.weights.bits, first.weights.variant) == (second.weights.bits, second.weights.variant)
        for name in ("codes", "offsets", "scales", "minima"):
            np.testing.assert_array_equal(getattr(first.weights, name), getattr(second.weights, name))
        np.testing.assert_array_equal(first.bias, second.bias)
        assert first.bias.dtype == second.bias.dtype
        assert (first.requantization is None) is (second.requantization is None)
        if first.requantization is not None:
            np.testing.assert_array_equal(first.requantization.multipliers, second.requantization.multipliers)
            np.testing.assert_array_equal(first.requantization.shifts, second.requantization.shifts)
            assert second.requantization.error == pytest.approx(first.requantization.error)
