"""``make slow-ranks``: ranks of a PyTorch script are delayed on purpose, and must be reported as late."""

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from host.pytorch.jobs import Options
from host.pytorch.launch import launch
from host.pytorch.server import Patience
from sim.verilated import toolchain
from sim.verilated.processes import ended_by_signals
from tests.slow_ranks.plan import KINDS, Case, judge, plan

SCRIPT = Path(__file__).with_name("script.py")

#: Minimum fraction of cases in which the printed lines must name the late ranks correctly.
BAR = 0.95


def main(
    cases: Annotated[int, typer.Option(min=1, help="Number of cases, each with late ranks to report.")] = 100,
    ranks: Annotated[int, typer.Option(min=2, max=16, help="Number of ranks.")] = 4,
    slow: Annotated[float, typer.Option(min=0.1, help="Seconds after which late ranks are reported.")] = 0.5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the plan.")] = 0,
) -> None:
    """Delay ranks, and compare the reported lines with the delays that were injected."""
    began = time.monotonic()
    folder = toolchain.BUILD / "slow-ranks"
    folder.mkdir(parents=True, exist_ok=True)
    planned = plan(cases, ranks=ranks, slow=slow, seed=seed)
    (folder / "plan.json").write_text(json.dumps([dataclasses.asdict(case) for case in planned]))
    lines: list[str] = []

    def say(text: str) -> None:
        lines.append(text)
        print(text, flush=True)

    with ended_by_signals():
        launch([str(SCRIPT), str(folder / "plan.json")], Options(nodes=ranks),
               patience=Patience(slow=slow, timeout=60 + 10 * slow), say=say)
    right = judge(planned, lines)
    rows = _report(planned, right)
    late = [well for case, well in zip(planned, right, strict=True) if case.named]
    summary = {"ranks": ranks, "slow": slow, "seed": seed, "cases": len(late), "right": sum(late), "rows": rows,
               "wrong": [dataclasses.asdict(case) for case, well in zip(planned, right, strict=True) if not well],
               "lines": lines, "wall_seconds": time.monotonic() - began}
    (folder / "slow-ranks.json").write_text(json.dumps(summary, indent=2))
    print(f"{sum(late)} of {len(late)} late cases named rightly, {BAR:.0%} must be; "
          f"{len(right) - len(late)} cases in time, {sum(right) - sum(late)} of them rightly without a name")
    if sum(late) < BAR * len(late):
        sys.exit(1)


def _report(cases: list[Case], right: list[bool]) -> list[dict[str, Any]]:
    """Print a row for each kind of delay, and return the rows."""
    table = Table("ranks are", "late", "named rightly", "in time", "not named", title="late ranks")
    rows = []
    for how in KINDS:
        marks = {named: [well for case, well in zip(cases, right, strict=True)
                         if (case.how, case.named) == (how, named)] for named in (True, False)}
        row = {"how": how, "late": len(marks[True]), "named": sum(marks[True]), "in_time": len(marks[False]),
               "not_named": sum(marks[False])}
        rows.append(row)
        table.add_row(*map(str, row.values()))
    Console().print(table)
    return rows


if __name__ == "__main__":
    typer.run(main)
