# amaranth: UnusedElaboratable=no
"""``make random-programs``: run many random programs on rings of one to four nodes, in cached parts.

With ``REMOTE=1``, commands wait for other nodes, on rings of two to four nodes with link faults. A part runs again
only if its nodes or these tests have changed.
"""

import time
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from sim.verilated import toolchain
from tests import campaign
from tests.host import rings
from tests.programs.play import play_part

#: Names of nodes with programs, and the sizes of rings on which they are tested.
RINGS = {"centroid": (1, 2, 3, 4), "mx9": (1, 2, 3, 4), "table": (1, 2, 3, 4), "wide": (1, 2, 3)}

#: Names of nodes with control words, and the sizes of rings on which they are tested.
REMOTE = {"wide": (2, 3, 4)}

#: Number of programs in a part.
PART = 35


def main(
    programs: Annotated[int, typer.Option(min=1, help="Total number of programs.")] = 2_100,
    seed: Annotated[int, typer.Option(min=0, max=(1 << 31) - 1, help="Seed of the first part.")] = 0,
    jobs: campaign.Jobs = campaign.CORES,
    remote: Annotated[bool, typer.Option(help="Let commands also wait for commands of other nodes.")] = False,
    faults: Annotated[float, typer.Option(min=0, max=0.01, help="Faults per link and cycle, with --remote.")] = 1e-3,
) -> None:
    """Run random programs on simulated rings; compare order, events and memories with the model."""
    began = time.monotonic()
    chosen = REMOTE if remote else RINGS
    options: dict[str, Any] = {"remote": True, "faults": faults} if remote else {}
    kind = f"-remote-{faults:g}" if remote else ""
    sizes = [(name, size) for name, some in chosen.items() for size in some]
    folders = {}
    for name in chosen:
        print(f"building the ring {name}, unless an earlier run has", flush=True)
        library = rings.library(rings.CONFIGS[name])
        folders[name] = toolchain.BUILD / "programs" / toolchain.digest(
            library.digest, campaign.sources("tests/programs", "sim/golden", "host"))
    parts = [(*sizes[part % len(sizes)], seed + part // len(sizes)) for part in range(-(-programs // PART))]
    results = campaign.kept(
        jobs, play_part, {folders[name] / f"{name}-{size}-{number}{kind}.json": (name, size, number, PART)
                          for name, size, number in parts},
        lambda result: f"{result['ring']}, {result['nodes']} nodes, seed {result['seed']}, "
                       f"{result['difference'] or 'no difference'}", **options)
    rows, wrong = _report(results), [outcome for outcome in results if outcome["difference"]]
    campaign.end(toolchain.BUILD / "programs" / ("remote.json" if remote else "programs.json"), rows, wrong, began,
                 f"{sum(row['programs'] for row in rows):,} programs, {len(wrong)} differences")


def _report(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    counts = ("programs", "commands", "words", "cycles", "remote_waits", "faults")
    table = Table("ring", "nodes", *(name.replace("_", " ") for name in counts), "differ", "CPU s",
                  title="random programs")
    rows = []
    for name, size in sorted({(result["ring"], result["nodes"]) for result in results}):
        matching = [result for result in results if (result["ring"], result["nodes"]) == (name, size)]
        row = {"ring": name, "nodes": size, **{what: sum(result[what] for result in matching) for what in counts},
               "differences": sum(bool(result["difference"]) for result in matching),
               "cpu_seconds": sum(result["cpu_seconds"] for result in matching)}
        rows.append(row)
        table.add_row(name, str(size), *(f"{row[what]:,}" for what in counts), str(row["differences"]),
                      f"{row['cpu_seconds']:.0f}")
    Console(width=110).print(table)
    return rows


if __name__ == "__main__":
    typer.run(main)
