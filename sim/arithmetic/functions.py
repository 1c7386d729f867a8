"""Sums in the specified order, and network functions built on them, at compiled speed.

Results are bit-identical to :mod:`sim.golden.summation`, which also supports binary64 arrays, for comparing gradients
with finite differences.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.arithmetic.library import address, library
from sim.golden import operands as formats
from sim.golden import summation
from sim.golden.operands import FP32
from sim.golden.summation import canonical

__all__ = ["canonical", "column_sums", "cross_entropy", "exp", "gather_sums", "log", "mean", "normalize", "product",
           "row_sums", "softmax"]

Array = npt.NDArray[np.floating]

_SINGLE, _DOUBLE = {np.dtype(np.float32)}, {np.dtype(np.float64)}
#: Number of columns of a factor that a kernel copies at a time.
_PANEL = 16


def _compiled(*arrays: Array) -> bool:
    """Whether arrays are binary32, which the kernels support, rather than binary64."""
    types = {array.dtype for array in arrays}
    if types == _SINGLE:
        return True
    if types == _DOUBLE:
        return False
    raise ValueError(f"Arrays must be all of float32 or all of float64, not {', '.join(sorted(map(str, types)))}")


def _batch(x: Array) -> tuple[Array, list[int]]:
    """Reshape to a matrix, or to a batch of matrices with one leading axis; also return the strides in elements."""
    if x.ndim != 3:
        x = x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:])
    if any(stride % x.itemsize for stride in x.strides) or not x.flags.aligned:
        x = np.ascontiguousarray(x)
    return x, [stride // x.itemsize for stride in x.strides]


def product(a: Array, b: Array, initial: Array | None = None, *, operands: str = FP32) -> Array:
    """Matrix products (…, m, k) by (…, k, n); each element is summed along k from zero or ``initial``.

    The factors must have the same leading axes. A transposed view is as fast as a contiguous array. ``operands``
    names the format to which factors are rounded (:mod:`sim.golden.operands`); it applies only to binary32.
    """
    if min(a.ndim, b.ndim) < 2 or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        raise ValueError(f"Matrices must be (…, m, k) and (…, k, n), not {a.shape!r} and {b.shape!r}")
    shape = (*a.shape[:-1], b.shape[-1])
    if initial is not None and initial.shape != shape:
        raise ValueError(f"Initial sums must be of shape {shape!r}, not {initial.shape!r}")
    if not _compiled(*(x for x in (a, b, initial) if x is not None)):
        if operands != FP32:
            raise ValueError(f"Arrays must be of float32 for operands in {operands}, not of float64")
        return summation.product(a, b, initial)
    if formats.operands_of(operands).block is not None:
        return formats.product(a, b, initial, operands=operands)
    if operands != FP32:
        a, b = (formats.rounded(x, operands) for x in (a, b))
        if not formats.exact(a, b):
            return formats.product(a, b, initial, operands=operands)
    output = np.zeros(shape, np.float32) if initial is None else np.array(initial, np.float32, order="C")
    left, left_strides = _batch(a)
    right, right_strides = _batch(b)
    batch, rows, depth = left.shape
    panel = np.empty((depth, _PANEL), np.float32)
    library().product(batch, rows, depth, shape[-1], address(left), *left_strides, address(right), *right_strides,
                      address(output), address(panel))
    return output


def row_sums(x: Array) -> Array:
    """Sums along the last axis, starting at column 0; the axis is kept with length 1."""
    if not _compiled(x):
        return summation.row_sums(x)
    x = np.ascontiguousarray(x)
    output = np.zeros((*x.shape[:-1], 1), np.float32)
    library().row_sums(output.size, x.shape[-1], address(x), address(output))
    return output


def gather_sums(x: Array, places: npt.NDArray[np.integer], count: int) -> Array:
    """Add each row of ``x``, in order, to the row of a ``count``-row zero matrix that ``places`` selects."""
    if x.ndim != 2 or places.shape != x.shape[:1]:
        raise ValueError(f"Rows and their places must be (rows, columns) and (rows), not {x.shape!r} and "
                         f"{places.shape!r}")
    if len(places) and not 0 <= places.min() <= places.max() < count:
        raise ValueError(f"Places must be at least 0 and below {count}, not {places.min()} to {places.max()}")
    if not _compiled(x):
        return summation.gather_sums(x, places, count)
    x, places = np.ascontiguousarray(x), np.ascontiguousarray(places, np.int64)
    output = np.zeros((count, x.shape[1]), np.float32)
    library().gather_sums(len(x), x.shape[1], address(x), address(places), count, address(output))
    return output


def column_sums(x: Array) -> Array:
    """Column sums of a matrix, starting at row 0."""
    sums: Array = gather_sums(x, np.zeros(len(x), np.int64), 1)[0]
    return sums


def exp(x: Array) -> Array:
    """Exponentials of numbers that are not positive."""
    if not _compiled(x):
        return summation.exp(x)
    if (x > 0).any():
        raise ValueError(f"Argument of exp must be at most zero, not {x[x > 0][0]!s}")
    x = np.ascontiguousarray(x)
    output = np.empty_like(x)
    library().exponentials(x.size, address(x), address(output))
    return output


def log(x: Array) -> Array:
    """Natural logarithms of finite numbers of at least 1."""
    if not _compiled(x):
        return summation.log(x)
    wrong = (x < 1) | (x == np.inf)
    if wrong.any():
        raise ValueError(f"Argument of log must be finite and at least 1, not {x[wrong][0]!s}")
    x = np.ascontiguousarray(x)
    output = np.empty_like(x)
    library().logarithms(x.size, address(x), address(output))
    return output


def _powers(scores: Array) -> tuple[Array, Array, Array]:
    """Differences from the maximum along the last axis, their exponentials, and the sums of the exponentials."""
    scores = np.ascontiguousarray(scores)
    shifted, powers = np.empty_like(scores), np.empty_like(scores)
    totals = np.empty((*scores.shape[:-1], 1), np.float32)
    library().softmax_parts(totals.size, scores.shape[-1], address(scores), address(shifted), address(powers),
                            address(totals))
    return shifted, powers, totals


def softmax(scores: Array) -> Array:
    """Softmax along the last axis: exponentials of the differences from the maximum, times the reciprocal of their
    sum."""
    if not _compiled(scores):
        return summation.softmax(scores)
    _, powers, totals = _powers(scores)
    return canonical(powers * (np.float32(1) / totals))


def cross_entropy(scores: Array, labels: npt.NDArray[np.integer]) -> tuple[Any, Array]:
    """Sum ``-log(softmax(scores)[label])`` over all rows in order; return the sum and its gradient."""
    if not _compiled(scores):
        return summation.cross_entropy(scores, labels)
    shifted, powers, totals = _powers(scores)
    rows = np.arange(len(labels))
    losses = log(totals[:, 0]) - shifted[rows, labels]
    gradient = canonical(powers / totals)
    gradient[rows, labels] -= np.float32(1)
    return column_sums(losses[:, None])[0], gradient


def mean(x: Array) -> Array:
    """Sum along the last axis, which is kept with length 1, times the rounded reciprocal of its length."""
    return row_sums(x) * x.dtype.type(1 / x.shape[-1])


def normalize(x: Array, epsilon: float) -> tuple[Array, Array]:
    """Normalize to mean 0 and variance 1 along the last axis; also return the reciprocal deviations."""
    centred = x - mean(x)
    deviation = canonical(x.dtype.type(1) / np.sqrt(mean(centred * centred) + x.dtype.type(epsilon)))
    return canonical(centred * deviation), deviation
