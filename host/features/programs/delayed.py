"""Training with overlapping passes (schedule ``delayed:k``), in blocks that are checked bit for bit.

First, the golden model computes the steps of a block; the weights of the first k layers lack the previous step's
update. The nodes then execute the block in one run. At its end, both copies of the weights, the master weights, the
state, the residuals, and the number of words sent by the nodes are compared. Each command must have used the version
of the weights that the schedule prescribes.

A command of a program can wait for a flag, which the host sets and the command clears. Each pass therefore uses its
own data, regardless of the host's speed: when a command has ended on all nodes, the host replaces the data it used
with the data of the next pass, and sets the flag.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.control.protocol import EventStatus
from hdl.memory_map import TRACE_WORDS
from host.cycles.estimate import Costs
from host.driver.command import Event
from host.driver.memory import Buffer, distance_of
from host.driver.optimizer_settings import FixedSettings, Rule, Settings
from host.driver.protocols import TrainingRing
from host.driver.words import Vector
from host.features.programs.execution import (
    ProgramExecution,
    Timing,
    busiest,
    costs_of,
    differentiator_of,
    durations_of,
    layers_for,
    number_of,
    spans_of,
)
from host.features.programs.program import CompiledProgram, Queue
from host.features.programs.ring_programs import Passes
from host.features.programs.schedules import SETTINGS_FLAG, STAGED_FLAG, Schedule
from host.models.layer_shapes import Dense
from host.training.batches import Batch
from host.training.comparison import (
    compare_master,
    compare_memories,
    compare_rows,
    gradients_of,
    growth,
    most,
    names,
    refuse_nonfinite,
)
from host.training.executions import Differentiator
from host.training.record import DivergenceError, Step
from host.training.reference import words_of
from host.training.updates import UpdateExecutor
from sim.golden.features.programs.program import Span, timeline
from sim.golden.ring import Traffic

__all__ = ["DelayedExecutor", "OverlappingExecution", "run_passes"]


Bits = npt.NDArray[np.uint32]


@dataclasses.dataclass
class _Golden:
    """A step of the golden model."""

    batch: Batch
    shares: list[npt.NDArray[np.intp]]
    losses: list[float]
    gradients: list[Vector]
    settings: Settings | FixedSettings
    traffic: Traffic


class DelayedExecutor(UpdateExecutor):
    """Executes the steps of a run with overlapping passes, in blocks. A block also ends when share sizes change on
    computing nodes, or when the traces are full."""

    _execution: "OverlappingExecution"

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.most, self.equal = self._execution.most, self._computer is not None
        self._passes = 0  # number of passes since the weights were written

    def _executes(self, ring: TrainingRing) -> "OverlappingExecution":
        workload, config = self._workload, self._config
        assert config.overlap is not None
        return OverlappingExecution(
            ring, self._length, schedule=Schedule.parse(config.overlap), layers=layers_for(workload),
            costs=costs_of(workload, config, ring.nodes), computer=differentiator_of(ring, workload, config))

    @property
    def _newest(self) -> int:
        return (self._passes + 1) % 2

    def _model(self, weights: Vector) -> None:
        super()._model(weights)
        self._older: Bits = self._reference.weights.copy()  # weights before the last update

    def _distribute(self, weights: Vector) -> None:
        super()._distribute(weights)
        self._spread()

    def _spread(self) -> None:
        """Write both copies of the weights, and restart the pass count from 0, an even pass."""
        self._execution.write_copies(self._older.view(np.float32), self._reference.weights.view(np.float32))
        self._passes = 0

    def _copies(self) -> tuple[Bits, Bits]:
        """Return both copies of the weights as whole vectors, which differ only in the first layers."""
        newest = self._reference.weights
        return (self._older, newest) if self._passes % 2 == 0 else (newest, self._older)

    def _laid_out(self) -> Bits:
        """Return the weights as they are stored in a node's memory from the base address on."""
        return self._with_first_layers(self._copies()[0])

    def _with_first_layers(self, weights: Bits) -> Bits:
        """Return the newest weights, but with ``weights`` for the layers that keep two copies."""
        mixed = self._reference.weights.copy()
        mixed[self._apart] = weights[self._apart]
        return mixed

    @property
    def _apart(self) -> slice:
        """Slice of the weights in layers with two copies."""
        return slice(0, self._execution.apart)

    def _block(self, first: int, batches: Sequence[Batch]) -> list[tuple[Step, float, int]]:
        ring, last = self._ring, first + len(batches) - 1
        if self._computer is not None:  # loading the program needs each node's number of examples
            self._give(np.array_split(batches[0].examples, ring.nodes), [])
        self._execution.load()
        golden = [self._golden(number, batch) for number, batch in enumerate(batches, first)]

        def give(number: int) -> None:
            step = golden[number]
            if self._computer is None:
                self._execution.write(step.gradients)
            else:
                self._computer.give([self._workload.examples_of(share) for share in step.shares],
                                    odd=(self._passes + number) % 2)

        passes, timings = self._execution.run_block([step.settings for step in golden], first=self._passes,
                                                      give=give)
        self._passes += len(golden)
        refuse_nonfinite(passes.outcome, range(ring.nodes),
                         {number: step.gradients for number, step in enumerate(golden, first)},
                         self._workload.element_at)
        self.training.timeline = self._execution.timeline
        before, counters = self._count()
        self._compare(last, golden, growth(self._reference.counter, before, counters))
        # Counters are read once per block: its last step reports all repairs, and cycles are divided among the steps.
        repairs = self._repairs(before, counters)
        figures = {**self._execution.engine_figures(before, counters),
                   "scatter_cycles": most("SCATTER_REDUCE_CYCLES", before, counters)}
        parts = {name: None if cycles is None else cycles // len(golden) for name, cycles in figures.items()}
        steps = []
        for number, (step, timing) in enumerate(zip(golden, timings, strict=True)):
            share = {**parts, **(repairs if number == len(golden) - 1 else {})}
            traffic, count = step.traffic, self._workload.count(step.batch.examples)
            steps.append((Step(
                number=first + number, epoch=step.batch.epoch, loss=sum(step.losses) / count, bound=traffic.bound,
                scatter_bound=traffic.scatter_bound, words_sent=int(traffic.words.sum()),
                words_dense=traffic.dense_words, density=traffic.density.tolist(),
                scatter_words=int(traffic.scatter_words.sum()), weight_elements=traffic.gather_elements,
                weight_words=traffic.gather_payload, nodes=ring.nodes, cycles=timing.cycles, **timing.figures,
                **share),
                sum(step.losses), count))
        return steps

    def _golden(self, number: int, batch: Batch) -> _Golden:
        """Run a step of the golden model and store the newest parameters in the workload."""
        reference, parameters = self._reference, self._workload.parameters
        shares = np.array_split(batch.examples, self._ring.nodes)
        parameters[...] = self._form.parameters(self._with_first_layers(self._older).view(np.float32))
        self._masks.number = number
        losses, differences = zip(*self._workload.differentiate(shares, self._masks), strict=True)
        gradients = gradients_of(number, self._form, differences)
        settings = self._settings(number, self._workload.count(batch.examples))
        before = reference.weights
        traffic = reference.step(gradients, settings, self._execution.parts)
        self._older = before
        parameters[...] = self._form.parameters(reference.weights.view(np.float32))
        return _Golden(batch, shares, list(losses), gradients, settings, traffic)

    def _compare(self, number: int, golden: Sequence[_Golden], sent: list[int]) -> None:
        """Compare the nodes with the golden model at the end of a block."""
        if not self._config.check:
            return
        ring, reference = self._ring, self._reference
        compare_rows("weights", number, self._laid_out(), words_of(ring.memory.read_weights(len(reference.weights))))
        if self._apart.stop:
            compare_rows("weights of the second copy", number, self._copies()[1][self._apart],
                         words_of(self._execution.read_second()))
        compare_master(ring, reference, number)
        compare_memories(ring, reference, self._config, number)
        expected = np.sum([step.traffic.words for step in golden], axis=0).tolist()
        if sent != expected:
            raise DivergenceError(f"Step {number}: nodes have sent {names(sent)} words since step "
                                  f"{number - len(golden)}, and must have sent {names(expected)}")
        self._losses(number, golden[-1].losses)

    def _memory(self) -> dict[str, Any]:
        return {**super()._memory(), "older": self._older.copy()}

    def _recall(self, memory: dict[str, Any], *, nodes: bool = True) -> None:
        """Restore a memory; always writes both copies of the weights, since the pass count restarts."""
        self._older = memory["older"].copy()
        super()._recall(memory, nodes=nodes)
        self._spread()


#: Number of words in a trace record, and number of weight versions that a record can distinguish.
_RECORD_WORDS, _VERSIONS = 2, 1 << 13


class OverlappingExecution(ProgramExecution):
    """Executes passes of a run in blocks, with a schedule of kind ``delayed``; see
    :class:`~host.features.programs.execution.ProgramExecution`."""

    def __init__(self, ring: TrainingRing, length: int, *, schedule: Schedule, layers: Sequence[Dense], costs: Costs,
                 computer: Differentiator | None = None):
        super().__init__(ring, length, schedule=schedule, layers=layers, costs=costs, computer=computer)
        self._schedule = schedule
        #: Spans of all commands in the last block.
        self.spans: list[Span] = []

    @property
    def apart(self) -> int:
        """Number of elements in the first layers, which have two copies of their weights."""
        return sum(layer.length for layer in self._layers[:self._schedule.behind])

    @property
    def _second(self) -> Buffer:
        return Buffer("weights", distance_of(self._ring.config), self.apart)

    @property
    def most(self) -> int:
        """Maximum number of passes in a block, limited by the capacity of a trace."""
        commands = 3 * len(self._layers) + 1
        return max(1, int(TRACE_WORDS) // _RECORD_WORDS // (2 * commands))

    @property
    def timeline(self) -> list[list[Any]] | None:
        return [list(dataclasses.astuple(span)) for span in self.spans] or None

    def write_copies(self, even: Vector, odd: Vector) -> None:
        """Write both copies of the weights as whole vectors, and set the distance between them on the nodes."""
        self._ring.settings.set_weight_stride(self._second.base)
        if self.apart:
            self._ring.memory.write_weights(even[:self.apart])
            self._ring.memory.write_weights(odd[:self.apart], self._second)

    def read_second(self) -> Vector:
        """Read the second copy of the weights, one row per node."""
        return self._ring.memory.read_weights(self._second)

    def load(self) -> CompiledProgram:
        """Load the program unless the nodes already hold it; its collectives become the step's :attr:`parts`."""
        return self._load(self._schedule)

    def run_block(self, settings: Sequence[Settings | FixedSettings], *, first: int,
                  give: Callable[[int], None]) -> tuple[Passes, list[Timing]]:
        """Run overlapping passes like :func:`run_passes`, with the latest example counts. Raises ``DivergenceError``
        if a layer used the wrong version of the weights."""
        program = self.load()
        passes = run_passes(self._ring, program, settings, first=first, give=give,
                            after="backward 1" if self.computer is None else "forward 1")
        self._check_versions(program, passes, first)
        return passes, self._timings(program, passes, len(settings))

    def warm_up(self) -> None:
        settings = Settings(rule=Rule.SGD, gradient_scale=0.0, learning_rate=0.0)
        self.run_block([settings], first=0, give=lambda number: None)

    def _check_versions(self, program: CompiledProgram, passes: Passes, first: int) -> None:
        """Check which version of the weights each command has used."""
        layers = {task.place: number_of(task.fields["region"]) for task in program.tasks
                  if task.queue is Queue.COMPUTE}
        for rank, trace in enumerate(passes.traces):
            counts = dict.fromkeys(layers, 0)
            for record in trace:
                if record.end or record.tag not in layers:
                    continue
                number = first + counts[record.tag]
                counts[record.tag] += 1
                expected = max(0, number - 1) if layers[record.tag] <= self._schedule.behind else number
                if record.version != expected % _VERSIONS:
                    raise DivergenceError(
                        f"Pass {number}: layer {layers[record.tag]} of node {rank} has computed with version "
                        f"{record.version} of its weights, and must have with {expected % _VERSIONS}")

    def _timings(self, program: CompiledProgram, passes: Passes, count: int) -> list[Timing]:
        """Compute the timing of each pass."""
        self.spans = spans_of(passes, program)
        durations = durations_of(self.spans, program)
        golden = timeline(program.timed(), passes=count, nodes=len(passes.traces),
                          duration=lambda *where: durations[where])
        return [Timing(schedule=str(self._schedule), cycles=cycles, modelled=modelled, spans=(),
                       **busiest(durations, number))
                for number, (cycles, modelled) in enumerate(zip(
                    _lasts(self.spans, count), _lasts(golden, count), strict=True))]


def _lasts(spans: Sequence[Span], count: int) -> list[int]:
    """Cycles of each pass, from the end of the previous pass's communication to the end of its own. The first pass
    is counted from the first start."""
    ends = [min(span.start for span in spans)]
    ends += [max(span.end for span in spans if (span.number, span.queue) == (number, Queue.COMMUNICATE))
             for number in range(count)]
    return [after - before for before, after in itertools.pairwise(ends)]


def run_passes(ring: TrainingRing, program: CompiledProgram, settings: Sequence[Settings | FixedSettings], *,
               first: int, after: str, give: Callable[[int], None]) -> Passes:
    """Run a loaded program of kind ``delayed`` for several overlapping passes.

    The weights were written to the nodes ``first`` passes ago; ``give`` delivers the data of a pass, numbered from 0.
    ``after`` is the last command of a pass that uses the data, or the memory for the next data: ``backward 1`` if
    COMPUTE copies gradients, ``forward 1`` if even and odd passes have separate inputs.
    """
    tags = {task.name: task.place for task in program.tasks}
    # Keyed by the tag of the last command that uses a pass's data: the function that writes the next data, and the
    # flag to set afterwards.
    feeds = {tags[after]: (give, STAGED_FLAG),
             tags["latch"]: (lambda number: ring.settings.write(settings[number]), SETTINGS_FLAG)}
    ended = {tag: [0] * ring.nodes for tag in feeds}

    def feed(tag: int, number: int) -> None:
        replace, flag = feeds[tag]
        replace(number)
        ring.settings.set_flags(flag)

    def on_event(rank: int, event: Event) -> None:
        if event.tag not in feeds or event.status != EventStatus.OK:
            return
        counts = ended[event.tag]
        before = min(counts)
        counts[rank] += 1
        if before < min(counts) < len(settings):
            feed(event.tag, min(counts))

    for tag in feeds:
        feed(tag, 0)
    return ring.programs.run(collectives=program.collectives, passes=len(settings), parity=first % 2, first=first,
                             on_event=on_event)
