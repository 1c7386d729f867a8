import numpy as np
import pytest

from hdl.compression.lookup_table import LookupTable
from hdl.floating.format import BF16
from host.clustering import Codebook, kmeans, mantissa_centroids
from host.data import digits


def test_kmeans():
    values = np.concatenate([np.full(10, 1.0), np.full(5, 5.0), [9.0, 11.0]])
    assert kmeans(values, 3).tolist() == pytest.approx([1, 5, 10])
    assert kmeans([3, 1, 3], 8).tolist() == [1, 3]
    with pytest.raises(ValueError, match=r"^Values must be at least one, not none$"):
        kmeans([], 3)
    with pytest.raises(ValueError, match=r"^Centroid count must be a positive integer, not 0$"):
        kmeans([1], 0)


def test_kmeans_is_settled():
    """Each centroid is the mean of the numbers nearest to it."""
    values = np.random.default_rng(1).standard_normal(2_000)
    centroids = kmeans(values, 16)
    nearest = np.abs(values[:, np.newaxis] - centroids).argmin(axis=1)
    np.testing.assert_allclose([values[nearest == index].mean() for index in range(16)], centroids, atol=1e-9)


def test_mantissa_centroids():
    table = LookupTable(mantissas=16, centroids=True)
    generator = np.random.default_rng(1)
    weights = (generator.standard_normal(4096) * 0.02).astype(np.float32).view(np.uint32)
    centroids = mantissa_centroids(weights, table)
    assert (np.diff(centroids.astype(np.int64)) > 0).all()
    # Fractions are nearly uniform, and so are their centroids.
    np.testing.assert_allclose(centroids / (1 << 23), (np.arange(16) + 0.5) / 16, atol=0.04)
    few = mantissa_centroids(np.array([0x3F80_0005, 0x3F80_0000, 0x7F80_0001, 0]), table)
    assert few.tolist() == list(range(16))
    assert len(mantissa_centroids(np.zeros(4), table)) == 16
    half = LookupTable(format=BF16, mantissas=128, centroids=True)
    assert mantissa_centroids(weights >> 16, half).tolist() == list(range(128))


def test_codebook():
    weights = np.array([[1, 1.5, -2], [-2.5, 1.25, 7]], np.float32)
    codebook = Codebook.of(weights, 3)
    assert codebook.centroids.tolist() == [-2.25, 1.25, 7]
    assert codebook.indices.tolist() == [[1, 1, 0], [0, 1, 2]]
    assert codebook.weights.tolist() == [[1.25, 1.25, -2.25], [-2.25, 1.25, 7]]
    assert Codebook.of([1, 2, 1], 4).centroids.tolist() == [1, 2, 0, 0]


def test_gradient_of_centroids():
    """The sum of those of its weights; an unused one has none, and stays as it is."""
    codebook = Codebook(np.array([1, 2, 3, 4], np.float32), np.array([[0, 0, 2], [2, 2, 1]]))
    gradient = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    assert codebook.gradient(gradient).tolist() == [3, 6, 12, 0]
    stepped = codebook.stepped(gradient, 0.5)
    assert stepped.centroids.tolist() == [-0.5, -1, -3, 4]
    assert stepped.indices is codebook.indices
    refreshed = codebook.refreshed(gradient)
    assert refreshed.centroids.tolist() == [1.5, 6, 4, 4]
    with pytest.raises(ValueError, match=r"^Values must be of shape \(2, 3\), not \(3,\)$"):
        codebook.gradient([1, 2, 3])


def test_training_with_a_shared_table():
    """A linear classifier of digits whose 640 weights are 16 numbers: they are trained, not the weights."""
    dataset = digits()
    generator = np.random.default_rng(0)
    weights = np.zeros((64, 10), np.float32)

    def gradient(weights, x, y):
        scores = x @ weights
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares = powers / powers.sum(axis=1, keepdims=True)
        shares[np.arange(len(y)), y] -= 1
        return x.T @ shares / len(y)

    def loss(weights):
        scores = dataset.train_x @ weights
        return -(scores - np.log(np.exp(scores).sum(axis=1, keepdims=True)))[
            np.arange(len(dataset.train_y)), dataset.train_y].mean()

    for _ in range(200):
        batch = generator.choice(len(dataset.train_x), 128)
        weights -= 0.5 * gradient(weights, dataset.train_x[batch], dataset.train_y[batch])
    codebook = Codebook.of(weights, 16)
    before = loss(codebook.weights)
    for _ in range(100):
        batch = generator.choice(len(dataset.train_x), 128)
        codebook = codebook.stepped(
            gradient(codebook.weights, dataset.train_x[batch], dataset.train_y[batch]), 0.002)
    assert len(np.unique(codebook.weights)) <= 16
    assert loss(codebook.weights) < before
    accuracy = ((dataset.test_x @ codebook.weights).argmax(axis=1) == dataset.test_y).mean()
    assert accuracy > 0.9
