"""Vectors in a ring's memories: transfers, whole or by block, and the ranks that own the blocks."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.ring.topology import RingTopology
from host.driver.devices import Devices
from host.driver.memory import Allocation, Allocator, Buffer, Buffers, Where, packed_words, place
from host.driver.words import Vector
from host.feature import feature
from sim.golden import moments
from sim.golden.ring import block_indices, largest_block

__all__ = ["RingMemory", "RingPartition", "Rows"]

Rows = Sequence[npt.NDArray[Any]]
"""One vector per node, in order of rank."""


class RingPartition:
    """Partition of vectors among the ranks that own their elements."""

    def __init__(self, devices: Devices):
        self._devices = devices
        self._topology = RingTopology(len(devices))
        self._root: int | None = None

    @property
    def root(self) -> int | None:
        """Rank that owns all groups in fused updates and all-reduces, or None if each rank owns a block."""
        return self._root

    def set_root(self, root: int | None) -> None:
        """Make one rank own all groups in later fused updates and all-reduces. With None, each rank owns a block, as
        it does initially. See docs/ring/root_reduce.md.

        Changing the partition changes the order of sums. State and master weights stay on their nodes; see
        :meth:`RingMemory.move_state`. Raises ``ValueError`` like :meth:`check_root`.
        """
        if root is not None:
            self.check_root(root)
        self._root = root

    def check_root(self, root: int) -> None:
        """Raise ``ValueError`` unless this rank can own all groups, which requires the role RootReduce."""
        if not 0 <= root < len(self._devices):
            raise ValueError(f"Owner must be a rank below {len(self._devices)}, not {root!r}")
        if not self._devices.config.role.root_reduce:
            raise ValueError("Nodes must have role RootReduce(), for one of them to own all groups")

    def block_of(self, rank: int) -> int:
        """Number of the block that a rank owns if each rank owns a block."""
        return int(self._topology.owned_block(rank))

    def largest_block(self, length: int) -> int:
        """Maximum number of elements that any rank owns."""
        return length if self._root is not None else largest_block(length, len(self._devices))

    def owned(self, length: int) -> list[npt.NDArray[np.int64]]:
        """Indices of the elements that each rank owns, in the order of their state in its memory."""
        ranks = range(len(self._devices))
        if self._root is not None:
            return [np.arange(length if rank == self._root else 0) for rank in ranks]
        blocks = block_indices(length, len(self._devices))
        return [blocks[self.block_of(rank)] for rank in ranks]

    def owner(self, element: int, length: int) -> int:
        """Rank that owns the given element of a vector of ``length`` elements."""
        return next(rank for rank, owned in enumerate(self.owned(length)) if element in owned)


class RingMemory:
    """Vectors in the memories of all nodes, with state and master weights on the owners of a partition.

    The argument ``where`` gives a vector's buffers, the single buffer that the method uses, or the length of a vector
    at the start of each memory.
    """

    def __init__(self, devices: Devices, partition: RingPartition):
        self._devices = devices
        self._formats = devices.formats
        self._partition = partition
        self.allocator = Allocator(*(config.memory_map for config in devices.configs))  # buffers on all nodes

    def require(self, allocation: Allocation) -> None:
        """Raise ``ValueError`` unless every node has room for the allocation."""
        for config in self._devices.configs:
            allocation.check(config, nodes=len(self._devices))

    def allocate(self, allocation: Allocation) -> Buffers:
        """Reserve buffers for a vector, its state and its errors, after all existing buffers. Raises ``ValueError``
        if there is not enough free memory.

        The first vector gets the start of each memory, so it can also be referred to by its length.
        """
        self.require(allocation)
        return allocation.place(self.allocator, self._devices.config, nodes=len(self._devices))

    def whole(self, space: str) -> Buffer:
        """Buffer that covers a whole memory."""
        return Buffer(space, 0, self.allocator.room(space))

    # Vectors that are complete on every node, possibly with different contents.

    def write_gradients(self, gradients: Rows, where: Where | None = None) -> None:
        """Write one gradient vector per node, in order of rank."""
        self._write_vectors("gradients", gradients, where)

    def read_gradients(self, where: Where) -> Vector:
        """Read the gradients, one row per node."""
        return self._read("gradients", place(where, "gradients"))

    def write_weights(self, weights: npt.NDArray[Any], where: Where | None = None) -> None:
        """Write the same vector to all nodes. Master weights are not written: see
        :meth:`host.driver.ring_collectives.WeightUpdates.distribute`."""
        self.write_weights_of([weights] * len(self._devices), where)

    def write_weights_of(self, weights: Rows, where: Where | None = None) -> None:
        """Write one weight vector per node, in order of rank."""
        self._write_vectors("weights", weights, where)

    def read_weights(self, where: Where, ranks: Sequence[int] | None = None) -> Vector:
        """Read the weights, one row per node or per rank in ``ranks``."""
        return self._read("weights", place(where, "weights"), ranks)

    def clear_errors(self, where: Where) -> None:
        """Clear the errors of a vector; see :meth:`host.driver.node_operations.NodeOperations.sparsify`."""
        self._write_zeros("weights", place(where, "errors"))

    def write_errors(self, errors: Rows, where: Where | None = None) -> None:
        """Write one error vector per node, in order of rank; see :meth:`clear_errors`."""
        self._write_vectors("errors", errors, where)

    def read_errors(self, where: Where) -> Vector:
        """Read one row of errors per node; see :meth:`clear_errors`."""
        return self._read("weights", place(where, "errors"))

    def clear_residual(self, where: Where) -> None:
        """Clear the gradient codec's residual on every node."""
        self._write_zeros(self._residuals(), place(where, "gradients"))

    def write_residual(self, residuals: Rows, where: Where | None = None) -> None:
        """Write the gradient codec's residual, which is added to the next gradients, as one vector per node."""
        self._write_vectors("gradients", residuals, where, space=self._residuals())

    def read_residual(self, where: Where) -> Vector:
        """Read the gradient codec's residual, which is added to the next gradients, as one row per node."""
        return self._read(self._residuals(), place(where, "gradients"))

    def _residuals(self) -> str:
        if not self._formats.has_residual:
            raise ValueError(f"Nodes must have a gradient codec that loses something to have residuals, not "
                             f"{self._formats.gradient_codec}")
        return "residuals"

    def write_codebook(self, centroids: npt.NDArray[np.uint32]) -> int:
        """Write the same centroids to all nodes and return the total number of words written. The weight codec must
        have a codebook; see :func:`host.features.codebook.codebooks.codebook`.

        Every fused update loads the codebook when it starts, so a new codebook takes effect with the next update and
        must not be written while an update runs. Before the first write, all centroids are zero.
        """
        if not self._formats.has_codebook:
            raise ValueError(f"Nodes must have a weight codec with a codebook, not {self._formats.weight_codec}")
        words = feature("codebook").codebook_words(self._formats.weight_codec, centroids)
        self.write_space("codebook", [words] * len(self._devices))
        return len(self._devices) * len(words)

    # Vectors that are split into blocks, each stored on its owner.

    def write_master(self, weights: npt.NDArray[Any], where: Where | None = None) -> None:
        """Write the master weights of the whole vector, each block to its owner. Decoded weights are not written; see
        :meth:`host.driver.ring_collectives.WeightUpdates.distribute`."""
        self._write_blocks(self._masters(), self._to_owners(weights), where)

    def read_master(self, where: Where) -> Vector:
        """Read the master weights of the whole vector, each block from its owner."""
        return self._from_owners(self._masters(), where, packed_state=False)

    def _masters(self) -> str:
        if not self._formats.has_master:
            raise ValueError("Nodes must have a weight codec, or masters beside raw weights, to have master weights")
        return "masters"

    def clear_state(self, where: Where, *, packed_state: bool = False) -> None:
        """Clear all state planes of a vector."""
        block = self._partition.largest_block(_length(where))
        zeros = np.zeros(packed_words(block, packed_state), dtype=np.uint32)
        for plane in range(max(config.memories.planes for config in self._devices.configs)):
            ranks = [rank for rank, device in enumerate(self._devices) if plane < device.config.memories.planes]
            self._write_blocks(f"state_{plane}", [zeros] * len(self._devices), where, ranks)

    def write_state(self, state: npt.NDArray[Any], plane: int = 0, where: Where | None = None, *,
                    packed_state: bool = False) -> None:
        """Write a state plane of the whole vector, each block to its owner. With ``packed_state``, it is stored as
        bfloat16, rounded to nearest even."""
        blocks = self._to_owners(state)
        if packed_state:
            blocks = [moments.pack(np.ascontiguousarray(block, np.float32).view(np.uint32)) for block in blocks]
        self._write_blocks(f"state_{plane}", blocks, where)

    def read_state(self, where: Where, plane: int = 0, *, packed_state: bool = False) -> Vector:
        """Read a state plane of the whole vector, each block from its owner."""
        return self._from_owners(f"state_{plane}", where, packed_state=packed_state)

    def move_state(self, root: int | None, where: Where, *, packed_state: bool = False) -> None:
        """Change the partition of a vector (:meth:`RingPartition.set_root`). The vector's state and master weights
        move from the old owners to the new ones.

        Raises ``ValueError``, and changes nothing, if the rank cannot own all groups or has no room for all state.
        """
        if root is not None:
            self._partition.check_root(root)
            self._check_state(root, where, packed_state=packed_state)
        planes = range(min(config.memories.planes for config in self._devices.configs))
        state = [self.read_state(where, plane, packed_state=packed_state) for plane in planes]
        masters = self.read_master(where) if self._formats.has_master else None
        self._partition.set_root(root)
        buffers = where if isinstance(where, Buffers) else None
        for plane, values in zip(planes, state, strict=True):
            self.write_state(values, plane, buffers, packed_state=packed_state)
        if masters is not None:
            self.write_master(masters, buffers)

    def _check_state(self, root: int, where: Where, *, packed_state: bool) -> None:
        """Raise ``ValueError`` unless every node has room for the state and master weights of a whole vector."""
        planes = any(config.memories.planes for config in self._devices.configs)
        if not planes and not self._formats.has_master:
            return
        words = packed_words(_length(where), packed_state and not self._formats.has_master)
        room = place(where, "state").length if isinstance(where, Buffers) else min(
            config.memories.state for config in self._devices.configs)
        if words > room:
            raise ValueError(f"Owner of all groups must have room for their state, {words:,} words, not for "
                             f"{room:,}: rank {root} cannot own them")

    def _to_owners(self, vector: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """Split a vector into blocks, in order of their owners' ranks."""
        return [vector[owned] for owned in self._partition.owned(len(vector))]

    def _from_owners(self, space: str, where: Where, *, packed_state: bool) -> Vector:
        """Assemble a vector from the blocks of all ranks."""
        length, base = _length(where), place(where, "state").base
        owned = self._partition.owned(length)
        blocks = self._devices.read_space(space, base, {rank: packed_words(len(index), packed_state)
                                                        for rank, index in enumerate(owned)})
        vector = np.empty(length, dtype=np.uint32)
        for rank, index in enumerate(owned):
            vector[index] = moments.unpack(blocks[rank], len(index)) if packed_state else blocks[rank]
        return vector.view(np.float32)

    def _write_blocks(self, space: str, blocks: Rows, where: Where | None,
                      ranks: Sequence[int] | None = None) -> None:
        """Write the words of each node's own block, on all nodes or on ``ranks`` only."""
        longest = max(map(len, blocks))
        buffer = place(longest if where is None else where, "state")
        if longest > buffer.length:
            raise ValueError(f"Block must have at most the {buffer.length:,} words of its buffer, not {longest:,}")
        self.write_space(space, blocks, base=buffer.base, ranks=ranks)

    # Activations of computing nodes.

    def write_activations(self, vectors: Rows, base: int) -> None:
        """Write one vector per node, in order of rank, starting at element ``base`` of the activation memory."""
        self.write_space("activations", vectors, base=base)

    def read_activations(self, base: int, length: int) -> Vector:
        """Read the activations, one row per node."""
        return self._read("activations", Buffer("activations", base, length))

    # Transfers of words.

    def _write_vectors(self, part: str, vectors: Rows, where: Where | None, *, space: str | None = None) -> None:
        """Write one vector per node to its buffer for a ``part``: gradients, weights or errors."""
        length = max((len(vector) for vector in vectors), default=0)
        buffer = place(length if where is None else where, part)
        if length > buffer.length:
            raise ValueError(f"Vector must have at most the {buffer.length:,} elements of its buffer, not {length:,}")
        self.write_space(space or buffer.space, vectors, base=buffer.base)

    def _write_zeros(self, space: str, buffer: Buffer) -> None:
        self.write_space(space, [np.zeros(buffer.length, dtype=np.uint32)] * len(self._devices), base=buffer.base)

    def write_space(self, space: str, vectors: Rows, *, base: int = 0, ranks: Sequence[int] | None = None) -> None:
        """Write one vector per node, in order of rank, to a memory of all nodes or of ``ranks`` only."""
        if len(vectors) != len(self._devices):
            raise ValueError(f"Vectors must be one per node, {len(self._devices)}, not {len(vectors)}")
        words = dict(enumerate(map(self._formats.elements.to_words, vectors)))
        self._devices.write_space(space, base, words if ranks is None else {rank: words[rank] for rank in ranks})

    def _read(self, space: str, buffer: Buffer, ranks: Iterable[int] | None = None) -> Vector:
        counts = dict.fromkeys(range(len(self._devices)) if ranks is None else ranks, buffer.length)
        rows = self._devices.read_space(space, buffer.base, counts)
        return self._formats.elements.from_words(np.stack(list(rows.values())))


def _length(where: Where) -> int:
    """Number of elements of a vector; raises ``ValueError`` for a single buffer, whose length may differ."""
    if isinstance(where, Buffer):
        raise ValueError(f"State must be named by the buffers of its vector, or by a length, not by {where}")
    return where if isinstance(where, int) else where.length
