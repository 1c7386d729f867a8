"""Golden nodes: memories, registers and counters in numpy, with golden models that execute commands.

A command is executed as soon as it is the next command of its node or, for a collective, of all nodes of its ring.
Values, events, flags and words equal the gateware's. Cycles are modelled or None, see :mod:`.cycles`.
"""

import collections
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hdl.compression.registry import ZERO_VALUE
from hdl.config import Configuration
from hdl.control.protocol import EventFlag, EventStatus, Operation
from hdl.engines import operations
from hdl.masking.job_list import MASK_JOB_WORDS, mask_job_layout
from hdl.masking.mask import KINDS
from host.driver.command import Command, Event
from host.driver.masking import BOUNDS
from host.driver.optimizer_settings import SCALARS
from host.driver.words import field_values, fields, int_of, places
from host.feature import features_of
from host.transports.golden.cycles import CycleModel
from sim.golden import masking, ring
from sim.golden.codecs import CODECS
from sim.golden.nodes import Collected, Nodes, Placed
from sim.golden.optimizer import Rule

__all__ = ["COUNTED", "Ended", "GoldenNodes", "GoldenPart", "LocalOperation"]

Bits = npt.NDArray[np.uint32]
_JOB = places(mask_job_layout())


def _job(words: Bits) -> masking.Job:
    """Decode a mask job from the job list in memory."""
    values: dict[str, Any] = fields(_JOB, int_of(words))
    kinds = {name: bool(values["kinds"] >> number & 1) for number, name in enumerate(KINDS)}
    diagonal = values["diagonal"] - (values["diagonal"] >> 31 << 32)
    return masking.Job(rows=values["rows"], columns=values["columns"], count=values["count"],
                       mask=masking.Mask(**kinds, diagonal=diagonal, **{name: values[name] for name in BOUNDS}))


class Ended(NamedTuple):
    """Result of a command on a node, with the increments of its counters."""

    status: EventStatus = EventStatus.OK
    detail: int = 0
    counts: Mapping[str, int] = {}


#: Function that executes a command on the node with the given rank.
LocalOperation = Callable[[int, Command], Ended]


class GoldenPart:
    """Base class of a feature's additions to golden nodes. By default, it adds nothing."""

    def operations(self) -> Mapping[Operation, LocalOperation]:
        """Return the operations that a node executes on its own."""
        return {}

    def before_collective(self, ranks: Sequence[int]) -> None:
        """Called before nodes read gradients for a collective. Raises ``ValueError`` if registers differ."""

    def written(self, rank: int, space: str, base: int, count: int) -> None:
        """Called after the host or a far memory move has written elements of a node's memory."""

    def cycles(self, command: Command) -> int | None:
        """Return the cycles of a command that a node executes on its own; None if they are not modelled."""
        return None


#: Counters of golden nodes. Other counters of a node count cycles, or events that occur only in gateware.
COUNTED = ("WORDS_SENT", "WORDS_RECEIVED", "ELEMENTS_MASKED", "MASK_WORDS_FETCHED", "COMPRESSED_WORDS",
           "LINK_RESTARTS", "WORDS_REPEATED", "CHECKS_FAILED")


def _bits(number: float) -> int:
    """Return the bit pattern of a number in binary32."""
    return int(ring.bits([number])[0])


