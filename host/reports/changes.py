"""Changes of the rings in the report of a training run: rows and tables of them, and lines in its picture."""

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.table import Table

from host.driver.results import total
from host.reports.notes import count_text
from host.reports.page import table_of
from host.reports.style import INK

__all__ = ["hops", "mark", "nodes_of", "rows_of", "table_of_changes"]


def hops(densities: list[list[float]]) -> npt.NDArray[np.float64]:
    """Density of each step and hop; NaN where the step's rings have no such hop."""
    longest = max(map(len, densities), default=0)
    return np.array([[*one, *[np.nan] * (longest - len(one))] for one in densities]).reshape(len(densities), longest)


def nodes_of(report: dict[str, Any]) -> str:
    """Nodes from the first step to the last, as in ``8 → 4 → 8``."""
    return " → ".join(map(str, [report["nodes"], *(len(change["nodes"]) for change in report["changes"])]))


def rows_of(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Name and value of each line of the table of figures that is about the grid."""
    topology = report["topology"]
    if topology is None:
        return []
    changes = report["changes"]
    rows = [("topology · rings", f"{topology['rows']} x {topology['columns']} · {topology['stages'][0]['rings']}")]
    rows += [(f"after step {change['step']}", f"{', '.join(change['requests'])} · {_rings(change)}")
             for change in changes]
    if changes:
        cycles = [total(change[name] for change in changes) for name in ("switch_cycles", "carry_cycles")]
        rows.append(("cycles to switch · to carry over", " · ".join(map(count_text, cycles))))
    return rows


def _rings(change: dict[str, Any]) -> str:
    count = len(change["nodes"])
    return f"{count} node{'s' if count > 1 else ''}, {change['shape']}"


def table_of_changes(report: dict[str, Any]) -> list[Table]:
    """Steps between changes, and what each change has cost."""
    if report["topology"] is None:
        return []
    changes, steps = report["changes"], report["per_step"]
    bounds = [0, *(change["step"] for change in changes), len(steps)]
    stages = [steps[begin:end] for begin, end in itertools.pairwise(bounds)]
    first = report["topology"]["stages"][0]
    about = [("begin", first["rings"], "-", "-", "-", "-", "-"), *(
        (", ".join(change["requests"]), _rings(change), _numbers(change["left"]), _numbers(change["joined"]),
         f"{change['moved']:,}", count_text(change["switch_cycles"]), count_text(change["carry_cycles"]))
        for change in changes)]
    header = ["from step", "request", "rings", "left", "came", "elements moved", "cycles to switch", "to carry over",
              "words sent"]
    rows = [[f"{begin + 1:,}", *one, f"{sum(step['words_sent'] for step in mine):,}"]
            for begin, one, mine in zip(bounds, about, stages, strict=False)]
    if report["faults"] is not None:
        header += ["restarts", "words repeated"]
        for row, mine in zip(rows, stages, strict=True):
            row += [f"{sum(step[name] for step in mine):,}" for name in ("link_restarts", "words_repeated")]
    return [table_of("Rings, from change to change", rows, header=header)]


def _numbers(nodes: list[int]) -> str:
    return ", ".join(map(str, nodes)) or "-"


def mark(axes: Any, report: dict[str, Any], *, scale: float = 1.0, named: bool = False) -> None:
    """Draw a vertical line at each change.

    Parameters
    ----------
    axes : Axes
    report : dict
    scale : float
        Length of a step on the horizontal axis.
    named : bool
        Whether to write the requests, and the nodes that are there then, beside the line.
    """
    from matplotlib.patheffects import withStroke

    for change in report["changes"]:
        at = (change["step"] + 0.5) * scale
        axes.axvline(at, color=INK, linewidth=1, linestyle=(0, (2, 2)), alpha=0.7)
        if named:
            count = len(change["nodes"])
            text = f"{', '.join(change['requests'])}: {count} node{'s' if count > 1 else ''}"
            axes.annotate(text, (at, 0.02), xycoords=("data", "axes fraction"), xytext=(3, 0),
                          textcoords="offset points", rotation=90, va="bottom", fontsize=8, color=INK, zorder=5,
                          path_effects=[withStroke(linewidth=3, foreground="white")])
