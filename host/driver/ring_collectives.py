"""Collectives: gradient sums, weight updates and weight transfers."""

from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.compression.registry import RAW
from hdl.control.protocol import EventFlag, Operation
from hdl.group import GROUP
from hdl.memory_map import REGION_BASES
from host.driver.command_queueing import CommandQueueing, PendingCommand
from host.driver.devices import Formats
from host.driver.memory import Buffer, Buffers, Where, packed_words, place
from host.driver.optimizer_settings import Rule, Settings
from host.driver.results import Outcome, slowest
from host.driver.ring_memory import RingMemory, RingPartition
from host.driver.ring_registers import RingSettings
from sim.golden.ring import groups_before, largest_block

__all__ = ["RingCollectives", "WeightUpdates", "outcome_of"]


def outcome_of(pending: PendingCommand[Outcome]) -> Outcome:
    """Result of a collective that succeeded on every node."""
    done = pending.events
    return Outcome(
        cycles=slowest(event.cycles for event in done.values()),
        local_nan=tuple(rank for rank, event in sorted(done.items()) if EventFlag.LOCAL_NAN in event.flags),
        not_finite=tuple(rank for rank, event in sorted(done.items()) if EventFlag.NOT_FINITE in event.flags))


class WeightUpdates:
    """Weight updates by collectives, and initial distribution of weights, on one ring or several."""

    def __init__(self, memory: RingMemory, settings: RingSettings, commands: CommandQueueing, formats: Formats):
        self._memory = memory
        self._settings = settings
        self._commands = commands
        self._formats = formats

    def fused_update(self, where: Where) -> Outcome:
        """Sum the gradients, update each block on its owner, and copy the new weights to all nodes."""
        raise NotImplementedError

    def distribute(self, weights: npt.NDArray[Any], where: Where | None = None) -> None:
        """Give all nodes the same weights, stored as a fused update would store them.

        On nodes with master weights, each block becomes its owner's master weights. With a weight codec, a fused
        update with zero gradients and special settings then sends the block's decoded codes to all nodes. Gradients
        and residuals are zero afterwards.
        """
        vector = len(weights) if where is None else where
        if self._formats.has_residual:  # otherwise, the fused update would add the residual to the zero gradients
            self._memory.clear_residual(vector)
        if self._formats.has_master:
            self._memory.write_master(weights, vector)
        if self._formats.weight_codec == RAW:
            self._memory.write_weights(weights, vector)
            return
        self._memory.write_gradients([np.zeros(len(weights), dtype=np.uint32)] * self._commands.nodes, vector)
        self._settings.write(Settings(rule=Rule.SGD, gradient_scale=0.0, learning_rate=0.0))
        self.fused_update(vector)


#: Names of the vector's buffers that each collective uses.
_PARTS = {
    Operation.FUSED_UPDATE: ("gradients", "weights", "state"),
    Operation.ALL_REDUCE: ("gradients",),
    Operation.REDUCE_SCATTER: ("gradients",),
    Operation.ALL_GATHER: ("weights",),
    Operation.BROADCAST: ("weights",),
    Operation.QUIESCE: (),
}

#: Operations that allow one rank to own all groups.
_OWNED = (Operation.FUSED_UPDATE, Operation.ALL_REDUCE)


