"""Report of a run with stragglers: JSON, a table of workers, and a plot of losses and updates."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from host import columns
from host.columns import Column, Table, columns_of
from host.features.quorum.config import LateConfig
from host.features.quorum.updates import QuorumExecutor
from host.reports.style import COLOURS, FAINT, picture, show_thousands, smoothed
from host.schema import RUN, Schema
from sim.golden.features.quorum.rounds import ONE

__all__ = ["SCHEMA", "build", "draw", "show", "table"]

#: Possible statuses of a worker's gradient in an update, with their colours.
_COLOURS = dict(zip(("on_time", "applied_late", "dropped"), COLOURS, strict=False))
_NAMES = {"on_time": "in time", "applied_late": "late, applied", "dropped": "late, dropped"}

_WORKERS = columns_of(
    "worker", Column("factor", "g", "slower by"), "computed", Column("applied", title="in time"),
    "applied_late dropped", Column("pending", lambda updates: f"{len(updates)}"), "abandoned")

#: Report schema of a run with quorum updates.
SCHEMA = Schema("gradring.quorum", 2, columns_of(
    *RUN, "settings compute threads link_latency faults configuration configuration_hash interrupted accuracy cycles "
    "simulated_cycles bit_exact measured gradients", Column("workers", columns=_WORKERS),
    Column("updates", columns=columns_of("number cycle loss on_time applied_late dropped ages")),
    "stragglers switched_out"))


def build(config: LateConfig, run: QuorumExecutor, **figures: Any) -> dict[str, Any]:
    """Build the report of the run so far, adding the simulation's ``figures``."""
    outcome, workers = run.outcome, range(config.workers)
    settings = dataclasses.asdict(config)
    settings |= {"late": config.late.value, "slow": {str(rank): config.slow[rank] for rank in sorted(config.slow)},
                 "weights": [weight / ONE for weight in config.weights]}

    def ranks(mask: int) -> list[int]:
        return [rank for rank in workers if mask >> rank & 1]

    return SCHEMA.report({
        "compute": "modelled", "settings": settings, "accuracy": outcome.accuracy, "cycles": run.cycles,
        "bit_exact": True,
        "measured": [{"cycle": cycle, "accuracy": accuracy} for cycle, accuracy in outcome.measured],
        "gradients": outcome.counts,
        "workers": [{"worker": rank, "factor": config.slow.get(rank, 1.0), **counts, "pending": pending,
                     "abandoned": run.abandoned[rank]}
                    for rank, counts, pending in zip(workers, run.counts(), run.pending(), strict=True)],
        "updates": [{"number": number, "cycle": cycle, "loss": loss, "on_time": ranks(statuses.on_time),
                     "applied_late": ranks(statuses.late), "dropped": ranks(statuses.dropped),
                     "ages": list(statuses.ages)}
                    for number, (cycle, loss, statuses) in enumerate(
                        zip(outcome.cycles, outcome.losses, run.statuses, strict=True))],
        "stragglers": run.stragglers,
        "switched_out": [{"worker": worker, "after": updates} for worker, updates in run.left_after.items()],
        **figures})


def table(report: dict[str, Any]) -> Table:
    """Tabulate how many gradients of each worker were on time, applied late or dropped."""
    return Table("Gradients of each worker", (*_WORKERS[:5], Column("ages", title="at ages", of=lambda worker: _ages(
        report, worker["worker"])), *_WORKERS[5:]), report["workers"])


def show(report: dict[str, Any], console: Console) -> None:
    """Print the report."""
    settings = report["settings"]
    quorum = settings["workers"] if settings["late"] == "wait" else settings["quorum"]
    deadline = f", or {settings['deadline']:,} cycles" if settings["deadline"] else ""
    factor = f", lambda {settings['factor']:g}" if settings["late"] == "apply-late" else ""
    lines: list[str | Table] = [
        f"{settings['late']}{factor}: updates are closed by {quorum} of {settings['workers']} gradients{deadline}; "
        f"skew {settings['skew']:g}",
        f"{len(report['updates'])} updates in {report['cycles']:,} cycles, test accuracy {report['accuracy']:.2%}",
        table(report), *report["stragglers"],
        *(f"worker {row['worker']} was switched out after {row['after']} updates" for row in report["switched_out"]),
        "No difference from the golden model: weights and momenta at the end of each block, and every element of "
        "each gradient has one status, in each update.",
        "compute: modelled; quorum updates and sums: gateware"]
    columns.show(*lines, console=console)


def _ages(report: dict[str, Any], worker: int) -> str | None:
    """Range of the ages, in updates, at which a worker's late gradients were applied."""
    ages = [age for row in report["updates"] for late, age in zip(row["applied_late"], row["ages"], strict=True)
            if late == worker]
    return " to ".join(map(str, dict.fromkeys((min(ages), max(ages))))) if ages else None


def draw(report: dict[str, Any], path: Path) -> None:
    """Plot the loss of timely gradients over cycles, above the status of each worker's gradients."""
    updates, settings = report["updates"], report["settings"]
    cycles = np.array([row["cycle"] for row in updates])
    with picture(path, size=(10, 5.2), rows=2, sharex=True, height_ratios=[3, 2],
                 title=f"{settings['late']}, skew {settings['skew']:g}: {len(updates)} updates, test accuracy "
                       f"{report['accuracy']:.2%}; compute: {report['compute']}") as (above, below):
        losses = [row["loss"] for row in updates]
        above.plot(cycles, losses, color=FAINT, linewidth=0.7)
        above.plot(cycles, smoothed(losses), color=_COLOURS["on_time"], linewidth=1.8)
        above.set_ylabel("loss of gradients in time", color=FAINT)
        below.grid(visible=False)
        for number, (status, colour) in enumerate(_COLOURS.items()):
            marks = [(row["cycle"], worker + 0.22 * (number - 1)) for row in updates for worker in row[status]]
            below.plot(*(np.array(marks).T if marks else ([], [])), "|", color=colour, markersize=7,
                       markeredgewidth=1.4, label=_NAMES[status])
        for row in report["switched_out"]:
            at = updates[row["after"] - 1]["cycle"]
            for axes in (above, below):
                axes.axvline(at, color=FAINT, linestyle=":", linewidth=1.2)
            below.annotate(f"worker {row['worker']} out", (at, row["worker"]), xytext=(4, 0),
                           textcoords="offset points", fontsize=9, color=FAINT, va="center")
        below.set_yticks(range(settings["workers"]))
        below.set_ylim(settings["workers"] - 0.5, -0.5)
        below.set_ylabel("worker", color=FAINT)
        below.set_xlabel("cycle")
        show_thousands(below.xaxis)
        below.legend(fontsize=9, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
