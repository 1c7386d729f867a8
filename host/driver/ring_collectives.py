"""Collectives of a ring: sums of gradients, updates, and transfers of weights."""


from hdl.control.protocol import Operation
from hdl.group import GROUP
from hdl.memory_map import REGION_BASES
from host.driver.buffers import Buffer, Buffers, Where, place
from host.driver.command_queueing import CommandQueueing
from host.driver.formats import Formats
from host.driver.optimizer_settings import Rule
from host.driver.pending_command import PendingCommand
from host.driver.protocols import Collectives
from host.driver.results import Outcome
from host.driver.ring_memory import RingMemory
from host.driver.ring_partition import RingPartition
from host.driver.ring_settings import RingSettings
from host.driver.weight_updates import WeightUpdates, outcome_of
from sim.golden.ring import groups_before, largest_block

__all__ = ["RingCollectives"]

#: Parts of a vector that each collective works on.
_PARTS = {
    Operation.FUSED_UPDATE: ("gradients", "weights", "state"),
    Operation.ALL_REDUCE: ("gradients",),
    Operation.REDUCE_SCATTER: ("gradients",),
    Operation.ALL_GATHER: ("weights",),
    Operation.BROADCAST: ("weights",),
    Operation.QUIESCE: (),
}

#: Operations in which one rank may own all groups.
_OWNED = (Operation.FUSED_UPDATE, Operation.ALL_REDUCE)


class RingCollectives(WeightUpdates, Collectives):
    """Collectives of all nodes of a ring.

    Parameters
    ----------
    memory, settings, commands, formats
        Parameters of :class:`host.driver.weight_updates.WeightUpdates`.
    """

    def __init__(self, partition: RingPartition, memory: RingMemory, settings: RingSettings,
                 commands: CommandQueueing, formats: Formats):
        super().__init__(memory, settings, commands, formats)
        self._partition = partition

    def submit(self, operation: Operation, where: Where = 0, *, root: int = 0, owner: int | None = None,
               first: int = 0, length: int | None = None) -> PendingCommand[Outcome]:
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
        nodes, groups = self._commands.nodes, first // GROUP
        common = {"root": root if owner is None else owner, "one_owner": int(owner is not None), "length": length,
                  "turn": groups % nodes}
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
        """Rank that owns all groups in a command, which may be asked for; None if each rank owns a block."""
        if operation in _OWNED:
            owner = self._partition.root if owner is None else owner
        elif owner is not None:
            raise ValueError(f"Operation with an owner of all groups must be one of "
                             f"{', '.join(each.name for each in _OWNED)}, not {operation.name}")
        if owner is not None:
            self._partition.check_root(owner)
        return owner

    def submit_owned_update(self, where: Where) -> PendingCommand[Outcome]:
        """Queue the update of each block at its owner, with the gradients in its memory, which are the sums of
        reduce-scatters of the vector, or of all its parts.

        An all-gather then brings the new weights to all nodes. The three operations together are a fused update, bit
        for bit.
        """
        if self._partition.root is not None:
            raise ValueError(f"Groups must be dealt to all nodes for each to update its own, not to rank "
                             f"{self._partition.root} alone")
        parts = self._parts(Operation.FUSED_UPDATE, where, None)
        fields = []
        for rank, owned in enumerate(self._partition.owned(parts["weights"].length)):
            # Each block begins with the group of its own number, and its groups are one per round of all nodes.
            first = GROUP * self._partition.block_of(rank) if len(owned) else 0
            bases = {REGION_BASES[part]: buffer.base + (0 if part == "state" else first)
                     for part, buffer in parts.items()}
            fields.append({"rank": 0, "size": 1, "stride": self._commands.nodes, "length": len(owned), **bases})
        return self._commands.submit_together(Operation.FUSED_UPDATE, outcome_of, fields)

    def _parts(self, operation: Operation, where: Where, owner: int | None) -> dict[str, Buffer]:
        """Buffers that a collective works on."""
        parts = {part: place(where, part) for part in _PARTS[operation]
                 if part != "state" or not isinstance(where, Buffers) or self._state_words(where.length, owner)}
        if "state" in parts and isinstance(where, Buffers):
            words = self._state_words(where.length, owner)
            if words > parts["state"].length:
                raise ValueError(f"State of a block must take at most the {parts['state'].length:,} words of its "
                                 f"buffer, not {words:,}")
        return parts

    def _state_offset(self, groups: int) -> int:
        """Words of state, or of master weights, of a number of groups, by the settings that were written last."""
        packed = self._settings.optimizer_field("packed_state")
        if groups and packed and self._formats.has_master:
            raise ValueError("Part of a vector must have state in binary32 on nodes with a weight codec, whose "
                             "masters lie beside it and are never packed, not in bfloat16")
        return groups * int(GROUP // 2 if packed else GROUP)

    def _state_words(self, length: int, owner: int | None) -> int:
        """Words of state, or of master weights, that a node uses in a fused update of ``length`` elements, by the
        settings that were written last."""
        block = largest_block(length, self._commands.nodes) if owner is None else length
        if self._formats.has_master or "OPTIMIZER" not in self._settings.known:
            return block
        rule, packed = map(self._settings.optimizer_field, ("rule", "packed_state"))
        if rule not in list(Rule) or not Rule(rule).planes:  # a node refuses an unknown rule
            return 0
        return -(-block // 2) if packed else block

    def fused_update(self, where: Where, *, owner: int | None = None) -> Outcome:
        return self.submit(Operation.FUSED_UPDATE, where, owner=owner).result()

    def owned_update(self, where: Where) -> Outcome:
        """Update each block at its owner; see :meth:`submit_owned_update`."""
        return self.submit_owned_update(where).result()

    def all_reduce(self, where: Where, *, owner: int | None = None) -> Outcome:
        return self.submit(Operation.ALL_REDUCE, where, owner=owner).result()

    def reduce_scatter(self, where: Where) -> Outcome:
        return self.submit(Operation.REDUCE_SCATTER, where).result()

    def all_gather(self, where: Where) -> Outcome:
        return self.submit(Operation.ALL_GATHER, where).result()

    def broadcast(self, where: Where, *, root: int) -> Outcome:
        return self.submit(Operation.BROADCAST, where, root=root).result()

    def quiesce(self) -> Outcome:
        """Wait until all commands before have ended."""
        return self.submit(Operation.QUIESCE).result()
