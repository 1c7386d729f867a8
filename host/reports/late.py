"""Picture of training with late gradients: loss over cycles by each way to treat them, with and without skew.

``python -m host.reports.late`` draws the late.json of a folder that :mod:`host.training.late_learning` or
:mod:`host.training.late_run` has written.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from host.output import replacing
from host.reports.style import FAINT, STYLE
from sim import json_files
from sim.fields import choice, having, number, optional, several, text

__all__ = ["draw", "main"]

_COLOURS = {"apply-late": "#0b7a75", "wait": "#e4a53a", "drop": "#d1495b"}
_number = number(-1e300, 1e300)
_RUN = having(skew=_number, late=choice(_COLOURS), cycles=several(_number, 1, 1 << 22),
              losses=several(optional(_number), 1, 1 << 22), measured=several(several(_number, 2, 2), 1, 1 << 22))
_REPORT = having(compute=text("[ -~]{0,256}"), runs=several(_RUN, 1, 1024))
#: Points of a mean over seeds, whose rounds end at other cycles.
_POINTS = 120


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw the loss of each seed, smoothed over some rounds, and its mean, in a panel for each skew."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    skews = sorted({run["skew"] for run in report["runs"]})
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6 * len(skews), 4.2), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(f"Loss over cycles, compute: {report['compute']}", fontsize=13)
        panels = np.atleast_1d(figure.subplots(1, len(skews), sharey=True))
        for axes, skew in zip(panels, skews, strict=True):
            axes.set_title(f"skew {skew:g}", fontsize=11)
            axes.set_xlabel("cycle")
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            for late, colour in _COLOURS.items():
                found = [run for run in report["runs"] if (run["skew"], run["late"]) == (skew, late)]
                if not found:
                    continue
                end = min(run["cycles"][-1] for run in found)
                start = max(run["cycles"][0] for run in found)
                cycles = np.linspace(start, end, _POINTS)
                each = [np.interp(cycles, run["cycles"], smoothed(run["losses"])) for run in found]
                for one in each:
                    axes.plot(cycles, one, color=colour, linewidth=0.6, alpha=0.35)
                accuracy = 100 * np.mean([run["measured"][-1][1] for run in found])
                axes.plot(cycles, np.mean(each, axis=0), color=colour, linewidth=1.8,
                          label=f"{late}, {accuracy:.1f} % at the end")
            axes.legend(fontsize=9)
        panels[0].set_ylabel("loss of gradients in time", color=FAINT)
        with replacing(path) as file:
            figure.savefig(file, dpi=130)


def smoothed(losses: Sequence[float | None], count: int = 5) -> list[float]:
    """Mean over the last few rounds, without rounds that have no gradient in time."""
    found: list[float] = []
    for last in range(1, len(losses) + 1):
        known = [loss for loss in losses[max(0, last - count):last] if loss is not None and not np.isnan(loss)]
        found.append(float(np.mean(known)) if known else found[-1] if found else 0.0)
    return found


def main(arguments: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m host.reports.late", description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/late"), help="[build/late]")
    options = parser.parse_args(arguments)
    path = options.folder / "late.json"
    report = json_files.read(path)
    if not _REPORT(report) or not all(len(run["cycles"]) == len(run["losses"]) for run in report["runs"]):
        raise ValueError(f"{path} must be a report of training with late gradients, not damaged or another file")
    draw(report, options.folder / "late.png")
    print(options.folder / "late.png")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
