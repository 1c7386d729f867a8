"""Golden model of the functions of sequence rows: layer norm, softmax gradient and embedding.

Mirrors :mod:`hdl.features.compute.row_unit`. Row sums start with +0.0 at column 0. Rows are multiplied by a
reciprocal instead of being divided. NaNs are canonical. Arrays are binary32.
"""

import numpy as np
import numpy.typing as npt

from sim.golden.summation import canonical, row_sums

__all__ = ["gather", "norm", "norm_back", "scatter", "softmax_back"]

Array = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.integer]


def norm(x: Array, epsilon: np.float32, factor: np.float32) -> tuple[Array, Array]:
    """Normalized rows, and the reciprocal of each row's deviation, of shape (rows, 1).

    The mean is the sum of a row times ``factor``. The deviation is the square root of ``epsilon`` plus the mean
    square of the centred row.
    """
    centred = x - row_sums(x) * factor
    deviation = canonical(np.float32(1) / np.sqrt(row_sums(centred * centred) * factor + epsilon))
    return canonical(centred * deviation), deviation


def norm_back(upstream: Array, normal: Array, deviation: Array, scale: Array, factor: np.float32) -> Array:
    """Gradient of layer norm rows: ((times - middle) - normal · along) · deviation.

    ``times`` is the upstream gradient times ``scale``, ``middle`` is its mean, ``along`` is the mean of times ·
    normal, and ``deviation`` holds the reciprocals from :func:`norm`.
    """
    times = upstream * scale
    middle = row_sums(times) * factor
    along = row_sums(times * normal) * factor
    return canonical(((times - middle) - normal * along) * deviation)


def softmax_back(upstream: Array, weights: Array, factor: np.float32) -> Array:
    """Gradient of softmax scores, times ``factor``: (weights · (upstream - sum of upstream · weights)) · factor."""
    return canonical((weights * (upstream - row_sums(upstream * weights))) * factor)


def gather(table: Array, numbers: Numbers) -> tuple[Array, bool]:
    """Return the selected table rows, with +0.0 for invalid row numbers, and whether all numbers are valid."""
    right = numbers < len(table)
    return np.where(right[:, None], table[np.where(right, numbers, 0)], np.float32(0)), bool(right.all())


def scatter(table: Array, numbers: Numbers, x: Array) -> tuple[Array, bool]:
    """Return the table after adding the rows of ``x`` to the selected rows in ascending order, and whether all row
    numbers are valid. Rows with invalid numbers are skipped."""
    result, right = table.copy(), numbers < len(table)
    for number, row in zip(numbers[right], x[right], strict=True):
        result[number] = canonical(result[number] + row)
    return result, bool(right.all())
