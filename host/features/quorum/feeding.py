"""Supply data for a run of quorum rounds: the host provides each node's data while the run is in progress.

In a round, nodes do not wait for each other's gradients. A pass of the computing queue consists of one
COMPUTE, and a pass of the other queue of APPLY_LATE, LATCH and FUSED_UPDATE. Nodes may be at different passes of the
computing queue. The host stages the next computation of a node after both the node's current computation and the
previous round, which produces the weights, have ended. docs/ring/quorum.md specifies the rules.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hdl.control.protocol import EventStatus, Operation
from host.driver.command import Command, Event
from host.driver.memory import Buffer, aligned
from host.driver.protocols import TrainingRing
from host.driver.ring import Ring
from host.driver.trace import TraceRecord
from host.features.programs.ring_programs import NodeProgram
from host.features.programs.schedules import SETTINGS_FLAG, STAGED_FLAG
from sim.golden.features.quorum.rounds import AGES, ONE, SLOTS, Close, QuorumRounds, scale_table

__all__ = ["Closing", "QuorumFeeder", "QuorumModel", "QuorumProgram", "TraceReader"]

Bits: TypeAlias = npt.NDArray[np.uint32]

#: Tags of the commands.
COMPUTE, APPLY_LATE, LATCH, UPDATE = range(4)

#: Number of trace words used by a command for its start and end.
_RECORDS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Closing:
    """Rules for when a round closes; they must be the same on all nodes of a ring."""

    #: Number of timely gradients that are needed to close a round.
    quorum: int
    #: Number of cycles after which a round with a gradient is closed; 0 for no deadline.
    deadline: int = 0
    #: Weights of late gradients in sixteenths, by age: :func:`~sim.golden.features.quorum.rounds.stale_weights`. They
    #: do not increase with age: a gradient that is too late for one round is also too late for all later ones.
    weights: Sequence[int]

    def __post_init__(self) -> None:
        if not 1 <= self.quorum <= 16:
            raise ValueError(f"Quorum must be between 1 and 16, not {self.quorum!r}")
        if not 0 <= self.deadline < 1 << 32:
            raise ValueError(f"Deadline must be between 0 and 2^32 - 1 cycles, not {self.deadline!r}")
        if len(self.weights) != AGES or any(not 0 <= weight <= ONE for weight in self.weights):
            raise ValueError(f"Weights of late gradients must be {AGES} numbers between 0 and {ONE}, not "
                             f"{self.weights!r}")
        if any(older > younger for younger, older in itertools.pairwise(self.weights)):
            raise ValueError(f"Weights of late gradients must not grow with their age, not {self.weights!r}")

    def registers(self) -> dict[str, int | float]:
        """Return the registers that define when rounds close and how stale gradients are weighted."""
        packed = sum(weight << 5 * index for index, weight in enumerate(self.weights))
        parts = {f"STALE_WEIGHTS_{n}": packed >> 25 * n & (1 << 25) - 1 for n in range(3)}
        return {"QUORUM": self.quorum, "DEADLINE": self.deadline, **parts}


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuorumProgram:
    """Program for the nodes of a ring that compute gradients for rounds. The gradient memory contains, in this order,
    two slots for gradients, a buffer of zeros, and the staging buffer for COMPUTE."""

    nodes: int
    #: Number of elements of a gradient and of the weights; the weights start at element 0.
    length: int
    #: Duration in cycles of the computation on each node.
    durations: Sequence[int]

    def __post_init__(self) -> None:
        if not 2 <= self.nodes <= 16:
            raise ValueError(f"Rounds must have between 2 and 16 nodes, not {self.nodes!r}")
        if len(self.durations) != self.nodes:
            raise ValueError(f"Durations must be one per node, {self.nodes}, not {len(self.durations)}")

    @property
    def stride(self) -> int:
        """Distance between the starts of two slots, in elements."""
        return aligned(self.length)

    @property
    def words(self) -> int:
        """Elements of the gradient memory in use."""
        return (SLOTS + 2) * self.stride

    def slot(self, number: int) -> Buffer:
        """Return the buffer of a slot; slot 2 is the buffer of zeros."""
        return Buffer("gradients", number * self.stride, self.length)

    @property
    def staged(self) -> Buffer:
        """Staging buffer, from which COMPUTE copies a gradient to a slot."""
        return self.slot(SLOTS + 1)

    def commands(self, rank: int) -> NodeProgram:
        """Return the commands for each queue of a node."""
        common = {"length": self.length, "round": 1}
        return [
            [Command(operation=Operation.COMPUTE, tag=COMPUTE, state_base=self.staged.base, wait=STAGED_FLAG,
                     duration=self.durations[rank], after_0=3, lag_0=1, **common)],
            [Command(operation=Operation.APPLY_LATE, tag=APPLY_LATE, **common),
             Command(operation=Operation.LATCH, tag=LATCH, wait=SETTINGS_FLAG),
             Command(operation=Operation.FUSED_UPDATE, tag=UPDATE, rank=rank, size=self.nodes, **common)],
        ]

    def prepare(self, ring: TrainingRing, closing: Closing, *, scale: float) -> None:
        """Load the programs, the rules for closing rounds, the buffer of zeros and the table of scales. Each entry of
        the table is ``scale``, the factor for a single node's gradient, divided by a number of gradients."""
        if ring.nodes != self.nodes:
            raise ValueError(f"Ring must have {self.nodes} nodes, not {ring.nodes}")
        if closing.quorum > self.nodes:
            raise ValueError(f"Quorum must be at most the nodes, {self.nodes}, not {closing.quorum}")
        if self.words > ring.memory.allocator.room("gradients"):
            raise ValueError(f"Gradient memory must have {self.words} elements for two slots, zeros and a staged "
                             f"gradient, not {ring.memory.allocator.room('gradients')}")
        ring.programs.load([self.commands(rank) for rank in range(self.nodes)])
        ring.quorum.write_rules({**closing.registers(), "GRADIENT_STRIDE": self.stride}, scale_table(scale))
        ring.memory.write_gradients([np.zeros(self.length, np.uint32)] * self.nodes, self.slot(SLOTS))

    def resume(self, ring: TrainingRing, rounds: QuorumRounds) -> None:
        """Restore a golden model's pending gradients on the nodes, before a run."""
        for rank in range(self.nodes):
            for slot, (tag, gradient) in enumerate(rounds.pending(rank).items()):
                ring.quorum.resume_set(rank, slot, tag, gradient, self.slot(slot))


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuorumModel:
    """Callbacks that connect a run of rounds to the model being trained."""

    #: Golden model of the rounds, with the state from which the run continues.
    rounds: QuorumRounds
    #: Computes the gradient of a rank for a round, using the weights after all previous rounds.
    gradient: Callable[[int, int], npt.NDArray[Any]]
    #: Called with a closed round and all nodes' contributions, before gradients of later rounds are requested.
    closed: Callable[[Close, list[Bits]], None]
    #: Called with the number of a round, before its LATCH, to write the settings of its update.
    settings: Callable[[int], None]
    #: Called with the number of each round after the first, before any node computes for it; returns False to end the
    #: run with the previous round.
    may_begin: Callable[[int], bool] = lambda number: True


