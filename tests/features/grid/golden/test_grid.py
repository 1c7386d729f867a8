"""Test two-dimensional reductions on a grid: sim/golden/features/grid/grid.py."""

import itertools

import numpy as np
import pytest

from hdl.compression.registry import WEIGHT_CODECS as GATEWARE
from sim.golden import floating, optimizer, ring
from sim.golden.codecs import GRADIENT_CODECS, RAW, WEIGHT_CODECS
from sim.golden.features.grid import grid
from tests.sim.golden.test_codecs import codec_of
from tests.sim.golden.test_ring import random_gradients

GRIDS = [(2, 2), (2, 3), (3, 2), (2, 4), (4, 4), (1, 3), (3, 1), (1, 1)]


def mean(nodes):
    """Optimizer settings with which an update turns zero weights into the mean gradient."""
    return ring.settings(optimizer.Rule.SGD, gradient_scale=1 / nodes, learning_rate=-1.0, clip=np.inf)


def update(gradients, *, nodes, **options):
    zeros = np.zeros(gradients.shape[2], dtype=np.uint32)
    return grid.fused_update(gradients, zeros, [], mean(nodes), **options)


@pytest.mark.parametrize(("values", "total", "average"), [
    ([[1, 2], [3, 4]], 10, 2.5),
    ([[1, 2]], 3, 1.5),
])
def test_known_answers(values, total, average):
    """Known sums and means of a 2 x 2 grid with gradients 1 to 4, with and without its second row."""
    gradients = ring.bits(np.broadcast_to(np.array(values)[..., np.newaxis], (*np.shape(values), 40)))
    result = update(gradients, nodes=np.size(values))
    assert (ring.floats(result.total) == total).all()
    assert (ring.floats(result.weights) == average).all()


def test_known_answer_of_three():
    """A 2 x 2 grid without node 3 becomes a flat ring of three nodes with mean 6 / 3."""
    gradients = ring.bits(np.broadcast_to(np.array([1, 2, 3])[:, np.newaxis], (3, 40)))
    zeros = np.zeros(40, dtype=np.uint32)
    result = ring.fused_update(gradients, zeros, [], mean(3))
    assert (ring.floats(result.total) == 6).all()
    assert (ring.floats(result.weights) == 2).all()


@pytest.mark.parametrize(("rows", "columns"), GRIDS)
def test_exact_sums(rows, columns):
    """If all sums are exact, a grid, a flat ring, and separate rows and columns give the same bits."""
    generator = np.random.default_rng(rows * 16 + columns)
    for length in (1, 33, 700):
        values = generator.integers(-100, 100, (rows, columns, length))
        gradients = ring.bits(values)
        result = update(gradients, nodes=rows * columns)
        flat = ring.fused_update(gradients.reshape(-1, length), np.zeros(length, np.uint32), [], mean(rows * columns))
        assert np.array_equal(result.total, flat.total)
        assert np.array_equal(result.weights, flat.weights)
        horizontal = np.stack([ring.all_reduce(row)[0] for row in gradients])
        vertical = np.stack([ring.all_reduce(gradients[:, column])[0] for column in range(columns)])
        assert np.array_equal(ring.all_reduce(horizontal)[0], flat.total)
        assert np.array_equal(ring.all_reduce(vertical)[0], flat.total)
        assert np.array_equal(ring.floats(result.total), values.sum(axis=(0, 1)).astype(np.float32))


