"""Execute training steps as passes of a program (:mod:`host.features.programs.schedules`).

Without a schedule, the program is one fused update, and the host writes the gradients to its buffer. With a schedule,
the host stages the gradients, and COMPUTE copies each layer's gradients when a real engine would produce them. Nodes
that compute (:mod:`host.features.compute.engine`) get inputs and labels instead. The results are bit-identical.
"""

import collections
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from hdl.config import NodeConfig, Weights
from hdl.features.programs.feature import Programs
from hdl.group import GROUP
from host.cycles.estimate import Costs
from host.driver.memory import Buffer, distance_of
from host.driver.protocols import TrainingRing
from host.driver.results import Cycles, Outcome, known
from host.driver.words import Vector
from host.feature import feature
from host.features.programs.program import CompiledProgram, Queue, origin_of, spans
from host.features.programs.ring_programs import Passes
from host.features.programs.schedules import Computed, Kind, Schedule, Trials, build, fused
from host.models.layer_shapes import Dense
from host.training.comparison import most
from host.training.executions import Differentiator, Execution
from host.training.record import NODE, TrainingConfig
from host.training.reference import Part
from host.training.workloads import Classifier, Workload
from sim.golden.features.programs.program import Span, makespan, timeline
from sim.golden.ring import largest_block

