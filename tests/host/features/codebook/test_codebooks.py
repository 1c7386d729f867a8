import dataclasses

import numpy as np
import pytest

from hdl.features.table.format import LookupTable
from hdl.floating.format import BF16
from host.features.codebook.codebooks import (
    Codebook,
    codebook,
    codebook_words,
    kmeans,
    mantissa_centroids,
    weight_centroids,
)
from host.models.digits import digits
from sim.golden.codecs import WEIGHT_CODECS
from tests.refusals import refuses


def test_kmeans():
    values = np.concatenate([np.full(10, 1.0), np.full(5, 5.0), [9.0, 11.0]])
    assert kmeans(values, 3).tolist() == pytest.approx([1, 5, 10])
    assert kmeans([3, 1, 3], 8).tolist() == [1, 3]
    refuses("Values must be at least one, not none", kmeans, [], 3)
    refuses("Centroid count must be a positive integer, not 0", kmeans, [1], 0)


def test_kmeans_is_settled():
    """After convergence, each centroid is the mean of the numbers nearest to it."""
    values = np.random.default_rng(1).standard_normal(2_000)
    centroids = kmeans(values, 16)
    nearest = np.abs(values[:, np.newaxis] - centroids).argmin(axis=1)
    np.testing.assert_allclose([values[nearest == index].mean() for index in range(16)], centroids, atol=1e-9)


def test_kmeans_leaves_no_centroid_unused():
    """Even if equidistant initial centroids are far from all numbers, each one ends up nearest to some number."""
    generator = np.random.default_rng(3)
    for count in (2, 5, 16):
        for values in (np.array([0, 1e-3, 2e-3, 3e-3, 4e-3, *np.arange(1, 13) * 1e-5, 1000.0]),
                       generator.standard_normal(300) ** 9, generator.integers(0, 20, 300) ** 3.0):
            centroids = kmeans(values, count)
            assert len(centroids) == count
            assert (np.diff(centroids) > 0).all()
            nearest = np.abs(values[:, np.newaxis] - centroids).argmin(axis=1)
            assert set(nearest.tolist()) == set(range(count))


def test_kmeans_depends_on_no_order():
    values = np.random.default_rng(4).standard_normal(500)
    shuffled = np.random.default_rng(5).permutation(values)
    assert kmeans(values, 16).tobytes() == kmeans(shuffled, 16).tobytes()


def test_mantissa_centroids():
    table = LookupTable(mantissas=16, centroids=True)
    generator = np.random.default_rng(1)
    weights = (generator.standard_normal(4096) * 0.02).astype(np.float32).view(np.uint32)
    centroids = mantissa_centroids(weights, table)
    assert (np.diff(centroids.astype(np.int64)) > 0).all()
    # The weights' fractions are almost uniformly distributed, so the centroids are too.
    np.testing.assert_allclose(centroids / (1 << 23), (np.arange(16) + 0.5) / 16, atol=0.04)
    few = mantissa_centroids(np.array([0x3F80_0005, 0x3F80_0000, 0x7F80_0001, 0]), table)
    assert few.tolist() == list(range(16))
    assert len(mantissa_centroids(np.zeros(4), table)) == 16
    half = LookupTable(format=BF16, mantissas=128, centroids=True)
    assert mantissa_centroids(weights >> 16, half).tolist() == list(range(128))


def test_weight_centroids():
    """The result has the requested number of centroids, ascending and fitted to the finite weights."""
    assert weight_centroids([3, 1, np.nan, np.inf, 1], 4).tolist() == [1, 3, 3, 3]
    assert weight_centroids([], 4).tolist() == [0] * 4
    assert weight_centroids([-np.inf], 4).tolist() == [0] * 4
    centroids = weight_centroids(np.random.default_rng(1).standard_normal(500), 16)
    assert (np.diff(centroids) > 0).all()


@pytest.mark.parametrize("name", ["table32", "centroid16", "centroid64"])
def test_bounds_are_those_of_the_model(name):
    """Bounds between centroids match an independent method, even for equal centroids and zeros."""
    codec = WEIGHT_CODECS[name]
    count = codec.centroids
    for seed in range(20):
        generator = np.random.default_rng(seed)
        if name == "table32":
            centroids = np.sort(generator.integers(0, 1 << generator.integers(1, 24), count)).astype(np.uint32)
        else:
            numbers = generator.standard_normal(count) * 10.0 ** generator.integers(-44, 38, count)
            numbers[generator.random(count) < 0.2] = 0
            centroids = np.sort(numbers.astype(np.float32)).view(np.uint32)
        words = codebook_words(name, centroids)
        assert words.dtype == np.uint32
        assert words[:count - 1].tolist() == codec.table.bounds(centroids).tolist(), f"{seed=}"
        assert words[count - 1:].tolist() == [0, *centroids.tolist()]
    largest = np.full(count, 0x7F_FFFF if name == "table32" else 0x7F7F_FFFF, np.uint32)
    assert codebook_words(name, largest)[:count - 1].tolist() == codec.table.bounds(largest).tolist()


