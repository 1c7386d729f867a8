"""Tables for compressed weights: centroids of mantissas and of whole weights, and training with the latter.

Weights that share a centroid share its gradient: the gradient of a centroid is the sum of the gradients of its
weights. The table is trained like any vector of parameters. The assignment of weights to centroids stays until the
weights are clustered again.
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
Indices = npt.NDArray[np.int64]


#: Steps of a clustering at most.
_STEPS = 2_000


def kmeans(values: npt.ArrayLike, count: int) -> Numbers:
    """Cluster numbers from equidistant centroids; fewer centroids, in ascending order, if there are fewer numbers.

    In each step a number belongs to the nearest centroid, the lower one of two, and a centroid moves to the mean of
    its numbers, which are added up in ascending order. A centroid without numbers takes the one that is farthest from
    its own.
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
    """Centroids of the fractions of elements, as a :class:`~hdl.features.table.format.LookupTable` needs them.

    There is one for each mantissa of the table, and all are different: missing ones are the lowest fractions that
    are not centroids yet. Zeros, infinities and NaNs do not count.

    Parameters
    ----------
    elements : array
        Encodings of the table's format.
    """
    given = np.asarray(elements, np.uint32)
    bits = table.format.fraction_bits
    exponents = given >> bits & table.format.exponent_ones
    fractions = (given & ((1 << bits) - 1))[(exponents != 0) & (exponents != table.format.exponent_ones)]
    found = kmeans(fractions, table.mantissas) if len(fractions) else np.zeros(0)
    centroids = np.unique(np.rint(found).astype(np.uint32))
    spare = np.setdiff1d(np.arange(2 * table.mantissas, dtype=np.uint32), centroids)
    return np.sort(np.concatenate([centroids, spare[:table.mantissas - len(centroids)]]))


def weight_centroids(weights: npt.ArrayLike, count: int) -> npt.NDArray[np.float32]:
    """Centroids of weights, in ascending order; the highest one is repeated if the weights have too few.

    Infinities and NaNs do not count, and without a weight all centroids are zero.
    """
    given = np.asarray(weights, np.float32).reshape(-1)
    finite = given[np.isfinite(given)]
    found = kmeans(finite, count).astype(np.float32) if len(finite) else np.zeros(1, np.float32)
    return np.concatenate([found, np.repeat(found[-1:], count - len(found))])


def codebook(codec: str, weights: npt.ArrayLike) -> npt.NDArray[np.uint32]:
    """Centroids for a weight codec, from weights: bits of fractions, or bits of binary32 numbers."""
    found = _with_centroids(codec)
    given = np.ascontiguousarray(weights, dtype=np.float32)
    if found.codebook is Content.FRACTIONS:
        return mantissa_centroids(given.view(np.uint32), found.parameters["table"])
    return weight_centroids(given, found.centroids).view(np.uint32)


def codebook_words(codec: str, centroids: npt.ArrayLike) -> npt.NDArray[np.uint32]:
    """Contents of a node's codebook memory: the bounds between centroids, a word of zeros, and the centroids.

    Parameters
    ----------
    codec : str
        Name of a weight codec with centroids.
    centroids : array of uint32
        Result of :func:`codebook`, in ascending order; equal centroids are allowed.
    """
    found = _with_centroids(codec)
    given = np.asarray(centroids)
    if given.dtype != np.uint32 or given.shape != (found.centroids,):
        raise ValueError(f"Codebook of {codec} must be {found.centroids} words, not "
                         f"{given.dtype} of shape {given.shape!r}")
    if found.codebook is Content.FRACTIONS:
        bounds = _fraction_bounds(given.astype(np.int64), found.parameters["table"])
    else:
        bounds = _number_bounds(given.view(np.float32))
    return np.concatenate([bounds, np.zeros(1, np.uint32), given]).astype(np.uint32)


def _with_centroids(codec: str) -> Codec:
    found = CODECS[codec]
    if found.codebook is Content.NONE:
        raise ValueError(f"Weight codec must be one with a codebook, not {codec!r}")
    return found


def _fraction_bounds(fractions: npt.NDArray[np.int64], table: Any) -> npt.NDArray[np.uint32]:
    """Bounds between fractions: the least compared bits whose middle fraction is nearer to the upper centroid."""
    if (np.diff(fractions) < 0).any() or fractions[-1] >> table.format.fraction_bits:
        raise ValueError(f"Centroids must be fractions of {table.format.fraction_bits} bits in ascending order, not "
                         f"others")
    step = 1 << (table.format.fraction_bits - table.compared_bits)
    middles = np.arange(1 << table.compared_bits) * step + step // 2
    bounds = np.searchsorted(2 * middles, fractions[:-1] + fractions[1:], side="right")
    return np.minimum(bounds, len(middles) - 1).astype(np.uint32)


def _number_bounds(numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    """Bounds between numbers: the least number above the middle of two, as bits; -0.0 if it is a zero."""
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
    """Weights as indices into a table of centroids."""

    centroids: npt.NDArray[np.float32]
    indices: Indices  # index of the centroid of each weight, in the shape of the weights

    @classmethod
    def of(cls, weights: npt.ArrayLike, count: int) -> "Codebook":
        """Cluster weights. Centroids in excess of their distinct numbers are zero."""
        given = np.asarray(weights, np.float32)
        table = np.zeros(count, np.float32)
        found = kmeans(given, count).astype(np.float32)
        table[:len(found)] = found
        middles = (found[:-1].astype(np.float64) + found[1:]) / 2
        return cls(table, np.searchsorted(middles, given.astype(np.float64)))

    @property
    def weights(self) -> npt.NDArray[np.float32]:
        """The weights that the indices stand for."""
        return self.centroids[self.indices]

    def _sums(self, values: npt.ArrayLike) -> Numbers:
        given = np.asarray(values, np.float64)
        if given.shape != self.indices.shape:
            raise ValueError(f"Values must be of shape {self.indices.shape!r}, not {given.shape!r}")
        count = len(self.centroids)
        return np.bincount(self.indices.reshape(-1), given.reshape(-1), minlength=count).astype(np.float64)

    def gradient(self, gradient: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Gradient of each centroid from the gradient of the weights; zero for an unused centroid."""
        return self._sums(gradient).astype(np.float32)

    def stepped(self, gradient: npt.ArrayLike, learning_rate: float) -> "Codebook":
        """Codebook after one step of gradient descent with the gradient of the weights."""
        moved = self.centroids - np.float32(learning_rate) * self.gradient(gradient)
        return dataclasses.replace(self, centroids=moved.astype(np.float32))

    def refreshed(self, weights: npt.ArrayLike) -> "Codebook":
        """Codebook in which each centroid is the mean of its present weights; an unused centroid stays."""
        counts = np.bincount(self.indices.reshape(-1), minlength=len(self.centroids))
        means = self._sums(weights) / np.maximum(counts, 1)
        return dataclasses.replace(
            self, centroids=np.where(counts, means, self.centroids).astype(np.float32))
