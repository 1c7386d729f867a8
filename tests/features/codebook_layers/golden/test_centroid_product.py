"""Binary32 products with centroid indices, compared with the equations and with dense products."""

import numpy as np
import pytest

from sim.golden import summation
from sim.golden.features.codebook_layers import centroid_product as model


def _drawn(generator, examples, outputs, inputs, centroids):
    return (generator.integers(0, centroids, (outputs, inputs)),
            *(generator.standard_normal(shape).astype(np.float32)
              for shape in (centroids, (examples, inputs), (examples, outputs))))


def _gathered(indices, x, centroid):
    """Add, one by one, the inputs of an example for which a row of the index matrix contains ``centroid``."""
    total = np.float32(0)
    for index, value in zip(indices, x, strict=True):
        if index == centroid:
            total += value
    return total


def test_by_hand():
    """Known sums: 1 + 2 + 16 for centroid 0, 4 for centroid 2 and 8 for centroid 3; centroid 1 is unused."""
    indices, x = np.array([[0, 0, 2, 3, 0]]), np.array([[1, 2, 4, 8, 16]], np.float32)
    table = np.array([10, 99, 300, 0.5], np.float32)
    assert model.gather(indices, x, 4).tolist() == [[[19, 0, 4, 8]]]
    assert model.product(indices, table, x, np.float32(1)).tolist() == [[1 + 190 + 1200 + 4]]
    assert model.gradient(indices, x, np.array([[-2]], np.float32), 4, lanes=4).tolist() == [-38, 0, -8, -16]


def test_order():
    """Sums whose result depends on the order of additions are computed in the specified order."""
    big = np.float32(1e8)
    inputs = np.array([[big, 1, -big], [big, -big, 1]], np.float32)
    assert model.gather(np.array([[0, 0, 0]]), inputs, 1).ravel().tolist() == [0, 1]
    table = np.array([big, 1, -big], np.float32)
    assert model.product(np.array([[0, 1, 2]]), table, np.ones((1, 3), np.float32), np.float32(0)).tolist() == [[0]]
    assert model.product(np.array([[0, 2, 1]]), table, np.ones((1, 3), np.float32), np.float32(1)).tolist() == [[0]]
    zeros, upstream = np.zeros((3, 1), np.int64), np.array([[big], [1], [-big]], np.float32)
    x = np.ones((1, 1), np.float32)
    assert model.gradient(zeros[:1], np.ones((3, 1), np.float32), upstream, 1, lanes=2).tolist() == [0]
    # With two lanes, lane 0 has outputs 0 and 2 and lane 1 has output 1: (1e8 - 1e8) + 1.
    assert model.gradient(zeros, x, upstream.T, 1, lanes=2).tolist() == [1]
    assert model.gradient(zeros, x, upstream.T, 1, lanes=1).tolist() == [0]


@pytest.mark.parametrize("centroids", [4, 16])
@pytest.mark.parametrize("lanes", [1, 4])
def test_equations(centroids, lanes):
    """All elements match the equations, with sums in the specified order."""
    generator = np.random.default_rng(centroids + lanes)
    indices, table, x, rows = _drawn(generator, 5, 6, 20, centroids)
    outputs = model.product(indices, table, x, rows)
    sums = [[[_gathered(indices[o], x[b], c) for c in range(centroids)] for o in range(6)] for b in range(5)]
    for b in range(5):
        for o in range(6):
            total = rows[b, o]
            for c in range(centroids):
                total += table[c] * sums[b][o][c]
            assert outputs[b, o] == total
    gradients = model.gradient(indices, x, rows, centroids, lanes=lanes)
    for c in range(centroids):
        parts = [np.float32(0)] * lanes
        for o in range(6):
            for b in range(5):
                parts[o % lanes] += rows[b, o] * sums[b][o][c]
        total = parts[0]
        for part in parts[1:]:
            total += part
        assert gradients[c] == total


def test_fixed_point():
    """If all sums are exact, results match dense products, and gradients match sums of dense gradients."""
    generator = np.random.default_rng(1)
    indices = generator.integers(0, 16, (10, 64))
    table, x, rows = (generator.integers(-64, 64, shape).astype(np.float32) / 8
                      for shape in (16, (30, 64), (30, 10)))
    np.testing.assert_array_equal(model.product(indices, table, x, rows),
                                  summation.product(x, table[indices].T, rows))
    weights = summation.product(rows.T, x)
    np.testing.assert_array_equal(model.gradient(indices, x, rows, 16, lanes=4),
                                  [weights[indices == number].sum() for number in range(16)])
    # The input gradient is the product with the transposed indices.
    np.testing.assert_array_equal(model.product(indices.T, table, rows, np.float32(0)),
                                  summation.product(rows, table[indices]))


def test_indices_in_memory():
    """Each group of outputs has a line of indices in memory: eight columns per row, lane 0 in the lowest bits."""
    indices = np.array([[1, 2], [3, 4], [5, 6]])
    assert model.pack_indices(indices, 2).tolist() == [[0x4231, 0], [0x0605, 0]]
    assert model.pack_indices(np.arange(9)[None], 4).tolist() == [[0x0001_0000, 0x0003_0002, 0x0005_0004, 0x0007_0006,
                                                                  8, 0, 0, 0]]
    generator = np.random.default_rng(3)
    for lanes, outputs, columns, centroids in ((2, 3, 9, 4), (4, 10, 64, 16), (8, 8, 7, 8)):
        indices = generator.integers(0, centroids, (outputs, columns))
        lines = model.pack_indices(indices, lanes)
        assert lines.shape == (-(-outputs // lanes), model.index_line(columns, lanes))
        unpacked = model.unpack_indices(lines, columns, lanes, centroids)
        np.testing.assert_array_equal(unpacked[:outputs], indices)
        assert not unpacked[outputs:].any()


def test_groups_that_are_filled_up():
    """Padding with zero examples and outputs does not change gradients if all numbers are finite."""
    generator = np.random.default_rng(4)
    indices, _, x, upstream = _drawn(generator, 11, 6, 20, 16)
    full = model.unpack_indices(model.pack_indices(indices, 4), 20, 4, 16)
    np.testing.assert_array_equal(model.layer_gradient(full, x, upstream, 16, lanes=4),
                                  model.gradient(indices, x, upstream, 16, lanes=4))


def test_lanes():
    """Jobs that each compute the gradient of one group of outputs add up to the gradient of all groups."""
    generator = np.random.default_rng(2)
    indices, table, x, rows = _drawn(generator, 8, 12, 20, 16)
    unit = model.Lanes(table=table, lanes=4)
    for group in range(0, 12, 4):
        unit.gradient(indices[group:group + 4], x, rows[:, group:group + 4])
    np.testing.assert_array_equal(unit.total(), model.gradient(indices, x, rows, 16, lanes=4))
    assert not unit.total().any()
