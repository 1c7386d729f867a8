"""Table of schedules: cycles of a training step by each, next to the serial time and the bound.

``python -m host.reports.schedules --hidden 32x9 --batch 32`` forecasts it by the golden model of time, with the
durations of :mod:`host.program.estimate`; it simulates nothing. With ``--output`` it also writes the timeline of each
schedule, as a trace and as a picture.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from host.columns import Column, Table, show
from host.models.layers import widths
from host.program.estimate import MACS, Costs
from host.program.program import DEPTH, CompiledProgram
from host.program.schedules import Kind, Schedule, build, layers_of, search
from host.reports.timeline import draw, write_trace
from sim.golden.program import Span, makespan, timeline

__all__ = ["CLASSES", "INPUTS", "Row", "add_network", "forecast", "main", "network_of", "table"]

#: Pixels and classes of digits, and examples that training uses.
INPUTS, CLASSES = 64, 10


@dataclasses.dataclass(frozen=True)
class Row:
    """A step by one schedule."""

    schedule: str
    cycles: int
    #: Cycles of all commands of each queue, one after the other: no step is shorter than the larger of both.
    compute: int
    communicate: int

    spans: list[Span]

    @property
    def bound(self) -> int:
        return max(self.compute, self.communicate)


def _row(schedule: Schedule, program: CompiledProgram, nodes: int) -> Row:
    spans = timeline(program.timed(), nodes=nodes)
    compute, communicate = (sum(one.task.duration for one in queue) for queue in program.queues)
    return Row(str(schedule), makespan(spans), compute, communicate, spans)


def forecast(sizes: Sequence[int], *, nodes: int, costs: Costs) -> tuple[list[Row], list[str]]:
    """Rows of all schedules of a perceptron, with chunks of every size there is; and the log of the search.

    Widths of the perceptron include inputs and outputs.
    """
    layers = layers_of(sizes)
    staged = layers[-1].base + layers[-1].length

    def row(schedule: Schedule) -> Row:
        program = build(schedule, layers, nodes=nodes, costs=costs, staged=staged, depth=max(DEPTH, 2 * len(layers)))
        return _row(schedule, program, nodes)

    rows = [row(Schedule(kind)) for kind in (Kind.NONE, Kind.STRICT, Kind.LAYERS)]
    rows += [row(Schedule(Kind.CHUNKS, size)) for size in range(2, len(layers))]
    log = search(len(layers) - 1, lambda size: row(Schedule(Kind.CHUNKS, size)).cycles).lines() if layers[1:] else []
    return rows, log


def table(rows: Sequence[Row]) -> Table:
    """The rows, of which the first is the serial one."""
    serial = rows[0].cycles
    return Table("cycles of a training step: modelled", (
        Column("schedule"), Column("cycles", format=","),
        Column("of_serial", format=".3f", of=lambda row: row.cycles / serial), Column("compute", format=","),
        Column("communicate", format=","),
        Column("bound", format=".3f", title="bound, of serial", of=lambda row: row.bound / serial)), rows)


def add_network(parser: argparse.ArgumentParser) -> None:
    """Add the options of a network for digits, and of the nodes that train it."""
    parser.add_argument("--hidden", default="32x9", help="widths of hidden layers [32x9]")
    parser.add_argument("--batch", type=int, default=32, help="examples in a step [32]")
    parser.add_argument("--nodes", type=int, default=4, help="nodes [4]")
    parser.add_argument("--macs", type=int, default=MACS, help=f"multiply-adds per cycle [{MACS}]")


def network_of(options: argparse.Namespace) -> tuple[list[int], Costs]:
    """Widths of the network that such options name, inputs and outputs included, and costs of its commands."""
    return ([INPUTS, *widths(options.hidden), CLASSES],
            Costs(examples=-(-options.batch // options.nodes), macs=options.macs))


def main(arguments: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m host.reports.schedules",
                                     description="Forecast a training step by every schedule.")
    add_network(parser)
    parser.add_argument("--output", type=Path, help="folder of timelines [none]")
    options = parser.parse_args(arguments)
    sizes, costs = network_of(options)
    rows, log = forecast(sizes, nodes=options.nodes, costs=costs)
    show(table(rows), *log)
    if options.output:
        for row in rows:
            name = row.schedule.replace(":", "-")
            write_trace(row.spans, options.output / f"{name}.json")
            draw(row.spans, options.output / f"{name}.png",
                 title=f"{options.nodes} nodes, {row.schedule}: {row.cycles:,} cycles of {rows[0].cycles:,}",
                 note="forecast; compute: modelled")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
