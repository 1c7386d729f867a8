"""Report of a mutation run: the mutants that survived, and a score for each file."""

import collections
import dataclasses
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

#: Statuses that count in the score: killed by a test, killed by the time limit, or survived.
SCORED = ("killed", "timeout", "survived")
_STATUSES = (*SCORED, "equivalent", "same", "invalid")


@dataclasses.dataclass(frozen=True)
class Row:
    """Outcome of one mutant, with some fields of :class:`~tests.mutation.mutants.Mutant`."""

    file: str
    line: int
    kind: str
    before: str
    after: str
    occurrence: int
    #: Outcome: "killed", "timeout" or "survived"; "equivalent" if the mutant is in the list of equivalent mutants;
    #: "same" if its gateware is the same as the original's; or "invalid" if it cannot be elaborated.
    status: str
    test: str = ""  # the test that failed, the error, or the reason for the status
    cpu: float = 0.0  # CPU seconds that the mutant took


def score(rows: list[Row]) -> float | None:
    """Fraction of the counted mutants that were killed, or None if no mutant counts."""
    counts = collections.Counter(row.status for row in rows)
    total = sum(counts[status] for status in SCORED)
    return 1 - counts["survived"] / total if total else None


def table(rows: list[Row]) -> Table:
    result = Table(title="Mutants of hdl/", caption="score: killed or out of time, of all that count; not counted: "
                   "equivalent, same gateware, invalid")
    for name in ("file", "killed", "time", "survived", "score", "equivalent", "same", "invalid", "CPU s"):
        result.add_column(name, justify="left" if name == "file" else "right")
    files = sorted({row.file for row in rows})
    for file in [*files, "all"]:
        chosen = [row for row in rows if file in (row.file, "all")]
        counts = collections.Counter(row.status for row in chosen)
        part = score(chosen)
        result.add_row(file.removeprefix("hdl/"), str(counts["killed"]), str(counts["timeout"]),
                       str(counts["survived"]), "-" if part is None else f"{part:.1%}", str(counts["equivalent"]),
                       str(counts["same"]), str(counts["invalid"]), f"{sum(row.cpu for row in chosen):.0f}",
                       end_section=file == files[-1])
    return result


def survivors(rows: list[Row]) -> list[str]:
    """Describe each mutant that survived: its location, and the text before and after the change."""
    return [f"{row.file}:{row.line}: {row.kind}\n  - {row.before}\n  + {row.after}"
            + (f"  (occurrence {row.occurrence})" if row.occurrence > 1 else "")
            for row in rows if row.status == "survived"]


def write(rows: list[Row], options: dict[str, Any], path: Path) -> None:
    """Write all rows, and the counts and score of each file, as JSON."""
    files = {}
    for file in sorted({row.file for row in rows}):
        chosen = [row for row in rows if row.file == file]
        counts = collections.Counter(row.status for row in chosen)
        files[file] = {**{status: counts[status] for status in _STATUSES}, "score": score(chosen)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"options": options, "score": score(rows), "files": files,
                                "mutants": [dataclasses.asdict(row) for row in rows]}, indent=1) + "\n")


def show(rows: list[Row], console: Console) -> None:
    for text in survivors(rows):
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    console.print(table(rows))
