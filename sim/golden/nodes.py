"""Golden model of nodes: memory contents after commands that take effect immediately.

A node has memories for gradients, residuals of the gradient codec, weights, activations of a compute engine, state
planes and master weights. State planes and master weights contain only the node's own blocks, consecutively.
"""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sim.golden import moments, optimizer, ring, root_reduce
from sim.golden.codecs import CODECS, RAW, ZERO_VALUE, Codec

__all__ = ["Collected", "ListEngine", "Nodes", "Placed"]

Bits = npt.NDArray[np.uint32]


@dataclasses.dataclass(frozen=True)
class Placed:
    """Command to execute on golden nodes."""

    operation: str
    #: Descriptor fields of each node; missing fields are zero, except the stride, which is 1.
    fields: Sequence[Mapping[str, int]]
    collective: bool = False
    #: See :class:`sim.golden.features.programs.program.Timed`.
    waits: tuple[tuple[int, int], ...] = ()
    remotes: tuple[Any, ...] = ()


class ListEngine(Protocol):
    """Compute engine that executes lists of layers."""

    def carry_out(self, nodes: "Nodes", rank: int, fields: Mapping[str, int]) -> None:
        """Execute a LAYERS command on a node."""


@dataclasses.dataclass(frozen=True)
class Collected:
    """Outcome of a collective: participants, traffic and sum."""

    ranks: tuple[int, ...]  # participants, ordered by rank in the ring
    words: npt.NDArray[np.int64]  # words that each participant sends
    traffic: ring.Traffic | None = None  # costs of the collective; None for a broadcast
    total: Bits | None = None  # sum of the gradients, assembled from the owners
    own: Sequence[npt.NDArray[np.int64]] = ()  # elements of ``total`` that each participant owns


