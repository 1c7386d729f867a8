"""Products with centroid indices, checked against dense products of the expanded matrices."""

import numpy as np
import pytest

from sim.golden.features.codebook.centroid import CentroidTable
from sim.golden.features.codebook.gather_reduce import multiply, trace_product


def test_by_hand():
    """Inputs that share a centroid are added first, and each sum is multiplied once."""
    indices = [[0, 0, 2, 3, 0], [3, 2, 2, 2, 1]]
    # First row: 1 + 2 + 16 for centroid 0, 4 for centroid 2, 8 for centroid 3. Second row: 16, 14 and 1.
    assert multiply(indices, [10, -20, 300, 0], [1, 2, 4, 8, 16]).tolist() == [
        19 * 10 + 4 * 300, 16 * -20 + 14 * 300 + 1 * 0]
    assert multiply([[1]], [5, -7, 0, 0], [-3]).tolist() == [21]


def test_edges():
    """Rows without columns give zero, no rows give no results, and unused centroids are ignored."""
    assert multiply(np.zeros((2, 0), int), [1, 2, 3, 4], []).tolist() == [0, 0]
    assert multiply(np.zeros((0, 3), int), [1, 2, 3, 4], [1, 2, 3]).tolist() == []
    assert multiply([[1, 1]], [1 << 17, 3, -1 << 17, 99], [5, 6]).tolist() == [33]


@pytest.mark.parametrize("centroids", [4, 8, 16, 32, 64])
def test_against_the_dense_product(centroids):
    """At full input and centroid widths, products equal dense products computed with Python integers."""
    generator = np.random.default_rng(centroids)
    for rows, columns in ((1, 1), (3, 2), (8, 100), (5, 300)):
        indices = generator.integers(0, centroids, (rows, columns))
        table, vector = (generator.integers(-1 << 17, 1 << 17, count) for count in (centroids, columns))
        dense = [[int(table[index]) for index in row] for row in indices]
        expected = [sum(weight * x for weight, x in zip(row, vector.tolist(), strict=True)) for row in dense]
        got = multiply(indices, table, vector)
        assert got.tolist() == expected
        assert got.dtype == np.int64


def test_extremes():
    """The largest sums of 1,024 columns with 18-bit numbers fit in 45 bits."""
    low = -1 << 17
    indices = np.full((1, 1024), 3)
    assert multiply(indices, [0, 0, 0, low], np.full(1024, low)).tolist() == [1 << 44]
    assert multiply(indices, [0, 0, 0, low], np.full(1024, -low - 1)).tolist() == [-(1 << 44) + (1 << 27)]


def test_a_matrix_from_a_packet():
    """The product with a packet's indices equals the product with the packet's decoded elements."""
    generator = np.random.default_rng(1)
    indices = generator.integers(0, 16, (8, 20))
    table = generator.integers(0, 1 << 15, 16)
    parameters = CentroidTable()
    words = parameters.encode(indices.reshape(-1), table)
    vector = generator.integers(-100, 100, 20)
    expanded = parameters.decode(words, 160).reshape(8, 20).astype(np.int64)
    assert multiply(parameters.indices(words)[:160].reshape(8, 20), table, vector).tolist() == [
        sum(weight * x for weight, x in zip(row, vector.tolist(), strict=True)) for row in expanded.tolist()]


@pytest.mark.parametrize("centroids", [4, 16])
def test_cycles(centroids):
    """A row takes a cycle per column and k multiplications; its result follows k + 6 cycles after the last column."""
    columns = centroids + 5
    always = np.ones(3 * columns + centroids + 10, bool)
    trace = trace_product(CentroidTable(centroids=centroids), [columns] * 3, willing=always, ready=always)
    taken = np.flatnonzero(trace.i_valid & trace.i_ready)
    assert taken.tolist() == list(range(3 * columns))
    results = np.flatnonzero(trace.o_valid)
    assert results.tolist() == [row * columns + columns - 1 + centroids + 6 for row in range(3)]
    assert trace.offered[results].tolist() == [0, 1, 2]
    assert trace.multiplied.sum() == 3 * centroids


def test_cycles_by_hand():
    """With one column per row, each row's sums are drained after the previous result; row 3 waits for free sums."""
    always = np.ones(40, bool)
    trace = trace_product(CentroidTable(centroids=4), [1, 1, 1], willing=always, ready=always)
    assert np.flatnonzero(trace.i_valid & trace.i_ready).tolist() == [0, 1, 7]
    assert np.flatnonzero(trace.multiplied).tolist() == [*range(4, 8), *range(12, 16), *range(20, 24)]
    assert np.flatnonzero(trace.o_valid).tolist() == [10, 18, 26]
    later = trace_product(CentroidTable(centroids=4), [1, 1, 1], willing=always, ready=always, opened=7)
    assert later.offered.tolist() == [-1] * 7 + trace.offered.tolist()[:-7]


def test_a_result_that_waits():
    """A result is offered until it is accepted; only then are the sums of the next row drained."""
    ready = np.arange(60) >= 30
    trace = trace_product(CentroidTable(centroids=4), [9, 9, 9], willing=np.ones(60, bool), ready=ready)
    assert trace.offered[17:32].tolist() == [-1, *[0] * 13, -1]
    assert np.flatnonzero(trace.multiplied).tolist() == [*range(12, 16), *range(32, 36), *range(40, 44)]
    assert np.flatnonzero(trace.offered == 1).tolist() == [38]
