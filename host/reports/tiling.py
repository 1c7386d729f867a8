"""The picture of a comparison of searches: least cost over evaluations."""

import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from host.output import replacing
from host.reports.style import INK, STYLE
from host.tiling.experiment import Result

__all__ = ["draw"]

_COLORS = ("#0b7a75", "#7353ba", "#8a97a6", "#d9822b", "#b3261e", INK)
_DPI = 130


def draw(results: Sequence[Result], optimum: Mapping[str, int], path: pathlib.Path) -> None:
    """Draw the median over the seeds of the least cost, in terms of the optimum, a panel for each product."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(result.task for result in results))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.6 * len(tasks), 4.4), layout="constrained", dpi=_DPI)
        FigureCanvasAgg(figure)
        for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
            for color, result in zip(_COLORS, (one for one in results if one.task == task), strict=False):
                curves = np.array(result.curves) / optimum[task]
                axes.plot(np.arange(1, curves.shape[1] + 1), np.median(curves, 0), color=color, label=result.method)
            axes.set(title=task, xlabel="evaluations", ylim=(0.98, 2.2))
        panels = figure.axes
        panels[0].set_ylabel("least cycles, of the optimum (median of seeds)")
        panels[-1].legend()
        with replacing(path) as file:
            figure.savefig(file)
