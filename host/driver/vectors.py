"""Transfer of vectors to and from the memories of a ring's nodes, by vector or by the blocks that nodes own.

The argument ``where`` of a method is a vector's :class:`~host.driver.buffers.Buffers`, the single
:class:`~host.driver.buffers.Buffer` that is meant, or a length for a vector at the start of each memory.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from host.driver.buffers import Buffer, Buffers, Where, place
from host.driver.codebooks import codebook_words
from host.driver.device import Device
from host.driver.nodes import RingNodes
from host.driver.transport import Pending
from sim.golden.ring import block_indices, largest_block

__all__ = ["RingVectors", "Vector"]

Vector = npt.NDArray[Any]
"""Elements as they are in a node: float32, or int16 where those are 16-bit integers."""


def _words(elements: int, packed_state: bool) -> int:
    """Words that state elements take."""
    return -(-elements // 2) if packed_state else elements


def _pack(values: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """Pack two bfloat16 numbers to a word, rounded to nearest even, the first one in the low half."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    halves = np.zeros(-(-len(bits) // 2) * 2, dtype="<u2")
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    halves[:len(bits)] = np.where((bits & 0x7FFF_FFFF) > 0x7F80_0000, 0x7FC0, rounded)
    return halves.view("<u4").astype(np.uint32)


def _unpack(words: npt.NDArray[np.uint32], elements: int) -> npt.NDArray[np.uint32]:
    """Unpack bfloat16 numbers to binary32, as bits."""
    halves = words.astype("<u4").view("<u2")[:elements]
    return np.asarray(halves.astype(np.uint32) << 16, dtype=np.uint32)


