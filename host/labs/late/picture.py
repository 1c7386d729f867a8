"""Report and picture of training with late gradients: loss over cycles by each way to treat them, by skew."""

from pathlib import Path
from typing import Any

import numpy as np

from host.columns import Column, columns_of
from host.features.quorum.updates import Outcome
from host.reports.style import COLOURS, FAINT, picture, show_thousands, smoothed
from host.schema import Schema, read_report
from sim.fields import choice, having, number, optional, several

__all__ = ["SCHEMA", "draw", "draw_report"]

#: Report of runs by several ways to treat late gradients.
SCHEMA = Schema("gradring.late", 1, columns_of(
    "compute", Column("runs", columns=columns_of("skew late seed", Outcome, "masks"))))

_COLOURS = dict(zip(("apply-late", "wait", "drop"), COLOURS, strict=False))
_number = number(-1e300, 1e300)
_RUN = having(skew=_number, late=choice(_COLOURS), cycles=several(_number, 1, 1 << 22),
              losses=several(optional(_number), 1, 1 << 22), measured=several(several(_number, 2, 2), 1, 1 << 22))
_RUNS = several(_RUN, 1, 1024)
#: Points of a mean over seeds, since their updates end at different cycles.
_POINTS = 120


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw the loss of each seed, smoothed over some updates, and its mean, in a panel for each skew."""
    skews = sorted({run["skew"] for run in report["runs"]})
    with picture(path, size=(6 * len(skews), 4.5), columns=len(skews),
                 title="Loss over cycles, compute: modelled") as panels:
        for axes, skew in zip(panels, skews, strict=True):
            axes.set(title=f"skew {skew:g}", xlabel="cycle")
            show_thousands(axes.xaxis)
            if axes is not panels[0]:
                axes.sharey(panels[0])
            for late, colour in _COLOURS.items():
                runs = [run for run in report["runs"] if (run["skew"], run["late"]) == (skew, late)]
                if not runs:
                    continue
                cycles = np.linspace(max(run["cycles"][0] for run in runs), min(run["cycles"][-1] for run in runs),
                                     _POINTS)
                curves = [np.interp(cycles, run["cycles"], smoothed(run["losses"])) for run in runs]
                for curve in curves:
                    axes.plot(cycles, curve, color=colour, linewidth=0.6, alpha=0.35)
                accuracy = 100 * np.mean([run["measured"][-1][1] for run in runs])
                axes.plot(cycles, np.mean(curves, axis=0), color=colour, linewidth=1.8,
                          label=f"{late}, {accuracy:.1f} % at the end")
            axes.legend(fontsize=9)
        panels[0].set_ylabel("loss of gradients in time", color=FAINT)


def draw_report(folder: Path) -> Path:
    """Draw the late.json of a folder; the path of the picture."""
    path = folder / "late.json"
    report = read_report(path, SCHEMA)
    if not _RUNS(report.get("runs")) or not all(len(run["cycles"]) == len(run["losses"]) for run in report["runs"]):
        raise ValueError(f"{path} must be a report of training with stale gradients, not damaged or another file")
    draw(report, folder / "late.png")
    return folder / "late.png"