class QuorumFeeder:
    """Stage the next computation of each node, and track the rounds through their events. The run has ``passes``
    passes, after ``first`` earlier ones."""

    def __init__(self, ring: TrainingRing, program: QuorumProgram, model: QuorumModel, *, passes: int, first: int):
        self._ring, self._program, self._model, self._rounds = ring, program, model, model.rounds
        self._first = self._newest = first
        #: Number of the round that follows the last round of the run.
        self.last = first + passes
        self._asked = [first] * program.nodes  # COMPUTE commands with their flag set, by rank
        self._ended = {tag: [first] * program.nodes for tag in (COMPUTE, APPLY_LATE, LATCH, UPDATE)}
        self._staged: list[dict[int, Bits]] = [{} for _ in range(program.nodes)]
        #: Masks of each round of the run, as reported by APPLY_LATE events.
        self.masks: dict[int, int] = {}
        self._followed = first  # number of rounds that have been closed by the golden model

    @property
    def ended(self) -> bool:
        """Whether all nodes have completed the updates of all rounds."""
        return min(self._ended[UPDATE]) >= self.last

    @property
    def computing(self) -> dict[int, int]:
        """Round that each computing node is working on, keyed by rank."""
        return {rank: number for rank, staged in enumerate(self._staged) for number in staged}

    def begin(self) -> None:
        """Give the nodes their data for the first pass, before the run starts."""
        self._give_settings(self._first)
        self._give()

    def on_event(self, rank: int, event: Event) -> None:
        """Handle an event of the run, and stage the next data for the nodes."""
        if event.status != EventStatus.OK:
            return
        ended = self._ended[event.tag]
        number, before = ended[rank], min(ended)
        ended[rank] += 1
        if event.tag == COMPUTE:
            gradient = self._staged[rank].pop(number, None)
            if event.detail:
                if gradient is None:
                    raise RuntimeError(f"Node {rank} must skip round {number}, for which nothing was staged")
                self._rounds.ready(rank, number, gradient)
        elif event.tag == APPLY_LATE and self.masks.setdefault(number, event.detail) != event.detail:
            raise RuntimeError(f"Nodes must have the same masks of round {number}, not 0x{event.detail:08x} and "
                               f"0x{self.masks[number]:08x}")
        elif event.tag == LATCH and before < min(ended) < self.last:
            self._give_settings(min(ended))
        self._follow()
        self._give()

    def _follow(self) -> None:
        """Close the rounds for which the golden model has received all gradients."""
        while self._followed in self.masks:
            number, masks = self._followed, self.masks[self._followed]
            on_time, late = masks & 0xFFFF, masks >> 16
            for rank in range(self._program.nodes):
                sets = self._rounds.pending(rank)
                if on_time >> rank & 1 and number not in sets:
                    return
                if late >> rank & 1 and self._rounds.late_tag(rank, number) is None:
                    return
            closed = Close(tag=number, on_time=on_time, late=late, index=self._rounds.index(number, on_time, late))
            self._followed += 1
            self._model.closed(closed, self._rounds.close(closed))

    def _give(self) -> None:
        """Stage the next gradient of each node that has finished its computation, if its weights are known."""
        for rank in range(self._program.nodes):
            number = self._asked[rank]
            if number != self._ended[COMPUTE][rank] or number >= self.last or number > self._followed:
                continue
            if number > self._newest:
                self._newest = number
                if not self._model.may_begin(number):
                    self.last = number
                    return
            if number in self.masks and self._ended[APPLY_LATE][rank] <= number:
                continue  # the node may not have closed the round yet
            self._asked[rank] += 1
            if number not in self.masks:  # nodes do not compute for closed rounds
                gradient = np.asarray(self._model.gradient(rank, number))
                words = gradient.astype(np.float32).view(np.uint32) if gradient.dtype.kind == "f" else gradient
                self._staged[rank][number] = words.astype(np.uint32)
                self._ring.quorum.write_gradient_of(rank, words, self._program.staged)
            self._ring.quorum.set_flags_of(rank, STAGED_FLAG)

    def _give_settings(self, number: int) -> None:
        self._model.settings(number)
        self._ring.settings.set_flags(SETTINGS_FLAG)


class TraceReader:
    """Reads traces in parts, for runs with more commands than a trace holds; create it before the run."""

    def __init__(self, ring: Ring):
        self._devices = ring.devices
        #: Number of commands for which a node can keep records.
        self.room = ring.devices[0].config.memory_map["trace"].words // _RECORDS
        self._since = [int(device.read_register("TRACE_POINTER")) for device in self._devices]
        self._events = [0] * len(self._devices)
        self._records: list[list[TraceRecord]] = [[] for _ in self._devices]

    def on_event(self, rank: int) -> None:
        """Count a completed command, and read the node's trace before it is half full."""
        self._events[rank] += 1
        if self._events[rank] >= self.room // 2:
            self._read(rank)

    def finish(self) -> list[list[TraceRecord]]:
        """Return all records of each node, after the run."""
        for rank in range(len(self._devices)):
            self._read(rank)
        return self._records

    def _read(self, rank: int) -> None:
        records = self._devices[rank].trace(self._since[rank])
        self._records[rank] += records
        self._since[rank] += len(records)
        self._events[rank] = 0
