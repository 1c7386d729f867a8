"""The report of a training run with a straggler: JSON, a table of workers, and a picture of losses and of rounds."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from host.output import replacing
from host.reports.late import smoothed
from host.reports.style import FAINT, STYLE
from host.training.late_learning import LateConfig
from host.training.late_run import LateRun
from host.versions import program
from sim.golden.rounds import ONE

__all__ = ["build", "draw", "lines"]

SCHEMA, VERSION = "gradring.late", 1

#: Fates of a worker's gradients in a round, and their colours.
_COLOURS = {"on_time": "#0b7a75", "late": "#e4a53a", "dropped": "#d1495b"}
_NAMES = {"on_time": "in time", "late": "late, folded in", "dropped": "late, dropped"}


def build(config: LateConfig, run: LateRun, **figures: Any) -> dict[str, Any]:
    """The report of a run, as far as it has gone; ``figures`` are those of the simulation."""
    outcome, workers = run.outcome, range(config.workers)
    settings = dataclasses.asdict(config)
    settings |= {"late": config.late.value, "slow": {str(rank): config.slow[rank] for rank in sorted(config.slow)},
                 "weights": [weight / ONE for weight in config.weights]}
    return {
        "schema": SCHEMA, "version": VERSION, "program": program(), "compute": "modelled", "settings": settings,
        "accuracy": outcome.accuracy, "cycles": run.cycles, "bit_exact": True,
        "measured": [{"cycle": cycle, "accuracy": accuracy} for cycle, accuracy in outcome.measured],
        "gradients": outcome.counts,
        "workers": [{"worker": rank, "factor": config.slow.get(rank, 1.0), **counts, "pending": pending,
                     "abandoned": run.abandoned[rank]}
                    for rank, counts, pending in zip(workers, run.counts(), run.pending(), strict=True)],
        "rounds": [{"number": number, "cycle": cycle, "loss": loss,
                    **{name: [rank for rank in workers if mask >> rank & 1]
                       for name, mask in dataclasses.asdict(fates).items() if name != "ages"},
                    "ages": list(fates.ages)}
                   for number, (cycle, loss, fates) in enumerate(
                       zip(outcome.cycles, outcome.losses, run.fates, strict=True))],
        "laggards": run.laggards,
        "switched_out": [{"worker": worker, "after": rounds} for worker, rounds in run.left.items()], **figures,
    }


def lines(report: dict[str, Any]) -> list[str]:
    """The report in lines of text."""
    settings = report["settings"]
    quorum = settings["workers"] if settings["late"] == "wait" else settings["quorum"]
    deadline = f", or {settings['deadline']:,} cycles" if settings["deadline"] else ""
    factor = f", lambda {settings['factor']:g}" if settings["late"] == "apply-late" else ""
    found = [f"{settings['late']}{factor}: rounds are closed by {quorum} of {settings['workers']} gradients"
             f"{deadline}; skew {settings['skew']:g}",
             f"{len(report['rounds'])} rounds in {report['cycles']:,} cycles, test accuracy {report['accuracy']:.2%}",
             "", "worker  slower by  computed  in time  folded  at ages  dropped  pending  abandoned"]
    found += [f"{one['worker']:6}  {one['factor']:9g}  {one['computed']:8}  {one['applied']:7}  {one['folded']:6}  "
              f"{_ages(report, one['worker']):>7}  {one['dropped']:7}  {len(one['pending']):7}  {one['abandoned']:9}"
              for one in report["workers"]]
    found += ["", *report["laggards"]]
    found += [f"worker {one['worker']} was switched out after {one['after']} rounds"
              for one in report["switched_out"]]
    return [*found,
            "No difference from the golden model: weights and momenta at the end of each block, and every element of "
            "each gradient has one fate, in each round.",
            "compute: modelled; rounds, sums and updates: gateware"]


def _ages(report: dict[str, Any], worker: int) -> str:
    """Least and largest age of a worker's folded gradients, in rounds."""
    ages = [age for row in report["rounds"] for late, age in zip(row["late"], row["ages"], strict=True)
            if late == worker]
    if not ages:
        return ""
    return f"{min(ages)}" if min(ages) == max(ages) else f"{min(ages)} to {max(ages)}"


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw the loss of gradients in time over cycles, and below the fates of each worker's gradients."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rounds, settings = report["rounds"], report["settings"]
    cycles = np.array([one["cycle"] for one in rounds])
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 5.2), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(f"{settings['late']}, skew {settings['skew']:g}: {len(rounds)} rounds, test accuracy "
                        f"{report['accuracy']:.2%}; compute: {report['compute']}", fontsize=13)
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
        losses = [one["loss"] for one in rounds]
        above.plot(cycles, losses, color=FAINT, linewidth=0.7)
        above.plot(cycles, smoothed(losses), color=_COLOURS["on_time"], linewidth=1.8)
        above.set_ylabel("loss of gradients in time", color=FAINT)
        below.grid(visible=False)
        for place, (fate, colour) in enumerate(_COLOURS.items()):
            marks = [(one["cycle"], worker + 0.22 * (place - 1)) for one in rounds for worker in one[fate]]
            below.plot(*(np.array(marks).T if marks else ([], [])), "|", color=colour, markersize=7,
                       markeredgewidth=1.4, label=_NAMES[fate])
        for one in report["switched_out"]:
            for axes in (above, below):
                axes.axvline(rounds[one["after"] - 1]["cycle"], color=FAINT, linestyle=":", linewidth=1.2)
            below.annotate(f"worker {one['worker']} out", (rounds[one["after"] - 1]["cycle"], one["worker"]),
                           xytext=(4, 0), textcoords="offset points", fontsize=9, color=FAINT, va="center")
        below.set_yticks(range(settings["workers"]))
        below.set_ylim(settings["workers"] - 0.5, -0.5)
        below.set_ylabel("worker", color=FAINT)
        below.set_xlabel("cycle")
        below.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        below.legend(fontsize=9, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
        with replacing(path) as file:
            figure.savefig(file, dpi=130)
