"""The command `gradring bench`."""

from pathlib import Path
from typing import Annotated

import typer

from host.console import Progress, make_console, shown
from host.output import claim
from host.schema import write_report
from sim.verilated import toolchain

__all__ = ["bench_command"]


def bench_command(
    output: Annotated[Path, typer.Option(help="Folder for bench.json. [default: build/bench]", show_default=False)
                      ] = toolchain.BUILD / "bench",
) -> None:
    """Measure cycles of units and of the ring against their bounds, and the speed of simulation."""
    from host.labs.bench import bench

    claim(output, files=("bench.json",))
    console = make_console()
    with Progress(console) as progress:
        rows = bench.collect(announce=progress.stage)
    path = write_report(bench.SCHEMA.report({"rows": rows}), output, "bench.json")
    console.print(bench.table(rows))
    console.print(shown(path), soft_wrap=True)
    beyond = [row for row in rows if bench.exceeds_limit(row)]
    for row in beyond:
        console.print(f"missed: {row['name']} ({row['config']}) takes {row['ratio']:.3f} of its bound, and may take "
                      f"{bench.limit(row):.2f}", soft_wrap=True)
    if beyond:
        raise typer.Exit(1)
