"""Ring reconfigurations in a training report: summary rows, tables, and lines in the figure."""

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from host.columns import NOT_MODELLED, Column, Table, columns_of, count_text
from host.driver.results import total
from host.reports.style import INK, annotate_outlined
from host.training.record import Change

__all__ = ["CHANGES", "hops", "mark", "nodes_of", "rows_of", "table_of_changes"]

#: Columns that describe a reconfiguration in reports.
CHANGES = columns_of(Change, carry_cycles="handover_cycles")


def hops(densities: list[list[float]]) -> npt.NDArray[np.float64]:
    """Return an array of densities, indexed by step and hop, with NaN for hops that a step's rings do not have."""
    longest = max(map(len, densities), default=0)
    return np.array([[*row, *[np.nan] * (longest - len(row))] for row in densities]).reshape(len(densities), longest)


def nodes_of(report: dict[str, Any]) -> str:
    """Return the node counts from the first step to the last, such as ``8 → 4 → 8``."""
    counts = [report["nodes"], *(len(change["nodes"]) for change in report["changes"])]
    if not report["changes"]:  # a run with microbatches may continue with a different node count
        counts = [nodes for nodes, _ in itertools.groupby(step["nodes"] for step in report["per_step"])] or counts
    return " → ".join(map(str, counts))


def rows_of(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the name and value of each summary row that describes the grid."""
    topology = report["topology"]
    if topology is None:
        return []
    changes = report["changes"]
    rows = [("topology · rings", f"{topology['rows']} x {topology['columns']} · {topology['stages'][0]['rings']}")]
    rows += [(f"after step {change['step']}", f"{', '.join(change['requests'])} · {_rings(change)}")
             for change in changes]
    if changes:
        cycles = [total(change[name] for change in changes) for name in ("switch_cycles", "handover_cycles")]
        rows.append(("cycles to switch · to hand state over", " · ".join(map(count_text, cycles))))
    return rows


def _count(change: dict[str, Any]) -> str:
    count = len(change["nodes"])
    return f"{count} node{'s' * (count > 1)}"


def _rings(change: dict[str, Any]) -> str:
    return f"{_count(change)}, {change['shape']}"


_STAGES = columns_of(
    "from_step:, request rings left joined", Column("moved", ",", "elements moved"),
    Column("switch_cycles", ",", "cycles to switch"), Column("handover_cycles", ",", "to hand state over"),
    "words_sent:,")
_REPAIRS = columns_of(Column("link_restarts", ",", "restarts"), "words_repeated:,")


def table_of_changes(report: dict[str, Any]) -> list[Table]:
    """Return tables of the steps between reconfigurations, and of the cost of each reconfiguration."""
    if report["topology"] is None:
        return []
    changes, steps = report["changes"], report["per_step"]
    bounds = [0, *(change["step"] for change in changes), len(steps)]
    begin = dict.fromkeys(("left", "joined", "moved", "switch_cycles", "handover_cycles")) | {
        "request": "begin", "rings": report["topology"]["stages"][0]["rings"]}
    rows = [begin, *({**change, "request": ", ".join(change["requests"]), "rings": _rings(change),
                      "left": change["left"] or None, "joined": change["joined"] or None} for change in changes)]
    for row, (first, last) in zip(rows, itertools.pairwise(bounds), strict=True):
        row["from_step"] = first + 1
        for name in ("switch_cycles", "handover_cycles") if first else ():
            row[name] = NOT_MODELLED if row[name] is None else row[name]
        for name in ("words_sent", "link_restarts", "words_repeated"):
            row[name] = sum(step[name] for step in steps[first:last])
    columns = _STAGES if report["faults"] is None else (*_STAGES, *_REPAIRS)
    return [Table("Rings, from change to change", columns, rows)]


def mark(axes: Any, report: dict[str, Any], *, scale: float = 1.0, named: bool = False) -> None:
    """Draw a vertical line at each reconfiguration. One step is ``scale`` wide on the horizontal axis. With
    ``named``, each line is labelled with the requests and the new number of nodes."""
    for change in report["changes"]:
        at = (change["step"] + 0.5) * scale
        axes.axvline(at, color=INK, linewidth=1, linestyle=(0, (2, 2)), alpha=0.7)
        if named:
            annotate_outlined(axes, f"{', '.join(change['requests'])}: {_count(change)}", (at, 0.02),
                              xycoords=("data", "axes fraction"), xytext=(3, 0), rotation=90, va="bottom", fontsize=8,
                              color=INK, zorder=5)
