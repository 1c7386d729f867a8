"""Norms of each rank's gradients, and detection of ranks with much larger norms than other ranks."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from host.pytorch.messages import Vector
from host.reports.style import COLOURS, FAINT, INK

__all__ = ["OUTLIER", "draw_norms", "norms_of", "outliers_of"]

#: Ratio of a rank's gradient norm to the median over all ranks, above which the norm is an outlier.
OUTLIER = 10

#: Number of elements that are squared at a time.
_PIECE = 2 ** 14


def norms_of(vectors: Sequence[Vector], *, scale: int = 1) -> tuple[float | None, ...]:
    """Return the Euclidean norm of each vector times ``scale``, or None if it is not finite."""
    norms = [scale * _norm(vector) for vector in vectors]
    return tuple(norm if math.isfinite(norm) else None for norm in norms)


def _norm(vector: Vector) -> float:
    with np.errstate(invalid="ignore"):
        # binary64, since squares may exceed the range of binary32; in pieces that fit into the cache.
        pieces = (vector[first:first + _PIECE] for first in range(0, len(vector), _PIECE))
        return math.sqrt(sum(float(np.square(piece, dtype=np.float64).sum()) for piece in pieces))


def outliers_of(operations: Sequence[dict[str, Any]]) -> dict[int, list[int]]:
    """Return for each rank the operations, from 1, in which its norm is far above the median of 3 or more ranks."""
    outliers: dict[int, list[int]] = {}
    for number, row in enumerate(operations, start=1):
        finite = [norm for norm in row["norms"] if norm is not None]
        # A median of zero means that most ranks have no gradients.
        limit = (OUTLIER * statistics.median(finite) if len(finite) > 2 else 0) or math.inf
        for rank, norm in enumerate(row["norms"]):
            if norm is not None and norm > limit:
                outliers.setdefault(rank, []).append(number)
    return dict(sorted(outliers.items()))


def draw_norms(axes: Any, operations: Sequence[dict[str, Any]]) -> None:
    """Plot the norms of each rank's gradients, and the median over the ranks."""
    ranks = max(len(row["norms"]) for row in operations)
    norms = np.array([[math.nan if norm is None else norm for norm in row["norms"]] if row["norms"]
                      else [math.nan] * ranks for row in operations])
    numbers = np.arange(1, len(operations) + 1)
    known = ~np.isnan(norms).all(axis=1)
    for rank in range(ranks):
        axes.plot(numbers, norms[:, rank], color=FAINT, linewidth=0.8, marker=".", markersize=2,
                  label="each rank" if not rank else None)
    axes.plot(numbers[known], np.nanmedian(norms[known], axis=1), color=COLOURS[0], label="median")
    for rank, outliers in outliers_of(operations).items():
        axes.plot(outliers, norms[np.array(outliers) - 1, rank], linestyle="none", marker="o", color=COLOURS[1],
                  label=f"rank {rank}, above {OUTLIER:g} times the median")
    if (norms[known] > 0).any():
        axes.set_yscale("log")
    axes.set_title("Norms of each rank's gradients")
    axes.legend(loc="upper right", labelcolor=INK)
