"""Cycles of a training step with weights that are an update behind, on simulated nodes with modelled compute.

``python -m host.reports.stale_speed`` runs the deep network, 64-32x9-10, with dense random gradients for some passes
that overlap, with every number of layers behind that is asked for, and prints the cycles of a pass beside those of
the serial schedule, the bound, and the versions of weights that the layers have computed with.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hdl.config import NodeConfig
from host.driver.buffers import Buffer
from host.driver.optimizer_settings import Rule, Settings
from host.driver.ring import Ring
from host.models.widths import widths
from host.output import write_json
from host.program.estimate import MACS, Costs
from host.program.feeding import run_passes
from host.program.schedules import Dense, Kind, Schedule, build, layers_of
from host.transports.session import open_session
from sim.golden.program import GAP

__all__ = ["Row", "main", "measure", "table"]

#: Pixels and classes of digits.
_INPUTS, _CLASSES = 64, 10

#: Passes of a run, of which the first two fill the queues; the trace of a node holds four of the deep network.
_PASSES, _FILLING = 4, 2

_SETTINGS = Settings(rule=Rule.MOMENTUM, gradient_scale=0.25, learning_rate=0.01, first_decay=0.9)


@dataclasses.dataclass(frozen=True)
class Row:
    """Passes by a schedule.

    Members
    -------
    schedule : str
    cycles : float
        Of a pass, from the end of its last update to that of the next pass.
    compute, communicate : float
        Cycles of all commands of a queue in a pass, on the node where they are most.
    commands : int
        Commands of the queue that communicates.
    versions : list of int
        Updates that the weights of each layer lack in the last pass.
    """

    schedule: str
    cycles: float
    compute: float
    communicate: float
    commands: int
    versions: list[int]

    @property
    def bound(self) -> float:
        """Longer one of both queues, that of the ring with its gaps."""
        return max(self.compute, self.communicate + GAP * self.commands)


def measure(ring: Ring, layers: Sequence[Dense], schedule: Schedule, costs: Costs) -> Row:
    """Run passes of a schedule on nodes that have two queues, masters and versions."""
    length = layers[-1].base + layers[-1].length
    # The serial schedule has no flags and no second copy, so its passes are runs of their own.
    program = build(schedule, layers, nodes=ring.nodes, costs=costs, staged=length, distance=length,
                    depth=ring.devices[0].config.program_depth)
    generator = np.random.default_rng(0)
    ring.distribute(generator.standard_normal(length).astype(np.float32))
    ring.write_weights_of(list(ring.read_weights(length)), Buffer("weights", length, length))
    ring.clear_state(length)
    ring.write_weight_stride(length)
    ring.load_programs([program.commands(rank, ring.nodes) for rank in range(ring.nodes)])
    staged = Buffer("gradients", length, length)
    gradients = list(generator.standard_normal((ring.nodes, length)).astype(np.float32))
    last = max(task.place for task in program.tasks if task.name.startswith("update"))
    if schedule.kind is Kind.STALE:
        found = run_passes(ring, program, [_SETTINGS] * _PASSES, first=0, after="backward 1",
                           give=lambda number: ring.write_gradients(gradients, staged))
        ends = [[record.time for record in trace if (record.tag, record.end) == (last, True)]
                for trace in found.traces]
        passes, cycles = _PASSES, max(mine[-1] - mine[_FILLING - 1] for mine in ends) / (_PASSES - _FILLING)
    else:
        ring.write_gradients(gradients, staged)
        ring.write_settings(_SETTINGS)
        found = ring.run_programs(collectives=program.collectives)
        passes, cycles = 1, float(found.outcome.cycles)
    busy = [max(sum((1 if record.end else -1) * record.time for record in trace if record.queue == queue)
                for trace in found.traces) / passes for queue in (0, 1)]
    versions = []
    if schedule.kind is Kind.STALE:
        forward = {task.name: task.place for task in program.tasks}
        for layer in layers:
            seen = {[record.version for record in trace if (record.tag, record.end) == (
                forward[f"forward {layer.number}"], False)][-1] for trace in found.traces}
            versions += [_PASSES - 1 - version for version in seen]
    return Row(str(schedule), cycles, busy[0], busy[1], len(program.queues[1]), versions)


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown, of which the first is the serial one."""
    lines = ["| schedule | cycles | of serial | compute | communicate | of the bound | updates that layers lack |",
             "|---|---:|---:|---:|---:|---:|---|"]
    for row in rows:
        lacking = " ".join(map(str, row.versions)) or "-"
        lines.append(f"| {row.schedule} | {row.cycles:,.0f} | {row.cycles / rows[0].cycles:.3f} | "
                     f"{row.compute:,.0f} | {row.communicate:,.0f} | {row.cycles / row.bound:.3f} | {lacking} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m host.reports.stale_speed",
                                     description="Measure passes that overlap, with modelled compute.")
    parser.add_argument("--hidden", default="32x9", help="widths of hidden layers [32x9]")
    parser.add_argument("--batch", type=int, default=32, help="examples in a step [32]")
    parser.add_argument("--nodes", type=int, default=4, help="nodes [4]")
    parser.add_argument("--macs", type=int, default=MACS, help=f"multiply-adds per cycle [{MACS}]")
    parser.add_argument("--behind", default="0,1,2,3,5,10", help="numbers of layers that are behind [0,1,2,3,5,10]")
    parser.add_argument("--output", type=Path, default=Path("build/stale"), help="folder of stale.json [build/stale]")
    options = parser.parse_args(arguments)
    layers = layers_of([_INPUTS, *widths(options.hidden), _CLASSES])
    words = 1 << (2 * (layers[-1].base + layers[-1].length) - 1).bit_length()
    node = NodeConfig(queues=2, versions=True, masters=True, stand_in=True, state_planes=1, gradient_words=words,
                      weight_words=words, masking=False, error_feedback=False)
    costs = Costs(examples=-(-options.batch // options.nodes), macs=options.macs)
    schedules = [Schedule(Kind.NONE), Schedule(Kind.LAYERS),
                 *(Schedule(Kind.STALE, int(layers)) for layers in options.behind.split(","))]
    # Gradients are staged beside the timed run, since engines would make them on the nodes.
    with open_session(nodes=options.nodes, config=node, host_port=False) as session:
        rows = [measure(session.ring, layers, schedule, costs) for schedule in schedules]
    print(table(rows))
    print("compute: modelled")
    found: list[dict[str, Any]] = [{**dataclasses.asdict(row), "bound": row.bound} for row in rows]
    write_json(options.output / "stale.json", {"compute": "modelled", "rows": found})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
