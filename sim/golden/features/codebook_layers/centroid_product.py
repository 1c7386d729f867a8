"""Golden model of binary32 products with weights as centroid indices, and of centroid gradients.

The order is gather, reduce, add: for each example b and output o, all inputs that share a centroid c are added, and
only these sums are multiplied:

    P[b, o, c] = the sum of X[b, i] over all i with I[o, i] = c
    Y[b, o] = start[b, o] + the sum of C[c] · P[b, o, c] over c
    dC[c] = the sum of dY[b, o] · P[b, o, c] over b and o

Every sum is ((s + t0) + t1) + …, with each product and each sum rounded to nearest even; NaNs are canonical. P starts
at +0.0, with i ascending; Y starts at ``start``, with c ascending. dC is first summed per lane, over the outputs o
with o mod lanes equal to the lane's number: it starts at +0.0, with o ascending and, for each o, b ascending. Then
the sums of lanes 1, 2, … are added to the sum of lane 0. Groups with fewer than eight examples, or with fewer outputs
than lanes, are padded with zero products. These change no bit of a sum that started at +0.0, unless one of their
factors is infinite or NaN.

The other gradients need no new operation: dX is Y with the transposed index matrix, dY in place of X, and a start of
zero. The gradients of individual weights are never computed.
"""

import dataclasses

import numpy as np
import numpy.typing as npt

from sim.golden.summation import canonical

__all__ = ["Lanes", "gather", "gradient", "index_line", "layer_gradient", "pack_indices", "product",
           "unpack_indices"]

#: Number of bits per index in memory, of columns per word of a lane, and of examples per job.
_BITS, _COLUMNS, _EXAMPLES = 4, 8, 8

Array = npt.NDArray[np.float32]
Indices = npt.NDArray[np.integer]


def gather(indices: Indices, x: Array, centroids: int) -> Array:
    """Sums of the inputs that share a centroid, of shape (examples, outputs, centroids). ``indices`` has shape
    (outputs, inputs); ``x`` has shape (examples, inputs)."""
    outputs = np.arange(len(indices))
    sums = np.zeros((len(x), len(indices), centroids), x.dtype)
    for column, inputs in zip(indices.T, x.T, strict=True):
        sums[:, outputs, column] += inputs[:, None]
    return canonical(sums)


def product(indices: Indices, table: Array, x: Array, start: Array) -> Array:
    """Outputs, of shape (examples, outputs): ``start``, broadcast to this shape, plus the products of the input sums
    and the centroids in ``table``. Indices and inputs are as in :func:`gather`."""
    sums = gather(indices, x, len(table))
    total = np.array(np.broadcast_to(start, sums.shape[:2]), sums.dtype)
    for number, centroid in enumerate(table):
        total = total + centroid * sums[..., number]
    return canonical(total)


def gradient(indices: Indices, x: Array, upstream: Array, centroids: int, *, lanes: int) -> Array:
    """Gradient of each centroid. The output gradients, of shape (examples, outputs), are distributed over the lanes.
    Indices and inputs are as in :func:`gather`."""
    sums = gather(indices, x, centroids)
    totals = np.zeros((lanes, centroids), x.dtype)
    for first in range(0, len(indices), lanes):
        group = slice(first, first + lanes)
        _add_terms(totals, upstream[:, group], sums[:, group])
    return _combined(totals)


def _add_terms(totals: Array, upstream: Array, sums: Array) -> None:
    """Add the terms of a group of outputs to the sums of their lanes, example by example."""
    for factors, example in zip(upstream, sums, strict=True):
        totals[:len(example)] += factors[:, None] * example


def _combined(totals: Array) -> Array:
    """Add the sums of lanes 1, 2, … to the sum of lane 0."""
    total = totals[0]
    for further in totals[1:]:
        total = total + further
    return canonical(total)


def layer_gradient(indices: Indices, x: Array, upstream: Array, centroids: int, *, lanes: int) -> Array:
    """Gradient of each centroid of a layer in memory, with examples and outputs padded to whole groups.

    Like :func:`gradient`, but ``indices`` has one row per lane of each group, while ``upstream`` has columns only for
    actual outputs.
    """
    outputs, examples = len(indices), -(-len(x) // _EXAMPLES) * _EXAMPLES
    inputs, gradients = np.zeros((examples, x.shape[1]), x.dtype), np.zeros((examples, outputs), x.dtype)
    inputs[:len(x)], gradients[:len(x), :upstream.shape[1]] = x, upstream
    return gradient(indices, inputs, gradients, centroids, lanes=lanes)


def index_line(columns: int, lanes: int) -> int:
    """Number of memory elements for the indices of an output group: whole rows of eight columns."""
    return -(-columns // _COLUMNS) * lanes


def pack_indices(indices: Indices, lanes: int) -> npt.NDArray[np.uint32]:
    """Pack indices as in memory: one line per group of outputs, of shape (groups, elements per line).

    A memory row contains eight columns, each with the 4-bit indices of all outputs of the group.
    """
    outputs, columns = indices.shape
    groups, line = -(-outputs // lanes), index_line(columns, lanes)
    full = np.zeros((groups * lanes, line // lanes * _COLUMNS), np.uint32)
    full[:outputs, :columns] = indices
    # Indices ordered by group, memory row, column within the row, and lane; each element holds eight indices.
    nibbles = full.reshape(groups, lanes, -1).transpose(0, 2, 1).reshape(groups, line, _COLUMNS)
    shifts = np.arange(_COLUMNS, dtype=np.uint32) * np.uint32(_BITS)
    return np.asarray(np.bitwise_or.reduce(nibbles << shifts, axis=2), np.uint32)


def unpack_indices(lines: npt.NDArray[np.uint32], columns: int, lanes: int, centroids: int) -> Indices:
    """Unpack indices from lines in memory, to shape (groups times lanes, columns); high bits are dropped."""
    shifts = np.arange(_COLUMNS, dtype=np.uint32) * np.uint32(_BITS)
    nibbles = lines[..., None] >> shifts & np.uint32(centroids - 1)
    indices = nibbles.reshape(len(lines), -1, lanes).transpose(0, 2, 1).reshape(len(lines) * lanes, -1)
    return indices[:, :columns].astype(np.int64)


@dataclasses.dataclass(kw_only=True)
class Lanes:
    """Model of a unit's lanes, which keep their sums of centroid gradients from job to job."""

    table: Array  # centroids
    lanes: int  # outputs in a job
    totals: Array = dataclasses.field(init=False)  # shape (lanes, centroids)

    def __post_init__(self) -> None:
        self.totals = np.zeros((self.lanes, len(self.table)), np.float32)

    def product(self, indices: Indices, x: Array, start: Array) -> Array:
        """Compute the outputs of a PRODUCT with :func:`product`."""
        return product(indices, self.table, x, start)

    def gradient(self, indices: Indices, x: Array, upstream: Array) -> None:
        """Add the terms of a GRADIENT to the sums of all lanes."""
        _add_terms(self.totals, upstream, gather(indices, x, len(self.table)))

    def total(self) -> Array:
        """Return the centroid gradients of a TOTAL, which then clears all sums."""
        total = _combined(self.totals)
        self.totals = np.zeros_like(self.totals)
        return total
