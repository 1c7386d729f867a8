"""Golden model of products with centroid indices as weights, with cycle-accurate timing."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sim.golden import stream
from sim.golden.features.codebook.centroid import CentroidTable

__all__ = ["ProductTrace", "multiply", "trace_product"]

Flags = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]

#: Latency in cycles from the end of a drain to its result.
_PIPELINE = 4


def multiply(indices: npt.ArrayLike, centroids: npt.ArrayLike, inputs: npt.ArrayLike) -> Integers:
    """Multiply a matrix of centroid indices (one row per output) by a vector, summing inputs before multiplying."""
    matrix = np.asarray(indices)
    table, vector = np.asarray(centroids, np.int64), np.asarray(inputs, np.int64)
    sums = np.zeros((len(matrix), len(table)), np.int64)
    for output, row in enumerate(matrix):
        np.add.at(sums[output], row, vector)
    products: Integers = sums @ table
    return products


@dataclasses.dataclass(frozen=True)
class ProductTrace:
    """Handshakes of a product unit, cycle by cycle."""

    i_valid: Flags
    i_ready: Flags
    o_valid: Flags
    offered: Integers  # index of the result offered in each cycle with ``o_valid``; -1 in all other cycles
    multiplied: Flags


def trace_product(table: CentroidTable, columns: Sequence[int], *, willing: npt.ArrayLike, ready: npt.ArrayLike,
                  opened: int = 0) -> ProductTrace:
    """Trace every cycle of a product unit with its table and cleared sums available from cycle ``opened``.

    ``columns`` gives the number of columns of each matrix; each has one row per lane. In each cycle, ``willing`` is
    whether the source may start to offer its next column, and ``ready`` is whether the sink is ready.
    """
    feed, output = stream.Feed(sum(columns), willing), stream.Output(ready)
    multiplied = np.zeros(feed.end, np.bool_)
    freed = [opened, opened]  # cycle from which each bank is free
    free = opened
    for number, count in enumerate(columns):
        free = max(free, freed[number % 2])
        for _ in range(count):
            free = feed.accept(free) + 1
        start = max(free + 1, output.departed)
        freed[number % 2] = start + table.centroids + 1
        multiplied[start + 2:start + table.centroids + 2] = True
        output.load(start + table.centroids + _PIPELINE - 1)
    feed.accept(max(free, freed[len(columns) % 2]))
    return ProductTrace(feed.valid, feed.ready, output.offered >= 0, output.offered, multiplied)
