"""Runs in which cards, nodes and links leave and return must end with the same weights as a run on one node.

    python -m tests.host.features.microbatches.elastic --plans 20 --seed 1

trains digits and text on golden nodes of random grids, by random plans, and prints a line for each run.
"""

import argparse
import random
import sys
import tempfile
from pathlib import Path

from host.features.grid.grid import Part
from host.features.grid.reconfiguration import ReconfigurationPlan, Request
from host.run import execution
from host.run.spec import RunSpec
from host.training.workloads import WorkloadName
from host.transports.session import TransportName

__all__ = ["WORKLOADS", "plan", "plans", "train"]

#: Options of each workload. The number of microbatches is the number of nodes in the largest grid.
WORKLOADS = {
    "digits": {"model.hidden": "16", "workload.steps": 8, "workload.batch": 64},
    "text": {"workload.name": WorkloadName.TEXT, "workload.steps": 4, "workload.batch": 16},
}
_MICROBATCHES = 8
_GRIDS = ((2, 2), (2, 4), (4, 2), (1, 8), (3, 2))


def _requests(generator, rows, columns, steps):
    """Yield requests that make random parts leave at random steps; most of these parts return later."""
    for _ in range(generator.randint(1, 3)):
        parts = [f"node{generator.randrange(rows * columns)}", f"card{generator.randrange(rows)}",
                 f"link{generator.randrange(rows * columns)}:{generator.randrange(2)}"]
        part = Part.parse(generator.choice(parts))
        left = generator.randrange(steps - 1)
        yield Request(left, part)
        if generator.random() < 0.8:
            yield Request(generator.randrange(left + 1, steps), part, True)


def plan(generator, steps):
    """Options of a random grid from which parts leave and to which they return during training, so that at least one
    node remains."""
    while True:
        rows, columns = generator.choice(_GRIDS)
        requests = list(_requests(generator, rows, columns, steps))
        try:
            ReconfigurationPlan(rows, columns, requests, gradients="sum32").check(steps)
        except ValueError:
            continue
        listed = {enable: ",".join(f"{request.part}@{request.step}" for request in requests
                                   if request.enable == enable) or None for enable in (False, True)}
        return {"ring.topology": f"{rows}x{columns}", "ring.disable": listed[False], "ring.enable": listed[True]}


def plans(seed, count, steps):
    """Draw several random plans."""
    generator = random.Random(seed)
    return [plan(generator, steps) for _ in range(count)]


def train(workload, folder, **options):
    """Train on golden nodes and return the report."""
    spec = RunSpec().replace({
        "formats.gradients": "sum32", "workload.microbatches": _MICROBATCHES, "output.folder": Path(folder),
        "backend.transport": TransportName.GOLDEN, **WORKLOADS[workload], **options})
    return execution.train(spec)


def main(arguments=None):
    """Train with random plans; return 1 if any run's weights differ from a run on one node."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--plans", type=int, default=20, help="plans of each workload")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workload", choices=WORKLOADS, action="append")
    chosen = parser.parse_args(arguments)
    lines, different = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for workload in chosen.workload or WORKLOADS:
            expected = train(workload, folder, **{"ring.nodes": 1})["weights_sha256"]
            for options in plans(chosen.seed, chosen.plans, WORKLOADS[workload]["workload.steps"]):
                report = train(workload, folder, **options)
                same = report["weights_sha256"] == expected
                different += not same
                nodes = [step["nodes"] for step in report["per_step"]]
                lines.append(f"{workload}, {options}: nodes {nodes}, "
                             f"{'the weights of one node' if same else 'OTHER weights'}")
    print("\n".join(lines))
    print(f"seed {chosen.seed}: {different} of {len(lines)} runs have other weights than one node")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
