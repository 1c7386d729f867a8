"""Cycles of a training step under each schedule, compared with the serial time and the bound.

The lab predicts the cycles from the golden timing model and durations from :mod:`host.cycles.estimate`, without
simulating nodes. With ``--output`` it also writes each schedule's timeline as a trace and a figure.
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

#: Number of pixels and classes of the digits data set, and number of its training examples.
INPUTS, CLASSES = 64, 10


@dataclasses.dataclass(frozen=True)
class Row:
    """Predicted training step of one schedule."""

    schedule: str
    cycles: int
    #: Total cycles of the computing and of the communicating queue. The larger total is a lower bound of a step.
    compute: int
    communicate: int
    spans: list[Span]

    @property
    def bound(self) -> int:
        return max(self.compute, self.communicate)


def forecast(sizes: Sequence[int], *, nodes: int, costs: Costs) -> tuple[list[Row], list[str]]:
    """Predict a training step of a perceptron for all schedules with every possible chunk size. ``sizes`` are the
    layer widths, including inputs and outputs. Returns the rows and the log of the search."""
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
    """Format the rows as a table, starting with the serial schedule."""
    serial = rows[0].cycles
    return Table("cycles of a training step: modelled", (
        Column("schedule"), Column("cycles", format=","),
        Column("of_serial", format=".3f", of=lambda row: row.cycles / serial), Column("compute", format=","),
        Column("communicate", format=","),
        Column("bound", format=".3f", title="bound, of serial", of=lambda row: row.bound / serial)), rows)


@dataclasses.dataclass(frozen=True)
class NetworkOptions(Section):
    """Options of a network for the digits, and of the nodes that train it."""

    hidden: str = option("32x9", help="Widths of hidden layers.")
    batch: int = option(32, help="Number of examples in a step.", minimum=1, maximum=COUNT)
    nodes: int = option(4, help="Number of nodes.", minimum=1, maximum=16)
    macs: int = option(MACS, help="Multiply-adds per cycle of each node.", minimum=1, maximum=COUNT)

    @property
    def sizes(self) -> list[int]:
        """Widths of the network, including inputs and outputs."""
        return [INPUTS, *widths(self.hidden), CLASSES]

    @property
    def costs(self) -> Costs:
        """Costs of the commands that train the network."""
        return Costs(examples=-(-self.batch // self.nodes), macs=self.macs)


@command
def schedules_lab(
    *, network: NetworkOptions,
    output: Annotated[Path | None, Option("Folder for timelines.", shown_default="none")] = None,
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
