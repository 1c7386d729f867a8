"""Common style of pictures, which are written to image files with panels that can be shown separately.

Example
-------
::

    with picture(folder / "report.png", size=(11, 7.4), rows=2, columns=2, title="a run") as panels:
        panels[0].plot(steps, losses)
"""

import contextlib
import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from host.output import replacing

__all__ = ["COLOURS", "FAINT", "INK", "STYLE", "annotate_outlined", "picture", "show_thousands", "smoothed"]

INK, FAINT = "#1d2733", "#8a97a6"
#: Colours of curves: green, yellow, red, slate, violet, orange and dark red.
COLOURS = ("#0b7a75", "#e4a53a", "#d1495b", "#5b6f8a", "#7353ba", "#d9822b", "#b3261e")

#: Parameters for :func:`matplotlib.rc_context`.
STYLE = {
    "font.family": "DejaVu Sans", "font.size": 9.5, "text.color": INK, "axes.edgecolor": FAINT,
    "axes.labelcolor": INK, "xtick.color": FAINT, "ytick.color": FAINT, "xtick.labelcolor": INK,
    "ytick.labelcolor": INK, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.color": "#e7ebef", "axes.axisbelow": True, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.titlesize": 11, "legend.frameon": False,
}
_DPI = 130
#: Heights in inches of the title, the note below it, and the shared legend.
_TITLE, _NOTE, _LEGEND = 0.34, 0.28, 1.1


@contextlib.contextmanager
def picture(path: pathlib.Path, *, size: tuple[float, float], rows: int = 1, columns: int = 1, title: str = "",
            note: str = "", colour: str = FAINT, **options: Any) -> Iterator[list[Any]]:
    """Context manager for a picture that is written as PNG at the end, with the position of each panel.

    Parameters
    ----------
    size : (float, float)
        Width and height in inches.
    rows, columns : int
        Number of rows and columns of panels, yielded row by row. With ``sharex``, the rows form one panel.
    title, note : str
        Lines of text above the panels. The note has the colour ``colour``.
    options
        ``legend=True`` adds an area below all panels, which is yielded last; other options are passed to
        :meth:`matplotlib.figure.Figure.add_gridspec` or, with ``sharex``, to its ``subplots``.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shared, legend = options.get("sharex", False), options.pop("legend", False)
    above, below = _TITLE * bool(title) + _NOTE * bool(note), _LEGEND * legend
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained", dpi=_DPI)
        FigureCanvasAgg(figure)
        inner = size[1] - above - below
        bands = figure.add_gridspec(3, 1, height_ratios=(max(above, 1e-3), inner, max(below, 1e-3)))
        _write_lines(figure, size, title, note, colour)
        body = figure.add_subfigure(bands[1])
        if shared:
            parts, panels = [body], list(body.subplots(rows, columns, **options))
        else:
            grid = body.add_gridspec(rows, columns, **options)
            parts = [body.add_subfigure(grid[row, column]) for row in range(rows) for column in range(columns)]
            panels = [part.subplots() for part in parts]
        if legend:
            parts.append(figure.add_subfigure(bands[2]))
            panels.append(parts[-1])
        yield panels
        engine = figure.get_layout_engine()
        assert engine is not None
        engine.execute(figure)
        figure.set_layout_engine("none")
        height = figure.bbox.height
        lines = [" ".join([*(f"{x:.0f}" for x in (box.x0, height - box.y1, box.x1, height - box.y0)),
                           "; ".join(filter(None, (axes.get_title(loc="left") for axes in part.axes)))])
                 for part, box in ((part, part.bbox) for part in parts)]
        with replacing(path) as file:
            figure.savefig(file, metadata={"panels": "\n".join(lines)})


def _write_lines(figure: Any, size: tuple[float, float], title: str, note: str, colour: str) -> None:
    """Write the title and the note, in a smaller font if they are long."""
    width, height = size
    if title:
        figure.text(0.012, 1 - 0.07 / height, title, fontsize=15 * min(1, 6.9 * width / len(title)),
                    fontweight="bold", va="top")
    if note:
        figure.text(0.012, 1 - (0.07 + _TITLE) / height, note, fontsize=min(10, 125 * width / len(note)),
                    color=colour, va="top")


def annotate_outlined(axes: Any, text: str, at: tuple[float, float], **options: Any) -> None:
    """Write text with a white outline at the given position on the axes."""
    from matplotlib.patheffects import withStroke

    axes.annotate(text, at, textcoords="offset points", path_effects=[withStroke(linewidth=3, foreground="white")],
                  **options)


def show_thousands(axis: Any) -> None:
    """Label an axis with numbers that have thousands separators."""
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def smoothed(losses: Sequence[float | None], count: int = 5) -> list[float]:
    """Return, for each update, the mean loss over the last ``count`` updates, ignoring missing losses."""
    means: list[float] = []
    for last in range(1, len(losses) + 1):
        known = [loss for loss in losses[max(0, last - count):last] if loss is not None and not math.isnan(loss)]
        means.append(sum(known) / len(known) if known else means[-1] if means else 0.0)
    return means
