"""Driver of a ring: vectors in and out, collectives, and errors that name their cause.

Vectors lie in buffers (:mod:`host.driver.buffers`); a vector that is named by its length alone lies at the start of
each memory. Commands run one after the other on every node. Submitted commands are queued behind each other, and
:meth:`Ring.wait` waits for them.

Example
-------
::

    ring = Ring(devices)
    ring.connect()
    ring.write_weights(weights)
    ring.write_gradients([gradients_of_node_0, gradients_of_node_1])
    ring.write_settings(SGD(learning_rate=0.1).settings(1, gradient_scale=0.5))
    ring.fused_update(weights.size)
    weights = ring.read_weights(weights.size)

Two vectors, side by side::

    first, second = (ring.allocate(Allocation(length=1000)) for _ in range(2))
    ring.write_gradients(gradients, second)
    pending = [ring.submit(Operation.ALL_REDUCE, vector) for vector in (first, second)]
    outcomes = ring.wait(*pending)
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.control.protocol import EventFlag, Operation
from hdl.control.registers import register
from hdl.group import GROUP
from hdl.memory_map import REGION_BASES
from host.driver.buffers import Buffer, Buffers, Where, place
from host.driver.command import Command, Event
from host.driver.inference import IntegerLayer, Integers, Program, pack_inputs, program, unpack_outputs
from host.driver.optimizer_settings import Rule
from host.driver.results import InferOutcome, Outcome
from host.driver.ring_layers import RingLayers
from host.driver.submission import PendingCommand
from host.driver.vectors import Vector
from sim.golden.ring import groups_before, largest_block

__all__ = ["Ring", "Vector"]

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


class Ring(RingLayers):
    """Nodes in a ring, in the order of their ranks.

    Parameters
    ----------
    devices : sequence of Device
        The node at index r is of rank r; :class:`~hdl.ring.topology.RingTopology` says to which it sends.
    timeout : int
        Cycles without a word on a node's links after which it gives a command up.
    """

    # Collectives.

    def submit(self, operation: Operation, where: Where = 0, *, root: int = 0, owner: int | None = None,
               first: int = 0, length: int | None = None) -> PendingCommand[Outcome]:
        """Queue a collective on all nodes behind earlier commands, without waiting for it.

        The optimizer takes the settings that registers hold when the command starts.

        A command may be given a part of the vector. It then does with these elements what a command for the whole
        vector does, bit for bit: to which block a group of 32 elements belongs depends on its place in the vector
        alone.

        Parameters
        ----------
        operation : Operation
            One that nodes carry out together, or QUIESCE.
        where : Buffers, Buffer or int
            The vector.
        root : int
            Rank that a BROADCAST starts from.
        owner : int, optional
            Rank that owns all groups in this FUSED_UPDATE or ALL_REDUCE, and has all state; by default
            :attr:`dealt_to`.
        first : int
            First element of the part, a multiple of 32.
        length : int, optional
            Elements of the part: a multiple of 32, or all up to the end of the vector, as it is by default.

        Raises
        ------
        ValueError
            The operation is another one, the vector lacks a buffer that the operation needs, or there is no such
            part.
        """
        if operation not in _PARTS:
            raise ValueError(f"Operation to submit must be one of {', '.join(each.name for each in _PARTS)}, not "
                             f"{operation!r}")
        if operation in _OWNED:
            owner = self._dealt_to if owner is None else owner
        elif owner is not None:
            raise ValueError(f"Operation with an owner of all groups must be one of "
                             f"{', '.join(each.name for each in _OWNED)}, not {operation.name}")
        if owner is not None:
            self._check_owner(owner)
        parts = self._parts(operation, where, owner)
        whole = next((buffer.length for buffer in parts.values()), 0)
        length = whole - first if length is None else length
        if first % GROUP or not 0 <= first <= first + length <= whole or (length % GROUP and first + length != whole):
            raise ValueError(f"Part of {whole:,} elements must begin and end with a group of {GROUP}, not be "
                             f"{length:,} from {first:,} on")
        groups = first // GROUP
        fields = []
        lone = owner is not None
        for rank in range(self.nodes):
            before = groups if lone else groups_before(groups, self.nodes, self._topology.owned_block(rank))
            offsets = {"state": self._state_offset(before)} if "state" in parts else {}
            fields.append({"root": owner if lone else root, "one_owner": int(lone), "length": length,
                           "turn": groups % self.nodes, **{
                REGION_BASES[part]: buffer.base + offsets.get(part, first) for part, buffer in parts.items()}})
        return self._submit(operation, _outcome, fields)

    def submit_owned_update(self, where: Where) -> PendingCommand[Outcome]:
        """Queue the update of each block at its owner alone, with the gradients that its memory holds: the sums that
        reduce-scatters of the vector, or of all its parts, have left there.

        An all-gather then brings the new weights to all nodes. The three operations together are a fused update, bit
        for bit.
        """
        if self._dealt_to is not None:
            raise ValueError(f"Groups must be dealt to all nodes for each to update its own, not to rank "
                             f"{self._dealt_to} alone")
        parts = self._parts(Operation.FUSED_UPDATE, where, None)
        fields = []
        for rank, owned in enumerate(self._owned(parts["weights"].length)):
            # Each block begins with the group of its own number, and its groups lie as many apart as there are nodes.
            first = GROUP * self._topology.owned_block(rank) if len(owned) else 0
            bases = {REGION_BASES[part]: buffer.base + (0 if part == "state" else first)
                     for part, buffer in parts.items()}
            fields.append({"rank": 0, "size": 1, "stride": self.nodes, "length": len(owned), **bases})
        return self._submit(Operation.FUSED_UPDATE, _outcome, fields)

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
        """Words of state, or of masters, of so many groups, by the settings that were written last."""
        packed = self._optimizer_field("packed_state")
        if groups and packed and self._config.has_master:
            raise ValueError("Part of a vector must have state in binary32 on nodes with a weight codec, whose "
                             "masters lie beside it and are never packed, not in bfloat16")
        return groups * int(GROUP // 2 if packed else GROUP)

    def _optimizer_field(self, name: str) -> int:
        """Field of register OPTIMIZER, as it was written last; 0 if it is unknown."""
        field = register("OPTIMIZER").field(name)
        return int(int(self._settings.get("OPTIMIZER", 0)) >> field.bit & (1 << field.width) - 1)

    def _state_words(self, length: int, owner: int | None) -> int:
        """Words of state, or of masters, that a node uses in a fused update of ``length`` elements, by the settings
        that were written last."""
        block = largest_block(length, self.nodes) if owner is None else length
        if self._config.has_master or "OPTIMIZER" not in self._settings:
            return block
        rule, packed = map(self._optimizer_field, ("rule", "packed_state"))
        if rule not in list(Rule) or not Rule(rule).planes:  # a node refuses an unknown rule
            return 0
        return -(-block // 2) if packed else block

    def fused_update(self, where: Where, *, owner: int | None = None) -> Outcome:
        """Sum gradients, update each block at its owner, and bring the new weights to all nodes; see :meth:`submit`
        for an ``owner`` of all of them."""
        return self.submit(Operation.FUSED_UPDATE, where, owner=owner).result()

    def owned_update(self, where: Where) -> Outcome:
        """Update each block at its owner alone; see :meth:`submit_owned_update`."""
        return self.submit_owned_update(where).result()

    def all_reduce(self, where: Where, *, owner: int | None = None) -> Outcome:
        """Replace the gradients of all nodes by their sum, which one ``owner`` may form: see :meth:`submit`."""
        return self.submit(Operation.ALL_REDUCE, where, owner=owner).result()

    def reduce_scatter(self, where: Where) -> Outcome:
        """Replace, on each node, the gradients of its own block by their sum."""
        return self.submit(Operation.REDUCE_SCATTER, where).result()

    def all_gather(self, where: Where) -> Outcome:
        """Bring each block of weights from its owner to all nodes, the owner too: decoded ones in nodes with a weight
        codec."""
        return self.submit(Operation.ALL_GATHER, where).result()

    def broadcast(self, where: Where, *, root: int) -> Outcome:
        """Bring the weights of one node to all nodes, as they are."""
        return self.submit(Operation.BROADCAST, where, root=root).result()

    def quiesce(self) -> Outcome:
        """Wait until all commands before have ended."""
        return self.submit(Operation.QUIESCE).result()

    # Commands of single nodes.

    def infer(self, layers: Sequence[IntegerLayer], x: npt.ArrayLike, *, data: Buffer | None = None,
              lists: Buffer | None = None) -> InferOutcome:
        """Run integer layers on samples, which are dealt to the nodes in runs of equal length.

        Layers go to a buffer of each node's weight memory, and all else to a buffer of its gradient memory; the
        contents of both are lost. If there is no room for all samples of a node, several commands run.

        Parameters
        ----------
        layers : sequence of IntegerLayer
            Layers like :class:`sim.golden.quantization.Layer`; the last one, and no other, is ``last``.
        x : array of int
            A row of inputs for each sample: uint8, or int8 where the first layer is ``signed``.
        data, lists : Buffer, optional
            Buffers in gradients and in weights; by default the whole memories.

        Raises
        ------
        RingError
            A command failed on at least one node.
        ValueError
            There is no room for the layers and one sample, or they do not follow each other.
        """
        if not all(config.quantization for config in self._configs):
            raise ValueError("Nodes must have quantization in their configuration, to infer")
        data = self._whole("gradients") if data is None else place(data, "gradients")
        lists = self._whole("weights") if lists is None else place(lists, "weights")
        given = program(layers, lanes=self.lanes, gradient_words=data.length, weight_words=lists.length,
                        gradient_base=data.base, weight_base=lists.base)
        values = np.asarray(x)
        pack_inputs(given, values)  # which checks them, before anything is written
        outputs = np.empty((len(values), given.outputs), np.int64)
        share = -(-len(values) // self.nodes)
        ranks = [rank for rank in range(self.nodes) if rank * share < len(values)]
        gradients, weights = self._numbers("gradients"), self._numbers("weights")
        bases = data.base, lists.base
        self._all(lambda rank, device: device.submit_write_memory(weights[rank], bases[1], given.weights), ranks)
        self._all(lambda rank, device: device.submit_write_memory(gradients[rank], bases[0], given.parameters), ranks)
        cycles = multiplied = commands = 0
        for first in range(0, share, given.samples):
            runs = {}
            for rank in ranks:
                begin, end = rank * share + first, min((rank + 1) * share, len(values))
                if begin < end:
                    runs[rank] = slice(begin, min(begin + given.samples, end))
            events, results = self._infer(given, lists.base, {rank: values[run] for rank, run in runs.items()})
            for rank, run in runs.items():
                outputs[run] = results[rank]
            cycles += max(event.cycles for event in events.values())
            multiplied += sum(event.detail for event in events.values())
            commands += 1
        return InferOutcome(outputs=outputs, cycles=cycles, multiplied=multiplied, commands=commands)

    def _infer(self, given: Program, base: int,
               x: dict[int, npt.NDArray[Any]]) -> tuple[dict[int, Event], dict[int, Integers]]:
        """Run one command on each node that has samples, and return events and sums."""
        gradients = self._numbers("gradients")
        self._all(lambda rank, device: device.submit_write_memory(
            gradients[rank], given.source, pack_inputs(given, x[rank])), x)
        events = self._run_apart({rank: Command(operation=Operation.INFER, weight_base=base, length=len(mine))
                                  for rank, mine in x.items()}, patience=2 * given.samples * given.beats)
        words = -(-given.outputs // given.lanes) * given.lanes
        found = self._all(lambda rank, device: device.submit_read_memory(
            gradients[rank], given.target, len(x[rank]) * words), x)
        return events, {rank: unpack_outputs(given, mine) for rank, mine in zip(x, found, strict=True)}


def _outcome(pending: PendingCommand[Outcome]) -> Outcome:
    """Outcome of a collective that has ended well on every node."""
    done = pending.events
    return Outcome(
        cycles=max(event.cycles for event in done.values()),
        local_nan=tuple(rank for rank, event in sorted(done.items()) if EventFlag.LOCAL_NAN in event.flags),
        not_finite=tuple(rank for rank, event in sorted(done.items()) if EventFlag.NOT_FINITE in event.flags))