class Nodes:
    """Memories of nodes, with methods that execute commands on them.

    Parameters
    ----------
    nodes : int
    gradient_words : int
        Number of elements in the gradient memory.
    weights : array of uint32
        Initial weights of all nodes, starting at element 0; blocks and state refer to this vector.
    planes : int
        Number of state planes, which are initially zero.
    weight_codec, gradient_codec : Codec
    mastered : bool
        Whether nodes with raw weights have master weights; with a weight codec, nodes always do.
    segment, lanes : int
    engine : ListEngine, optional
        Compute engine that executes LAYERS commands.
    activation_words, far_words : int
        Number of elements in the activation memory and in the far memory.
    """

    def __init__(self, nodes: int, *, gradient_words: int, weights: Bits, planes: int = 2,
                 weight_codec: Codec = CODECS[RAW], gradient_codec: Codec = CODECS[ZERO_VALUE],
                 mastered: bool = False, segment: int = 256, lanes: int = 4, engine: ListEngine | None = None,
                 activation_words: int = 0, far_words: int = 0):
        self.nodes = nodes
        self.engine = engine
        self.activations, self.far = (np.zeros((nodes, words), dtype=np.uint32)
                                      for words in (activation_words, far_words))
        self._weight_codec = weight_codec
        self._mastered = mastered or weight_codec is not CODECS[RAW]
        self._gradient_codec = gradient_codec
        self._segment, self._lanes = segment, lanes
        #: Number of gradients that each node adds to a sum of integers, and their distance in elements.
        self.addends, self.addend_stride = [1] * nodes, 0
        self.gradients, self.residuals = (np.zeros((nodes, gradient_words), dtype=np.uint32) for _ in range(2))
        decoded = ring.distribute(weights, nodes, weight_codec=weight_codec, segment=segment)
        self.weights = np.tile(decoded, (nodes, 1))
        own = self.owned(0, len(weights), 0)
        size = max(map(len, own))
        #: Master weights of each node's own blocks; unused if nodes have no master weights.
        self.masters = np.zeros((nodes, size), dtype=np.uint32)
        for rank, index in enumerate(own):
            self.masters[rank, :len(index)] = weights[index]
        self.state = [np.zeros((nodes, size), dtype=np.uint32) for _ in range(planes)]
        #: Settings written by the host; updates use them after LATCH.
        self.settings: optimizer.Settings | None = None
        #: Whether updates with these settings store state as bfloat16, two elements per word.
        self.packed_state = False
        self._latched: tuple[optimizer.Settings, bool] | None = None
        #: Number of elements by which odd passes offset the weights of a command with ``alternate`` set.
        self.weight_stride = 0
        #: Update counts keyed by rank, region and, if the region has two copies, even or odd pass.
        self.versions: collections.defaultdict[tuple[int, int, int], int] = collections.defaultdict(int)
        #: (rank, region, version) of each command that computes with a region, in order of execution.
        self.found: list[tuple[int, int, int]] = []

    def owned(self, base: int, length: int, block_offset: int) -> list[npt.NDArray[np.int64]]:
        """Elements of each node's block, for a command on the whole ring."""
        blocks = ring.block_indices(length, self.nodes, block_offset=block_offset)
        return [base + blocks[(rank + 1) % self.nodes] for rank in range(self.nodes)]

    def stage(self, gradients: Bits, base: int) -> None:
        """Write gradients, one row per node, to the buffer from which COMPUTE copies."""
        self.gradients[:, base:base + gradients.shape[1]] = gradients

    def arrays(self) -> dict[str, Bits]:
        """Return copies of all memories except gradients, which later commands write before reading."""
        return {"weights": self.weights.copy(), "masters": self.masters.copy(), "residuals": self.residuals.copy(),
                **{f"state {number}": plane.copy() for number, plane in enumerate(self.state)}}

    def restore(self, arrays: Mapping[str, Bits]) -> None:
        """Restore the memories from copies made by :meth:`arrays`."""
        self.weights, self.masters, self.residuals = (arrays[name].copy() for name in ("weights", "masters",
                                                                                        "residuals"))
        self.state = [arrays[f"state {number}"].copy() for number in range(len(self.state))]

    # Execution of commands.

    def execute(self, command: Placed, ranks: Sequence[int], *, odd: int = 0) -> list[Collected]:
        """Execute a command on some nodes, in an even or odd pass; for a collective, these are its ring's nodes, in
        ring order."""
        fields = [{"gradient_base": 0, "weight_base": 0, "state_base": 0, "length": 0, "block_offset": 0, "stride": 1,
                   "size": self.nodes, "root": 0, "root_reduce": 0, **command.fields[rank]}
                  for rank in range(self.nodes)]
        for entry in fields:
            entry["weight_base"] += self.weight_stride * odd * entry.get("alternate", 0)
        for rank in ranks:
            self._count(command.operation, rank, fields[rank].get("region", 0), fields[rank].get("apart", 0), odd)
        match command.operation:
            case "QUIESCE":
                pass
            case "COMPUTE":
                for rank in ranks:
                    self.gradients[rank, _place(fields[rank], "gradient_base")] = self.gradients[
                        rank, _place(fields[rank], "state_base")]
            case "LAYERS":
                if self.engine is None:
                    raise ValueError("Nodes must have an engine for LAYERS")
                for rank in ranks:
                    self.engine.carry_out(self, rank, fields[rank])
            case "MOVE_OUT" | "MOVE_IN":
                for rank in ranks:
                    near, far = (_place(fields[rank], base) for base in ("weight_base", "state_base"))
                    if command.operation == "MOVE_OUT":
                        self.far[rank, far] = self.activations[rank, near]
                    else:
                        self.activations[rank, near] = self.far[rank, far]
            case "LATCH":
                self.latch()
            case "FUSED_UPDATE":
                groups = [[rank] for rank in ranks] if fields[ranks[0]]["size"] == 1 else [list(ranks)]
                return [self._update(group, [fields[rank] for rank in group]) for group in groups]
            case "ALL_REDUCE" | "REDUCE_SCATTER":
                return [self._sum(command.operation, ranks, fields[ranks[0]])]
            case "BROADCAST":
                elements, root = _place(fields[ranks[0]], "weight_base"), fields[ranks[0]]["root"]
                rows = np.array(ranks)[:, np.newaxis]
                self.weights[rows, elements] = ring.broadcast(self.weights[rows, elements], root)
                words = np.full(len(ranks), len(elements) + ring.PACKET_OVERHEAD * -(-len(elements) // self._segment))
                words[(root - 1) % len(ranks)] = 0
                return [Collected(tuple(ranks), words)]
            case "ALL_GATHER":
                elements, block_offset = _place(fields[ranks[0]], "weight_base"), fields[ranks[0]]["block_offset"]
                rows = np.array(ranks)[:, np.newaxis]
                self.weights[rows, elements], traffic = ring.all_gather(
                    self.weights[rows, elements], weight_codec=self._weight_codec, segment=self._segment,
                    lanes=self._lanes, block_offset=block_offset)
                return [Collected(tuple(ranks), traffic.words, traffic)]
            case other:
                raise ValueError(f"Operation must be one of a schedule, not {other!r}")
        return []

    def latch(self) -> None:
        """Latch the settings written by the host, so that updates use them."""
        self._latched = None if self.settings is None else (self.settings, self.packed_state)

    def _sum(self, operation: str, ranks: Sequence[int], fields: dict[str, int]) -> Collected:
        """Sum gradients at all nodes or at their owners."""
        rows, elements = np.array(ranks)[:, np.newaxis], _place(fields, "gradient_base")
        own = _owned(fields, len(ranks))
        shape: dict[str, Any] = {"segment": self._segment, "lanes": self._lanes}
        if fields["root_reduce"]:
            total, traffic = root_reduce.all_reduce(self.gradients[rows, elements], fields["root"], **shape)
            self.gradients[rows, elements] = total
            return Collected(tuple(ranks), traffic.words, traffic, total, own)
        add = ring.all_reduce if operation == "ALL_REDUCE" else ring.reduce_scatter
        residuals = self.residuals[rows, elements]
        result, traffic = add(self._addends(ranks, elements), gradient_codec=self._gradient_codec,
                              residuals=residuals, block_offset=fields["block_offset"], counts=self._counts(ranks),
                              **shape)
        self.gradients[rows, elements], self.residuals[rows, elements] = result, residuals
        total = np.empty(len(elements), dtype=np.uint32)
        for number, index in enumerate(own):
            total[index] = result[index] if result.ndim == 1 else result[number, index]
        return Collected(tuple(ranks), traffic.words, traffic, total, own)

    def _counts(self, ranks: Sequence[int]) -> list[int] | None:
        """Number of gradients that each node adds, or None if every node adds one."""
        counts = [self.addends[rank] for rank in ranks]
        return counts if max(counts) > 1 else None

    def _addends(self, ranks: Sequence[int], elements: npt.NDArray[np.int64]) -> Bits:
        """Gradients of all nodes, one row per gradient, in order of rank."""
        return np.stack([self.gradients[rank, elements + number * self.addend_stride]
                         for rank in ranks for number in range(self.addends[rank])])

    def _count(self, operation: str, rank: int, region: int, apart: int, odd: int) -> None:
        """Count an update of a region, or record the version used by a command."""
        if not region:
            return
        key = rank, region, apart & odd
        if operation == "FUSED_UPDATE":
            self.versions[key] = self.versions[rank, region, apart & (1 - odd)] + 1
        elif operation in ("COMPUTE", "LAYERS"):
            self.found.append((rank, region, self.versions[key]))

    def _update(self, ranks: list[int], fields: list[dict[str, int]]) -> Collected:
        """Execute a fused update on the nodes of a ring."""
        if self._latched is None:
            raise ValueError("Settings must be latched before an update")
        settings, packed = self._latched
        places, weights = _place(fields[0], "gradient_base"), _place(fields[0], "weight_base")
        length, own = fields[0]["length"], _owned(fields[0], len(ranks))
        master = np.empty(length, dtype=np.uint32)
        state = [np.empty(length, dtype=np.uint32) for _ in self.state]
        bases = [entry["state_base"] for entry in fields]
        for rank, index, base in zip(ranks, own, bases, strict=True):
            master[index] = (self.masters[rank, base:base + len(index)] if self._mastered
                             else self.weights[rank, weights[index]])
            for plane, memory in zip(state, self.state, strict=True):
                plane[index] = (moments.unpack(memory[rank, base:base + -(-len(index) // 2)], len(index)) if packed
                                else memory[rank, base:base + len(index)])
        rows = np.array(ranks)[:, np.newaxis]
        shape: dict[str, Any] = {"packed_state": packed, "segment": self._segment, "lanes": self._lanes}
        if fields[0]["root_reduce"] and len(ranks) > 1:
            update = root_reduce.fused_update(self.gradients[rows, places], master, state, settings,
                                              fields[0]["root"],
                                            **shape)
        else:
            residuals = self.residuals[rows, places]
            update = ring.fused_update(
                self._addends(ranks, places), master, state, settings, weight_codec=self._weight_codec,
                gradient_codec=self._gradient_codec, residuals=residuals, block_offset=fields[0]["block_offset"],
                counts=self._counts(ranks), **shape)
            self.residuals[rows, places] = residuals
        self.weights[rows, weights] = update.weights
        for rank, index, base in zip(ranks, own, bases, strict=True):
            if self.masters.size:
                self.masters[rank, base:base + len(index)] = update.master[index]
            for plane, memory in zip(update.state[:settings.planes], self.state, strict=False):
                words = moments.pack(plane[index]) if packed else plane[index]
                memory[rank, base:base + len(words)] = words
        return Collected(tuple(ranks), update.traffic.words, update.traffic, update.total, own)



def _owned(fields: Mapping[str, int], nodes: int) -> list[npt.NDArray[np.int64]]:
    """Return the elements of a command's vector that each node of its ring owns."""
    if fields["root_reduce"]:
        return [np.arange(fields["length"] if rank == fields["root"] else 0) for rank in range(nodes)]
    blocks = ring.block_indices(fields["length"], nodes, block_offset=fields["block_offset"])
    return [blocks[(rank + 1) % nodes] for rank in range(nodes)]


def _place(fields: Mapping[str, int], base: str) -> npt.NDArray[np.int64]:
    """Return the memory indices of a command's vector elements."""
    return fields[base] + ring.places(fields["length"], stride=fields["stride"])
