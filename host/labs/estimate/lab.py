"""The lab `gradring lab estimate`: estimated and measured cycles, as tables and a figure."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from host.columns import Column, Table, columns_of, record
from host.labs.estimate import experiment, machine
from host.labs.estimate.experiment import Row
from host.labs.estimate.program import NETWORKS, Case
from host.labs.kit import BUILD, Results, chosen_names
from host.options import Option, command
from host.reports.style import COLOURS, FAINT, picture
from host.schema import Schema

__all__ = ["BARS", "SCHEMA", "describe", "draw", "estimate_lab", "limit", "summary", "tables"]

#: Maximum relative errors, keyed by the number of parameters from which they apply.
BARS = {"targets": {1024: 0.03, 0: 0.06}, "ratios": {0: 0.02}}

_TITLES = {"targets": "Targets that are really built", "ratios": "Faster compute next to the same link"}
_COLORS = {"estimate": COLOURS[0], "plain": COLOURS[5], "single": FAINT}


def limit(kind: str, row: Row) -> float:
    """Return the maximum relative error of a row's estimate."""
    return next(bar for least, bar in BARS[kind].items() if row.length >= least)


def _exceeds(kind: str, row: Row) -> bool:
    return abs(row.error(row.estimate)) > limit(kind, row)


def _columns(kind: str) -> tuple[Column, ...]:
    """Convert rows to the columns of the JSON report."""
    return (*columns_of(Row), Column("error", of=lambda row: row.error(row.estimate)),
            Column("plain_error", of=lambda row: row.error(row.plain)),
            Column("best_single", of=lambda row: row.best_single[0]),
            Column("best_single_error", of=lambda row: row.error(row.best_single[1])),
            Column("bar", of=lambda row: limit(kind, row)))


#: Schema of the report.
SCHEMA = Schema("gradring.estimate", 1, tuple(Column(kind, columns=_columns(kind)) for kind in BARS))


