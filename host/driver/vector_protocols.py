"""Protocols of the memories of a ring's nodes, and of the partition of vectors among them."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hdl.config import Configuration
from host.driver.buffers import Allocator, Buffers, Where
from host.driver.formats import Formats
from host.driver.memory import Allocation
from host.driver.words import Vector

__all__ = ["Memory", "Partition", "VectorRing"]

Rows = Sequence[npt.NDArray[Any]]
"""One vector per node, in order of rank."""


class Memory(Protocol):
    """Vectors in the memories of all nodes.

    The argument ``where`` is a vector's buffers, the single buffer that is meant, or a length for a vector at the
    start of each memory.

    Members
    -------
    allocator : Allocator
        Allocator of the buffers on these nodes.
    """

    allocator: Allocator

    def require(self, allocation: Allocation) -> None:
        """Raise ``ValueError`` unless the nodes have room for the allocation."""

    def allocate(self, allocation: Allocation) -> Buffers:
        """Reserve buffers for a vector, its state and its errors, next to the buffers that are reserved already.

        The first buffers are at the start of each memory, where operations that are given a length look for them.

        Raises
        ------
        ValueError
            There is no room.
        """

    def write_gradients(self, gradients: Rows, where: Where | None = None) -> None:
        """Write one vector per node, in order of rank."""

    def read_gradients(self, where: Where) -> Vector:
        """Read one row per node."""

    def write_weights(self, weights: npt.NDArray[Any], where: Where | None = None) -> None:
        """Write the same vector to all nodes, without the master weights of
        :meth:`host.driver.protocols.Updates.distribute`."""

    def write_weights_of(self, weights: Rows, where: Where | None = None) -> None:
        """Write one vector per node, in order of rank."""

    def read_weights(self, where: Where, ranks: Sequence[int] | None = None) -> Vector:
        """Read one row per node, or per rank."""

    def clear_errors(self, where: Where) -> None:
        """Write zeros as the errors of a vector; see :meth:`host.driver.protocols.Operations.sparsify`."""

    def write_errors(self, errors: Rows, where: Where | None = None) -> None:
        """Write errors of each node, in order of rank; see :meth:`host.driver.protocols.Operations.sparsify`."""

    def read_errors(self, where: Where) -> Vector:
        """Read one row per node; see :meth:`host.driver.protocols.Operations.sparsify`."""

    def clear_residual(self, where: Where) -> None:
        """Write zeros to the residual of the gradient codec, on every node."""

    def write_residual(self, residuals: Rows, where: Where | None = None) -> None:
        """Write the residual of the gradient codec, which is added to the next gradients; one vector per node."""

    def read_residual(self, where: Where) -> Vector:
        """Read the residual of the gradient codec, which is added to the next gradients; one row per node."""

    def write_codebook(self, centroids: npt.NDArray[np.uint32]) -> int:
        """Write the same centroids to all nodes; the weight codec must have centroids.

        Every fused update loads them at its start, so they take effect with the next one; they must not be written
        while one runs. Before the first write they are all zeros.

        Parameters
        ----------
        centroids : array of uint32
            Result of :func:`host.driver.codebooks.codebook`.

        Returns
        -------
        int
            Words that were written, summed over all nodes.
        """

    def write_master(self, weights: npt.NDArray[Any], where: Where | None = None) -> None:
        """Write the master weights of the whole vector, each block to the node that owns it, with a weight codec
        only. The decoded weights stay as they are; see :meth:`host.driver.protocols.Updates.distribute`."""

    def read_master(self, where: Where) -> Vector:
        """Read the master weights of the whole vector, each block from the node that owns it."""

    def clear_state(self, where: Where, *, packed_state: bool = False) -> None:
        """Write zeros to every state plane, for the optimizer of a vector."""

    def write_state(self, state: npt.NDArray[Any], plane: int = 0, where: Where | None = None, *,
                    packed_state: bool = False) -> None:
        """Write a state plane of the whole vector, each block to the node that owns it.

        Parameters
        ----------
        state : array of float32
            Values of the plane; with ``packed_state`` rounded to bfloat16, to nearest even.
        packed_state : bool
            Whether state is stored as bfloat16.
        """

    def read_state(self, where: Where, plane: int = 0, *, packed_state: bool = False) -> Vector:
        """Read a state plane of the whole vector, each block from the node that owns it."""

    def move_state(self, root: int | None, where: Where, *, packed_state: bool = False) -> None:
        """Partition a vector again (:meth:`Partition.set_root`), and move its state and its master weights from the
        old owners to the new ones.

        Raises
        ------
        ValueError
            There is no such owner, or it has no room for all state; nothing is changed then.
        """

    def write_activations(self, vectors: Rows, base: int) -> None:
        """Write one vector per node, in order of rank, from element ``base`` of the activation memory on."""

    def read_activations(self, base: int, length: int) -> Vector:
        """Read one row per node."""


class Partition(Protocol):
    """Owners of the elements of vectors."""

    @property
    def root(self) -> int | None:
        """Rank that owns all groups of fused updates and all-reduces; None if each rank owns a block."""

    def set_root(self, root: int | None) -> None:
        """Make one rank own all groups in later fused updates and all-reduces, or with None each rank a block, as at
        the start: docs/ring/one_owner.md.

        Another partition is another order of sums. State and master weights are not moved: see
        :meth:`Memory.move_state`.

        Raises
        ------
        ValueError
            There is no such rank, or nodes have another role than RootReduce.
        """

    def owned(self, length: int) -> list[npt.NDArray[np.int64]]:
        """Elements of a vector that each rank owns, in the order of their state in its memory."""

    def owner(self, element: int, length: int) -> int:
        """Rank that owns an element of a vector of ``length`` elements."""


class VectorRing(Protocol):
    """Nodes with vectors in their memories, and owners of the elements."""

    @property
    def nodes(self) -> int:
        """Number of nodes."""

    @property
    def config(self) -> Configuration:
        """Configuration of the first node, for what all have alike."""

    @property
    def formats(self) -> Formats:
        """Formats of elements, memory rows, segments and codecs."""

    @property
    def memory(self) -> Memory: ...

    @property
    def partition(self) -> Partition: ...
