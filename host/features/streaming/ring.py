"""Layer streaming on nodes: runs a plan's sets on a ring of workers and a server (the last rank).

Workers run a program with three queues. The server runs only the communicating queue, and its commands wait only for
each other: a FETCH or PUSH begins when all nodes have reached it. Inputs and labels are written to the workers' far
memories through the first bank of buffers, with one MOVE_OUT per microbatch, and losses are read in the same way.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hdl.config.forms import name_of
from hdl.control.protocol import Operation
from host.driver.command import Command, Event
from host.driver.optimizer_settings import Settings
from host.driver.ring import Ring
from host.driver.trace import TraceRecord
from host.features.programs.order import Region
from host.features.programs.program import CompiledProgram, Queue
from host.features.streaming.lists import StreamingLists, first_bases, streaming_program
from sim.golden.features.streaming.streaming import Counts

__all__ = ["SetOutcome", "SetProgram", "StreamingRing", "node_programs"]

Bits = npt.NDArray[np.uint32]
#: Number of commands that a worker runs between two reads of its trace.
_READ_AFTER = 40
#: Number of sets that a run and an edit can distinguish; sets are numbered from 0.
_SETS = 1 << 16
#: Number of examples of each microbatch of each worker.
Lengths: TypeAlias = list[list[int]]
#: Inputs and labels of a worker in a set.
Share = tuple[npt.NDArray[np.float32], npt.NDArray[np.integer]]


def node_programs(program: CompiledProgram, nodes: int) -> list[list[list[Command]]]:
    """Commands in each queue of each node; the server is the last node."""
    *workers, server = (program.commands(rank, nodes) for rank in range(nodes))
    served = [dataclasses.replace(op, after_0=0, lag_0=0, after_1=0, lag_1=0) for op in server[Queue.COMMUNICATE]]
    return [*workers, [served if queue == Queue.COMMUNICATE else [] for queue in range(len(server))]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SetProgram:
    """Program of a set of microbatches, with its lists and the addresses of its units."""

    lists: StreamingLists
    #: Addresses of the units in the server's memories.
    bases: Sequence[int]
    #: Number of examples of each microbatch of each worker.
    lengths: Lengths
    compiled: CompiledProgram


@dataclasses.dataclass(frozen=True, kw_only=True)
class SetOutcome:
    """Losses of a set of microbatches, and the trace of its run."""

    #: Loss of each worker (row) in each microbatch, summed over examples, as bit patterns.
    losses: Bits
    #: Starts and ends of the first worker's commands, if the set was traced.
    records: list[TraceRecord]
    #: Program of the set; the tags in the records are indices into it.
    program: CompiledProgram


def _joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge adjacent and overlapping ranges of elements, given as (first element, count)."""
    joined: list[tuple[int, int]] = []
    for base, count in sorted(spans):
        if joined and base <= sum(joined[-1]):
            begun = joined[-1][0]
            joined[-1] = begun, max(sum(joined[-1]), base + count) - begun
        else:
            joined.append((base, count))
    return joined


