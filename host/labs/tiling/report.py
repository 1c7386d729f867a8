"""Table, JSON and picture of a comparison of searches: least cost over evaluations."""

import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from host.columns import Column, Table, columns_of, record
from host.labs.tiling.experiment import Check, Result
from host.reports.style import COLOURS, FAINT, INK, picture
from host.schema import Schema

__all__ = ["SCHEMA", "describe", "draw", "table"]

_COLORS = (COLOURS[0], COLOURS[4], FAINT, COLOURS[5], COLOURS[6], INK)
#: Columns of checks and of results in JSON.
_CHECKS, _RESULTS = columns_of(Check, least="min_ratio", most="max_ratio"), columns_of(Result)

#: Report of the comparison.
SCHEMA = Schema("gradring.tiling", 1, columns_of(
    "optimum", Column("checks", columns=_CHECKS), Column("results", columns=_RESULTS)))


def describe(results: Sequence[Result], optimum: Mapping[str, int], checks: Sequence[Check]) -> dict[str, Any]:
    """The report."""
    return SCHEMA.report({"optimum": optimum, "checks": [record(_CHECKS, row) for row in checks],
                          "results": [record(_RESULTS, row) for row in results]})


def table(results: Sequence[Result], optimum: Mapping[str, int]) -> Table:
    """Results of all searches; costs are divided by the optimum of the task."""
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


def draw(results: Sequence[Result], optimum: Mapping[str, int], path: pathlib.Path) -> None:
    """Draw the median over the seeds of the least cost, divided by the optimum, a panel for each product."""
    tasks = list(dict.fromkeys(result.task for result in results))
    with picture(path, size=(4.6 * len(tasks), 4.4), columns=len(tasks)) as panels:
        for axes, task in zip(panels, tasks, strict=True):
            for color, result in zip(_COLORS, (result for result in results if result.task == task), strict=False):
                curves = np.array(result.curves) / optimum[task]
                axes.plot(np.arange(1, curves.shape[1] + 1), np.median(curves, 0), color=color, label=result.method)
            axes.set(title=task, xlabel="evaluations", ylim=(0.98, 2.2))
        panels[0].set_ylabel("least cycles / optimum (median of seeds)")
        panels[-1].legend()
