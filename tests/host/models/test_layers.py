import numpy as np
import pytest

from host.models.digits import digits
from host.models.layers import Linear, Model, ReLU, perceptron
from sim.arithmetic.functions import cross_entropy
from tests.refusals import refuses


def slope(function, vector, direction, step=1e-6):
    """Derivative of ``function`` along ``direction``, approximated by a central difference."""
    return (function(vector + step * direction) - function(vector - step * direction)) / (2 * step)


def away_from_zero(values):
    """Replace inputs near zero, where a ReLU has its kink, with a value larger than the step of finite
    differences."""
    return np.where(np.abs(values) < 1e-3, 1e-3, values)


class TestGradients:
    @pytest.mark.parametrize("layer", [Linear(5, 3), Linear(1, 1), ReLU()], ids=["linear", "scalar", "relu"])
    def test_layer(self, layer):
        generator = np.random.default_rng(1)
        inputs = layer.inputs if isinstance(layer, Linear) else 4
        x = away_from_zero(generator.standard_normal((7, inputs)))
        parameters = {name: generator.standard_normal(shape) for name, shape in layer.shapes.items()}
        output, cache = layer.forward(x, parameters)
        upstream = generator.standard_normal(output.shape)
        gradients = {name: np.zeros(shape) for name, shape in layer.shapes.items()}
        inward = layer.backward(upstream, cache, parameters, gradients)

        def value_at_input(x):
            return (layer.forward(x, parameters)[0] * upstream).sum()

        for index in np.ndindex(x.shape):
            direction = np.zeros_like(x)
            direction[index] = 1
            assert inward[index] == pytest.approx(slope(value_at_input, x, direction), rel=1e-7, abs=1e-7)
        for name in parameters:
            for index in np.ndindex(parameters[name].shape):
                direction = np.zeros_like(parameters[name])
                direction[index] = 1

                def value(parameter, name=name):
                    return (layer.forward(x, {**parameters, name: parameter})[0] * upstream).sum()

                expected = slope(value, parameters[name], direction)
                assert gradients[name][index] == pytest.approx(expected, rel=1e-7, abs=1e-7)

    def test_softmax_cross_entropy(self):
        generator = np.random.default_rng(2)
        scores = generator.standard_normal((6, 4)) * 3
        labels = generator.integers(0, 4, 6)
        _, gradient = cross_entropy(scores, labels)
        for index in np.ndindex(scores.shape):
            direction = np.zeros_like(scores)
            direction[index] = 1
            expected = slope(lambda s: cross_entropy(s, labels)[0], scores, direction)
            assert gradient[index] == pytest.approx(expected, rel=1e-6, abs=1e-7)

    @pytest.mark.parametrize("hidden", [(), (6,), (6, 5)])
    def test_model(self, hidden):
        generator = np.random.default_rng(3)
        model = perceptron(5, hidden, 4, dtype=np.float64)
        model.initialize(3)
        x = away_from_zero(generator.standard_normal((9, 5)))
        labels = generator.integers(0, 4, 9)
        start = model.parameters.copy()
        loss, gradient = model.differentiate(x, labels)
        assert loss == model.loss(x, labels)

        def value(parameters):
            model.parameters[...] = parameters
            return model.loss(x, labels)

        for _ in range(50):
            direction = generator.standard_normal(model.size)
            expected = slope(value, start, direction)
            assert gradient @ direction == pytest.approx(expected, rel=1e-5, abs=1e-6)


class TestSoftmaxCrossEntropy:
    def test_large_scores(self):
        loss, gradient = cross_entropy(np.array([[1e30, 0, -1e30]], dtype=np.float32), np.array([0]))
        assert loss == 0
        assert np.array_equal(gradient, [[0, 0, 0]])

    def test_uniform(self):
        loss, _ = cross_entropy(np.zeros((3, 10)), np.array([0, 4, 9]))
        assert loss == pytest.approx(3 * np.log(10))


class TestModel:
    def test_views_share_the_vector(self):
        model = perceptron(3, (2,), 2)
        first, between, second = model.views(model.parameters)
        assert {name: view.shape for name, view in first.items()} == {"weight": (2, 3), "bias": (2,)}
        assert between == {}
        first["weight"][...] = 1
        second["bias"][...] = 2
        assert model.parameters.tolist() == [1] * 6 + [0] * 2 + [0] * 4 + [2] * 2

    def test_views_of_wrong_shape(self):
        model = perceptron(3, (2,), 2)
        refuses("Vector must be of shape (14,), not (13,)", model.views, np.zeros(13))

    def test_linear_of_nothing(self):
        refuses("Inputs and outputs must be at least 1, not (0, 3)", Linear, 0, 3)

    def test_single_precision_throughout(self):
        model = perceptron(4, (3,), 2)
        model.initialize(0)
        _, gradient = model.differentiate(np.ones((5, 4), dtype=np.float32), np.zeros(5, dtype=int))
        assert model.parameters.dtype == gradient.dtype == np.float32

    def test_no_examples(self):
        model = perceptron(4, (3,), 2)
        model.initialize(0)
        loss, gradient = model.differentiate(np.zeros((0, 4), dtype=np.float32), np.zeros(0, dtype=int))
        assert loss == 0
        assert not gradient.any()

    def test_seed(self):
        first, second, third = (perceptron(4, (3,), 2) for _ in range(3))
        first.initialize(5)
        second.initialize(5)
        third.initialize(6)
        assert np.array_equal(first.parameters, second.parameters)
        assert not np.array_equal(first.parameters, third.parameters)

    def test_aligned(self):
        """Layers can start at multiples of 32; parameters and gradients are the same as in a model without gaps."""
        generator = np.random.default_rng(4)
        x, labels = generator.standard_normal((9, 5)), generator.integers(0, 4, 9)
        model, other = (perceptron(5, (6, 7), 4, dtype=np.float64, align=align) for align in (32, 1))
        for network in (model, other):
            network.initialize(4)
        assert model.size == 64 + 64 + 32
        assert [view["weight"].__array_interface__["data"][0] for view in model.views(model.parameters)[::2]] == [
            model.parameters[start:].__array_interface__["data"][0] for start in (0, 64, 128)]
        assert np.array_equal(model.parameters[model.places], other.parameters)
        loss, gradient = model.differentiate(x, labels)
        expected = other.differentiate(x, labels)
        assert loss == expected[0]
        assert np.array_equal(gradient[model.places], expected[1])
        gaps = np.setdiff1d(np.arange(model.size), model.places)
        assert not model.parameters[gaps].any()
        assert not gradient[gaps].any()
        assert np.array_equal(other.places, np.arange(other.size))

    def test_alignment_of_nothing(self):
        refuses("Alignment must be at least 1, not 0", Model, [Linear(2, 2)], align=0)

    def test_accuracy(self):
        model = Model([Linear(2, 2)])
        model.views(model.parameters)[0]["weight"][...] = np.eye(2)
        x = np.array([[1, 0], [0, 1], [3, 2], [2, 3]], dtype=np.float32)
        assert model.accuracy(x, np.array([0, 1, 0, 0])) == 0.75


class TestDigits:
    def test_split(self):
        data = digits()
        assert (len(data.train_x), len(data.test_x)) == (1437, 360)
        assert data.train_x.dtype == np.float32
        assert (data.train_x.min(), data.train_x.max()) == (0, 1)
        for label in range(10):
            share = (data.test_y == label).sum() / ((data.train_y == label).sum() + (data.test_y == label).sum())
            assert abs(share - 0.2) < 0.005

    def test_same_every_time(self):
        assert np.array_equal(digits().test_x, digits().test_x)
