# amaranth: UnusedElaboratable=no
"""``make pairs``: many pairs of commands, on rings of several sizes, in parts whose results are kept.

A part is not played again as long as neither the nodes nor these tests have changed.
"""

import collections
import concurrent.futures
import hashlib
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from hdl.node import Node
from sim.verilated import toolchain
from sim.verilated.build import build_ring
from tests.pairs.generator import KINDS
from tests.pairs.memories import CONFIG
from tests.pairs.play import play_part

#: Share of the pairs for each ring size; large rings take longer.
SHARES = {1: 0.2, 2: 0.2, 3: 0.2, 9: 0.15, 12: 0.125, 16: 0.125}

#: Pairs per part.
PART = 250


def _sources() -> str:
    """Digest of the tests, of the golden models and of the host."""
    root = Path(__file__).resolve().parents[2]
    found = hashlib.sha256()
    for folder in ("tests/pairs", "sim/golden", "host"):
        for path in sorted((root / folder).rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()[:16]


def main(
    pairs: Annotated[int, typer.Option(min=1, help="Pairs of commands in all.")] = 20_000,
    nodes: Annotated[str, typer.Option(help="Ring sizes, of 1 to 16 nodes.")] = ",".join(map(str, SHARES)),
    seed: Annotated[int, typer.Option(min=0, max=(1 << 31) - 1, help="Seed of the first part.")] = 0,
    jobs: Annotated[int, typer.Option(
        min=1, show_default=False, help="Processes. [default: a core each]")] = os.cpu_count() or 1,
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
    folder = toolchain.BUILD / "pairs" / toolchain.digest(library.digest, _sources())
    folder.mkdir(parents=True, exist_ok=True)

    whole = sum(SHARES.get(size, 0.1) for size in sizes)
    parts = []
    for size in sizes:
        share = -(-pairs * SHARES.get(size, 0.1) // whole)
        parts += [(size, seed + part) for part in range(int(-(-share // PART)))]
    results, missing = [], []
    for part in parts:
        path = folder / f"{part[0]}-{part[1]}.json"
        if path.exists():
            results.append(json.loads(path.read_text()))
        else:
            missing.append(part)
    if results:
        print(f"{len(results)} of {len(parts)} parts have been played before", flush=True)
    # Large rings come first, so that no long part is left for the end.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as pool:
        waiting = {pool.submit(play_part, library, size, number, PART): (size, number)
                   for size, number in sorted(missing, reverse=True)}
        for done in concurrent.futures.as_completed(waiting):
            result = done.result()
            results.append(result)
            path = folder / f"{result['nodes']}-{result['seed']}.json"
            path.with_suffix(".part").write_text(json.dumps(result))
            path.with_suffix(".part").rename(path)
            print(f"{len(results)} of {len(parts)} parts: {result['nodes']} nodes, seed {result['seed']}, "
                  f"{result['pairs']} pairs, {result['difference'] or 'no difference'}", flush=True)
    wall = time.monotonic() - began
    rows = _report(results)
    summary = {"rows": rows, "wall_seconds": wall, "differences": [one for one in results if one["difference"]]}
    (toolchain.BUILD / "pairs" / "pairs.json").write_text(json.dumps(summary, indent=2))
    print(f"{sum(row['pairs'] for row in rows):,} pairs, {len(summary['differences'])} differences, {wall:.0f} s")
    if summary["differences"]:
        sys.exit(1)


def _report(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print and return a row for each ring size."""
    table = Table("nodes", "pairs", "kinds of pairs", "not reached", "words compared", "differ", "CPU s",
                  title="pairs of commands")
    rows = []
    for size in sorted({result["nodes"] for result in results}):
        mine = [result for result in results if result["nodes"] == size]
        found: collections.Counter[tuple[str, str]] = collections.Counter()
        for result in mine:
            for first, second, number in result["kinds"]:
                found[first, second] += number
        kinds = [kind for kind in KINDS if size > 1 or kind != "refused"]
        absent = [(first, second) for first in kinds for second in kinds
                  if not found[first, second] and (first, second) != ("refused", "refused")]
        row = {"nodes": size, "pairs": sum(result["pairs"] for result in mine), "kinds": len(found),
               "absent": absent, "words": sum(result["words"] for result in mine),
               "differences": sum(bool(result["difference"]) for result in mine),
               "cpu_seconds": sum(result["cpu_seconds"] for result in mine)}
        rows.append(row)
        table.add_row(str(size), f"{row['pairs']:,}", str(row["kinds"]), str(len(absent)), f"{row['words']:,}",
                      str(row["differences"]), f"{row['cpu_seconds']:.0f}")
    Console().print(table)
    return rows


if __name__ == "__main__":
    typer.run(main)
