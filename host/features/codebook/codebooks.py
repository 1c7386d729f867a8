"""Centroid tables for compressed weights: centroids of mantissas or trainable centroids of weights.

The gradient of a centroid is the sum of the gradients of all weights that share it, so the table is trained like any
parameter vector. The assignment of weights to centroids is fixed until the weights are clustered again.
"""

import dataclasses
import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.compression.codec import Codebook as Content
from hdl.compression.codec import Codec
from hdl.compression.registry import CODECS

__all__ = ["Codebook", "codebook", "codebook_words", "kmeans", "mantissa_centroids", "weight_centroids"]

Numbers = npt.NDArray[np.float64]

_STEPS = 2_000  # maximum number of iterations when clustering


def kmeans(values: npt.ArrayLike, count: int) -> Numbers:
    """Cluster numbers into ``count`` centroids, or fewer if there are fewer distinct numbers.

    Centroids are equidistant at first. In each step, every number is assigned to the nearest centroid (the lower one
    on a tie), and each centroid moves to the mean of its numbers, which are summed in ascending order. A centroid
    with no numbers moves to the number farthest from its own centroid. Centroids are returned in ascending order.
    """
    numbers = np.asarray(values, np.float64).reshape(-1)
    if not len(numbers):
        raise ValueError("Values must be at least one, not none")
    if not isinstance(count, int) or count < 1:
        raise ValueError(f"Centroid count must be a positive integer, not {count!r}")
    distinct, repeats = np.unique(numbers, return_counts=True)
    if len(distinct) <= count:
        return distinct
    edges = np.linspace(distinct[0], distinct[-1], count + 1)
    centroids: Numbers = (edges[:-1] + edges[1:]) / 2
    for _ in range(_STEPS):
        nearest = np.searchsorted((centroids[:-1] + centroids[1:]) / 2, distinct)
        empty = np.setdiff1d(np.arange(count), nearest)
        distances = np.abs(distinct - centroids[nearest])
        nearest[np.argsort(-distances, kind="stable")[:len(empty)]] = empty
        members = np.bincount(nearest, repeats, minlength=count)
        means = np.bincount(nearest, distinct * repeats, minlength=count) / np.maximum(members, 1)
        moved = np.sort(np.where(members > 0, means, centroids))
        if np.array_equal(moved, centroids):
            break
        centroids = moved
    return centroids


def mantissa_centroids(elements: npt.ArrayLike, table: Any) -> npt.NDArray[np.uint32]:
    """Centroids of the fraction bits of elements, which are encoded in the format of ``table`` (a
    :class:`~hdl.features.table.format.LookupTable`).

    There is one centroid per mantissa of the table, and all centroids are distinct: missing ones are filled in with
    the lowest fractions that are not yet centroids. Zeros, infinities and NaNs are ignored.
    """
    codes = np.asarray(elements, np.uint32)
    bits = table.format.fraction_bits
    exponents = codes >> bits & table.format.exponent_ones
    fractions = (codes & ((1 << bits) - 1))[(exponents != 0) & (exponents != table.format.exponent_ones)]
    clusters = kmeans(fractions, table.mantissas) if len(fractions) else np.zeros(0)
    centroids = np.unique(np.rint(clusters).astype(np.uint32))
    spare = np.setdiff1d(np.arange(2 * table.mantissas, dtype=np.uint32), centroids)
    return np.sort(np.concatenate([centroids, spare[:table.mantissas - len(centroids)]]))


def weight_centroids(weights: npt.ArrayLike, count: int) -> npt.NDArray[np.float32]:
    """Centroids of weights in ascending order; if there are too few, the highest one is repeated.

    Infinities and NaNs are ignored. If there are no weights, all centroids are zero.
    """
    numbers = np.asarray(weights, np.float32).reshape(-1)
    finite = numbers[np.isfinite(numbers)]
    centroids = kmeans(finite, count).astype(np.float32) if len(finite) else np.zeros(1, np.float32)
    return np.pad(centroids, (0, count - len(centroids)), "edge")


def codebook(codec: str, weights: npt.ArrayLike) -> npt.NDArray[np.uint32]:
    """Compute the centroids of weights for a codec, as fraction bits or as binary32 bits."""
    entry = _with_centroids(codec)
    numbers = np.ascontiguousarray(weights, dtype=np.float32)
    if entry.codebook is Content.FRACTIONS:
        return mantissa_centroids(numbers.view(np.uint32), entry.parameters["table"])
    return weight_centroids(numbers, entry.centroids).view(np.uint32)


