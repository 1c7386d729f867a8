"""Memories of a ring's nodes: buffers, an allocator without overlaps, and a run's memory needs.

A buffer is at the same address on every node, in a region of the memory map (:mod:`hdl.memory_map`): ``gradients``
(with residuals), ``weights``, or ``state`` (state planes and master weights). A command has one base per region, so a
``state`` buffer reserves the same words in every memory of that region.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from hdl.config import Configuration, NodeConfig
from hdl.group import GROUP
from hdl.memory_map import BASE_ALIGNMENT, REGION_BASES
from sim.golden.ring import largest_block

__all__ = ["WORDS", "Allocation", "Allocator", "Buffer", "Buffers", "Where", "aligned", "distance_of", "errors_base",
           "fitted", "packed_words", "place"]

#: Size in words of the largest memory a node can have.
WORDS = 1 << 24


def aligned(words: int) -> int:
    """Round up to a multiple of 32, the alignment of buffers."""
    return -(-words // int(BASE_ALIGNMENT)) * int(BASE_ALIGNMENT)


def packed_words(elements: int, packed_state: bool) -> int:
    """Number of words that hold ``elements`` state elements; packed ones are bfloat16, two per word."""
    return -(-elements // 2) if packed_state else elements


def errors_base(length: int) -> int:
    """Default base of the errors in weight memory: the first multiple of 32 after ``length`` weights."""
    return aligned(length)


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A range of words in one region of every node's memories."""

    space: str  # region: ``gradients``, ``weights`` or ``state``
    base: int  # address of the first word, a multiple of 32
    length: int  # length in words; one word of gradients or weights is one element

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
        """Address of the first word after the buffer."""
        return self.base + self.length

    def overlaps(self, other: "Buffer") -> bool:
        """Whether the two buffers overlap."""
        return self.space == other.space and max(self.base, other.base) < min(self.end, other.end)

    def __str__(self) -> str:
        return f"{self.length:,} words of {self.space} from {self.base:,} on"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Buffers:
    """Buffers that belong to one vector of parameters."""

    # one word per element of the vector
    gradients: Buffer
    weights: Buffer
    state: Buffer | None = None  # one word per element of the largest block, in state planes and master weights
    # in weight memory: values that :meth:`host.driver.node_operations.NodeOperations.sparsify` has not sent
    errors: Buffer | None = None

    def __post_init__(self) -> None:
        for part, buffer in vars(self).items():
            if buffer is not None:
                place(buffer, part)
        if self.gradients.length != self.weights.length:
            raise ValueError(f"Buffers of gradients and weights must have one length, not {self.gradients.length:,} "
                             f"and {self.weights.length:,}")

    @property
    def length(self) -> int:
        """Number of elements of the vector."""
        return self.weights.length


#: Location of a vector: all its buffers, a single buffer, or its length if it is at the start of each region.
Where = int | Buffer | Buffers


def place(where: Where, part: str) -> Buffer:
    """Return the buffer for one part of a vector: gradients, weights, state or errors.

    Raises ``ValueError`` if the vector does not have this buffer or the buffer is in a different region.
    """
    space = "weights" if part == "errors" else part
    if isinstance(where, Buffers):
        buffer: Buffer | None = getattr(where, part)
        if buffer is None:
            raise ValueError(f"Buffers must have one of {part}: allocate it with the others")
        return buffer
    if isinstance(where, Buffer):
        if where.space != space:
            raise ValueError(f"Buffer of {part} must be in {space}, not in {where.space}")
        return where
    return Buffer(space, errors_base(where) if part == "errors" else 0, where)


