"""``make faults``: a million single faults and many multiple faults on a link, in cached parts.

A part is rerun only if the gateware of the link or its test harness has changed.
"""

import time
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from sim.verilated import toolchain
from sim.verilated.features.replay.faulty_link import Fault
from tests import campaign
from tests.faults.parts import is_wrong, link, parts_of, play_part


def main(
    faults: Annotated[int, typer.Option(min=128, help="Number of wrong bits; a tenth for other kinds.")] = 20_000,
    seed: Annotated[int, typer.Option(min=0, max=(1 << 31) - 1)] = 0,
    jobs: campaign.Jobs = campaign.CORES,
) -> None:
    """Inject faults on the wires of a link, and compare the received words with the transmitted words."""
    began = time.monotonic()
    folder = toolchain.BUILD / "faults" / link().digest
    parts = {folder / ("-".join(str(int(field)) for field in part) + ".json"): (part,)
             for part in parts_of(faults, seed)}
    results = campaign.kept(jobs, play_part, parts, lambda result: f"{result['kind']}", every=64)
    rows, wrong = report(results), [result for result in results if is_wrong(result)]
    campaign.end(toolchain.BUILD / "faults" / "faults.json", rows, wrong, began,
                 f"{sum(row['faults'] for row in rows):,} faults, {len(wrong)} parts with one that was not found or "
                 f"mended")


def report(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print a table of results with one row per kind of fault, and return the rows."""
    table = Table("kind", "faults", "restarts", "words repeated", "cycles at 1", "at 16", "at 64", "most at 16",
                  "passed the check", "CRC-32", "invented", "silent", "hanging", title="faults on a link")
    rows = []
    for kind in Fault:
        of_kind = [result for result in results if result["kind"] == kind.name]
        row: dict[str, Any] = {"kind": kind.name.lower()}
        for name in ("faults", "cycles", "words", "controls", "restarts", "repeated", "failed", "escaped", "refused",
                     "invented", "silent", "hanging", "overrun"):
            row[name] = sum(result[name] for result in of_kind)
        for latency in (1, 2, 16, 64):
            measured = [result for result in of_kind if result["latency"] == latency and result["measured"]]
            count = sum(result["measured"] for result in measured)
            row[f"mean_{latency}"] = sum(result["lost"] for result in measured) / count if count else None
            row[f"most_{latency}"] = max((result["most"] for result in measured), default=None)
        rows.append(row)
        means = [row[f"mean_{latency}"] for latency in (1, 16, 64)]
        table.add_row(row["kind"], f"{row['faults']:,}", f"{row['restarts']:,}", f"{row['repeated']:,}",
                      *("-" if mean is None else f"{mean:.1f}" for mean in means), str(row["most_16"] or "-"),
                      *(str(row[name]) for name in ("escaped", "refused", "invented", "silent")),
                      str(row["hanging"] + row["overrun"]))
    Console(width=140).print(table)
    return rows


if __name__ == "__main__":
    typer.run(main)
