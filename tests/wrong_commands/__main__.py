"""``make wrong-commands``: runs invalid command lines for all commands, each in its own process."""

import collections
import dataclasses
import json
import shlex
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from host.console import make_console
from host.models.digits import digits
from host.printable import printable
from sim.verilated import toolchain
from tests.wrong_commands.commands import COMMANDS
from tests.wrong_commands.draw import draw
from tests.wrong_commands.play import LEGAL, play
from tests.wrong_commands.signals import LATE, Sent, plan, send


def signals(folder: Path) -> list[dict[str, object]]:
    """Send signals to all commands, and check how they exit."""
    rows = []
    late = [Sent(module="gradring", words=(*LATE, "--output=out"), number=number, moment=moment)
            for number in (signal.SIGINT, signal.SIGTERM) for moment in (8.0, 14.0)]
    for number, sent in enumerate([*plan(), *late]):
        outcome = send(sent, folder / f"signal-{number}")
        rows.append({**dataclasses.asdict(sent), **dataclasses.asdict(outcome)})
        if outcome.wrong:
            name = signal.Signals(sent.number).name
            print(f"{name} after {sent.moment} s: {sent.module} {shlex.join(sent.words)}\n"
                  f"    {'; '.join(outcome.wrong)}", flush=True)
    times = [row["seconds"] for row in rows if row["seconds"] is not None]
    print(f"{len(rows)} signals, {len(times)} to commands that had not ended, which took up to {max(times):.1f} s: "
          f"{sum(bool(row['wrong']) for row in rows)} did not end as they must")
    return rows


def main(
    cases: Annotated[int, typer.Option(min=1, help="Number of command lines.")] = 200,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    first: Annotated[int, typer.Option(min=0, help="Index of the first command line.")] = 0,
    work: Annotated[float, typer.Option(
        help="Processor seconds after which a running command counts as legal and is ended.")] = LEGAL,
    send_signals: Annotated[bool, typer.Option("--signals", help="Also send signals to all commands.")] = False,
) -> None:
    """Run invalid command lines, and check how they exit."""
    folder = Path(tempfile.mkdtemp())
    digits()  # before processes are forked, import the modules that most commands need
    begun, rows = time.monotonic(), []
    counts = collections.defaultdict(collections.Counter)
    for number in range(first, first + cases):
        case = draw(number, seed=seed)
        outcome = play(case, folder / str(number), work=work)
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
    sent = signals(folder) if send_signals else []
    shutil.rmtree(folder, ignore_errors=True)
    path = toolchain.BUILD / "wrong-commands" / "wrong-commands.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"lines": rows, "signals": sent}, indent=2))
    wrong = sum(bool(row["wrong"]) for row in rows)
    print(f"{cases:,} command lines of {len(COMMANDS)} commands, {time.monotonic() - begun:.0f} s, "
          f"{sum(row['seconds'] for row in rows):.0f} s of processor time: {wrong} did not end as they must")
    sys.exit(wrong > 0 or any(row["wrong"] for row in sent))


if __name__ == "__main__":
    typer.run(main)
