"""Measure the cycles of training steps on simulated nodes if layers compute with delayed weights.

Delayed weights lack the latest updates, so that passes can overlap. The lab runs several overlapping passes of a deep
network, with different numbers of delayed layers, and prints the cycles per pass, the cycles of the serial schedule,
the bound, and the version of the weights used by each layer. Computation is only modelled, and gradients are dense
and random; with ``--compute node``, the nodes' engines compute on random inputs.
"""

import dataclasses
import enum
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np

from hdl.config import Memories, NodeConfig, Weights
from hdl.features.compute.feature import Compute
from hdl.features.compute_stub.feature import ComputeStub
from hdl.features.programs.feature import Programs
from host.columns import Column, Table, columns_of, record
from host.cycles.estimate import Costs
from host.driver.memory import Buffer
from host.driver.optimizer_settings import Rule, Settings
from host.driver.results import known
from host.driver.ring import Ring
from host.features.compute.engine import Computer
from host.features.compute.instructions import Array
from host.features.compute.lists import compile_lists
from host.features.programs.delayed import run_passes
from host.features.programs.program import CompiledProgram
from host.features.programs.ring_programs import Passes
from host.features.programs.schedules import Computed, Copies, Kind, Schedule, build
from host.labs.kit import BUILD, Results, numbers
from host.labs.schedules.lab import CLASSES, INPUTS, NetworkOptions
from host.models.layer_shapes import Dense, layers_of
from host.options import Option, command
from host.schema import Schema
from host.transports.session import open_session
from sim.golden.features.programs.program import GAP

__all__ = ["SCHEMA", "Bench", "Row", "delayed_lab", "table"]

#: Number of passes in a run, at most the four passes that a trace can hold. The first few passes, whose number
#: follows, only fill the queues and are not measured.
_PASSES, _FILLING = 4, 2

_SETTINGS = Settings(rule=Rule.MOMENTUM, gradient_scale=0.25, learning_rate=0.01, first_decay=0.9)


@dataclasses.dataclass(frozen=True)
class Row:
    """Measurements of the passes of one schedule."""

    schedule: str
    #: Number of cycles from the last update of a pass to the last update of the next pass.
    cycles: float
    #: Cycles per pass of all commands in the computing and in the communicating queue, on the slowest node.
    compute: float
    communicate: float
    #: Number of commands per pass in the communicating queue.
    commands: int
    #: For each layer, the number of updates that its weights lack in the last pass.
    versions: list[int]

    @property
    def bound(self) -> float:
        """Return the cycles of the busier queue, including the gaps between communicating commands."""
        return max(self.compute, self.communicate + GAP * self.commands)


class Bench:
    """Nodes for measuring a network, with two queues, master weights, and weight versions. The second
    copy of the weights is stored ``distance`` elements after the first."""

    def __init__(self, ring: Ring, layers: Sequence[Dense], costs: Costs, *, distance: int):
        self._ring = ring
        self._layers = layers
        self._costs = costs
        self._distance = distance
        self._length = layers[-1].base + layers[-1].length
        self._generator = np.random.default_rng(0)
        self._staged = Buffer("gradients", self._length, self._length)

    def measure(self, schedule: Schedule) -> Row:
        """Run training passes with a schedule, and measure their cycles."""
        ring, stale = self._ring, schedule.kind is Kind.DELAYED
        copies = Copies(layers=schedule.behind, distance=self._distance) if stale else None
        computer = self._computer(copies) if ring.devices[0].config.compute else None
        computed = None if computer is None else Computed(
            computer.lists.commands, [self._costs.examples] * ring.nodes)
        program = build(schedule, self._layers, nodes=ring.nodes, costs=self._costs, distance=self._distance,
                        depth=ring.devices[0].config.programs.depth, staged=self._length, computed=computed)
        ring.collectives.distribute(self._generator.standard_normal(self._length).astype(np.float32) / 8)
        ring.memory.write_weights_of(list(ring.memory.read_weights(self._length)),
                                     Buffer("weights", self._distance, self._length))
        ring.memory.clear_state(self._length)
        ring.settings.set_weight_stride(self._distance)
        if computer is not None:
            computer.prepare()
        ring.programs.load([program.commands(rank, ring.nodes) for rank in range(ring.nodes)])
        if stale:
            run = run_passes(ring, program, [_SETTINGS] * _PASSES, first=0,
                             after="backward 1" if computer is None else "forward 1",
                             give=lambda number: self._give(computer, number % 2))
        else:  # passes cannot overlap without flags and a second copy of the weights, so each is a separate run
            self._give(computer, 0)
            ring.settings.write(_SETTINGS)
            run = ring.programs.run(collectives=program.collectives)
        return self._row(schedule, program, run)

    def _computer(self, copies: Copies | None) -> Computer:
        config = self._ring.devices[0].config
        array = Array(rows=config.compute.rows, lanes=config.lanes, operands=config.compute.operands)
        lists = compile_lists(self._layers, array=array, examples=self._costs.examples, copies=copies,
                              words=config.compute.activations)
        return Computer(self._ring, lists, self._length)

    def _give(self, computer: Computer | None, odd: int) -> None:
        """Write inputs and labels to the nodes, or stage gradients if the nodes have no engine."""
        ring, examples, random = self._ring, self._costs.examples, self._generator
        if computer is None:
            ring.memory.write_gradients(list(random.standard_normal((ring.nodes, self._length)).astype(np.float32)),
                                        self._staged)
        else:
            computer.give([(random.standard_normal((examples, INPUTS)).astype(np.float32),
                            random.integers(0, CLASSES, examples)) for _ in range(ring.nodes)], odd=odd)

    def _row(self, schedule: Schedule, program: CompiledProgram, run: Passes) -> Row:
        places, versions, stale = {task.name: task.place for task in program.tasks}, [], schedule.kind is Kind.DELAYED
        passes, cycles = 1, float(known(run.outcome.cycles))
        if stale:
            last = max(task.place for task in program.tasks if task.name.startswith("update"))
            ends = [[record.time for record in trace if (record.tag, record.end) == (last, True)]
                    for trace in run.traces]
            passes, cycles = _PASSES, max(times[-1] - times[_FILLING - 1] for times in ends) / (_PASSES - _FILLING)
            for layer in self._layers:
                forward = places[f"forward {layer.number}"], False
                versions += [_PASSES - 1 - version for version in {
                    [record.version for record in trace if (record.tag, record.end) == forward][-1]
                    for trace in run.traces}]
        busy = [max(sum((1 if record.end else -1) * record.time for record in trace if record.queue == queue)
                    for trace in run.traces) / passes for queue in (0, 1)]
        return Row(str(schedule), cycles, busy[0], busy[1], len(program.queues[1]), versions)


