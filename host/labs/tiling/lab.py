"""The lab `gradring lab tiling`."""

import functools
from pathlib import Path
from typing import Annotated

from host.console import ArithmeticOption
from host.labs.kit import BUILD, Results, chosen_names, end
from host.labs.tiling import experiment, report
from host.options import Option, command
from sim.verilated.native import Arithmetic

__all__ = ["tiling_lab"]

#: States that are carried out with arithmetic of gateware next to native arithmetic.
_GATEWARE = 20
#: States whose fourth level is carried out, and those of them without ``--full``.
_PRODUCTS, _SAMPLE = 240, 12


@command
def tiling_lab(
    *,
    methods: Annotated[str | None, Option("Searches to compare, with commas between them.",
                                          shown_default="all")] = None,
    seeds: Annotated[int | None, Option("Seeds of each search.", minimum=1, maximum=1000,
                                        shown_default="20, and 10 for 1024 x 1024 x 1024")] = None,
    full: Annotated[bool, Option("Carry out all states of 64 x 64 x 64 that fit.", ("--full",))] = False,
    arithmetic: ArithmeticOption = Arithmetic.NATIVE,
    output: Annotated[Path, Option("Folder of tiling.json and tiling.png.", shown_default="build/tiling")] =
        BUILD / "tiling",
) -> None:
    """Search for the factors of matrix products, by cycles that a simulated node counts."""
    chosen = chosen_names("Search", methods, experiment.METHODS)
    experiment.check_installed(chosen)
    results = Results(output, "tiling.json", "tiling.png")
    with results.progress() as progress:
        levels = (experiment.Level.PRODUCTS, experiment.Level.OUTER, experiment.Level.PANEL)
        most = None if full else _GATEWARE
        sizes = 64, 64, 64
        checks = [
            experiment.check(sizes, (2, 2, 2), arithmetic, most=most, announce=progress.stage),
            experiment.check(sizes, (2, 2, 2), Arithmetic.GATEWARE, most=_GATEWARE, announce=progress.stage),
            experiment.check(sizes, (3, 2, 3), arithmetic, levels=levels, most=_PRODUCTS if full else _SAMPLE,
                             announce=progress.stage)]
        searched, best = experiment.compare_all(arithmetic, chosen, seeds=seeds, announce=progress.stage)
    for one in checks:
        results.show(f"{one.name}: {one.states} states on a node, {one.wrong} not in the cycles of the model; C "
                     f"{one.digest[:16]}; estimate {one.least:.3f} to {one.most:.3f} of the cycles")
    results.show(report.table(searched, best), "costs of 1024 x 1024 x 1024 are estimated: modelled")
    results.write(report.describe(searched, best, checks), functools.partial(report.draw, searched, best))
    results.show_paths()
    end(any(one.wrong for one in checks))
