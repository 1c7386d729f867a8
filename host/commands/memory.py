"""The command `gradring memory`."""

from pathlib import Path
from typing import Annotated

import typer

from host.console import Progress, make_console, shown
from host.output import claim
from sim.verilated import toolchain

__all__ = ["memory_command"]


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
    for table in results.tables():
        console.print(table)
    for line in results.lines():
        console.print(line, soft_wrap=True)
    console.print(shown(output / "memory.json"), soft_wrap=True)
    failures = results.failures()
    for failure in failures:
        console.print(f"memory: {failure}", style="bold red", soft_wrap=True)
    if failures:
        raise typer.Exit(1)
