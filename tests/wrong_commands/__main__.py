"""``make wrong-commands``: wrong command lines of all commands, each in a process of its own."""

import collections
import dataclasses
import json
import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from host.commands.console import make_console
from host.models.digits import digits
from host.printable import printable
from sim.verilated import toolchain
from tests.wrong_commands.commands import COMMANDS
from tests.wrong_commands.draw import draw
from tests.wrong_commands.play import play


def main(
    cases: Annotated[int, typer.Option(min=1, help="Command lines.")] = 200,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    first: Annotated[int, typer.Option(min=0, help="Number of the first one.")] = 0,
) -> None:
    """Run wrong command lines, and look at their ends."""
    folder = Path(tempfile.mkdtemp())
    digits()  # imports what most commands need, before processes are forked
    begun, rows = time.monotonic(), []
    counts = collections.defaultdict(collections.Counter)
    for number in range(first, first + cases):
        case = draw(number, seed=seed)
        outcome = play(case, folder / str(number))
        line = printable(shlex.join([case.module, *case.words]))
        rows.append({"number": number, **dataclasses.asdict(case), **dataclasses.asdict(outcome)})
        count = counts[case.command]
        count.update(
            lines=1, refused=bool(outcome.code and not outcome.legal), legal=outcome.legal or not outcome.code,
            wrong=bool(outcome.wrong))
        count["longest"] = max(count["longest"], outcome.seconds if outcome.code and not outcome.legal else 0)
        if outcome.wrong:
            print(f"{number}: {line[:300]}\n    {'; '.join(outcome.wrong)}\n    {outcome.error[-2000:]}", flush=True)
    table = Table("command", "lines", "refused", "legal", "longest to a refusal, CPU s", "wrong",
                  title="wrong command lines")
    for name, count in counts.items():
        table.add_row(name, *(str(count[key]) for key in ("lines", "refused", "legal")), f"{count['longest']:.1f}",
                      str(count["wrong"]))
    make_console().print(table)
    shutil.rmtree(folder, ignore_errors=True)
    path = toolchain.BUILD / "wrong-commands" / "wrong-commands.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=2))
    wrong = sum(bool(row["wrong"]) for row in rows)
    print(f"{cases:,} command lines of {len(COMMANDS)} commands, {time.monotonic() - begun:.0f} s, "
          f"{sum(row['seconds'] for row in rows):.0f} s of processor time: {wrong} did not end as they must")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    typer.run(main)