class RingCollectives(WeightUpdates):
    """Collectives that involve all nodes of a ring."""

    def __init__(self, partition: RingPartition, memory: RingMemory, settings: RingSettings,
                 commands: CommandQueueing, formats: Formats):
        super().__init__(memory, settings, commands, formats)
        self._partition = partition

    def submit(self, operation: Operation, where: Where = 0, *, root: int = 0, owner: int | None = None,
               first: int = 0, length: int | None = None, begin: int = 0) -> PendingCommand[Outcome]:
        """Queue a collective on all nodes, after earlier commands and without waiting for it.

        The optimizer uses the register settings at the time when the command starts.

        A command may cover only part of the vector. The results are bit-identical to a command for the whole vector,
        because a group's block depends only on the group's position in the vector.

        Raises ``ValueError`` if the operation is not a collective, if the vector lacks a buffer that the operation
        needs, or if the part is not within the vector.

        Parameters
        ----------
        operation : Operation
            A collective operation or QUIESCE.
        root : int
            Rank that is the source of a BROADCAST.
        owner : int, optional
            Rank that owns all groups in this FUSED_UPDATE or ALL_REDUCE, and holds all state; by default
            :attr:`host.driver.ring_memory.RingPartition.root`.
        first, length : int
            First element and number of elements of the part: multiples of 32, or up to the end of the vector.
        begin : int
            If each node has only part of a longer vector, the index of the part's first element: a multiple of 32.
            Only for operations without state.
        """
        if operation not in _PARTS:
            raise ValueError(f"Operation to submit must be one of {', '.join(each.name for each in _PARTS)}, not "
                             f"{operation!r}")
        owner = self._owner(operation, owner)
        parts = self._parts(operation, where, owner)
        whole = next((buffer.length for buffer in parts.values()), 0)
        length = whole - first if length is None else length
        if first % GROUP or not 0 <= first <= first + length <= whole or (length % GROUP and first + length != whole):
            raise ValueError(f"Part of {whole:,} elements must begin and end with a group of {GROUP}, not be "
                             f"{length:,} from {first:,} on")
        if begin < 0 or begin % GROUP or (begin and "state" in parts):
            raise ValueError(f"Part of a longer vector must begin at a multiple of {GROUP}, and at 0 in an update, "
                             f"not at {begin:,}")
        nodes, groups = self._commands.nodes, first // GROUP
        common = {"root": root if owner is None else owner, "root_reduce": int(owner is not None), "length": length,
                  "block_offset": (groups + begin // GROUP) % nodes}
        fields = []
        for rank in range(nodes):
            offsets = dict.fromkeys(parts, first)
            if "state" in parts:
                before = (groups if owner is not None
                          else groups_before(groups, nodes, self._partition.block_of(rank)))
                offsets["state"] = self._state_offset(before)
            fields.append({**common, **{REGION_BASES[part]: buffer.base + offsets[part]
                                        for part, buffer in parts.items()}})
        return self._commands.submit_together(operation, outcome_of, fields)

    def _owner(self, operation: Operation, owner: int | None) -> int | None:
        """Rank that owns all groups of a command, as given or by default; None if each rank owns a block."""
        if operation in _OWNED:
            owner = self._partition.root if owner is None else owner
        elif owner is not None:
            raise ValueError(f"Operation with an owner of all groups must be one of "
                             f"{', '.join(each.name for each in _OWNED)}, not {operation.name}")
        if owner is not None:
            self._partition.check_root(owner)
        return owner

    def submit_owned_update(self, where: Where) -> PendingCommand[Outcome]:
        """Queue the update of each block on its owner, using the sums of an earlier reduce-scatter.

        A reduce-scatter, this update and an all-gather of the new weights give the same bits as a fused update.
        """
        if self._partition.root is not None:
            raise ValueError(f"Groups must be dealt to all nodes for each to update its own, not to rank "
                             f"{self._partition.root} alone")
        parts = self._parts(Operation.FUSED_UPDATE, where, None)
        fields = []
        for rank, owned in enumerate(self._partition.owned(parts["weights"].length)):
            # With n nodes, block b contains every n-th group, starting with group b.
            first = GROUP * self._partition.block_of(rank) if len(owned) else 0
            bases = {REGION_BASES[part]: buffer.base + (0 if part == "state" else first)
                     for part, buffer in parts.items()}
            fields.append({"rank": 0, "size": 1, "stride": self._commands.nodes, "length": len(owned), **bases})
        return self._commands.submit_together(Operation.FUSED_UPDATE, outcome_of, fields)

    def _parts(self, operation: Operation, where: Where, owner: int | None) -> dict[str, Buffer]:
        """Buffers that a collective uses."""
        parts = {part: place(where, part) for part in _PARTS[operation]
                 if part != "state" or not isinstance(where, Buffers) or self._state_words(where.length, owner)}
        if "state" in parts and isinstance(where, Buffers):
            words = self._state_words(where.length, owner)
            if words > parts["state"].length:
                raise ValueError(f"State of a block must take at most the {parts['state'].length:,} words of its "
                                 f"buffer, not {words:,}")
        return parts

    def _state_offset(self, groups: int) -> int:
        """Number of words of state or master weights that ``groups`` groups take with the latest settings."""
        packed = bool(self._settings.optimizer_field("packed_state"))
        if groups and packed and self._formats.has_master:
            raise ValueError("Part of a vector must have state in binary32 on nodes with a weight codec, whose "
                             "masters lie beside it and are never packed, not in bfloat16")
        return packed_words(groups * int(GROUP), packed)

    def _state_words(self, length: int, owner: int | None) -> int:
        """Number of words of state or master weights in a fused update of ``length`` elements."""
        block = largest_block(length, self._commands.nodes) if owner is None else length
        if self._formats.has_master or "OPTIMIZER" not in self._settings.known:
            return block
        rule, packed = map(self._settings.optimizer_field, ("rule", "packed_state"))
        if rule not in list(Rule) or not Rule(rule).planes:  # a node rejects an unknown rule
            return 0
        return packed_words(block, bool(packed))

    def fused_update(self, where: Where, *, owner: int | None = None) -> Outcome:
        """Sum the gradients, update each block on its owner, and copy the new weights to all nodes. See
        :meth:`submit` for ``owner``, which owns all blocks."""
        return self.submit(Operation.FUSED_UPDATE, where, owner=owner).result()

    def all_reduce(self, where: Where, *, owner: int | None = None, begin: int = 0) -> Outcome:
        """Replace the gradients of all nodes by their sum; see :meth:`submit` for a single ``owner``, and for a part
        of a longer vector that begins at element ``begin``."""
        return self.submit(Operation.ALL_REDUCE, where, owner=owner, begin=begin).result()

    def reduce_scatter(self, where: Where) -> Outcome:
        """Replace the gradients of each node's own block with their sum."""
        return self.submit(Operation.REDUCE_SCATTER, where).result()

    def all_gather(self, where: Where) -> Outcome:
        """Copy each block of weights from its owner to all nodes, including the owner itself. With a weight codec,
        the weights are encoded and decoded."""
        return self.submit(Operation.ALL_GATHER, where).result()

    def broadcast(self, where: Where, *, root: int) -> Outcome:
        """Copy one node's weights to all nodes, unchanged."""
        return self.submit(Operation.BROADCAST, where, root=root).result()

    def quiesce(self) -> Outcome:
        """Wait until all earlier commands have ended."""
        return self.submit(Operation.QUIESCE).result()
