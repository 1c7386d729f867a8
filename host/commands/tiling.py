"""The command `gradring tiling`."""

from pathlib import Path
from typing import Annotated

import typer

from hdl.choices import choice_error
from host.console import ArithmeticOption, Progress, make_console, shown
from host.options import check_range, command
from host.output import claim
from host.schema import write_report
from sim.verilated import toolchain
from sim.verilated.native import Arithmetic

__all__ = ["tiling_command"]

#: States that are carried out with arithmetic of gateware beside native arithmetic.
_GATEWARE = 20
#: States whose fourth level is carried out, and those of them without ``--full``.
_PRODUCTS, _SAMPLE = 240, 12


@command
def tiling_command(
    methods: Annotated[str | None, typer.Option(
        help="Searches to compare, with commas between them. [default: all]", show_default=False)] = None,
    seeds: Annotated[int | None, typer.Option(
        help="Seeds of each search. [default: 20, and 10 for 1024 x 1024 x 1024]", show_default=False)] = None,
    full: Annotated[bool, typer.Option("--full", help="Carry out all states of 64 x 64 x 64 that fit.")] = False,
    arithmetic: ArithmeticOption = Arithmetic.NATIVE,
    output: Annotated[Path, typer.Option(help="Folder of tiling.json and tiling.png. [default: build/tiling]",
                                          show_default=False)] = toolchain.BUILD / "tiling",
) -> None:
    """Search for the factors of matrix products, by cycles that a simulated node counts."""
    from host.reports import tiling as report
    from host.tiling import experiment

    check_range("Seeds", seeds, 1, 1000)
    chosen = tuple(experiment.METHODS) if methods is None else tuple(name.strip() for name in methods.split(","))
    unknown = [name for name in chosen if name not in experiment.METHODS]
    if unknown:
        raise ValueError(choice_error("Search", experiment.METHODS, unknown[0]))
    experiment.check_installed(chosen)
    claim(output, files=("tiling.json", "tiling.png"))
    console = make_console()
    with Progress(console) as progress:
        levels = (experiment.Level.PRODUCTS, experiment.Level.OUTER, experiment.Level.PANEL)
        most = None if full else _GATEWARE
        sizes = 64, 64, 64
        checks = [
            experiment.check(sizes, (2, 2, 2), arithmetic, most=most, announce=progress.stage),
            experiment.check(sizes, (2, 2, 2), Arithmetic.GATEWARE, most=_GATEWARE, announce=progress.stage),
            experiment.check(sizes, (3, 2, 3), arithmetic, levels=levels, most=_PRODUCTS if full else _SAMPLE,
                             announce=progress.stage)]
        results, best = experiment.compare_all(arithmetic, chosen, seeds=seeds, announce=progress.stage)
    for one in checks:
        console.print(f"{one.name}: {one.states} states on a node, {one.wrong} not in the cycles of the model; C "
                      f"{one.digest[:16]}; estimate {one.least:.3f} to {one.most:.3f} of the cycles", soft_wrap=True)
    console.print(report.table(results, best))
    console.print("costs of 1024 x 1024 x 1024 are estimated: modelled", soft_wrap=True)
    written = write_report(report.describe(results, best, checks), output, "tiling.json")
    picture = output / "tiling.png"
    report.draw(results, best, picture)
    console.print(" · ".join(map(shown, (written, picture))), soft_wrap=True)
    if any(one.wrong for one in checks):
        raise typer.Exit(1)