#: Columns of the JSON report.
_COLUMNS = columns_of(Row, "bound")

#: Schema of the report.
SCHEMA = Schema("gradring.delayed_updates", 1, columns_of("compute", Column("rows", columns=_COLUMNS)))


def table(rows: Sequence[Row], *, compute: str) -> Table:
    """Format the rows as a table, with the serial schedule first."""
    return Table(f"cycles of a pass; compute: {compute}", (
        Column("schedule"), Column("cycles", format=",.0f"),
        Column("of_serial", format=".3f", of=lambda row: row.cycles / rows[0].cycles),
        Column("compute", format=",.0f"), Column("communicate", format=",.0f"),
        Column("of_the_bound", format=".3f", of=lambda row: row.cycles / row.bound),
        Column("versions", title="updates that layers lack", of=lambda row: row.versions or None)), rows)


class Engine(enum.StrEnum):
    """Source of the gradients: a model of the computation, or the nodes' engines."""

    MODELLED = "modelled"
    NODE = "node"


@command
def delayed_lab(
    *, network: NetworkOptions,
    behind: Annotated[str, Option("Comma-separated numbers of delayed layers.")] = "0,1,2,3,5,10",
    compute: Annotated[Engine, Option("Computation of gradients: modelled by COMPUTE, or by the engines of nodes.")] =
        Engine.MODELLED,
    output: Annotated[Path, Option("Folder for stale.json.", shown_default="build/stale")] = BUILD / "stale",
) -> None:
    """Measure passes with weights that lack the latest updates."""
    layers = layers_of(network.sizes)
    schedules = [Schedule(Kind.NONE), Schedule(Kind.LAYERS),
                 *(Schedule(Kind.DELAYED, count) for count in numbers("Delayed layers", behind))]
    length = layers[-1].base + layers[-1].length
    words = 1 << (2 * length - 1).bit_length()
    node = NodeConfig(memories=Memories(gradient=words, weight=words, planes=1), weights=Weights(master=True),
                      masking=False, sparsify=False, programs=Programs(versions=True))
    node = (node.replace(compute=Compute(rows=network.macs // node.lanes, activations=words))
            if compute is Engine.NODE else node.replace(stub=ComputeStub()))
    results = Results(output, "stale.json")
    # The timed run includes the time in which the host writes the data of the passes.
    with open_session(nodes=network.nodes, config=node, host_port=False) as session:
        bench = Bench(session.ring, layers, network.costs, distance=words // 2)
        rows = [bench.measure(schedule) for schedule in schedules]
    results.show(table(rows, compute="engine" if compute is Engine.NODE else "modelled"))
    results.write(SCHEMA.report({"compute": compute.value, "rows": [record(_COLUMNS, row) for row in rows]}))
