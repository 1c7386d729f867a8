"""The lab `gradring lab tiling`: table, JSON report, and plot of the lowest cost against evaluations."""

import functools
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from host.columns import Column, Table, columns_of, record
from host.console import ArithmeticOption
from host.labs.kit import BUILD, Results, chosen_names, end
from host.labs.tiling import experiment
from host.labs.tiling.experiment import Check, Result
from host.options import Option, command
from host.reports.style import COLOURS, FAINT, INK, picture
from host.schema import Schema
from sim.verilated.native import Arithmetic

__all__ = ["SCHEMA", "describe", "draw", "table", "tiling_lab"]

_GATEWARE = 20  # number of states that are also run with gateware arithmetic
#: Number of states of the product with four tiling levels to run: with ``--full``, and without it.
_PRODUCTS, _SAMPLE = 240, 12
_COLORS = (COLOURS[0], COLOURS[4], FAINT, COLOURS[5], COLOURS[6], INK)
#: Columns of the model checks and of the search results in the JSON report.
_CHECKS, _RESULTS = columns_of(Check, least="min_ratio", most="max_ratio"), columns_of(Result)

#: Schema of the comparison's report.
SCHEMA = Schema("gradring.tiling", 1, columns_of(
    "optimum", Column("checks", columns=_CHECKS), Column("results", columns=_RESULTS)))


def describe(results: Sequence[Result], optimum: Mapping[str, int], checks: Sequence[Check]) -> dict[str, Any]:
    """Build the JSON report of the comparison."""
    return SCHEMA.report({"optimum": optimum, "checks": [record(_CHECKS, row) for row in checks],
                          "results": [record(_RESULTS, row) for row in results]})


def table(results: Sequence[Result], optimum: Mapping[str, int]) -> Table:
    """Format the results of all searches as a table, with costs relative to each task's optimum."""
    def ratios(result: Result) -> list[float]:
        return result.ratios(optimum[result.task])

    return Table("cycles that searches reach, divided by the optimum", (
        Column("task", title="product"), Column("method", title="search"),
        Column("seeds", format=",", of=lambda result: len(result.best)),
        Column("mean", format=".3f", of=lambda result: statistics.mean(ratios(result))),
        Column("worst", format=".3f", of=lambda result: max(ratios(result))),
        Column("optimum", format=",", of=lambda result: sum(ratio == 1 for ratio in ratios(result))),
        Column("within 1 %", format=",", of=lambda result: sum(ratio <= 1.01 for ratio in ratios(result))),
        Column("measured", format=".0f", title="evaluations that fit")), results, group=lambda result: result.task)


def draw(results: Sequence[Result], optimum: Mapping[str, int], path: Path) -> None:
    """Plot the lowest cost, relative to the optimum (median over seeds), with one panel per matrix product."""
    tasks = list(dict.fromkeys(result.task for result in results))
    with picture(path, size=(4.6 * len(tasks), 4.4), columns=len(tasks)) as panels:
        for axes, task in zip(panels, tasks, strict=True):
            for color, result in zip(_COLORS, (result for result in results if result.task == task), strict=False):
                curves = np.array(result.curves) / optimum[task]
                axes.plot(np.arange(1, curves.shape[1] + 1), np.median(curves, 0), color=color, label=result.method)
            axes.set(title=task, xlabel="evaluations", ylim=(0.98, 2.2))
        panels[0].set_ylabel("least cycles / optimum (median of seeds)")
        panels[-1].legend()


@command
def tiling_lab(
    *,
    methods: Annotated[str | None, Option("Comma-separated searches to compare.",
                                          shown_default="all")] = None,
    seeds: Annotated[int | None, Option("Number of seeds of each search.", minimum=1, maximum=1000,
                                        shown_default="20, or 10 for 1024 x 1024 x 1024")] = None,
    full: Annotated[bool, Option("Run all states of 64 x 64 x 64 that fit into memory.", ("--full",))] = False,
    arithmetic: ArithmeticOption = Arithmetic.NATIVE,
    output: Annotated[Path, Option("Folder for tiling.json and tiling.png.", shown_default="build/tiling")] =
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
    for item in checks:
        results.show(f"{item.name}: {item.states} states on a node, {item.wrong} not in the cycles of the model; C "
                     f"{item.digest[:16]}; estimate {item.least:.3f} to {item.most:.3f} of the cycles")
    results.show(table(searched, best), "costs of 1024 x 1024 x 1024 are estimated: modelled")
    results.write(describe(searched, best, checks), functools.partial(draw, searched, best))
    results.show_paths()
    end(any(item.wrong for item in checks))
