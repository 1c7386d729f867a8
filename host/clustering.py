"""Tables for compressed weights: centroids of mantissas and of whole weights, and training with the latter.

Weights that share a centroid share its gradient: that of a centroid is the sum of the gradients of its weights. So
the table is trained as any vector of parameters is, while the assignment of weights to centroids stays as it is until
they are clustered again.
"""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Codebook", "kmeans", "mantissa_centroids"]

Numbers = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


def kmeans(values: npt.ArrayLike, count: int) -> Numbers:
    """Centroids of numbers in ascending order, from a start of equal distances; fewer if there are fewer numbers."""
    from sklearn.cluster import KMeans

    numbers = np.asarray(values, np.float64).reshape(-1)
    if not len(numbers):
        raise ValueError("Values must be at least one, not none")
    if not isinstance(count, int) or count < 1:
        raise ValueError(f"Centroid count must be a positive integer, not {count!r}")
    distinct = np.unique(numbers)
    if len(distinct) <= count:
        return distinct
    edges = np.linspace(distinct[0], distinct[-1], count + 1)
    middles = (edges[:-1] + edges[1:]) / 2
    # To the end: by default it stops at changes that are small against the variance of all.
    model = KMeans(count, init=middles[:, np.newaxis], n_init=1, tol=0, max_iter=2_000).fit(numbers[:, np.newaxis])
    centroids: Numbers = np.sort(model.cluster_centers_[:, 0])
    return centroids


def mantissa_centroids(elements: npt.ArrayLike, table: Any) -> npt.NDArray[np.uint32]:
    """Centroids of the fractions of elements, as a :class:`~hdl.compression.lookup_table.LookupTable` needs them.

    They are as many as the table's mantissas and all different; what lacks is taken from the lowest fractions that
    are not centroids. Zeros, infinities and NaNs do not count.

    Parameters
    ----------
    elements : array
        Encodings of the table's format.
    table : LookupTable
    """
    given = np.asarray(elements, np.uint32)
    bits = table.format.fraction_bits
    exponents = given >> bits & table.format.exponent_ones
    fractions = (given & ((1 << bits) - 1))[(exponents != 0) & (exponents != table.format.exponent_ones)]
    found = kmeans(fractions, table.mantissas) if len(fractions) else np.zeros(0)
    centroids = np.unique(np.rint(found).astype(np.uint32))
    spare = np.setdiff1d(np.arange(2 * table.mantissas, dtype=np.uint32), centroids)
    return np.sort(np.concatenate([centroids, spare[:table.mantissas - len(centroids)]]))


@dataclasses.dataclass(frozen=True)
class Codebook:
    """Weights as indices into a table of centroids.

    Members
    -------
    centroids : array of float32
    indices : array of int64
        Of the shape of the weights.
    """

    centroids: npt.NDArray[np.float32]
    indices: Indices

    @classmethod
    def of(cls, weights: npt.ArrayLike, count: int) -> "Codebook":
        """Cluster weights. Where they have fewer distinct numbers than there are centroids, the rest is zeros."""
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
        """Gradient of each centroid, from that of the weights; zero for one that is not used."""
        return self._sums(gradient).astype(np.float32)

    def stepped(self, gradient: npt.ArrayLike, learning_rate: float) -> "Codebook":
        """After a step of gradient descent, with the gradient of the weights."""
        moved = self.centroids - np.float32(learning_rate) * self.gradient(gradient)
        return dataclasses.replace(self, centroids=moved.astype(np.float32))

    def refreshed(self, weights: npt.ArrayLike) -> "Codebook":
        """With each centroid the mean of its weights, as they now are; one that is not used stays as it is."""
        counts = np.bincount(self.indices.reshape(-1), minlength=len(self.centroids))
        means = self._sums(weights) / np.maximum(counts, 1)
        return dataclasses.replace(
            self, centroids=np.where(counts, means, self.centroids).astype(np.float32))