class Allocator:
    """Allocator of non-overlapping buffers at the same addresses on all nodes."""

    def __init__(self, *memories: Any) -> None:
        self._memories = memories  # memory map of each kind of node
        self._buffers: list[Buffer] = []

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Reserved buffers, ordered by memory space and address."""
        return tuple(sorted(self._buffers, key=lambda buffer: (list(REGION_BASES).index(buffer.space), buffer.base)))

    def room(self, space: str) -> int:
        """Return the size of a region's smallest memory in words; raises ``ValueError`` if a node lacks it."""
        try:
            return min(int(memory.words) for memories in self._memories for memory in memories.region(space))
        except KeyError as error:
            raise ValueError(error.args[0]) from None

    def allocate(self, space: str, length: int) -> Buffer:
        """Reserve a buffer in the first gap that is long enough; raises ``ValueError`` if there is none."""
        room, base, largest = self.room(space), 0, 0
        for other in [*(buffer for buffer in self.buffers if buffer.space == space), Buffer(space, aligned(room), 0)]:
            gap = min(other.base, room) - base
            if gap >= length:
                return self.claim(Buffer(space, base, length))
            largest, base = max(largest, gap), max(base, aligned(other.end))
        raise ValueError(f"Buffer of {space} must have at most the {largest:,} words of the largest gap, not "
                         f"{length:,}: free another buffer, or take nodes with larger memories")

    def claim(self, buffer: Buffer) -> Buffer:
        """Reserve this buffer; raises ``ValueError`` if it exceeds the memory or overlaps another buffer."""
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
        """Release a buffer; raises ``ValueError`` if it is not reserved."""
        if buffer not in self._buffers:
            raise ValueError(f"Buffer to free must be one that is reserved, not {buffer}")
        self._buffers.remove(buffer)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Allocation:
    """A vector's buffers in the memories of a ring's nodes: gradients, weights, state and errors."""

    length: int  # number of elements of the vectors
    planes: int = 0  # number of state planes of the optimizer; a node keeps only its own block of each plane
    packed_state: bool = False  # whether state is stored as bfloat16
    errors: bool = False  # whether errors of :meth:`host.driver.node_operations.NodeOperations.sparsify` are stored
    root_reduce: bool = False  # whether a single node owns all groups, which makes its block the whole vector
    microbatches: int | None = None  # number of gradients, split as evenly as possible among nodes; default: one each

    def block(self, nodes: int) -> int:
        """Number of elements of the largest block."""
        return largest_block(self.length, 1 if self.root_reduce else nodes)

    def gradient_words(self, nodes: int) -> int:
        """Number of words of gradients on the node that has the most gradients."""
        count = 1 if self.microbatches is None else -(-self.microbatches // nodes)
        return (count - 1) * aligned(self.length) + self.length

    def state_words(self, config: Configuration, *, nodes: int) -> int:
        """Number of words that state or master weights (never packed) occupy on a node."""
        block = self.block(nodes)
        if config.weights.has_master:
            return block
        return packed_words(block, self.packed_state) if self.planes else 0

    def check(self, config: Configuration, *, nodes: int) -> None:
        """Raise ``ValueError`` unless a ring of ``nodes`` nodes is possible and can hold the vectors."""
        config.check_ring(nodes)
        room = min(config.memories.gradient, config.memories.weight)
        if self.length > room:
            raise ValueError(f"Vector must have at most the {room:,} elements of a node's memories, not "
                             f"{self.length:,}: take a smaller model, or nodes with larger memories")
        words = self.gradient_words(nodes)
        if words > config.memories.gradient:
            raise ValueError(f"Gradients of microbatches must take at most the {config.memories.gradient:,} elements "
                             f"of a node's memory, not {words:,}: take fewer microbatches or more nodes")
        if self.planes > config.memories.planes:
            raise ValueError(f"Optimizer must need at most the {config.memories.planes} state planes of a node, not "
                             f"{self.planes}")
        block = self.block(nodes)
        if config.weights.has_master and block > config.memories.state:
            raise ValueError(f"Block must have at most the {config.memories.state:,} elements of a node's master "
                             f"weights, not {block:,}: take more nodes, or raw weights")
        room = config.memories.state * (2 if self.packed_state else 1)
        if self.planes and block > room:
            advice = "take more nodes, " + ("" if self.packed_state else "state as bfloat16, ")
            raise ValueError(f"Block must have at most the {room:,} elements of a node's state plane, not {block:,}: "
                             f"{advice}or an optimizer without state")
        end = errors_base(self.length) + self.length
        if self.errors and end > config.memories.weight:
            most = config.memories.weight // (2 * GROUP) * GROUP
            raise ValueError(
                f"Weights and the errors of what was not sent must take at most the {config.memories.weight:,} "
                f"elements of a node's weight memory, not {end:,}: take a model of at most {most:,} "
                f"parameters, nodes with more weight memory, or no density, which sends everything")

    def place(self, allocator: Allocator, config: Configuration, *, nodes: int) -> Buffers:
        """Reserve buffers for the vectors without overlapping any reserved buffer.

        If there is not enough space, or no ring of this size could hold the vectors, nothing is reserved and
        ``ValueError`` is raised.
        """
        self.check(config, nodes=nodes)
        state = self.state_words(config, nodes=nodes)
        wanted = {"gradients": ("gradients", self.gradient_words(nodes)), "weights": ("weights", self.length)}
        if state:
            wanted["state"] = ("state", state)
        if self.errors:
            wanted["errors"] = ("weights", self.length)
        buffers: dict[str, Buffer] = {}
        try:
            for part, (space, words) in wanted.items():
                buffers[part] = allocator.allocate(space, words)
        except ValueError:
            for buffer in buffers.values():
                allocator.free(buffer)
            raise
        return Buffers(**buffers)


def distance_of(node: NodeConfig) -> int:
    """Distance in elements between the two copies of a layer's weights; copies of inputs, labels and instruction
    lists are the same distance apart."""
    return int(node.memories.weight) // 2


def fitted(node: NodeConfig, allocations: Sequence[Allocation], *, nodes: int,
           planes: int | None = None) -> NodeConfig:
    """Return a simulated node with enough memory for a run; small memories grow to a power of two.

    It has ``planes`` state planes, by default only the number that the optimizers need, because a node without a
    second plane simulates 1.5 times as fast. Raises ``ValueError`` if no node can have memories of this size.
    """
    memories = node.memories
    wanted = {"gradient": memories.gradient, "weight": memories.weight, "state": memories.state}
    for allocation in allocations:
        length = allocation.length
        end = errors_base(length) + length if allocation.errors else length
        gradients = allocation.gradient_words(nodes)
        # The largest memory of a node in a ring of two or more is limited by hdl.config.couplings.
        most = min(WORDS, 1 << 20, node.segment << 11) if node.topology.max_nodes > 1 else WORDS
        if gradients > max(length, most):
            raise ValueError(f"Gradients of microbatches must take at most the {most:,} words of the largest memory "
                             f"of a node, not {gradients:,}: take fewer microbatches or more nodes")
        if max(length, end) > WORDS:
            most, what = (WORDS // 2, " and their errors") if allocation.errors else (WORDS, "")
            raise ValueError(f"Vector must have at most {most:,} elements, which{what} the largest memory of a node "
                             f"holds, not {length:,}: take a smaller model")
        needed = {"gradient": gradients, "weight": end, "state": allocation.state_words(node, nodes=nodes)}
        wanted = {name: max(words, needed[name]) for name, words in wanted.items()}
    if planes is None:
        planes = max(allocation.planes for allocation in allocations)
    rounded = {name: words if words == getattr(memories, name) else 1 << (words - 1).bit_length()
               for name, words in wanted.items()}
    return node.replace(memories={"planes": planes, **rounded})
