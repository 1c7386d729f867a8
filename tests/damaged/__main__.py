"""``make damaged-files``: read damaged files of each kind that commands read."""

import importlib.util
import json
import sys
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sim.verilated import toolchain
from tests.damaged.kinds import KINDS
from tests.damaged.play import play


def main(
    files: Annotated[int, typer.Option(min=1, help="Number of files of each kind.")] = 600,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Read damaged files of each kind, and count those that are not rejected with a one-line message."""
    began = time.monotonic()
    table = Table("kind", "files", "refused", "taken", "wrong", "MB", "CPU s", title="damaged files")
    rows, wrong = [], []
    for name, kind in KINDS.items():
        if kind.needs and importlib.util.find_spec(kind.needs) is None:
            print(f"{name}: {kind.needs} is not installed")
            continue
        outcome = play(name, files=files, seed=seed)
        rows.append({"kind": name, **vars(outcome)})
        wrong += [f"{name}: {text}" for text in outcome.wrong]
        table.add_row(name, f"{outcome.files:,}", f"{outcome.refused:,}", f"{outcome.taken:,}",
                      str(len(outcome.wrong)), f"{outcome.bytes / 1e6:.0f}", f"{outcome.seconds:.1f}")
        print(f"{name}: {outcome.files} files, {len(outcome.wrong)} wrong", flush=True)
    for text in wrong[:40]:
        print(text)
    Console().print(table)
    folder = toolchain.BUILD / "damaged"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "damaged.json").write_text(json.dumps(rows, indent=2))
    count = sum(row["files"] for row in rows)
    print(f"{count:,} damaged files of {len(rows)} kinds, {len(wrong)} wrong, {time.monotonic() - began:.0f} s")
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
