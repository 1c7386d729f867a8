"""``make launch-faults``: ranks that are stopped or killed, and connections with wrong bytes or half a message."""

import dataclasses
import json
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sim.verilated import toolchain
from tests.launch_faults.play import KINDS, TIMEOUT, plan, play


def main(
    faults: Annotated[int, typer.Option(min=1, help="Number of faults of each kind for each number of ranks.")] = 20,
    ranks: Annotated[str, typer.Option(help="Numbers of ranks.")] = "2,4",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the plan.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Number of concurrent runs.")] = 2,
) -> None:
    """Inject faults into launched scripts, and check how the runs end."""
    folder = toolchain.BUILD / "launch-faults"
    shutil.rmtree(folder, ignore_errors=True)
    cases = plan(faults, ranks=[int(count) for count in ranks.split(",")], seed=seed)
    begun = time.monotonic()

    def run(number: int):
        outcome = play(cases[number], folder / str(number))
        case = cases[number]
        print(f"{number + 1} of {len(cases)}: {case.ranks} ranks, {case.way}: {outcome.seconds:.1f} s "
              f"{'; '.join(outcome.wrong)}", flush=True)
        return outcome

    with ThreadPoolExecutor(jobs) as pool:
        outcomes = list(pool.map(run, range(len(cases))))
    table = Table("kind", "ranks", "faults", "longest end, s", "tracebacks", "wrong", title="faults of launches")
    for kind, count in sorted({(case.kind, case.ranks) for case in cases}):
        own = [outcome for case, outcome in zip(cases, outcomes, strict=True)
               if (case.kind, case.ranks) == (kind, count)]
        table.add_row(kind, str(count), str(len(own)), f"{max(outcome.seconds for outcome in own):.1f}",
                      str(sum("Traceback" in outcome.text for outcome in own)),
                      str(sum(bool(outcome.wrong) for outcome in own)))
    Console().print(table)
    wrong = sum(bool(outcome.wrong) for outcome in outcomes)
    (folder / "launch-faults.json").write_text(json.dumps([
        {**dataclasses.asdict(case), **dataclasses.asdict(outcome)}
        for case, outcome in zip(cases, outcomes, strict=True)], indent=2))
    print(f"{len(cases)} faults of {len(KINDS)} kinds, --timeout {TIMEOUT:g} s, {time.monotonic() - begun:.0f} s: "
          f"{wrong} did not end as they must")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    typer.run(main)