def describe(parts: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    """Build the JSON report of the lab."""
    return SCHEMA.report({kind: [record(_columns(kind), row) for row in rows] for kind, rows in parts.items()})


def tables(kind: str, rows: Sequence[Row]) -> list[Table]:
    """Format all rows as a table that marks rows above their limits, and the errors of each target in per cent."""
    def error(value: str, form: str) -> Column:
        return Column(f"{value}_error", format=form, of=lambda row: row.error(getattr(row, value)))

    everything = Table(_TITLES[kind], (
        Column("target"), Column("program"), Column("alpha", format=".3f"),
        *(Column(name, format=",.0f", title=title) for name, title in (
            ("execution", "untouched"), ("first", "T1"), ("second", "T2"), ("estimate", ""))),
        error("estimate", "+.2%"), error("plain", "+.1%"),
        Column("best_single", of=lambda row: f"{row.best_single[0]} {row.error(row.best_single[1]):+.1%}"),
        Column("truth", format=",.0f")), rows, marked=functools.partial(_exceeds, kind))
    own: dict[str, list[Row]] = {}
    for row in rows:
        own.setdefault(row.target, []).append(row)
    programs = list(dict.fromkeys((row.length, row.overlapped) for row in rows))
    overview = Table("errors in percent: of each program, and the largest of plain estimates and of single metrics", (
        Column("target", of=str), Column("alpha", of=lambda target: " to ".join(dict.fromkeys(
            f"{choose(row.alpha for row in own[target]):.3g}" for choose in (min, max)))),
        *(Column(f"{length:,}{', overlap' if overlapped else ''}", format="+.2f", of=functools.partial(
            lambda length, overlapped, target: next((
                100 * row.error(row.estimate) for row in own[target]
                if (row.length, row.overlapped) == (length, overlapped)), None), length, overlapped))
          for length, overlapped in programs),
        Column("plain", format=".1f", of=lambda target: 100 * max(abs(row.error(row.plain)) for row in own[target])),
        Column("single", format=".1f", of=lambda target: 100 * max(
            abs(row.error(row.best_single[1])) for row in own[target]))), list(own),
        marked=lambda target: any(_exceeds(kind, row) for row in own[target]))
    return [everything, overview]


def summary(kind: str, rows: Sequence[Row]) -> str:
    """Count the rows and targets within their limits, and the programs estimated better than by any single metric."""
    names = dict.fromkeys(row.target for row in rows)
    better = [name for name in names if all(row.better for row in rows if row.target == name)]
    worst = max(rows, key=lambda row: abs(row.error(row.estimate)))
    missed = [f"{row.target}, {row.program}" for row in rows if _exceeds(kind, row)]
    beyond = f", all but {'; '.join(missed)}" if missed else ""
    return (f"{len(rows) - len(missed)} of {len(rows)} programs are within their bars{beyond}; "
            f"{sum(row.better for row in rows)} of them, and all of {len(better)} of {len(names)} targets, are "
            f"closer than any single metric; largest error {worst.error(worst.estimate):+.2%}, of {worst.target}, "
            f"{worst.program}")


def draw(parts: Mapping[str, Sequence[Row]], path: Path) -> None:
    """Plot the errors of all estimates, with one panel for each part of the experiment."""
    parts = {kind: rows for kind, rows in parts.items() if rows}
    most = max(map(len, parts.values()))
    with picture(path, size=(7.2 * len(parts), 1.6 + 0.22 * most), columns=len(parts)) as panels:
        for axes, (kind, rows) in zip(panels, parts.items(), strict=True):
            places = np.arange(len(rows))[::-1]
            for name, label, values in (
                    ("single", "best single metric", [row.best_single[1] for row in rows]),
                    ("plain", "alpha T1", [row.plain for row in rows]),
                    ("estimate", "with the second run", [row.estimate for row in rows])):
                errors = [100 * row.error(value) for row, value in zip(rows, values, strict=True)]
                axes.scatter(errors, places, color=_COLORS[name], label=label, s=18)
            bars = 100 * np.array([limit(kind, row) for row in rows])
            axes.barh(places, 2 * bars, left=-bars, height=1, color=_COLORS["estimate"], alpha=0.12)
            axes.set_yticks(places, [f"{row.target}: {row.program}" for row in rows])
            axes.set(title=_TITLES[kind], xlabel="error (%)", xlim=(-35, 35))
        panels[-1].legend()


@command
def estimate_lab(
    *,
    targets: Annotated[str | None, Option("Semicolon-separated targets.", shown_default="all")] = None,
    lengths: Annotated[str, Option("Semicolon-separated network sizes, in parameters.")] = "256;1024;4832",
    examples: Annotated[int, Option("Number of examples per node.", minimum=1, maximum=64)] = 8,
    ratios: Annotated[bool, Option("Also estimate machines with other compute-to-link ratios.")] = True,
    output: Annotated[Path, Option("Folder for estimate.json and estimate.png.", shown_default="build/estimate")] =
        BUILD / "estimate",
) -> None:
    """Estimate training steps of other machines by runs on a throttled one, then build and compare."""
    execution = machine.EXECUTION
    chosen = chosen_names("Target", targets, [target.name for target in machine.TARGETS], ";")
    cases = [Case(length=int(length), overlapped=overlapped, examples=examples)
             for length in chosen_names("Length", lengths, [str(length) for length in NETWORKS], ";")
             for overlapped in (False, True)]
    machines = [target for target in machine.TARGETS if target.name in chosen]
    for target in machines:  # raises an error before anything is built
        experiment.rates_of(execution, target, cases)
    results = Results(output, "estimate.json", "estimate.png")
    parts: dict[str, list[Row]] = {kind: [] for kind in BARS}
    with results.progress() as progress, machine.opened(execution, announce=progress.stage) as opened:
        bench = experiment.Bench(opened)
        for target in machines:
            parts["targets"] += experiment.compare(bench, target, cases, announce=progress.stage)
        if ratios:
            parts["ratios"] += experiment.ratios(bench, cases, machine.RATIOS, announce=progress.stage)
    for kind, rows in parts.items():
        if rows:
            results.show(*tables(kind, rows), summary(kind, rows))
    if parts["ratios"]:
        results.show("compute of ratios: modelled by COMPUTE")
    results.write(describe(parts), functools.partial(draw, parts))
    results.show_paths()
