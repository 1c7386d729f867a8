"""Golden model of the summation order, and of network functions that use sums.

Every sum is ((c + t0) + t1) + …: terms are added in ascending order, every partial sum is rounded, and c is +0.0 or
an initial value. The terms of a dot product are rounded products; there is no fused multiply-add. Sums can therefore
be resumed, and tiling never changes a bit. NaNs are canonical.

Arrays are binary32. They may also be binary64, for comparison with finite differences; exp and log are then numpy's
own functions.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from sim.golden import exponential

__all__ = ["canonical", "column_sums", "cross_entropy", "exp", "gather_sums", "log", "maxima", "mean", "normalize",
           "product", "row_sums", "softmax"]

Array = npt.NDArray[np.floating]


def canonical(x: Array) -> Array:
    """Replace all NaNs with the canonical bit pattern."""
    return np.where(np.isnan(x), x.dtype.type(np.nan), x)


def product(a: Array, b: Array, initial: Array | None = None) -> Array:
    """Matrix products (…, m, k) by (…, k, n); each element is summed along k from zero or ``initial``."""
    shape = (*a.shape[:-1], b.shape[-1])
    total = np.zeros(shape, a.dtype) if initial is None else np.array(initial, a.dtype)
    for k in range(a.shape[-1]):
        total = total + a[..., :, k, None] * b[..., None, k, :]
    return canonical(total)


def row_sums(x: Array) -> Array:
    """Sum along the last axis, starting at column 0; the axis is kept with length 1."""
    total = np.zeros((*x.shape[:-1], 1), x.dtype)
    for column in range(x.shape[-1]):
        total = total + x[..., column, None]
    return canonical(total)


def column_sums(x: Array) -> Array:
    """Sum the columns of a matrix, starting at row 0."""
    total = np.zeros(x.shape[1:], x.dtype)
    for row in x:
        total = total + row
    return canonical(total)


def gather_sums(x: Array, places: npt.NDArray[np.integer], count: int) -> Array:
    """Add the rows of ``x``, in order, to ``count`` rows of zeros; ``places`` gives each target row."""
    total = np.zeros((count, x.shape[1]), x.dtype)
    for row, index in zip(x, places, strict=True):
        total[index] = total[index] + row
    return canonical(total)


def maxima(x: Array) -> Array:
    """Largest element along the last axis (kept with length 1); the first of several equal elements."""
    largest = x[..., :1]
    for column in range(1, x.shape[-1]):
        largest = np.where(x[..., column, None] > largest, x[..., column, None], largest)
    return largest


def exp(x: Array) -> Array:
    """Exponentials of zero or negative numbers."""
    return exponential.exp(x) if x.dtype == np.float32 else np.exp(x)


def log(x: Array) -> Array:
    """Natural logarithms of finite numbers of at least 1."""
    return exponential.log(x) if x.dtype == np.float32 else np.log(x)


def softmax(scores: Array) -> Array:
    """Softmax along the last axis: exponentials of the differences from the maximum, multiplied by the reciprocal of
    their sum."""
    powers = exp(scores - maxima(scores))
    return canonical(powers * (scores.dtype.type(1) / row_sums(powers)))


def cross_entropy(scores: Array, labels: npt.NDArray[np.integer]) -> tuple[Any, Array]:
    """Loss ``-log(softmax(scores)[label])``, summed over rows in order, and its gradient (with divisions)."""
    rows = np.arange(len(labels))
    shifted = scores - maxima(scores)
    powers = exp(shifted)
    totals = row_sums(powers)
    losses = log(totals[:, 0]) - shifted[rows, labels]
    gradient = canonical(powers / totals)
    gradient[rows, labels] -= scores.dtype.type(1)
    return column_sums(losses[:, None])[0], gradient


def mean(x: Array) -> Array:
    """Mean along the last axis, which is kept with length 1: the sum times the rounded inverse length."""
    return row_sums(x) * x.dtype.type(1 / x.shape[-1])


def normalize(x: Array, epsilon: float) -> tuple[Array, Array]:
    """Normalize the last axis to mean 0 and variance 1; also return the reciprocal deviations."""
    centred = x - mean(x)
    deviation = canonical(x.dtype.type(1) / np.sqrt(mean(centred * centred) + x.dtype.type(epsilon)))
    return canonical(centred * deviation), deviation
