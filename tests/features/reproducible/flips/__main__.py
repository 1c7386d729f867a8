"""``python -m tests.features.reproducible.flips``: flip single bits in simulated nodes that sum integers."""

import itertools
import json
import time
from typing import Annotated

import typer

from sim.verilated import toolchain
from tests import campaign
from tests.features.reproducible.flips.cases import play
from tests.features.reproducible.flips.nodes import CONFIGS
from tests.features.reproducible.flips.report import show

#: Number of flips in one case; flips of a case share their vectors and latencies.
_EACH = 50


def main(
    count: Annotated[int, typer.Option(min=1, help="Number of flips.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    only: Annotated[str, typer.Option(help="Flip bits of this stage of the table, such as 'sums of integers', or "
                                    "of paths that contain this, such as sums.adder.")] = "",
    jobs: campaign.Jobs = campaign.CORES,
) -> None:
    """Flip one bit in each command of 4 simulated nodes, and compare the results with a run without the flip."""
    began, results = time.monotonic(), []
    kinds = list(itertools.product(CONFIGS, ("all_reduce", "fused_update")))
    parts = {number: (*kinds[number % len(kinds)], min(_EACH, count - number * _EACH), seed << 32 | number, only)
             for number in range(-(-count // _EACH))}
    path = toolchain.BUILD / "flips.json"
    path.parent.mkdir(exist_ok=True)
    for done, (_, part) in enumerate(campaign.played(jobs, play, parts), start=1):
        results += part
        path.write_text(json.dumps(results))
        if done % 10 == 0:
            print(f"{len(results):,} of {count:,} flips", flush=True)
    show(results)
    print(f"seed {seed}, {time.monotonic() - began:.0f} s; all results are in {path}")


if __name__ == "__main__":
    typer.run(main)