__all__ = ["OVERLAPS", "ProgramExecution", "Timing", "busiest", "check_schedule", "costs_of",
           "durations_of", "execution_of", "layers_for", "number_of", "overlaps", "patience_of", "programmed",
           "spans_of", "timing_of"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """Number of cycles of a pass, measured from the nodes' traces."""

    schedule: str
    #: Cycles from the first start to the last end. If passes overlap: from the last update of the previous pass to
    #: the last update of this pass.
    cycles: int
    #: Number of cycles of this pass in the golden timing model, given the measured durations of its commands.
    modelled: int
    #: Sum of the durations in each queue, on the node with the largest sum.
    compute: int
    communicate: int
    #: Spans of all commands; empty if passes overlap.
    spans: Sequence[Span]

    @property
    def figures(self) -> dict[str, Any]:
        """Return the timing as entries for a step's report."""
        return {"schedule": self.schedule, "modelled_cycles": self.modelled, "compute_cycles": self.compute,
                "communicate_cycles": self.communicate}


#: Schedules that every network can use.
OVERLAPS = (Kind.NONE.value, Kind.STRICT.value, Kind.LAYERS.value)


class ProgramExecution(Execution):
    """Executes the steps of a run, each as a pass of a program. By default the program is one fused update of the
    gradients in place; with a schedule, it is built from the layers and the durations of their commands.

    With a ``computer``, nodes compute the gradients, and the program of a schedule contains each node's number of
    examples. When this number changes, the commands of the compute queue are reloaded.
    """

    def __init__(self, ring: TrainingRing, length: int, *, schedule: Schedule | None = None,
                 layers: Sequence[Dense] = (), costs: Costs | None = None, packed_state: bool = False,
                 computer: Differentiator | None = None):
        super().__init__(ring, length)
        self.computer = computer
        #: Number of computation cycles in the last step, without a schedule.
        self.compute_cycles: Cycles = 0
        self._asked = schedule
        self._layers = layers
        self._costs = costs
        self._packed_state = packed_state
        self._trials = Trials(max(len(layers) - 1, 1))
        self._last: Schedule | None = None
        self._loaded: tuple[Schedule | None, list[int], CompiledProgram] | None = None
        #: Timing of the last pass, if there is a schedule and the nodes trace commands.
        self.timing: Timing | None = None

    @property
    def _searches(self) -> bool:
        return self._asked is not None and self._asked.kind is Kind.SEARCH

    @property
    def schedule(self) -> Schedule | None:
        """Schedule of the next step: the requested one, or the one that a search tries or has chosen."""
        return Schedule(Kind.CHUNKS, self._trials.size) if self._searches else self._asked

    @property
    def log(self) -> list[str]:
        """Lines for the log that describe the chosen tilings and schedule."""
        notes = [] if self.computer is None else self.computer.notes
        return [*notes, *(self._trials.lines() if self._searches else ())]

    def write(self, gradients: Sequence[Vector]) -> None:
        """Write each node's gradients, either in place or to the staging buffer of COMPUTE."""
        self._ring.memory.write_gradients(gradients, None if self._asked is None else Buffer(
            "gradients", self._length, self._length))

    def compute(self, shares: Sequence[Any]) -> None:
        assert self.computer is not None
        self.computer.give(shares)
        if self._asked is None:
            self.compute_cycles = self.computer.run()
            if self.computer.programmed:
                self._loaded = None

    def update(self) -> Outcome:
        schedule = self.schedule
        program, passes = self._run(schedule)
        cycles = passes.outcome.cycles
        if schedule is not None and any(passes.traces):
            self.timing = timing_of(str(schedule), program, passes)
            cycles = self.timing.cycles
        if self._searches and not self._trials.over:
            self._trials.note(known(cycles))
        self._last = schedule
        return dataclasses.replace(passes.outcome, cycles=cycles)

    @property
    def timeline(self) -> list[list[Any]] | None:
        return None if self.timing is None else [list(dataclasses.astuple(span)) for span in self.timing.spans]

    def figures(self, before: list[dict[str, int]], after: list[dict[str, int]]) -> dict[str, Any]:
        timing, figures = self.timing, self.engine_figures(before, after)
        if timing is not None:
            return {**figures, **timing.figures}
        if self._last is None:
            return {**figures, "compute_cycles": self.compute_cycles}
        # cycles are unknown if golden nodes run a command with no cycle model
        return {**figures, "schedule": str(self._last), **dict.fromkeys(
            ("modelled_cycles", "compute_cycles", "communicate_cycles"))}

    def engine_figures(self, before: list[dict[str, int]], after: list[dict[str, int]]) -> dict[str, Cycles]:
        """Return the report entries for nodes that compute; counters are as for :meth:`figures`."""
        if self.computer is None:
            return {}
        return {"gemm_cycles": most("GEMM_CYCLES", before, after),
                "vector_cycles": most("VECTOR_CYCLES", before, after),
                "centroid_multiplications": self.computer.multiplications}

    def warm_up(self) -> None:
        self._run(self._last or self.schedule)

    def _run(self, schedule: Schedule | None) -> tuple[CompiledProgram, Passes]:
        """Load a schedule's program unless the nodes already hold it, and run one pass."""
        program = self._load(schedule)
        return program, self._ring.programs.run(collectives=program.collectives)

    def _load(self, schedule: Schedule | None) -> CompiledProgram:
        """Load a schedule's program unless the nodes already hold it."""
        ring = self._ring
        lengths = [] if schedule is None or self.computer is None else self.computer.lengths
        if self._loaded is None or self._loaded[:2] != (schedule, lengths):
            program = self._program(schedule)
            ring.programs.load([program.commands(rank, ring.nodes) for rank in range(ring.nodes)],
                               changes=self._loaded is not None and self._loaded[0] == schedule)
            self._loaded = schedule, lengths, program
        return self._loaded[2]

    def _program(self, schedule: Schedule | None) -> CompiledProgram:
        """Build a schedule's program, and store its collectives as the :attr:`parts` of a step."""
        if schedule is None or self._costs is None:
            return fused(self._length, owner=self._ring.partition.root)
        program = _build(self._ring.config, self._layers, schedule, self._ring.nodes, self._costs,
                         packed_state=self._packed_state, computer=self.computer)
        self.parts = [Part(task.operation, *(number_of(task.fields[name]) for name in
                                             ("gradient_base", "length", "block_offset")))
                      for task in program.tasks if task.collective]
        return program

    def state(self) -> dict[str, Any]:
        return {"trials": [list(trial) for trial in self._trials.trials],
                "last": None if self._last is None else str(self._last)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; it contains no trials and no schedule if the run did not use programs."""
        trials, last = state.get("trials", ()), state.get("last")
        self._trials = Trials(max(len(self._layers) - 1, 1), [(size, cycles) for size, cycles in trials])
        self._last = None if last is None else Schedule.parse(last)


def number_of(value: int | Sequence[int]) -> int:
    """Return a field that must be the same on all ranks."""
    if not isinstance(value, int):
        raise TypeError(f"Field of a collective must be the same for all ranks, not {value!r}")
    return value


def spans_of(passes: Passes, program: CompiledProgram) -> list[Span]:
    """Return the spans of all nodes from their traces, ordered by start."""
    origin = origin_of(passes.traces)
    return sorted((span for node, trace in enumerate(passes.traces)
                   for span in spans(trace, program, node=node, origin=origin)),
                  key=lambda span: (span.start, span.node))


def durations_of(spans: Sequence[Span], program: CompiledProgram) -> dict[tuple[int, int, int, int], int]:
    """Command durations, keyed by node, pass, queue and index; a collective starts when its last node does."""
    latest = {(span.number, span.queue, span.place): span.start for span in sorted(spans, key=lambda run: run.start)}

    def begun(span: Span) -> int:
        together = program.queues[span.queue][span.place].task.collective
        return latest[span.number, span.queue, span.place] if together else span.start

    return {(span.node, span.number, span.queue, span.place): span.end - begun(span) for span in spans}


def busiest(durations: Mapping[tuple[int, int, int, int], int], number: int = 0) -> dict[str, int]:
    """Number of busy cycles in a pass on the busiest node of each queue, ``compute`` or ``communicate``."""
    cycles: collections.Counter[tuple[int, int]] = collections.Counter()
    for (node, pass_number, queue, _), duration in durations.items():
        if pass_number == number:
            cycles[queue, node] += duration
    return {name: max((count for (where, _), count in cycles.items() if where == queue), default=0)
            for name, queue in (("compute", Queue.COMPUTE), ("communicate", Queue.COMMUNICATE))}


def timing_of(name: str, program: CompiledProgram, passes: Passes) -> Timing:
    """Return the timing of a run with one pass."""
    measured = spans_of(passes, program)
    durations = durations_of(measured, program)
    golden = timeline(program.timed(), nodes=len(passes.traces), duration=lambda *where: durations[where])
    return Timing(schedule=name, cycles=makespan(measured), modelled=makespan(golden), **busiest(durations),
                  spans=measured)


def differentiator_of(ring: TrainingRing, workload: Workload, config: TrainingConfig) -> Differentiator | None:
    """Create the object that makes the ring's nodes compute gradients; None if the host computes them."""
    computer: Differentiator | None = None
    if config.compute == NODE:
        computer = feature("compute").differentiator(ring, workload, config)
    return computer


def execution_of(ring: TrainingRing, workload: Workload, config: TrainingConfig) -> ProgramExecution:
    """Create the execution of a run's steps from its configuration."""
    length = int(workload.parameters.size)
    computer = differentiator_of(ring, workload, config)
    if config.overlap is None:
        return ProgramExecution(ring, length, computer=computer)
    return ProgramExecution(
        ring, length, schedule=Schedule.parse(config.overlap), layers=layers_for(workload),
        costs=costs_of(workload, config, ring.nodes), packed_state=config.packed_state, computer=computer)


def overlaps(config: TrainingConfig) -> list[str]:
    """Schedules to compare; chunk sizes are powers of two, from 2 to below the number of hidden layers."""
    sizes = itertools.takewhile(lambda size: size < len(config.hidden), (2 << n for n in itertools.count()))
    return [*OVERLAPS, *(f"chunks:{size}" for size in sizes)]


def patience_of(workload: Workload, config: TrainingConfig, nodes: int) -> int:
    """Maximum number of cycles that one queue waits for the other."""
    if config.overlap is None:
        return 0
    costs = costs_of(workload, config, nodes)
    return sum(costs.compute(layer.multiplications(backward=backward))
               for layer in layers_for(workload) for backward in (False, True))


def layers_for(workload: Workload) -> list[Dense]:
    """Return the workload's layers for use by a schedule."""
    if not isinstance(workload, Classifier):
        raise ValueError(f"Workload of a schedule must be digits, not {workload.name.value}")
    return workload.layers


def costs_of(workload: Workload, config: TrainingConfig, nodes: int) -> Costs:
    """Estimated durations of the commands in a run's schedule."""
    return Costs(examples=-(-config.largest(workload.examples) // nodes), macs=config.macs)


def _build(node: NodeConfig, layers: Sequence[Dense], schedule: Schedule, nodes: int, costs: Costs, *,
           packed_state: bool, computer: Differentiator | None = None) -> CompiledProgram:
    schedule.check_state(packed=packed_state)
    computed = None if computer is None else Computed(computer.commands, computer.lengths)
    # Nodes without programs can run a default program, because the driver sends them the commands.
    depth = (node.programs or Programs()).depth
    return build(schedule, layers, nodes=nodes, costs=costs, staged=layers[-1].base + layers[-1].length,
                 computed=computed, depth=depth, distance=distance_of(node))


def programmed(node: NodeConfig, length: int, layers: int, *, stale: bool = False, nodes: int = 1) -> NodeConfig:
    """Return the configuration with several queues and enough memory for programs with the given number of layers.
    Without a compute engine, it gets COMPUTE and memory to stage gradients. For overlapping passes (``stale``) on
    ``nodes`` nodes, it counts weight updates and has master weights and memory for two copies of the weights.
    """
    programs = Programs() if node.programs is None else node.programs
    depth = max(programs.depth, 1 << (2 * layers - 1).bit_length())
    built = node.replace(programs=programs.replace(depth=depth))
    if stale:
        built = built.replace(
            programs={"versions": True}, weights=built.weights if built.weights.has_master else Weights(master=True),
            memories={"weight": max(node.memories.weight, 2 << (length - 1).bit_length()),
                      "state": max(node.memories.state, 1 << (largest_block(length, nodes) - 1).bit_length())})
    if node.compute:
        return built
    words = max(node.memories.gradient, 1 << (2 * length - 1).bit_length())
    return built.replace(stub={}, memories={"gradient": words})


def _check_stale(node: NodeConfig, config: TrainingConfig) -> None:
    """Check that nodes meet the requirements of overlapping passes."""
    if not (node.programs and node.programs.versions and node.weights.has_master):
        raise ValueError("Nodes must count updates of weights and have masters for passes that overlap")
    if node.codebook_words:
        raise ValueError(f"Weights must go through a codec without a codebook in passes that overlap, not "
                         f"{node.weights.codec}")
    if node.adds_integers:
        raise ValueError(f"Gradients must not be summed as integers in passes that overlap, as in {node.gradients}")
    if config.compute == NODE and not config.check:
        raise ValueError("Run of nodes that compute must be checked where passes overlap, since the golden model "
                         "keeps the older weights")


def check_schedule(node: NodeConfig, workload: Workload, config: TrainingConfig, *, nodes: int) -> None:
    """Raise ``ValueError`` with the reason if a ring of these nodes cannot train with this schedule."""
    assert config.overlap is not None
    layers, schedule = layers_for(workload), Schedule.parse(config.overlap)
    if schedule.kind is Kind.DELAYED:
        _check_stale(node, config)
    length = layers[-1].base + layers[-1].length
    if config.density is not None:
        raise ValueError("Density must not be given with a schedule, whose programs send everything")
    computes = config.compute == NODE
    if not (computes or node.stub):
        raise ValueError("Nodes must have COMPUTE for a schedule")
    if workload.parameters.size != length:
        raise ValueError(f"Layers must each take whole groups of {GROUP} elements for a schedule, {length:,} in all, "
                         f"not {workload.parameters.size:,}")
    if not computes and 2 * length > node.memories.gradient:
        raise ValueError(f"Gradients and staged gradients must take at most the {node.memories.gradient:,} elements "
                         f"of a node's gradient memory, not {2 * length:,}")
    tried = Schedule(Kind.CHUNKS, 1) if schedule.kind is Kind.SEARCH else schedule
    _build(node, layers, tried, nodes, costs_of(workload, config, nodes), packed_state=config.packed_state)
