"""Predictions as a table, as JSON, and as a picture of time over nodes."""

import pathlib
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from host.output import replacing
from host.predict.model import Prediction
from host.reports.style import FAINT, INK, STYLE
from host.versions import program

__all__ = ["describe", "draw", "table"]

#: Of predict.json; docs/predict.md lists its fields.
SCHEMA, VERSION = "gradring.predict", 1

_COLORS = ("#0b7a75", "#d9822b", "#7353ba", "#b3261e", "#2f6fb0", "#8a97a6", INK)
_MARKERS = "os^Dv<>"


def describe(found: Sequence[Prediction], **asked: Any) -> dict[str, Any]:
    """Content of predict.json: what was asked, and a row for each format and ring."""
    return {"schema": {"name": SCHEMA, "version": VERSION}, "program": program(), "modelled": True, **asked,
            "rows": [{"format": one.form, "nodes": one.nodes, "cycles": one.cycles, "seconds": one.seconds,
                      "compute_cycles": one.compute, "communicate_cycles": one.communicate, "words": one.words}
                     for one in found]}


def _seconds(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1 or unit == "us":
            return f"{seconds * factor:,.3g} {unit}" if seconds * factor < 1000 else f"{seconds * factor:,.0f} {unit}"
    return ""


def table(found: Sequence[Prediction], title: str) -> Table:
    """Predictions of one ring size, a row for each format."""
    result = Table(title=title, title_justify="left", border_style="dim", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    result.add_column("format")
    for heading in ("step", "cycles", "compute", "communicate", "words", "link"):
        result.add_column(heading, justify="right", no_wrap=True)
    for one in found:
        used = one.words / one.communicate if one.communicate else 0.0
        result.add_row(one.form, _seconds(one.seconds), *(f"{value:,}" for value in (
            one.cycles, one.compute, one.communicate, one.words)), f"{used:.0%}")
    return result


def draw(found: Sequence[Prediction], path: pathlib.Path, *, title: str, note: str) -> None:
    """Draw the time of a step over the nodes of the ring, a line for each format."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    forms = list(dict.fromkeys(one.form for one in found))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.4, 4.8), layout="constrained", dpi=130)
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        for number, form in enumerate(forms):
            chosen = [one for one in found if one.form == form]
            axes.plot([one.nodes for one in chosen], [one.seconds for one in chosen], label=form, markersize=4,
                      color=_COLORS[number % len(_COLORS)], marker=_MARKERS[number % len(_MARKERS)])
        axes.set_xscale("log", base=2)
        axes.set_ylim(0, 1.05 * max(one.seconds for one in found))
        counts = sorted({one.nodes for one in found})
        axes.set_xticks(counts, [f"{count:,}" for count in counts])
        axes.minorticks_off()
        axes.set(title=title, xlabel="nodes", ylabel="time of a step")
        axes.yaxis.set_major_formatter(lambda value, _: _seconds(value))
        axes.text(0, -0.16, note, transform=axes.transAxes, fontsize=8.5, color=FAINT, va="top")
        axes.legend()
        with replacing(path) as file:
            figure.savefig(file)