def codebook_words(codec: str, centroids: npt.ArrayLike) -> npt.NDArray[np.uint32]:
    """Contents of a node's codebook memory: the bounds between centroids, a zero word, and the centroids.
    ``centroids`` is a result of :func:`codebook`: uint32 in ascending order, where duplicates are allowed.
    """
    entry, words = _with_centroids(codec), np.asarray(centroids)
    if words.dtype != np.uint32 or words.shape != (entry.centroids,):
        raise ValueError(f"Codebook of {codec} must be {entry.centroids} words, not {words.dtype} of shape "
                         f"{words.shape!r}")
    if entry.codebook is Content.FRACTIONS:
        bounds = _fraction_bounds(words.astype(np.int64), entry.parameters["table"])
    else:
        bounds = _number_bounds(words.view(np.float32))
    return np.concatenate([bounds, np.zeros(1, np.uint32), words]).astype(np.uint32)


def _with_centroids(codec: str) -> Codec:
    if CODECS[codec].codebook is Content.NONE:
        raise ValueError(f"Weight codec must be one with a codebook, not {codec!r}")
    return CODECS[codec]


def _fraction_bounds(fractions: npt.NDArray[np.int64], table: Any) -> npt.NDArray[np.uint32]:
    """Return the bound between each pair of adjacent centroids: the lowest table index whose midpoint is nearer to
    the upper centroid."""
    if (np.diff(fractions) < 0).any() or fractions[-1] >> table.format.fraction_bits:
        raise ValueError(f"Centroids must be fractions of {table.format.fraction_bits} bits in ascending order, not "
                         f"others")
    step = 1 << (table.format.fraction_bits - table.compared_bits)
    middles = np.arange(1 << table.compared_bits) * step + step // 2
    bounds = np.searchsorted(2 * middles, fractions[:-1] + fractions[1:], side="right")
    return np.minimum(bounds, len(middles) - 1).astype(np.uint32)


def _number_bounds(numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    """Return the bounds between adjacent centroids as binary32 bits: the smallest number above each midpoint, or -0.0
    if this number is zero."""
    if not np.isfinite(numbers).all() or (np.diff(numbers) < 0).any():
        raise ValueError("Centroids must be finite numbers in ascending order, not others")
    bounds = []
    for low, high in itertools.pairwise(numbers.tolist()):
        middle = (Fraction(low) + Fraction(high)) / 2
        bound = np.float32(float(middle))
        if Fraction(float(bound)) <= middle:
            with np.errstate(over="ignore"):
                bound = np.nextafter(bound, np.float32(np.inf))
        bounds.append(np.float32(-0.0) if bound == 0 else bound)
    return np.array(bounds, np.float32).view(np.uint32)


@dataclasses.dataclass(frozen=True)
class Codebook:
    """Weights stored as indices into a table of centroids."""

    centroids: npt.NDArray[np.float32]
    indices: npt.NDArray[np.int64]  # index of each weight's centroid, with the shape of the weights

    @classmethod
    def of(cls, weights: npt.ArrayLike, count: int) -> "Codebook":
        """Cluster weights; the table is padded with zeros if there are fewer than ``count`` distinct weights."""
        numbers = np.asarray(weights, np.float32)
        centroids = kmeans(numbers, count).astype(np.float32)
        middles = (centroids[:-1].astype(np.float64) + centroids[1:]) / 2
        return cls(np.pad(centroids, (0, count - len(centroids))),
                   np.searchsorted(middles, numbers.astype(np.float64)))

    @property
    def weights(self) -> npt.NDArray[np.float32]:
        """The weights that the indices represent."""
        return self.centroids[self.indices]

    def _sums(self, values: npt.ArrayLike) -> Numbers:
        numbers = np.asarray(values, np.float64)
        if numbers.shape != self.indices.shape:
            raise ValueError(f"Values must be of shape {self.indices.shape!r}, not {numbers.shape!r}")
        return np.bincount(self.indices.reshape(-1), numbers.reshape(-1), len(self.centroids)).astype(np.float64)

    def gradient(self, gradient: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Compute the gradient of each centroid from the weights' gradient; unused centroids get zero."""
        return self._sums(gradient).astype(np.float32)

    def stepped(self, gradient: npt.ArrayLike, learning_rate: float) -> "Codebook":
        """Return the codebook after one gradient descent step, given the gradient of the weights."""
        moved = self.centroids - np.float32(learning_rate) * self.gradient(gradient)
        return dataclasses.replace(self, centroids=moved.astype(np.float32))

    def refreshed(self, weights: npt.ArrayLike) -> "Codebook":
        """Return the codebook with each used centroid moved to the mean of its new weights."""
        counts = np.bincount(self.indices.reshape(-1), minlength=len(self.centroids))
        means = self._sums(weights) / np.maximum(counts, 1)
        return dataclasses.replace(
            self, centroids=np.where(counts, means, self.centroids).astype(np.float32))