class RingVectors(RingNodes):
    """Vectors in the memories of a ring's nodes."""

    # Vectors that every node holds whole, its own or the same.

    def write_gradients(self, gradients: Sequence[npt.NDArray[Any]], where: Where | None = None) -> None:
        """Write one vector per node, in order of rank."""
        self._write_vectors("gradients", gradients, where)

    def read_gradients(self, where: Where) -> Vector:
        """Read one row per node."""
        return self._read("gradients", place(where, "gradients"))

    def write_weights(self, weights: npt.NDArray[Any], where: Where | None = None) -> None:
        """Write the same vector to all nodes; with a weight codec, without the masters of
        :meth:`host.driver.ring.Ring.distribute`."""
        self.write_weights_of([weights] * self.nodes, where)

    def write_weights_of(self, weights: Sequence[npt.NDArray[Any]], where: Where | None = None) -> None:
        """Write one vector per node, in order of rank."""
        self._write_vectors("weights", weights, where)

    def read_weights(self, where: Where, ranks: Sequence[int] | None = None) -> Vector:
        """Read one row per node, or per rank."""
        return self._read("weights", place(where, "weights"), ranks)

    def clear_errors(self, where: Where) -> None:
        """Write zeros as the errors of a vector; see :meth:`host.driver.ring.Ring.sparsify`."""
        self._write_zeros("weights", place(where, "errors"))

    def write_errors(self, errors: Sequence[npt.NDArray[Any]], where: Where | None = None) -> None:
        """Write errors of each node, in order of rank; see :meth:`host.driver.ring.Ring.sparsify`."""
        self._write_vectors("errors", errors, where)

    def read_errors(self, where: Where) -> Vector:
        """Read one row per node; see :meth:`host.driver.ring.Ring.sparsify`."""
        return self._read("weights", place(where, "errors"))

    def clear_residual(self, where: Where) -> None:
        """Write zeros to the residual of the gradient codec, on every node."""
        self._write_zeros(self._residuals(), place(where, "gradients"))

    def write_residual(self, residuals: Sequence[npt.NDArray[Any]], where: Where | None = None) -> None:
        """Write the residual of the gradient codec, which is added to the next gradients; one vector per node."""
        self._write_vectors("gradients", residuals, where, space=self._residuals())

    def read_residual(self, where: Where) -> Vector:
        """Read the residual of the gradient codec, which is added to the next gradients; one row per node."""
        return self._read(self._residuals(), place(where, "gradients"))

    def _residuals(self) -> str:
        if not self.has_residual:
            raise ValueError(f"Nodes must have a gradient codec that loses something to have residuals, not "
                             f"{self.gradient_codec}")
        return "residuals"

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
        if not self.has_codebook:
            raise ValueError(f"Nodes must have a weight codec with a codebook, not {self.weight_codec}")
        words = codebook_words(self.weight_codec, centroids)
        self._write("codebook", [words] * self.nodes)
        return self.nodes * len(words)

    # Vectors whose blocks lie each on the node that owns it.

    def write_master(self, weights: npt.NDArray[Any], where: Where | None = None) -> None:
        """Write the master weights of the whole vector, each block to the node that owns it, with a weight codec
        only. The decoded weights stay as they are; see :meth:`host.driver.ring.Ring.distribute`."""
        self._write_blocks(self._masters(), self._to_owners(weights), where)

    def read_master(self, where: Where) -> Vector:
        """Read the master weights of the whole vector, each block from the node that owns it."""
        return self._from_owners(self._masters(), where, packed_state=False)

    def _masters(self) -> str:
        if not self._config.has_master:
            raise ValueError("Nodes must have a weight codec, or masters beside raw weights, to have master weights")
        return "masters"

    def clear_state(self, where: Where, *, packed_state: bool = False) -> None:
        """Write zeros to every state plane, for the optimizer of a vector."""
        zeros = np.zeros(_words(self._largest_block(_length(where)), packed_state), dtype=np.uint32)
        for plane in range(max(config.state_planes for config in self._configs)):
            ranks = [rank for rank, device in enumerate(self._devices) if plane < device.config.state_planes]
            self._write_blocks(f"state_{plane}", [zeros] * self.nodes, where, ranks)

    def write_state(self, state: npt.NDArray[Any], plane: int = 0, where: Where | None = None, *,
                    packed_state: bool = False) -> None:
        """Write a state plane of the whole vector, each block to the node that owns it.

        Parameters
        ----------
        state : array of float32
            Values of the plane; with ``packed_state`` rounded to bfloat16, to nearest even.
        plane : int
        where : Buffers or int, optional
        packed_state : bool
            Whether state is stored as bfloat16.
        """
        blocks = self._to_owners(state)
        self._write_blocks(f"state_{plane}", [_pack(block) if packed_state else block for block in blocks], where)

    def read_state(self, where: Where, plane: int = 0, *, packed_state: bool = False) -> Vector:
        """Read a state plane of the whole vector, each block from the node that owns it."""
        return self._from_owners(f"state_{plane}", where, packed_state=packed_state)

    def move_state(self, owner: int | None, where: Where, *, packed_state: bool = False) -> None:
        """Deal a vector anew (:meth:`~host.driver.nodes.RingNodes.deal_to`), and move its state and its masters from
        the old owners to the new ones.

        Raises
        ------
        ValueError
            There is no such owner, or it has no room for all state; nothing is changed then.
        """
        if owner is not None:
            self._check_owner(owner)
            self._check_state(owner, where, packed_state=packed_state)
        planes = range(min(config.state_planes for config in self._configs))
        state = [self.read_state(where, plane, packed_state=packed_state) for plane in planes]
        masters = self.read_master(where) if self.has_master else None
        self.deal_to(owner)
        buffers = where if isinstance(where, Buffers) else None
        for plane, values in zip(planes, state, strict=True):
            self.write_state(values, plane, buffers, packed_state=packed_state)
        if masters is not None:
            self.write_master(masters, buffers)

    def _check_state(self, owner: int, where: Where, *, packed_state: bool) -> None:
        """Raise ``ValueError`` unless a node has room for the state and the masters of all elements."""
        planes = any(config.state_planes for config in self._configs)
        if not planes and not self.has_master:
            return
        words = _words(_length(where), packed_state and not self.has_master)
        room = place(where, "state").length if isinstance(where, Buffers) else min(
            config.state_words for config in self._configs)
        if words > room:
            raise ValueError(f"Owner of all groups must have room for their state, {words:,} words, not for "
                             f"{room:,}: rank {owner} cannot own them")

    def _largest_block(self, length: int) -> int:
        """Most elements that a rank owns."""
        return length if self._dealt_to is not None else largest_block(length, self.nodes)

    def _owned(self, length: int) -> list[npt.NDArray[np.int64]]:
        """Elements of a vector that each rank owns, in the order in which they lie in its state."""
        if self._dealt_to is not None:
            return [np.arange(length if rank == self._dealt_to else 0) for rank in range(self.nodes)]
        blocks = block_indices(length, self.nodes)
        return [blocks[self._topology.owned_block(rank)] for rank in range(self.nodes)]

    def owner(self, element: int, length: int) -> int:
        """Rank that owns an element of a vector of ``length`` elements."""
        return next(rank for rank, owned in enumerate(self._owned(length)) if element in owned)

    def _to_owners(self, vector: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """Blocks of a vector, in order of the ranks that own them."""
        return [vector[owned] for owned in self._owned(len(vector))]

    def _from_owners(self, space: str, where: Where, *, packed_state: bool) -> Vector:
        """Vector of which each rank has its own block."""
        length, base = _length(where), place(where, "state").base
        owned, numbers = self._owned(length), self._numbers(space)

        def submit(rank: int, device: Device) -> Pending[npt.NDArray[np.uint32]]:
            return device.submit_read_memory(numbers[rank], base, _words(len(owned[rank]), packed_state))

        vector = np.empty(length, dtype=np.uint32)
        for index, words in zip(owned, self._all(submit), strict=True):
            vector[index] = _unpack(words, len(index)) if packed_state else words
        return vector.view(np.float32)

    def _write_blocks(self, space: str, blocks: Sequence[npt.NDArray[Any]], where: Where | None,
                      ranks: Sequence[int] | None = None) -> None:
        """Write words of the block that each node owns, to all nodes or to some."""
        longest = max(map(len, blocks))
        buffer = place(longest if where is None else where, "state")
        if longest > buffer.length:
            raise ValueError(f"Block must have at most the {buffer.length:,} words of its buffer, not {longest:,}")
        self._write(space, blocks, base=buffer.base, ranks=ranks)

    # Words.

    def _number(self, space: str, rank: int) -> int:
        """Number of a memory space on the wire; nodes of different configurations have their own."""
        return int(self._devices[rank].config.memories[space].number)

    def _numbers(self, space: str, ranks: Iterable[int] | None = None) -> dict[int, int]:
        """Number of a memory space on each node; a ``KeyError`` if one has no such memory."""
        return {rank: self._number(space, rank) for rank in (range(self.nodes) if ranks is None else ranks)}

    def _write_vectors(self, part: str, vectors: Sequence[npt.NDArray[Any]], where: Where | None, *,
                       space: str | None = None) -> None:
        """Write one vector per node into the buffer of a part."""
        length = max((len(vector) for vector in vectors), default=0)
        buffer = place(length if where is None else where, part)
        if length > buffer.length:
            raise ValueError(f"Vector must have at most the {buffer.length:,} elements of its buffer, not {length:,}")
        self._write(space or buffer.space, vectors, base=buffer.base)

    def _write_zeros(self, space: str, buffer: Buffer) -> None:
        self._write(space, [np.zeros(buffer.length, dtype=np.uint32)] * self.nodes, base=buffer.base)

    def _write(self, space: str, vectors: Sequence[npt.NDArray[Any]], *, base: int = 0,
               ranks: Sequence[int] | None = None) -> None:
        if len(vectors) != self.nodes:
            raise ValueError(f"Vectors must be one per node, {self.nodes}, not {len(vectors)}")
        words = [self._to_words(vector) for vector in vectors]
        numbers = self._numbers(space, ranks)
        self._all(lambda rank, device: device.submit_write_memory(numbers[rank], base, words[rank]), numbers)

    def _read(self, space: str, buffer: Buffer, ranks: Iterable[int] | None = None) -> Vector:
        numbers = self._numbers(space, ranks)
        rows = self._all(lambda rank, device: device.submit_read_memory(numbers[rank], buffer.base, buffer.length),
                         numbers)
        return self._to_elements(np.stack(rows))

    def _to_words(self, vector: Vector) -> npt.NDArray[Any]:
        """Words of elements, in the form that the host writes."""
        if not self.reduced or vector.dtype == np.uint32:
            return vector
        if vector.dtype != np.int16:
            raise TypeError(f"Elements of int16 nodes must be int16, not {vector.dtype}")
        return vector.astype(np.int32).view(np.uint32)

    def _to_elements(self, words: npt.NDArray[np.uint32]) -> Vector:
        """Elements of words that the host has read."""
        return words.astype(np.uint16).view(np.int16) if self.reduced else words.view(np.float32)


def _length(where: Where) -> int:
    """Elements of the vector; a buffer of state alone does not give their number."""
    if isinstance(where, Buffer):
        raise ValueError(f"State must be named by the buffers of its vector, or by a length, not by {where}")
    return where if isinstance(where, int) else where.length