class GoldenNodes(Nodes):
    """Golden nodes with one configuration, in a single ring or in the rings of a plan."""

    def __init__(self, config: Configuration, *, nodes: int, latency: int):
        super().__init__(nodes, gradient_words=config.memories.gradient, weights=np.zeros(0, np.uint32), planes=0,
                         mastered=config.weights.has_master, segment=config.segment, lanes=config.lanes,
                         far_words=config.far_words, weight_codec=CODECS[config.weights.codec],
                         gradient_codec=CODECS[config.gradients])
        self.config, self.cycles = config, CycleModel(config, latency=latency)
        # contents of the memories of all nodes, keyed by memory name, each of shape (nodes, words)
        self.memories = {space.name: np.zeros((nodes, space.words), np.uint32) for space in config.memory_map}
        self.gradients, self.weights = self.memories["gradients"], self.memories["weights"]
        self.masters, self.residuals, self.activations = (
            self.memories.get(name, getattr(self, name)) for name in ("masters", "residuals", "activations"))
        self.state = [self.memories[f"state_{plane}"] for plane in range(config.memories.planes)]
        # for each node, the values of the registers that the host has written
        self.registers: list[dict[str, int | float]] = [{} for _ in range(nodes)]
        self.counters = {name: np.zeros(nodes, np.int64) for name in COUNTED}
        # nodes of each ring in order of rank, keyed by port
        self.rings: dict[int, list[Sequence[int]]] = {0: [range(nodes)]}
        # events that the host has not popped, for each node
        self.events: list[collections.deque[Event]] = [collections.deque() for _ in range(nodes)]
        self.flags = [0] * nodes
        self._queued: list[collections.deque[Command]] = [collections.deque() for _ in range(nodes)]
        self._on_ring = {entry.code for entry in operations(config) if entry.on_ring}
        self._known = {entry.code for entry in operations(config)}
        self.seconds = 0.0  # seconds that the golden models have run
        self._parts: list[GoldenPart] = [part for feature in features_of(config)
                                         if (part := feature.golden(self)) is not None]
        # operations that a node executes on its own
        self._local = {Operation.MASK: self._mask, Operation.SPARSIFY: self._sparsify}
        for part in self._parts:
            self._local |= part.operations()

    def write(self, rank: int, space: str, base: int, words: Bits) -> None:
        """Write words to a node's memory."""
        self.memories[space][rank, base:base + len(words)] = words
        self._note(rank, space, base, len(words))

    def _note(self, rank: int, space: str, base: int, count: int) -> None:
        for part in self._parts:
            part.written(rank, space, base, count)

    # Queues of commands.

    def push(self, rank: int, command: Command) -> None:
        """Queue a command on a node and execute all commands that can start."""
        self._queued[rank].append(command)
        while any([self._start(rank) for rank in range(self.nodes)]):
            pass

    def abandon(self, rank: int) -> None:
        """Drop all commands and events of a node."""
        self._queued[rank].clear()
        self.events[rank].clear()

    def running(self, rank: int) -> bool:
        """Return whether a command of a node waits for other nodes."""
        return bool(self._queued[rank])

    def _start(self, rank: int) -> bool:
        """Execute the next command of a node if it can start; return whether it was executed."""
        queue = self._queued[rank]
        if not queue:
            return False
        ranks = self.members(rank, queue[0])
        heads = {node: self._queued[node][0] for node in ranks if self._queued[node]}
        if len(heads) < len(ranks) or any(
                (head.operation, head.collective) != (queue[0].operation, queue[0].collective)
                for head in heads.values()):
            return False
        self.latch_registers(rank)
        for node, event in self.carry_out(ranks, heads).items():
            self._queued[node].popleft()
            self.events[node].append(event)
        return True

    def members(self, rank: int, command: Command) -> Sequence[int]:
        """Return the nodes that execute a command together, ordered by rank."""
        if command.operation not in self._on_ring or command.size == 1:
            return [rank]
        return next(nodes for nodes in self.rings[command.port] if rank in nodes)

    def latch_registers(self, rank: int) -> None:
        """Latch the settings in a node's registers for subsequent updates."""
        values = self.registers[rank]
        if not self.config.has_ring or "OPTIMIZER" not in values:
            return
        optimizer = field_values("OPTIMIZER", int(values["OPTIMIZER"]))
        self.settings = ring.settings(optimizer["rule"], nesterov=bool(optimizer["nesterov"]),
                                      **{name.lower(): values[name] for name in SCALARS})
        self.packed_state = bool(optimizer["packed_state"])
        self.latch()

    # Execution of commands.

    def carry_out(self, ranks: Sequence[int], commands: Mapping[int, Command], *, odd: int = 0) -> dict[int, Event]:
        """Execute a node's command, or a collective of several nodes, in order of rank."""
        begun = time.perf_counter()
        first = commands[ranks[0]]
        flags, cycles, ended = dict.fromkeys(ranks, EventFlag(0)), self._cycles(first), Ended()
        if first.operation not in self._known or (
                first.operation is Operation.FUSED_UPDATE and not self._has_rule(self.registers[ranks[0]])):
            known = first.operation in self._known
            ended = Ended(EventStatus.BAD_RULE if known else EventStatus.UNKNOWN_OPERATION)
        elif first.operation is Operation.SWITCH:
            pass
        elif first.operation in self._local:
            ended = self._local[first.operation](ranks[0], first)
            for name, count in ended.counts.items():
                self.counters[name][ranks[0]] += count
        else:
            if first.operation is Operation.LATCH:
                self.latch_registers(ranks[0])
            for part in self._parts:
                part.before_collective(ranks)
            gradients = self._read(ranks, first, commands)
            if first.operation in self._on_ring and first.length:
                cycles = self.cycles.collective(first, np.stack([own[0] for own in gradients]))
            self._bind(ranks[0], first)
            placed = Placed(first.operation.name, [vars(commands[node]) if node in commands else {}
                                                   for node in range(self.nodes)])
            for outcome in self.execute(placed, ranks, odd=odd):
                self._count_words(outcome)
                flags = self._flags(outcome, gradients, first.operation)
            if first.operation is Operation.MOVE_IN:
                for rank in ranks:
                    self._note(rank, "activations", commands[rank].weight_base, commands[rank].length)
        self.seconds += time.perf_counter() - begun
        return {rank: Event(tag=commands[rank].tag, status=ended.status, flags=flags[rank], detail=ended.detail,
                            cycles=cycles, weight_version=0) for rank in ranks}

    def _has_rule(self, registers: Mapping[str, float]) -> bool:
        """Return whether nodes have the state planes that the update rule in their registers requires."""
        rule = int(registers.get("OPTIMIZER", 0)) & 15
        return rule in list(Rule) and Rule(rule).planes <= self.config.memories.planes

    def _cycles(self, command: Command) -> int | None:
        """Return the cycles of a command that a node executes on its own; None if they are not modelled."""
        known = [self.cycles.local(command), *(part.cycles(command) for part in self._parts)]
        return next((cycles for cycles in known if cycles is not None), None)

    def _mask(self, rank: int, command: Command) -> Ended:
        """Execute a MASK command on binary32 numbers, with job lists in the driver's format."""
        gradients, weights, lanes = self.gradients[rank], self.weights[rank], self.config.lanes
        alternative = _bits(self.registers[rank]["MASK_ALTERNATIVE"])
        used, number, replaced, external = 0, command.weight_base, 0, command.state_base
        while used < command.length:
            job = _job(weights[number:number + MASK_JOB_WORDS])
            words = weights[external:external + masking.words_fetched(job)]
            kept = masking.kept(job, words if job.mask.external else None)
            elements = job.beats(lanes) * lanes
            base = command.gradient_base + used
            rows = gradients[base:base + elements].reshape(job.count, job.rows, -1)[..., :job.columns]
            rows[...] = masking.apply(rows, kept, alternative)
            replaced += int(np.count_nonzero(~kept))
            used, number, external = used + elements, number + MASK_JOB_WORDS, external + len(words)
        return Ended(detail=replaced, counts={"ELEMENTS_MASKED": replaced,
                                              "MASK_WORDS_FETCHED": external - command.state_base})

    def _sparsify(self, rank: int, command: Command) -> Ended:
        """Execute a SPARSIFY command on binary32 numbers."""
        length, threshold = command.length, _bits(self.registers[rank]["MASK_THRESHOLD"])
        sent = self.gradients[rank, command.gradient_base:command.gradient_base + length]
        errors = self.weights[rank, command.weight_base:command.weight_base + length]
        sent[:], errors[:] = masking.sparsify(sent, errors, threshold)
        dropped = length - int(np.count_nonzero(sent)) if threshold else 0
        return Ended(detail=dropped, counts={"ELEMENTS_MASKED": dropped})

    def _read(self, ranks: Sequence[int], first: Command, commands: Mapping[int, Command]) -> list[Bits]:
        """Return the gradients that a command reads on each node, one row per gradient."""
        if first.operation not in (Operation.FUSED_UPDATE, Operation.ALL_REDUCE, Operation.REDUCE_SCATTER):
            return [np.zeros((1, 0), np.uint32)] * len(ranks)
        places = ring.places(first.length, stride=first.stride)
        return [self._addends([rank], commands[rank].gradient_base + places) for rank in ranks]

    def _bind(self, rank: int, command: Command) -> None:
        """Make the weight codec use the codebook in the node's memory for an update or all-gather."""
        if command.operation in (Operation.FUSED_UPDATE, Operation.ALL_GATHER) and "codebook" in self.memories:
            words = self.memories["codebook"][rank]
            self._weight_codec = self._weight_codec.bind(words[len(words) // 2:])

    def _count_words(self, outcome: Collected) -> None:
        """Add a collective's words to the nodes' counters; each node sends to its successor."""
        for number, rank in enumerate(outcome.ranks):
            self.counters["WORDS_SENT"][rank] += outcome.words[number]
            self.counters["WORDS_RECEIVED"][rank] += outcome.words[number - 1]

    def _flags(self, outcome: Collected, gradients: Sequence[Bits], operation: Operation) -> dict[int, EventFlag]:
        """Return each node's flags, which report a NaN among its gradients or a non-finite sum that it has formed. In
        an all-reduce with sums of integers, every node rounds, and thus checks, all sums."""
        flags = dict.fromkeys(outcome.ranks, EventFlag(0))
        if outcome.total is None:
            return flags
        wrong = ~np.isfinite(ring.floats(outcome.total))
        rounded = self.config.adds_integers and operation is Operation.ALL_REDUCE
        for number, rank in enumerate(outcome.ranks):
            if np.isnan(ring.floats(gradients[number])).any():
                flags[rank] |= EventFlag.LOCAL_NAN
            if wrong.any() and (rounded or self._sees(outcome, number, wrong, gradients)):
                flags[rank] |= EventFlag.NOT_FINITE
        return flags

    def _sees(self, outcome: Collected, number: int, wrong: npt.NDArray[np.bool_],
              gradients: Sequence[Bits]) -> bool:
        """Return whether a node has formed a non-finite sum. With most codecs, it can tell only for its own block."""
        if wrong[outcome.own[number]].any():
            return True
        if self.config.gradients != ZERO_VALUE:
            return False
        count = len(outcome.ranks)
        for owner, index in enumerate(outcome.own):
            hops = (number - owner - 1) % count  # number of additions before this node's addition
            before = [(owner + 1 + hop) % count for hop in range(hops + 1)]
            total = np.zeros(len(index), np.float32)
            for node in before:
                with np.errstate(all="ignore"):
                    total = total + ring.floats(gradients[node][0])[index]
            if hops and not np.isfinite(total).all():
                return True
        return False
