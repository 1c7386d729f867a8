"""Golden models of collectives on nodes that have several gradients each."""

import itertools

import numpy as np
import pytest

from sim.golden import optimizer, ring
from sim.golden.codecs import GRADIENT_CODECS
from sim.golden.features.reproducible.sums import sum_of
from sim.golden.nodes import Nodes, Placed
from tests.refusals import refuses

SGD = ring.settings(optimizer.Rule.SGD, gradient_scale=0.25, learning_rate=0.1)
FORMATS = {"sum32": 32, "sum16": 16}
#: Ways to distribute eight gradients among nodes: the number of gradients of each node.
COUNTS = ([8], [1] * 8, [4, 4], [3, 3, 2], [1, 5, 2], [2, 1, 1, 4])


def draw(seed, count, length):
    generator = np.random.default_rng(seed)
    values = generator.standard_normal((count, length)) * np.exp2(generator.integers(-20, 20, (count, length)))
    values[generator.integers(count), generator.integers(length)] = np.inf
    return ring.bits(values.astype(np.float32))


@pytest.mark.parametrize("name", FORMATS)
def test_distributions(name):
    """Sums and updates do not depend on how gradients are distributed among the nodes.

    The traffic is the same as with one gradient per node.
    """
    gradients, weights = draw(1, 8, 700), draw(2, 1, 700)[0]
    expected = sum_of(ring.canonical(gradients), width=FORMATS[name])
    update = ring.fused_update(gradients, weights, [], SGD, gradient_codec=GRADIENT_CODECS[name])
    for counts in COUNTS:
        options = {"gradient_codec": GRADIENT_CODECS[name], "segment": 64}
        total, traffic = ring.all_reduce(gradients, counts=counts, **options)
        _, plain = ring.all_reduce(gradients[:len(counts)], **options)
        assert (total == expected).all(), counts
        assert traffic.words.tolist() == plain.words.tolist(), counts
        assert (traffic.scatter_bound, traffic.bound) == (plain.scatter_bound, plain.bound)
        got = ring.fused_update(gradients, weights, [], SGD, counts=counts, **options)
        assert (got.weights == update.weights).all(), counts
        owned, _ = ring.reduce_scatter(gradients, counts=counts, **options)
        assert owned.shape == (len(counts), 700)
        for block, index in enumerate(ring.block_indices(700, len(counts))):
            assert (owned[(block - 1) % len(counts), index] == expected[index]).all(), counts


@pytest.mark.parametrize("name", FORMATS)
def test_density(name):
    """The density at a hop is the density of the sum of all gradients added so far."""
    gradients = np.zeros((5, 64), np.float32)
    for row, column in itertools.product(range(5), range(32)):
        gradients[row, column] = 1 if column < 4 * (row + 1) else 0
    _, traffic = ring.all_reduce(ring.bits(gradients), counts=[2, 3], gradient_codec=GRADIENT_CODECS[name])
    # Block 0 starts at the first node, with 8 nonzero sums of 32 elements; block 1 starts at the second node, with
    # zeros.
    assert traffic.density.tolist() == [8 / 64]


def test_refused():
    gradients = draw(1, 4, 64)
    codec = GRADIENT_CODECS["sum32"]
    refuses("Each rank must have one gradient, unless the codec adds integers", ring.all_reduce, gradients,
            counts=[2, 2], gradient_codec=GRADIENT_CODECS["raw"])
    for counts in ([2, 3], [4, 0], [1]):
        refuses(f"Ranks must have one or more of the 4 gradients each, not {counts!r}", ring.all_reduce, gradients,
                counts=counts, gradient_codec=codec)


@pytest.mark.parametrize("operation", ["ALL_REDUCE", "REDUCE_SCATTER", "FUSED_UPDATE"])
def test_nodes(operation):
    """Nodes read their gradients at the given stride in memory."""
    counts, stride, length = [3, 1, 2], 128, 100
    gradients, weights = draw(3, 6, length), draw(4, 1, length)[0]
    nodes = Nodes(3, gradient_words=512, weights=weights, planes=0, gradient_codec=GRADIENT_CODECS["sum32"])
    nodes.addends, nodes.addend_stride, nodes.settings = counts, stride, SGD
    nodes.latch()
    number = 0
    for rank, count in enumerate(counts):
        for place in range(count):
            nodes.gradients[rank, stride * place:stride * place + length] = gradients[number]
            number += 1
    (outcome,) = nodes.execute(Placed(operation, [{"length": length}] * 3), range(3))
    total = sum_of(ring.canonical(gradients), width=32)
    assert (outcome.total == total).all()
    if operation == "ALL_REDUCE":
        assert (nodes.gradients[:, :length] == total).all()
    if operation == "FUSED_UPDATE":
        update = ring.fused_update(gradients, weights, [], SGD, counts=counts,
                                   gradient_codec=GRADIENT_CODECS["sum32"])
        assert (nodes.weights == update.weights).all()
