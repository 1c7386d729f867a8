"""The picture of relays: a set's timeline, stalls over microbatches, and losses with and without an assessor."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from host.output import replacing
from host.relay.experiment import Row
from host.relay.timeline import Run
from host.reports.style import INK, STYLE

__all__ = ["draw"]

_KINDS = {"fetch": "#7353ba", "push": "#d9822b", "forward": "#0b7a75", "backward": "#8a97a6"}
_DPI = 130
#: Sets over which losses are averaged.
_MEAN = 15


def _lanes(axes: Any, runs: Mapping[int, Run]) -> None:
    """Link and executions of sets, one above the other."""
    rows = [(count, name) for count in runs for name in ("link", "compute")]
    for place, (count, name) in enumerate(rows):
        for event in runs[count].events:
            if event.executes == (name == "compute"):
                axes.barh(place, event.end - event.start, left=event.start, height=0.7, color=_KINDS[event.kind],
                          edgecolor="white", linewidth=0.4)
    axes.set(yticks=range(len(rows)), yticklabels=[f"{name}, {count}" for count, name in rows], xlabel="cycles",
             ylim=(len(rows) + 0.1, -0.6), title="A set of 4 layers (modelled)")
    axes.legend(handles=[axes.barh(0, 0, color=color, label=kind) for kind, color in _KINDS.items()], ncols=4,
                loc="lower right", fontsize=7)


def draw(runs: Mapping[int, Run], stalls: Sequence[Mapping[str, Any]], rows: Sequence[Row],
         path: pathlib.Path) -> None:
    """Draw three panels; of losses, those of the first case that has an edit behind the first one, and of the one
    that it is compared with."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(14, 4.2), layout="constrained", dpi=_DPI)
        FigureCanvasAgg(figure)
        first, second, third = figure.subplots(1, 3, width_ratios=(1.6, 1, 1.2))
        _lanes(first, runs)
        for row, color in zip(stalls, (*_KINDS.values(), INK), strict=False):
            second.plot(range(1, len(row["stall"]) + 1), [100 * one for one in row["stall"]], marker="o", color=color,
                        label=f"{row['layers']} layers")
        second.set(title="Stall (modelled)", xlabel="microbatches", ylabel="per cent", ylim=(0, None),
                   xticks=range(1, len(stalls[0]["stall"]) + 1))
        second.legend()
        edited = next((one for one in rows if one.beside and len(one.edits) > 1), None)
        shown = [one for one in rows if edited is not None and one.name in (edited.name, edited.beside)]
        for case, color in zip(shown, _KINDS.values(), strict=False):
            means = np.convolve(case.losses, np.ones(_MEAN) / _MEAN, "valid")
            third.plot(np.arange(len(means)) + _MEAN, means, color=color, label=case.name)
        third.set(title=f"Mean loss of {_MEAN} sets (golden)", xlabel="set")
        if shown:
            third.legend()
        with replacing(path) as file:
            figure.savefig(file)
