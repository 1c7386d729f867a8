"""Table and picture of estimates of targets, beside what these really take."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from host.estimate.experiment import Row
from host.output import replacing
from host.reports.style import STYLE

__all__ = ["BARS", "TITLES", "draw", "figures", "limit", "overview", "summary", "table"]

#: Largest deviations from the truth, by the parameters of a program from which they hold.
BARS = {"targets": {1024: 0.03, 0: 0.06}, "ratios": {0: 0.02}}

TITLES = {"targets": "Targets that are really built", "ratios": "Faster compute beside the same link"}
_COLORS = {"estimate": "#0b7a75", "plain": "#d9822b", "single": "#8a97a6"}
_DPI = 130


def limit(kind: str, row: Row) -> float:
    """Largest deviation that a row may have."""
    return next(bar for least, bar in BARS[kind].items() if row.length >= least)


def table(kind: str, rows: Sequence[Row]) -> str:
    """Rows in Markdown; those that miss their bar are marked."""
    lines = ["| target | program | alpha | untouched | T1 | T2 | estimate | error | alpha T1 | best metric alone | "
             "truth |", "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for row in rows:
        name, alone = row.best_single
        missed = " *" if abs(row.error(row.estimate)) > limit(kind, row) else ""
        lines.append(f"| {row.target} | {row.program} | {row.alpha:.3f} | {row.execution:,.0f} | "
                     f"{row.first:,.0f} | {row.second:,.0f} | {row.estimate:,.0f} | "
                     f"{row.error(row.estimate):+.2%}{missed} | "
                     f"{row.error(row.plain):+.1%} | {name} {row.error(alone):+.1%} | {row.truth:,.0f} |")
    return "\n".join(lines)


def overview(kind: str, rows: Sequence[Row]) -> str:
    """Errors in percent in Markdown, a line for each target; those beyond their bar are marked."""
    programs = list(dict.fromkeys((row.length, row.overlapped) for row in rows))
    names = [f"{length:,}{', overlap' if overlapped else ''}" for length, overlapped in programs]
    lines = [f"| target | alpha | {' | '.join(names)} | plain | one metric |",
             f"|---|---:|{'---:|' * len(programs)}---:|---:|"]
    for target in dict.fromkeys(row.target for row in rows):
        own = [row for row in rows if row.target == target]
        alphas = list(dict.fromkeys(f"{value:.3g}" for value in sorted(row.alpha for row in own)))
        errors = [f"{100 * error:+.2f}{'*' if abs(error) > limit(kind, row) else ''}"
                  for row, error in ((row, row.error(row.estimate)) for row in own)]
        worst = [max(abs(row.error(value)) for row, value in values) for values in (
            [(row, row.plain) for row in own], [(row, row.best_single[1]) for row in own])]
        lines.append(f"| {target} | {' to '.join(dict.fromkeys((alphas[0], alphas[-1])))} | {' | '.join(errors)} | "
                     f"{' | '.join(f'{100 * value:.1f}' for value in worst)} |")
    return "\n".join(lines)


def summary(kind: str, rows: Sequence[Row]) -> str:
    """Rows and targets within their bars, and those that are better than any metric alone."""
    within = sum(abs(row.error(row.estimate)) <= limit(kind, row) for row in rows)
    names = dict.fromkeys(row.target for row in rows)
    better = [name for name in names if all(row.better for row in rows if row.target == name)]
    worst = max(rows, key=lambda row: abs(row.error(row.estimate)))
    return (f"{within} of {len(rows)} programs are within their bars, which rows with * are not; "
            f"{sum(row.better for row in rows)} of them, and all of {len(better)} of {len(names)} targets, are "
            f"closer than any metric alone; largest error {worst.error(worst.estimate):+.2%}, of {worst.target}, "
            f"{worst.program}")


def figures(kind: str, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Rows as values of JSON."""
    return [{**dataclasses.asdict(row), "error": row.error(row.estimate), "plain_error": row.error(row.plain),
             "best_single": row.best_single[0], "best_single_error": row.error(row.best_single[1]),
             "bar": limit(kind, row)} for row in rows]


def draw(parts: dict[str, Sequence[Row]], path: pathlib.Path) -> None:
    """Draw the deviations of all estimates, a panel for each part."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = {kind: rows for kind, rows in parts.items() if rows}
    with matplotlib.rc_context(STYLE):
        most = max(map(len, shown.values()))
        figure = Figure(figsize=(7.2 * len(shown), 1.6 + 0.22 * most), layout="constrained", dpi=_DPI)
        FigureCanvasAgg(figure)
        for axes, (kind, rows) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown.items(), strict=True):
            places = np.arange(len(rows))[::-1]
            values = {"single": [row.error(row.best_single[1]) for row in rows],
                      "plain": [row.error(row.plain) for row in rows],
                      "estimate": [row.error(row.estimate) for row in rows]}
            labels = {"single": "best metric alone", "plain": "alpha T1", "estimate": "with the second run"}
            for name, errors in values.items():
                axes.scatter(100 * np.array(errors), places, color=_COLORS[name], label=labels[name], s=18)
            bars = 100 * np.array([limit(kind, row) for row in rows])
            axes.barh(places, 2 * bars, left=-bars, height=1, color=_COLORS["estimate"], alpha=0.12)
            axes.set_yticks(places, [f"{row.target}: {row.program}" for row in rows])
            axes.set(title=TITLES[kind], xlabel="error (%)", xlim=(-35, 35))
        figure.axes[-1].legend()
        with replacing(path) as file:
            figure.savefig(file)
