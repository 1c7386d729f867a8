"""Linear layers with centroid tables, compared with dense layers and finite differences."""


import numpy as np
import pytest

from host.features.codebook.codebooks import Codebook
from host.features.codebook_layers.layers import CentroidLinear, shared
from host.models.layers import Linear, perceptron
from tests.refusals import refuses


def _layer(seed, outputs=10, inputs=24, centroids=8, dtype=np.float32):
    generator = np.random.default_rng(seed)
    codebook = Codebook(generator.standard_normal(centroids).astype(np.float32),
                        generator.integers(0, centroids, (outputs, inputs)))
    layer = CentroidLinear(codebook, generator.standard_normal(outputs).astype(np.float32))
    parameters = {name: np.zeros(shape, dtype) for name, shape in layer.shapes.items()}
    layer.initialize(parameters, generator)
    x, upstream = (generator.standard_normal((7, width)).astype(dtype) for width in (inputs, outputs))
    return codebook, layer, parameters, x, upstream


def test_shapes():
    codebook, layer, parameters, _, _ = _layer(1)
    assert layer.shapes == {"centroids": (8,), "bias": (10,)}
    np.testing.assert_array_equal(parameters["centroids"], codebook.centroids)
    message = "Biases must be as many as rows of indices, not of shape (9,) for indices of (10, 24)"
    refuses(message, CentroidLinear, codebook, np.zeros(9, np.float32))


@pytest.mark.parametrize("seed", range(3))
def test_dense_layer(seed):
    """Outputs and gradients match a dense layer; a centroid's gradient sums its weights' gradients.

    The order of additions differs from that in the dense layer, so the last bits differ.
    """
    codebook, layer, parameters, x, upstream = _layer(seed)
    dense = Linear(24, 10)
    expanded = {"weight": codebook.weights, "bias": parameters["bias"]}
    outputs, cache = layer.forward(x, parameters)
    np.testing.assert_allclose(outputs, dense.forward(x, expanded)[0], rtol=1e-4, atol=1e-4)
    own = {name: np.zeros_like(value) for name, value in parameters.items()}
    theirs = {name: np.zeros_like(value) for name, value in expanded.items()}
    np.testing.assert_allclose(layer.backward(upstream, cache, parameters, own),
                               dense.backward(upstream, x, expanded, theirs), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(own["bias"], theirs["bias"])
    np.testing.assert_allclose(own["centroids"], codebook.gradient(theirs["weight"]), rtol=1e-4, atol=1e-3)
    assert outputs.dtype == own["centroids"].dtype == np.float32


def test_finite_differences():
    """Gradients of every centroid and bias match finite differences in float64."""
    _, layer, parameters, x, upstream = _layer(4, dtype=np.float64)
    gradients = {name: np.zeros_like(value) for name, value in parameters.items()}
    layer.backward(upstream, x, parameters, gradients)
    step = 1e-6
    for name, values in parameters.items():
        for index in range(len(values)):
            sides = []
            for sign in (1, -1):
                values[index] += sign * step
                sides.append((layer.forward(x, parameters)[0] * upstream).sum())
                values[index] -= sign * step
            assert gradients[name][index] == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=1e-5, abs=1e-6)


def test_shared():
    """Tables give the same scores as dense layers for a perceptron with at most 16 distinct weights per layer."""
    generator = np.random.default_rng(1)
    dense = perceptron(12, (9,), 5)
    for views in dense.views(dense.parameters):
        for name, values in views.items():
            values[...] = (generator.integers(-8, 8, values.shape) / 4 if name == "weight"
                           else generator.standard_normal(values.shape))
    model = shared(dense, 16)
    model.initialize(0)
    assert model.size == 16 + 9 + 16 + 5
    x = generator.integers(-8, 8, (6, 12)).astype(np.float32)
    np.testing.assert_allclose(model.scores(x), dense.scores(x), rtol=1e-5, atol=1e-5)
