"""Levels of reproducibility of an int16 node: docs/int16_node.md#levels-of-reproducibility."""

import numpy as np
import pytest

from sim.golden.features.int16 import int16_node as model

ONE, HALF = 1 << 16, 1 << 15
LEAST, MOST = -32768, 32767
LENGTH = 2000
#: A threshold that no element reaches, so that all of them become errors.
NEVER = 65535


def elements(generator, *shape, limit=MOST):
    return generator.integers(-limit, limit + 1, shape)


def orders(generator, count):
    """All rotations of ``count`` indices, and the same number of random permutations."""
    indices = np.arange(count)
    return [*(np.roll(indices, shift) for shift in range(count)),
            *(generator.permutation(count) for _ in range(count))]


def updated(gradients, weights, *, rate):
    """Return the weights after one update for each row of gradients, in order."""
    for row in gradients:
        weights = model.update(row, weights, gradient_scale=ONE, learning_rate=rate).weights
    return weights


def sparsified(gradients, errors, threshold):
    """Return the sum of the kept gradients and the final errors after one SPARSIFY per row of gradients."""
    kept = 0
    for row in gradients:
        result = model.sparsify(row, errors, threshold)
        kept, errors = kept + result.gradients, result.errors
    return kept, errors


@pytest.mark.parametrize("cut", [32, 160, 1000, LENGTH])
def test_any_cut(cut):
    """Weights, gradients and errors do not depend on how a vector is split, even if they saturate."""
    generator = np.random.default_rng(cut)
    gradients, seconds = elements(generator, 2, LENGTH)
    starts = range(0, LENGTH, cut)
    rows = [(gradients[begin:begin + cut], seconds[begin:begin + cut]) for begin in starts]
    settings = {"gradient_scale": 2 * ONE - 1, "learning_rate": ONE}
    whole = model.update(gradients, seconds, **settings).weights
    assert np.isin([LEAST, MOST], whole).all()
    assert (np.concatenate([model.update(*row, **settings).weights for row in rows]) == whole).all()
    for threshold in (0, 1000, MOST, NEVER):
        parts = [model.sparsify(*row, threshold) for row in rows]
        expected = model.sparsify(gradients, seconds, threshold)
        assert (np.concatenate([part.gradients for part in parts]) == expected.gradients).all()
        assert (np.concatenate([part.errors for part in parts]) == expected.errors).all()
        assert sum(part.dropped for part in parts) == expected.dropped


@pytest.mark.parametrize("count", range(2, 9))
def test_any_order_without_saturation(count):
    """Without saturation, the order of gradients affects neither updated weights nor errors that only accumulate."""
    generator = np.random.default_rng(count)
    weights = elements(generator, LENGTH, limit=MOST // 2)
    gradients = elements(generator, count, LENGTH, limit=2 * (MOST // 2 // count) - 2)  # updates halve the gradients
    shares = elements(generator, count, LENGTH, limit=MOST // 2 // count)
    expected = updated(gradients, weights, rate=HALF)
    _, errors = sparsified(shares, weights, NEVER)
    for order in orders(generator, count):
        assert (updated(gradients[order], weights, rate=HALF) == expected).all(), order
        kept, left = sparsified(shares[order], weights, NEVER)
        assert not kept.any()
        assert (left == errors).all(), order
        # With a threshold, the order decides which elements are kept, but kept elements and errors have the same sum.
        kept, left = sparsified(shares[order], weights, 1000)
        assert (kept + left == weights + shares.sum(axis=0)).all(), order


@pytest.mark.parametrize("count", range(2, 9))
def test_order_with_saturation(count):
    """Weights and errors that saturate depend on the order of the gradients."""
    generator = np.random.default_rng(count)
    weights, gradients = elements(generator, LENGTH), elements(generator, count, LENGTH)
    results = [updated(gradients[order], weights, rate=HALF) for order in orders(generator, count)]
    assert any((result != results[0]).any() for result in results)
    errors = [sparsified(gradients[order], weights, NEVER)[1] for order in orders(generator, count)]
    assert any((result != errors[0]).any() for result in errors)


def test_counterexamples():
    """The counterexamples in docs/int16_node.md give the stated results."""
    # With saturation, results depend on order and topology.
    assert updated([[-16], [16]], [32760], rate=ONE).tolist() == [32751]
    assert updated([[16], [-16]], [32760], rate=ONE).tolist() == [32760]
    assert sparsified([[16], [-16]], [32760], NEVER)[1].tolist() == [32751]
    assert sparsified([[-16], [16]], [32760], NEVER)[1].tolist() == [32760]
    # With a threshold, results also depend on order and topology.
    assert [array.tolist() for array in sparsified([[5], [-3]], [0], 5)] == [[5], [-3]]
    assert [array.tolist() for array in sparsified([[-3], [5]], [0], 5)] == [[0], [2]]
    # Since each update rounds, results depend on the number of nodes.
    assert updated([[1], [1]], [0], rate=HALF).tolist() == [-2]
    assert updated([[2]], [0], rate=HALF).tolist() == [-1]
