"""Blocks of passes that overlap, as the nodes of a training run do them, and the cycles of each pass.

The program of a ``delayed:k`` schedule is loaded once. A block is one run of it, which the host feeds
(:mod:`host.program.feeding`); passes are counted from the time at which weights were written to the nodes.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from hdl.memory_map import TRACE_WORDS
from host.driver.memory import Buffer, distance_of
from host.driver.optimizer_settings import FixedSettings, Rule, Settings
from host.driver.protocols import TrainingRing
from host.driver.results import Passes
from host.driver.words import Vector
from host.program.estimate import Costs
from host.program.feeding import run_passes
from host.program.program import CompiledProgram, Queue
from host.program.schedules import Dense, Schedule
from host.training.engine import Computer, computer_of
from host.training.record import DivergenceError, TrainingConfig
from host.training.schedule import Execution, busiest, costs_of, durations_of, layers_for, number_of, spans_of
from host.training.workloads import Workload
from sim.golden.program import Span, timeline

__all__ = ["OverlappingExecution", "PassTiming", "overlapping_execution_of"]

#: Words of a record of a trace, and versions that it tells apart.
_RECORD_WORDS, _VERSIONS = 2, 1 << 13


@dataclasses.dataclass(frozen=True, kw_only=True)
class PassTiming:
    """Cycles of a pass, by the traces of the nodes.

    Members
    -------
    cycles, modelled : int
        From the end of the last update of the pass before, or from the first start of the block, to that of this
        pass; and the same by the golden model of time with the durations that were measured.
    compute, communicate : int
        Sum of the durations in each queue, of the node where it is largest.
    """

    schedule: str
    cycles: int
    modelled: int
    compute: int
    communicate: int

    @property
    def figures(self) -> dict[str, Any]:
        """Figures of a step."""
        return {"schedule": self.schedule, "cycles": self.cycles, "modelled_cycles": self.modelled,
                "compute_cycles": self.compute, "communicate_cycles": self.communicate}


class OverlappingExecution(Execution):
    """The passes of a run, in blocks.

    Parameters
    ----------
    schedule : Schedule
        Of kind ``stale``.
    layers, costs, computer
        Parameters of :class:`~host.training.schedule.Execution`.

    Members
    -------
    spans : list of Span
        All commands of the last block.
    """

    def __init__(self, ring: TrainingRing, length: int, *, schedule: Schedule, layers: Sequence[Dense], costs: Costs,
                 computer: Computer | None = None):
        super().__init__(ring, length, schedule=schedule, layers=layers, costs=costs, computer=computer)
        self._schedule = schedule
        self.spans: list[Span] = []

    @property
    def distance(self) -> int:
        """See :func:`~host.driver.memory.distance_of`."""
        return distance_of(self._ring.config)

    @property
    def apart(self) -> int:
        """Elements of layers with two copies of their weights, which come first."""
        return sum(layer.length for layer in self._layers[:self._schedule.behind])

    @property
    def _second(self) -> Buffer:
        return Buffer("weights", self.distance, self.apart)

    @property
    def most(self) -> int:
        """Most passes of a block, whose records a trace holds."""
        commands = 3 * len(self._layers) + 1
        return max(1, int(TRACE_WORDS) // _RECORD_WORDS // (2 * commands))

    @property
    def timeline(self) -> list[list[Any]] | None:
        return [list(dataclasses.astuple(span)) for span in self.spans] or None

    def write_copies(self, even: Vector, odd: Vector) -> None:
        """Write both copies of the weights of layers that have two, in whole vectors, and their distance."""
        self._ring.settings.set_weight_stride(self.distance)
        if self.apart:
            self._ring.memory.write_weights(even[:self.apart])
            self._ring.memory.write_weights(odd[:self.apart], self._second)

    def read_second(self) -> Vector:
        """Read the second copy of the weights of layers that have two, a row for each node."""
        return self._ring.memory.read_weights(self._second)

    def load(self) -> CompiledProgram:
        """Load the program, unless the nodes have it; its collectives are then the :attr:`parts` of a step."""
        return self._load(self._schedule)

    def run_block(self, settings: Sequence[Settings | FixedSettings], *, first: int,
                  give: Callable[[int], None]) -> tuple[Passes, list[PassTiming]]:
        """Do passes.

        Parameters
        ----------
        settings : sequence of Settings
            Of each pass.
        first : int
            Passes since weights were written.
        give : callable
            Called with the number of a pass in the block, from 0; gives nodes what it computes with. With an engine
            all passes have the same numbers of examples, those that were given last.

        Raises
        ------
        DivergenceError
            A layer has computed with other weights than those of its schedule.
        """
        program = self.load()
        passes = run_passes(self._ring, program, settings, first=first, give=give,
                            after="backward 1" if self.computer is None else "forward 1")
        self._check_versions(program, passes, first)
        return passes, self._timings(program, passes, len(settings))

    def warm_up(self) -> None:
        settings = Settings(rule=Rule.SGD, gradient_scale=0.0, learning_rate=0.0)
        self.run_block([settings], first=0, give=lambda number: None)

    def _check_versions(self, program: CompiledProgram, passes: Passes, first: int) -> None:
        """Check the version that each command has computed with."""
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

    def _timings(self, program: CompiledProgram, passes: Passes, count: int) -> list[PassTiming]:
        """Cycles of each pass."""
        self.spans = spans_of(passes, program)
        durations = durations_of(self.spans, program)
        golden = timeline(program.timed(), passes=count, nodes=len(passes.traces),
                          duration=lambda *where: durations[where])
        measured, modelled = (_lasts(found, count) for found in (self.spans, golden))
        return [PassTiming(
            schedule=str(self._schedule), cycles=measured[number], modelled=modelled[number],
            **busiest(durations, number)) for number in range(count)]


def _lasts(found: Sequence[Span], count: int) -> list[int]:
    """Cycles from the last end of a pass's ring to that of the next one, the first from the first start on."""
    ends = [min(span.start for span in found)]
    ends += [max(span.end for span in found if (span.number, span.queue) == (number, Queue.COMMUNICATE))
             for number in range(count)]
    return [after - before for before, after in itertools.pairwise(ends)]


def overlapping_execution_of(ring: TrainingRing, workload: Workload, config: TrainingConfig) -> OverlappingExecution:
    """The way to do the steps of a run whose passes overlap."""
    assert config.overlap is not None
    return OverlappingExecution(
        ring, int(workload.parameters.size), schedule=Schedule.parse(config.overlap), layers=layers_for(workload),
        costs=costs_of(workload, config, ring.nodes), computer=computer_of(ring, workload, config))