@pytest.mark.parametrize(("rows", "columns"), GRIDS)
def test_order_of_additions(rows, columns):
    """Elements are added along rows, from the column of their block on, and then along columns, from its row on."""
    generator = np.random.default_rng(rows * 16 + columns)
    length = 700
    gradients = random_gradients(generator, rows * columns, length, density=0.9).reshape(rows, columns, length)
    result = update(gradients, nodes=rows * columns)
    expected = np.empty(length, dtype=np.uint32)
    canonical = ring.canonical(gradients.reshape(-1, length)).reshape(gradients.shape)
    for element in range(length):
        group = element // 32
        sums = []
        for row in range(rows):
            order = [(group + hop) % columns for hop in range(columns)]
            partial = canonical[row, order[0], element]
            for column in order[1:]:
                partial = floating.add(partial, canonical[row, column, element])
            sums.append(ring.canonical(np.atleast_1d(partial))[0])
        order = [(group // columns + hop) % rows for hop in range(rows)]
        partial = sums[order[0]]
        for row in order[1:]:
            partial = floating.add(partial, sums[row])
        expected[element] = partial
    assert np.array_equal(result.total, expected)


def test_differs_from_flat_ring():
    """In binary32, half of a grid's sums of eight random numbers differ from a flat ring's in the last bits."""
    generator = np.random.default_rng(11)
    gradients = ring.bits(generator.standard_normal((2, 4, 4832)))
    result = update(gradients, nodes=8)
    flat, _ = ring.all_reduce(gradients.reshape(8, -1))
    differing = np.count_nonzero(result.total != flat)
    assert 2000 < differing < 3000
    assert np.allclose(ring.floats(result.total), ring.floats(flat), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("rows", "columns"), GRIDS)
def test_words(rows, columns):
    """For a raw vector of K words, each node sends 2K(C-1)/C + 2(K/C)(R-1)/R words plus headers and CRCs."""
    length = 32 * rows * columns * 8
    generator = np.random.default_rng(1)
    gradients = ring.bits(generator.standard_normal((rows, columns, length)))
    result = update(gradients, nodes=rows * columns, gradient_codec=GRADIENT_CODECS[RAW], segment=64)
    payload = result.words - ring.PACKET_OVERHEAD * result.packets
    expected = 2 * length * (columns - 1) // columns + 2 * (length // columns) * (rows - 1) // rows
    assert (payload == expected).all()
    if min(rows, columns) > 1:  # a flat ring sends the same number of words
        assert expected == 2 * length * (rows * columns - 1) // (rows * columns)


def test_owned():
    """Each element has one owner; the nodes of a column share the elements that the column owns after row sums."""
    for rows, columns in GRIDS:
        for length in (1, 40, 700):
            parts = [index for row in grid.owned(length, rows, columns) for index in row]
            assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(length))
    for row, column in itertools.product(range(2), range(3)):
        groups = grid.owned(32 * 12, 2, 3)[row][column][::32] // 32
        assert groups.tolist() == [group for group in range(12)
                                   if (group % 3, group // 3 % 2) == ((column + 1) % 3, (row + 1) % 2)]


@pytest.mark.parametrize(("weight_codec", "gradient_codec"), [
    ("mx9", "mx9"), ("bf16", "raw"), ("raw", "mxfp8_e4m3"), ("mxfp8_e4m3", "zero_value")])
def test_codecs(weight_codec, gradient_codec):
    """Weights are the decoded master weights; residuals are the encoding losses along rows and columns."""
    generator = np.random.default_rng(3)
    rows, columns, length = 2, 3, 500
    codec = WEIGHT_CODECS[weight_codec]
    gradients = random_gradients(generator, rows * columns, length, density=0.9).reshape(rows, columns, length)
    weights, momenta = (ring.bits(generator.standard_normal(length)) for _ in range(2))
    residuals = np.zeros_like(gradients)
    settings = ring.settings(optimizer.Rule.MOMENTUM, gradient_scale=1 / 6, learning_rate=0.1, first_decay=0.9,
                             clip=np.inf)
    before = weights.copy(), momenta.copy(), gradients.copy()
    result = grid.fused_update(gradients, weights, [momenta], settings, weight_codec=codec, residuals=residuals,
                               gradient_codec=GRADIENT_CODECS[gradient_codec], segment=64)
    assert all(np.array_equal(x, other) for x, other in zip((weights, momenta, gradients), before, strict=True))
    master, (state,) = optimizer.update(result.total, weights, [momenta], settings)
    assert np.array_equal(result.master, master)
    assert np.array_equal(result.state[0], state)
    decoded = np.empty_like(master)
    for column in range(columns):
        index = ring.block_indices(length, columns)[column]
        decoded[index] = ring.distribute(master[index], rows, weight_codec=codec, segment=64)
    assert np.array_equal(result.weights, decoded)
    exact = GRADIENT_CODECS[gradient_codec].exact
    assert (residuals == 0).all() == exact
    lost = ring.floats(residuals.reshape(-1, length)).astype(np.float64).sum(axis=0)
    true = ring.floats(gradients.reshape(-1, length)).astype(np.float64).sum(axis=0)
    scale = np.abs(true).max()
    assert np.abs(ring.floats(result.total) + lost - true).max() < 1e-5 * max(scale, 1)


@pytest.mark.parametrize("name", [name for name, codec in GATEWARE.items() if codec.repeatable])
def test_coded_weights_are_coded_again_without_loss(name):
    """Encoding weights again after a codec has decoded them does not change them."""
    generator = np.random.default_rng(len(name))
    codec = codec_of(name)
    for number in range(100):
        values = generator.standard_normal(256) * 10.0**generator.integers(-20, 20)
        bits = ring.bits(values) if number % 3 else generator.integers(0, 1 << 32, 256, dtype=np.uint32)
        once = codec.decode(codec.encode(bits), 256)
        assert np.array_equal(codec.decode(codec.encode(once), 256), once), number