class StreamingRing:
    """Connected workers and their server (the last node) that execute a plan and train a model layer by layer. Raises
    ``ValueError`` if the last node is not a server, or if another node is not a worker.

    Given the ``state`` of other nodes and a copy of their contents, these nodes continue from that state.
    """

    def __init__(self, ring: Ring, lists: StreamingLists, *, state: Mapping[str, Any] | None = None):
        roles = [name_of(type(device.config.role)) for device in ring.devices]
        if roles != ["worker"] * (len(roles) - 1) + ["server"] or len(roles) < 2:
            raise ValueError(f"Nodes must be workers and as the last one a server, not {', '.join(roles)}")
        #: Instruction lists of the workers.
        self.lists = lists
        self._ring, self._plan = ring, lists.plan
        *self._workers, self._server = ring.devices
        #: Addresses of the units in the server's memories.
        self.bases: Sequence[int] = first_bases([unit.length for unit in self._plan.units])
        self._lengths: Lengths | None = None
        self._program: CompiledProgram
        self._sets = 0
        self._following: SetProgram | None = None
        self._earlier: int | None = None
        #: For each edit: its set, and the first worker's NODE_TIME before the edit and after all acknowledgements.
        self.edited: list[tuple[int, int, int]] = []
        if state is None:
            self._write_lists(lists)
            return
        self.bases, self._lengths, self._sets = state["bases"], state["lengths"], state["sets"]
        self._program = self.prepare(lists, self.bases, self._lengths).compiled

    def state(self) -> dict[str, Any]:
        """Return the addresses of lists and units, the microbatch sizes, and the number of sets."""
        return {"lists": self.lists.base, "bases": list(self.bases), "lengths": self._lengths, "sets": self._sets}

    def live(self, planes: int) -> list[dict[str, list[tuple[int, int]]]]:
        """Return the memory windows that the next set reads before it writes them, for each node and for both the
        current and the staged program. They are the workers' instruction lists, and the server's weights, state
        planes and counts of the latest set."""
        both = [(self.lists, self.bases)]
        if self._following is not None:
            both.append((self._following.lists, self._following.bases))
        lists = _joined((listed.base, len(listed.words)) for listed, _ in both)
        units = _joined((base, unit.length) for listed, bases in both
                        for base, unit in zip(bases, listed.plan.units, strict=True))
        served = {name: units for name in ("weights", *(f"state_{plane}" for plane in range(planes)))}
        if self._server.config.role.broadcast_formats:
            served["counts"] = [(0, 4 * len(self._plan.units))]
        return [*({"activations": lists} for _ in self._workers), served]

    def follow(self, following: SetProgram) -> None:
        """Adopt the program that was staged on other nodes, after their contents have been copied to these."""
        self._following = following

    def _write_lists(self, lists: StreamingLists) -> None:
        for rank in range(len(self._workers)):
            self._write(rank, lists.base, lists.words)

    def serve(self, masters: Sequence[Bits], state: Sequence[Sequence[Bits]]) -> None:
        """Write the weights and state planes of all units to the server."""
        lengths = [unit.length for unit in self._plan.units]
        if (total := sum(map(len, masters))) != sum(lengths):
            raise ValueError(f"Weights must be {sum(lengths):,}, those of all units, not {total:,}")
        for base, master, planes in zip(self.bases, masters, state, strict=True):
            self._serve(base, master, planes)

    def _serve(self, base: int, master: Bits, planes: Sequence[Bits]) -> None:
        memories = self._server.config.memory_map
        self._server.write_memory(memories["weights"].number, base, master)
        for plane, words in enumerate(planes):
            self._server.write_memory(memories[f"state_{plane}"].number, base, words)

    def served(self, planes: int) -> tuple[list[Bits], list[list[Bits]]]:
        """Read the units' weights and state planes from the server."""
        def of(name: str) -> list[Bits]:
            number = self._server.config.memory_map[name].number
            return [self._server.read_memory(number, base, unit.length).view(np.uint32)
                    for base, unit in zip(self.bases, self._plan.units, strict=True)]

        return of("weights"), [of(f"state_{plane}") for plane in range(planes)]

    def counts(self) -> tuple[dict[int, Counts], dict[int, Counts]]:
        """Read the server's counts for each unit in the FETCH and the PUSH of the last set."""
        units = self._plan.units
        table = self._server.read_memory(self._server.config.memory_map["counts"].number, 0, 4 * len(units))
        rows = table.view(np.uint32).reshape(-1, 2, 2).tolist()
        fetched, pushed = ({number: Counts(unit.words, *row[half])
                             for number, (unit, row) in enumerate(zip(units, rows, strict=True))} for half in (0, 1))
        return fetched, pushed

    def prepare(self, lists: StreamingLists, bases: Sequence[int], lengths: Lengths | None = None) -> SetProgram:
        """Compile the program of a set, with full microbatches unless ``lengths`` is given. Raises ``ProgramError``
        if it does not fit in a queue."""
        lengths = lengths or [[lists.plan.microbatch] * lists.plan.count for _ in self._workers]
        return SetProgram(lists=lists, bases=bases, lengths=lengths, compiled=streaming_program(
            lists, lengths=lengths, depth=self._workers[0].config.programs.depth, bases=bases))

    def stage(self, following: SetProgram, *, number: int, settings: Settings,
              units: Sequence[tuple[int, Bits, Sequence[Bits]]]) -> Iterator[None]:
        """Stage the program and data of the next set on nodes with two banks, step by step, before or during a set.
        The last step is a numbered EDIT that all nodes acknowledge.

        ``units`` lists the units that are new on the server, each with its address, weights and state.
        """
        if following.lists.base != self.lists.base:
            self._write_lists(following.lists)
            yield
        for base, master, planes in units:
            self._serve(base, master, planes)
            yield
        yield from self._ring.programs.stage(node_programs(following.compiled, self._ring.nodes))
        self._ring.settings.write(settings)
        yield
        if self._earlier is None:  # edit numbers start after the last edit of an earlier run
            self._earlier = max(int(device.read_fields("PROGRAM_SET")["latest"]) for device in self._ring.devices)
        begun = int(self._workers[0].read_register("NODE_TIME"))
        self._ring.programs.edit(number=self._earlier + number, set=self._sets % _SETS)
        self.edited.append((self._sets, begun, int(self._workers[0].read_register("NODE_TIME"))))
        self._following = following

    def turn(self) -> None:
        """Switch to the staged program, if any, as the nodes do at the start of the next set."""
        if self._following is not None:
            following, self._following = self._following, None
            self.lists, self._plan, self.bases = following.lists, following.lists.plan, following.bases
            self._program, self._lengths = following.compiled, following.lengths

    def run_set(self, shares: Sequence[Share], *, traced: bool, meanwhile: Iterator[None]) -> SetOutcome:
        """Run a set of ``count`` microbatches, all full except possibly the last, and wait for its end.

        If ``traced``, the trace of the first worker is read in parts while the set runs, since a node stores 256
        records. The steps of :meth:`stage` for the next set (``meanwhile``) are executed one per event, after all
        nodes have latched the settings of this set; the remaining steps follow after the set.
        """
        self.turn()
        plan = self._plan
        lengths = [[len(labels[first:first + plan.microbatch]) for first in self._firsts] for _, labels in shares]
        if lengths != self._lengths:
            program = self.prepare(self.lists, self.bases, lengths).compiled
            self._ring.programs.load(node_programs(program, self._ring.nodes))
            self._lengths, self._program = lengths, program
        self._give(shares)
        records: list[TraceRecord] = []
        device, counted = self._workers[0], itertools.count(1)
        begun = int(device.read_register("TRACE_POINTER")) if traced else 0
        latched: set[int] = set()
        number = self._sets
        self._sets += 1

        def react(rank: int, event: Event) -> None:
            if traced and rank == 0 and next(counted) % _READ_AFTER == 0:
                records.extend(device.trace(begun + len(records)))
            if event.queue == Queue.COMMUNICATE:
                latched.add(rank)
            if len(latched) == self._ring.nodes:
                next(meanwhile, None)

        self._ring.programs.run(collectives=self._program.collectives, first=number % _SETS, traced=False,
                                on_event=react)
        for _ in meanwhile:
            pass
        if traced:
            records += device.trace(begun + len(records))
        return SetOutcome(losses=self._losses(), records=records, program=self._program)

    @property
    def _firsts(self) -> range:
        """Index of the first example in each microbatch."""
        return range(0, self._plan.microbatch * self._plan.count, self._plan.microbatch)

    def _give(self, shares: Sequence[Share]) -> None:
        """Write inputs and labels to the workers' far memories."""
        plan = self._plan
        for number, first in enumerate(self._firsts):
            inputs, labels = plan.far("x", number, 1), plan.far("labels", number)
            for rank, (x, targets) in enumerate(shares):
                rows = np.zeros((plan.microbatch, plan.stride(plan.widths[0])), np.float32)
                part = x[first:first + plan.microbatch]
                rows[:len(part), :part.shape[1]] = part
                self._write(rank, 0, rows.ravel().view(np.uint32))
                own = targets[first:first + plan.microbatch].astype(np.uint32)
                self._write(rank, inputs.length, np.pad(own, (0, labels.length - len(own))))
            self._move(Operation.MOVE_OUT, 0, inputs)
            self._move(Operation.MOVE_OUT, inputs.length, labels)

    def _losses(self) -> Bits:
        """Read the losses of all microbatches from the workers' far memories."""
        losses = np.zeros((len(self._workers), self._plan.count), np.uint32)
        for number in range(self._plan.count):
            self._move(Operation.MOVE_IN, 0, self._plan.far("loss", number))
            for rank, device in enumerate(self._workers):
                losses[rank, number] = device.read_memory(device.config.memory_map["activations"].number, 0, 1)[0]
        return losses

    def _write(self, rank: int, base: int, words: Bits) -> None:
        device = self._workers[rank]
        device.write_memory(device.config.memory_map["activations"].number, base, words)

    def _move(self, operation: Operation, near: int, far: Region) -> None:
        """Move words between near and far memory on all workers."""
        self._ring.commands.run_apart({rank: Command(operation=operation, weight_base=near, state_base=far.base,
                                                     length=far.length) for rank in range(len(self._workers))})
