# amaranth: UnusedElaboratable=no
"""``make pairs``: many pairs of commands, on rings of several sizes, in parts with stored results.

A part is only run again if the nodes or these tests have changed.
"""

import collections
import time
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from hdl.node import Node
from sim.verilated import toolchain
from sim.verilated.build import build_ring
from tests import campaign
from tests.pairs.generator import KINDS
from tests.pairs.memories import CONFIG
from tests.pairs.play import play_part

#: Fraction of all pairs for each ring size. Large rings take longer.
SHARES = {1: 0.2, 2: 0.2, 3: 0.2, 9: 0.15, 12: 0.125, 16: 0.125}

#: Number of command pairs in one part of the run.
PART = 250


def main(
    pairs: Annotated[int, typer.Option(min=1, help="Total number of pairs of commands.")] = 20_000,
    nodes: Annotated[str, typer.Option(help="Ring sizes, of 1 to 16 nodes.")] = ",".join(map(str, SHARES)),
    seed: Annotated[int, typer.Option(min=0, max=(1 << 31) - 1, help="Seed of the first part.")] = 0,
    jobs: campaign.Jobs = campaign.CORES,
) -> None:
    """Queue pairs of commands on simulated rings, and compare events and memories with the model."""
    began = time.monotonic()
    try:
        sizes = sorted({int(size) for size in nodes.split(",")})
        for size in sizes:
            CONFIG.check_ring(size)
    except ValueError as error:
        raise typer.BadParameter(f"Ring sizes must be numbers of nodes, as in 1,2,3: {error}") from None
    print("building the ring, unless an earlier run has", flush=True)
    library = build_ring(Node(CONFIG), identity=f"Node({CONFIG})")
    folder = toolchain.BUILD / "pairs" / toolchain.digest(
        library.digest, campaign.sources("tests/pairs", "sim/golden", "host"))

    whole = sum(SHARES.get(size, 0.1) for size in sizes)
    parts = []
    for size in sizes:
        share = -(-pairs * SHARES.get(size, 0.1) // whole)
        parts += [(size, seed + part) for part in range(int(-(-share // PART)))]
    # Large rings go first, so that no long part remains for the end.
    results = campaign.kept(
        jobs, play_part, {folder / f"{size}-{number}.json": (library, size, number, PART)
                          for size, number in sorted(parts, reverse=True)},
        lambda result: f"{result['nodes']} nodes, seed {result['seed']}, {result['pairs']} pairs, "
                       f"{result['difference'] or 'no difference'}")
    rows, wrong = _report(results), [outcome for outcome in results if outcome["difference"]]
    campaign.end(toolchain.BUILD / "pairs" / "pairs.json", rows, wrong, began,
                 f"{sum(row['pairs'] for row in rows):,} pairs, {len(wrong)} differences")


def _report(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print a row for each ring size, and return the rows."""
    table = Table("nodes", "pairs", "kinds of pairs", "not reached", "words compared", "differ", "CPU s",
                  title="pairs of commands")
    rows = []
    for size in sorted({result["nodes"] for result in results}):
        of_size = [result for result in results if result["nodes"] == size]
        counts: collections.Counter[tuple[str, str]] = collections.Counter()
        for result in of_size:
            for first, second, number in result["kinds"]:
                counts[first, second] += number
        kinds = [kind for kind in KINDS if size > 1 or kind != "refused"]
        absent = [(first, second) for first in kinds for second in kinds
                  if not counts[first, second] and (first, second) != ("refused", "refused")]
        row = {"nodes": size, "pairs": sum(result["pairs"] for result in of_size), "kinds": len(counts),
               "absent": absent, "words": sum(result["words"] for result in of_size),
               "differences": sum(bool(result["difference"]) for result in of_size),
               "cpu_seconds": sum(result["cpu_seconds"] for result in of_size)}
        rows.append(row)
        table.add_row(str(size), f"{row['pairs']:,}", str(row["kinds"]), str(len(absent)), f"{row['words']:,}",
                      str(row["differences"]), f"{row['cpu_seconds']:.0f}")
    Console().print(table)
    return rows


if __name__ == "__main__":
    typer.run(main)
