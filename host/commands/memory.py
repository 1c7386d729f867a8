"""The command `gradring memory`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from host.console import Progress, make_console, new_table, shown
from host.output import claim
from sim.verilated import toolchain

__all__ = ["memory_command"]

#: Characters that the tables need, also where a console has fewer.
_WIDTH = 118


def memory_command(
    output: Annotated[Path, typer.Option(help="Folder of memory.json. [default: build/memory]",
                                          show_default=False)] = toolchain.BUILD / "memory",
) -> None:
    """Plan the memory of programs, and find out what to keep, to move and to compute again."""
    from host.reports.memory import Results

    files = ("memory.json",)
    results = Results(output / files[0])
    claim(output, files=files, keep=files if results.parts else ())
    console = make_console()
    with Progress(console) as progress:
        for name in results.complete():
            progress.stage(f"memory: {name}")
    console.width = max(_WIDTH, console.width)
    for table in (_programs(results.parts["programs"]), _far(results.parts["far"]), _nodes(results.parts["nodes"]),
                  _nodes(results.parts["text nodes"])):
        console.print(table)
    checks, bits, ratios = results.parts["checks"], results.parts["bits"], results.ratios
    console.print(f"overlaps: of {checks['injected']} put into plans, {checks['overlaps']} found by lifetimes and "
                  f"{checks['dead_reads']} by owners of words; {checks['alarms']} alarms in {checks['passes']:,} "
                  f"passes of right plans", soft_wrap=True)
    for row in bits:
        console.print(f"{row['program']}: in {row['words']:,} words, {row['same']} of {row['lengths']} lengths with "
                      f"the host's bits", soft_wrap=True)
    console.print(f"greedy plans of {len(ratios)} random chains: {sum(ratio == 1 for ratio in ratios)} are as fast "
                  f"as the best, the slowest takes {max(ratios):.3f} of its cycles", soft_wrap=True)
    console.print("cycles, products and passes of chains, and far memory: modelled, but for the steps on a simulated "
                  "node, whose far memory alone is", soft_wrap=True)
    console.print(shown(output / "memory.json"), soft_wrap=True)
    failures = results.failures()
    for failure in failures:
        console.print(f"memory: {failure}", style="bold red", soft_wrap=True)
    if failures:
        raise typer.Exit(1)


def _programs(rows: Sequence[dict[str, Any]]) -> Table:
    """Words of programs by each rule, and how many fewer than naive."""
    table = new_table("words of the activation memory", (
        "program", "naive", "strict", "shared", "lowest fit", "search", "live"))
    for row in rows:
        words = row["words"]
        fit = min(count for method, count in words.items() if method.startswith("lowest fit"))
        strict, searched = (f"{words[method]:,} ({words[method] / row['naive'] - 1:+.1%})"
                            for method in ("strict", "search"))
        table.add_row(row["program"], f"{row['naive']:,}", strict, f"{words['shared']:,}", f"{fit:,}", searched,
                      f"{row['live']:,}")
    return table


def _far(rows: Sequence[dict[str, Any]]) -> Table:
    """Modelled cycles of each kind of plan, and what the mixed one does with each map."""
    kinds = ("swap", "recompute", "mixed")
    table = new_table("modelled cycles, of a step that keeps all maps; what is right of mixed belongs to it", (
        "chain", "budget", "rate", *kinds, "plan", "moved words", "more products"))
    for row in rows:
        factors = [f"{row[kind]['factor']:.3f}" if row[kind] else "no room" for kind in kinds]
        mixed = row["mixed"]
        plan = "".join(policy[0] for policy in mixed["policies"])  # keep, swap or remake
        table.add_row(row["chain"], f"{row['budget']:,} ({row['share']:.0%})", f"1/{1 / row['rate']:.0f}", *factors,
                      plan, f"{mixed['far_words']:,}", f"{mixed['multiplications']:,}")
    return table


def _nodes(rows: Sequence[dict[str, Any]]) -> Table:
    """Steps on a simulated node."""
    names = ", ".join(dict.fromkeys(row["chain"] for row in rows))
    table = new_table(f"steps on a simulated node, and the timelines of their plans: {names}", (
        "plan", "", "budget", "rate", "cycles", "of keep", "of timeline", "moved words", "more products", "bits"))
    for row in rows:
        plan = "".join(policy[0] for policy in row["policies"])
        table.add_row(row["kind"], plan, f"{row['budget']:,}", f"1/{1 / row['rate']:.0f}", f"{row['cycles']:,}",
                      f"{row['factor']:.3f}", f"{row['cycles'] / row['timeline']:.4f}", f"{row['far_words']:,}",
                      f"{row['multiplications']:,}", "right" if row["same"] else "WRONG")
    return table
