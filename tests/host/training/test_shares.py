"""Partition of examples into the shares of workers, and each worker's endless sequence of batches."""

import functools

import numpy as np

from host.training.batches import Shares
from tests.refusals import refused

LABELS = np.repeat(np.arange(10), 20)


def examples(shares, worker):
    return shares.batch(worker, 0, shares.sizes[worker])


def test_each_example_once():
    for skew in (0, 0.3, 0.9, 1):
        shares = Shares(LABELS, workers=3, skew=skew, seed=1)
        assert max(shares.sizes) - min(shares.sizes) <= 2
        indices = np.concatenate([examples(shares, worker) for worker in range(3)])
        assert sorted(indices) == list(range(200))


def test_own_classes():
    """The skew is the fraction of a worker's examples that come from a few classes. Without skew, every worker has
    examples of all classes."""
    own = Shares(LABELS, workers=4, skew=0.9, seed=2)
    for worker in range(4):
        counts = np.sort(np.bincount(LABELS[examples(own, worker)], minlength=10))[::-1]
        assert counts[:4].sum() >= 0.9 * own.sizes[worker]
    even = Shares(LABELS, workers=4, skew=0, seed=2)
    assert all(np.bincount(LABELS[examples(even, worker)], minlength=10).min() > 0 for worker in range(4))


def test_batches():
    """All batches have the same size; each pass visits every example once, in an order given by the seed."""
    shares = Shares(LABELS, workers=4, skew=0.5, seed=3)
    size = 8
    taken = np.concatenate([shares.batch(1, number, size) for number in range(25)])
    turns = taken.reshape(4, shares.sizes[1])
    assert all(sorted(turn) == sorted(turns[0]) for turn in turns)
    assert not np.array_equal(turns[0], turns[1])
    again = Shares(LABELS, workers=4, skew=0.5, seed=3)
    assert np.array_equal(again.batch(1, 7, size), shares.batch(1, 7, size))
    assert not np.array_equal(Shares(LABELS, workers=4, skew=0.5, seed=4).batch(1, 7, size), again.batch(1, 7, size))
    assert len(shares.batch(0, 3, 120)) == 120  # the worker has fewer examples


test_errors = refused(functools.partial(Shares, LABELS), {"workers": 2, "skew": 0.5, "seed": 0}, [
    ({"workers": 0}, "Workers must be between 1 and the examples, 200, not 0"),
    ({"skew": 1.5}, "Skew must be between 0 and 1, not 1.5"),
])