def test_codebooks_of_weights():
    weights = np.random.default_rng(1).standard_normal(500).astype(np.float32)
    assert codebook("centroid16", weights).view(np.float32).tolist() == weight_centroids(weights, 16).tolist()
    assert codebook("table32", weights).tolist() == mantissa_centroids(
        weights.view(np.uint32), LookupTable(centroids=True)).tolist()
    for name in ("raw", "mx9"):
        refuses(f"Weight codec must be one with a codebook, not '{name}'", codebook, name, weights)
    for name, wrong, message in (
            ("table32", np.zeros(31, np.uint32),
             "Codebook of table32 must be 32 words, not uint32 of shape (31,)"),
            ("centroid16", np.zeros(16), "Codebook of centroid16 must be 16 words, not float64 of shape (16,)"),
            ("table32", np.arange(32, dtype=np.uint32)[::-1],
             "Centroids must be fractions of 23 bits in ascending order, not others"),
            ("table32", np.full(32, 1 << 23, np.uint32),
             "Centroids must be fractions of 23 bits in ascending order, not others"),
            ("centroid16", np.full(16, 0x7F80_0000, np.uint32),
             "Centroids must be finite numbers in ascending order, not others"),
            ("centroid16", np.arange(16, dtype=np.float32)[::-1].copy().view(np.uint32),
             "Centroids must be finite numbers in ascending order, not others")):
        refuses(message, codebook_words, name, wrong)
        with pytest.raises(ValueError, match=r"^Centroids must be "):
            WEIGHT_CODECS[name].bind(np.asarray(wrong, np.uint32) if wrong.dtype == np.uint32 else wrong[:3])


def test_codebook():
    weights = np.array([[1, 1.5, -2], [-2.5, 1.25, 7]], np.float32)
    codebook = Codebook.of(weights, 3)
    assert codebook.centroids.tolist() == [-2.25, 1.25, 7]
    assert codebook.indices.tolist() == [[1, 1, 0], [0, 1, 2]]
    assert codebook.weights.tolist() == [[1.25, 1.25, -2.25], [-2.25, 1.25, 7]]
    assert Codebook.of([1, 2, 1], 4).centroids.tolist() == [1, 2, 0, 0]


def test_gradient_of_centroids():
    """The gradient of a centroid is the sum of its weights' gradients. A centroid that no weight uses stays
    unchanged."""
    codebook = Codebook(np.array([1, 2, 3, 4], np.float32), np.array([[0, 0, 2], [2, 2, 1]]))
    gradient = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    assert codebook.gradient(gradient).tolist() == [3, 6, 12, 0]
    stepped = codebook.stepped(gradient, 0.5)
    assert stepped.centroids.tolist() == [-0.5, -1, -3, 4]
    assert stepped.indices is codebook.indices
    refreshed = codebook.refreshed(gradient)
    assert refreshed.centroids.tolist() == [1.5, 6, 4, 4]
    refuses("Values must be of shape (2, 3), not (3,)", codebook.gradient, [1, 2, 3])


def test_training_with_a_shared_table():
    """Train a linear digit classifier with 640 weights that share 16 values, and update only these values."""
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

    # In full-batch training of the table only, every step reduces the loss.
    trained, losses = codebook, [before]
    for _ in range(5):
        trained = trained.stepped(gradient(trained.weights, dataset.train_x, dataset.train_y), 0.002)
        losses.append(loss(trained.weights))
    assert (np.diff(losses) < 0).all()
    assert trained.indices is codebook.indices
    assert (trained.centroids != codebook.centroids).all()
    # In each step, a centroid moves by the learning rate times the sum of its weights' gradients.
    gradients = gradient(codebook.weights, dataset.train_x, dataset.train_y)
    stepped = codebook.stepped(gradients, 0.002)
    for index, centroid in enumerate(codebook.centroids):
        moved = centroid - np.float32(0.002) * np.float32(gradients[codebook.indices == index].sum(dtype=np.float64))
        assert stepped.centroids[index] == pytest.approx(moved, rel=1e-6)
    # Refreshed centroids are the means of their weights; the assignments do not change.
    refreshed = dataclasses.replace(stepped, centroids=codebook.centroids).refreshed(weights)
    assert refreshed.indices is codebook.indices
    assert loss(refreshed.weights) == pytest.approx(before, rel=1e-3)

    for _ in range(100):
        batch = generator.choice(len(dataset.train_x), 128)
        codebook = codebook.stepped(
            gradient(codebook.weights, dataset.train_x[batch], dataset.train_y[batch]), 0.002)
    assert len(np.unique(codebook.weights)) <= 16
    assert loss(codebook.weights) < before
    accuracy = ((dataset.test_x @ codebook.weights).argmax(axis=1) == dataset.test_y).mean()
    assert accuracy > 0.9
