"""Cycles of a training step by each schedule, next to the serial time and the bound.

The lab forecasts them by the golden model of time, with the durations of :mod:`host.cycles.estimate`; it simulates
nothing. With ``--output`` it also writes the timeline of each schedule, as a trace and as a picture.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from host.columns import Column, Table, show
from host.cycles.estimate import MACS, Costs
from host.features.programs.program import DEPTH
from host.features.programs.schedules import Kind, Schedule, build, search
from host.features.programs.timeline import draw, write_trace
from host.models.layer_shapes import layers_of
from host.models.layers import widths
from host.options import COUNT, Option, Section, command, option
from sim.golden.features.programs.program import Span, makespan, timeline

__all__ = ["CLASSES", "INPUTS", "NetworkOptions", "Row", "forecast", "schedules_lab", "table"]

#: Pixels and classes of digits, and examples that training uses.
INPUTS, CLASSES = 64, 10


@dataclasses.dataclass(frozen=True)
class Row:
    """A step by one schedule."""

    schedule: str
    cycles: int
    #: Cycles of all commands of each queue, one after the other: no step is shorter than the larger sum.
    compute: int
    communicate: int
    spans: list[Span]

    @property
    def bound(self) -> int:
        return max(self.compute, self.communicate)


def forecast(sizes: Sequence[int], *, nodes: int, costs: Costs) -> tuple[list[Row], list[str]]:
    """Rows of all schedules of a perceptron, with chunks of all sizes, and the log of the search; ``sizes`` are the
    widths with inputs and outputs."""
    layers = layers_of(sizes)
    staged = layers[-1].base + layers[-1].length

    def row(schedule: Schedule) -> Row:
        program = build(schedule, layers, nodes=nodes, costs=costs, staged=staged, depth=max(DEPTH, 2 * len(layers)))
        spans = timeline(program.timed(), nodes=nodes)
        compute, communicate = (sum(instruction.task.duration for instruction in queue) for queue in program.queues)
        return Row(str(schedule), makespan(spans), compute, communicate, spans)

    rows = [row(Schedule(kind)) for kind in (Kind.NONE, Kind.STRICT, Kind.LAYERS)]
    rows += [row(Schedule(Kind.CHUNKS, size)) for size in range(2, len(layers))]
    log = search(len(layers) - 1, lambda size: row(Schedule(Kind.CHUNKS, size)).cycles).lines() if layers[1:] else []
    return rows, log


def table(rows: Sequence[Row]) -> Table:
    """The rows; the first is the serial one."""
    serial = rows[0].cycles
    return Table("cycles of a training step: modelled", (
        Column("schedule"), Column("cycles", format=","),
        Column("of_serial", format=".3f", of=lambda row: row.cycles / serial), Column("compute", format=","),
        Column("communicate", format=","),
        Column("bound", format=".3f", title="bound, of serial", of=lambda row: row.bound / serial)), rows)


@dataclasses.dataclass(frozen=True)
class NetworkOptions(Section):
    """A network for digits, and the nodes that train it."""

    hidden: str = option("32x9", help="Widths of hidden layers.")
    batch: int = option(32, help="Examples in a step.", minimum=1, maximum=COUNT)
    nodes: int = option(4, help="Nodes.", minimum=1, maximum=16)
    macs: int = option(MACS, help="Multiply-adds per cycle.", minimum=1, maximum=COUNT)

    @property
    def sizes(self) -> list[int]:
        """Widths of the network, inputs and outputs included."""
        return [INPUTS, *widths(self.hidden), CLASSES]

    @property
    def costs(self) -> Costs:
        """Costs of its commands."""
        return Costs(examples=-(-self.batch // self.nodes), macs=self.macs)


@command
def schedules_lab(
    *, network: NetworkOptions,
    output: Annotated[Path | None, Option("Folder of timelines.", shown_default="none")] = None,
) -> None:
    """Forecast a training step by every schedule."""
    rows, log = forecast(network.sizes, nodes=network.nodes, costs=network.costs)
    show(table(rows), *log)
    if output is None:
        return
    for row in rows:
        name = row.schedule.replace(":", "-")
        write_trace(row.spans, output / f"{name}.json")
        draw(row.spans, output / f"{name}.png",
             title=f"{network.nodes} nodes, {row.schedule}: {row.cycles:,} cycles of {rows[0].cycles:,}",
             note="forecast; compute: modelled")
