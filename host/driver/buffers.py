"""Buffers in the memories of a ring's nodes, and the allocator that keeps them apart.

A buffer lies at the same place on every node. It belongs to a region of the node's memory map
(:mod:`hdl.memory_map`): ``gradients``, with the residuals that belong to them, ``weights``, or ``state``, with all
state planes and masters. A command has one base in each region, so a buffer of ``state`` reserves the same words
in every one of its memories.
"""

import dataclasses
from typing import Any

from hdl.memory_map import BASE_ALIGNMENT, REGION_BASES

__all__ = ["Allocator", "Buffer", "Buffers", "Where", "aligned", "errors_base", "place"]


def aligned(words: int) -> int:
    """Round up to the next multiple of 32, where a buffer can begin."""
    return -(-words // int(BASE_ALIGNMENT)) * int(BASE_ALIGNMENT)


def errors_base(length: int) -> int:
    """Default base of the errors in the weight memory: the first group of 32 behind ``length`` weights."""
    return aligned(length)


@dataclasses.dataclass(frozen=True)
class Buffer:
    """Consecutive words in one region of every node's memories.

    Parameters
    ----------
    space : str
        Region: ``gradients``, ``weights`` or ``state``.
    base : int
        Address of the first word, a multiple of 32.
    length : int
        Words; in gradients and weights a word is an element.
    """

    space: str
    base: int
    length: int

    def __post_init__(self) -> None:
        if self.space not in REGION_BASES:
            raise ValueError(f"Space of a buffer must be one of {', '.join(REGION_BASES)}, not {self.space!r}")
        if self.base < 0 or self.base % BASE_ALIGNMENT:
            raise ValueError(f"Base of a buffer must be a multiple of {BASE_ALIGNMENT}, not {self.base!r}: take "
                             f"{aligned(max(self.base, 0))}")
        if self.length < 0:
            raise ValueError(f"Length of a buffer must not be negative, not {self.length!r}")

    @property
    def end(self) -> int:
        """Address behind the last word."""
        return self.base + self.length

    def overlaps(self, other: "Buffer") -> bool:
        """Whether the two buffers have a word in common."""
        return self.space == other.space and max(self.base, other.base) < min(self.end, other.end)

    def __str__(self) -> str:
        return f"{self.length:,} words of {self.space} from {self.base:,} on"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Buffers:
    """The buffers of one vector of parameters.

    Parameters
    ----------
    gradients, weights : Buffer
        One word per element of the vector.
    state : Buffer, optional
        Words of the largest block that a node owns, in each state plane and in the masters.
    errors : Buffer, optional
        Errors in the weight memory: the values that :meth:`host.driver.protocols.Operations.sparsify` has not sent.
    """

    gradients: Buffer
    weights: Buffer
    state: Buffer | None = None
    errors: Buffer | None = None

    def __post_init__(self) -> None:
        for name, space in (("gradients", "gradients"), ("weights", "weights"), ("state", "state"),
                            ("errors", "weights")):
            given = getattr(self, name)
            if given is not None and given.space != space:
                raise ValueError(f"Buffer of {name} must be in {space}, not in {given.space}")
        if self.gradients.length != self.weights.length:
            raise ValueError(f"Buffers of gradients and weights must have one length, not {self.gradients.length:,} "
                             f"and {self.weights.length:,}")

    @property
    def length(self) -> int:
        """Elements of the vector."""
        return self.weights.length


#: A vector: its buffers, its buffer in the one region that is meant, or its length if it lies at the start of each.
Where = int | Buffer | Buffers


def place(where: Where, part: str) -> Buffer:
    """Find the buffer of one part of a vector.

    Parameters
    ----------
    part : str
        ``gradients``, ``weights``, ``state`` or ``errors``.

    Raises
    ------
    ValueError
        The vector has no such buffer, or the buffer is in another space.
    """
    space = "weights" if part == "errors" else part
    if isinstance(where, Buffers):
        found = getattr(where, part)
        if found is None:
            raise ValueError(f"Buffers must have one of {part}: allocate it with the others")
        return found  # type: ignore[no-any-return]
    if isinstance(where, Buffer):
        if where.space != space:
            raise ValueError(f"Buffer of {part} must be in {space}, not in {where.space}")
        return where
    return Buffer(space, errors_base(where) if part == "errors" else 0, where)


class Allocator:
    """Buffers that do not overlap, at the same places in the memories of all nodes.

    Parameters
    ----------
    *memories : MemoryMap
        Memories of a node, of each kind of nodes.
    """

    def __init__(self, *memories: Any) -> None:
        self._memories = memories
        self._buffers: list[Buffer] = []

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Buffers that are reserved, in order of space and base."""
        return tuple(sorted(self._buffers, key=lambda buffer: (list(REGION_BASES).index(buffer.space), buffer.base)))

    def room(self, space: str) -> int:
        """Words of a region, which are the words of its smallest memory.

        Raises
        ------
        ValueError
            A node has no such memory.
        """
        try:
            return min(int(memory.words) for memories in self._memories for memory in memories.region(space))
        except KeyError as error:
            raise ValueError(error.args[0]) from None

    def allocate(self, space: str, length: int) -> Buffer:
        """Reserve the first gap that is long enough.

        Raises
        ------
        ValueError
            No gap is long enough.
        """
        room, base, largest = self.room(space), 0, 0
        for other in [*(buffer for buffer in self.buffers if buffer.space == space), Buffer(space, aligned(room), 0)]:
            gap = min(other.base, room) - base
            if gap >= length:
                return self.claim(Buffer(space, base, length))
            largest, base = max(largest, gap), max(base, aligned(other.end))
        raise ValueError(f"Buffer of {space} must have at most the {largest:,} words of the largest gap, not "
                         f"{length:,}: free another buffer, or take nodes with larger memories")

    def claim(self, buffer: Buffer) -> Buffer:
        """Reserve a buffer at a given place.

        Raises
        ------
        ValueError
            The buffer ends beyond the memory, or overlaps one that is reserved.
        """
        room = self.room(buffer.space)
        if buffer.end > room:
            raise ValueError(f"Buffer of {buffer.space} must end within the {room:,} words of a node, not at "
                             f"{buffer.end:,}")
        for other in self._buffers:
            if buffer.overlaps(other):
                raise ValueError(f"Buffer must not overlap another, not {buffer} with {other}")
        self._buffers.append(buffer)
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Give a buffer back.

        Raises
        ------
        ValueError
            The buffer is not reserved.
        """
        if buffer not in self._buffers:
            raise ValueError(f"Buffer to free must be one that is reserved, not {buffer}")
        self._buffers.remove(buffer)
