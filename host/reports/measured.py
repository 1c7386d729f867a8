"""Schedules of a training run as they were measured: figures, a table, timelines, and the log of a search."""

import itertools
import pathlib
from typing import Any

from host.driver.results import total
from host.reports.notes import count_text, ratio_text
from host.reports.timeline import draw, write_trace
from host.training.record import Training, TrainingConfig
from host.training.schedule import OVERLAPS
from sim.golden.program import Span

__all__ = ["figures_of", "lines", "timeline_names", "write"]

#: Layers of the largest chunks that a run may compare.
_MAX_CHUNK = 64


def figures_of(config: TrainingConfig, training: Training) -> dict[str, Any]:
    """Figures of a run by a schedule: means over its steps of the schedule that it ended with.

    ``cycles`` are those of a pass, ``modelled_cycles`` the same by the golden model of time with the durations that
    were measured, and no pass is shorter than the larger of the sums of durations, ``bound``.
    """
    schedule = training.steps[-1].schedule
    steps = [step for step in training.steps if step.schedule == schedule]
    means: dict[str, float | None] = {}
    for name in ("cycles", "modelled_cycles", "compute_cycles", "communicate_cycles"):
        cycles = total(getattr(step, name) for step in steps)
        means[name] = None if cycles is None else cycles / len(steps)
    busiest = [means["compute_cycles"], means["communicate_cycles"]]
    return {"overlap": config.overlap, "schedule": schedule, "macs": config.macs, **means,
            "bound": None if None in busiest else max(one for one in busiest if one is not None),
            "search": training.search, "bit_exact": training.bit_exact, "timeline": training.timeline}


def lines(report: dict[str, Any]) -> list[str]:
    """The table of schedules in Markdown, and each line of their logs once; without a schedule, notes of a run."""
    runs = report["schedules"]
    if not runs:
        return list(report["notes"])
    serial = next((run["cycles"] for run in runs if run["schedule"] == "none"), None)
    found = [f"compute: {report['compute']}, {runs[0]['macs']} multiply-adds per cycle",
             "| schedule | cycles | of serial | of golden time | compute | communicate | bound |",
             "|---|---:|---:|---:|---:|---:|---:|"]
    for run in runs:
        counts = [count_text(run[name]) for name in ("cycles", "compute_cycles", "communicate_cycles", "bound")]
        found.append(" | ".join([f"| {run['schedule']}", counts[0], ratio_text(run["cycles"], serial or 0),
                                 ratio_text(run["cycles"], run["modelled_cycles"] or 0), *counts[1:]]) + " |")
    return [*found, *dict.fromkeys(line for run in runs for line in run["search"])]


def _ending(schedule: str) -> str:
    """Ending of the names of a schedule's timeline where several are written."""
    return f"-{schedule.replace(':', '-')}"


def timeline_names() -> list[str]:
    """Names of all files that :func:`write` may write."""
    chunks = itertools.takewhile(lambda size: size <= _MAX_CHUNK, (2 << n for n in itertools.count()))
    endings = ["", *map(_ending, (*OVERLAPS, *(f"chunks:{size}" for size in chunks)))]
    return [f"timeline{ending}.{kind}" for ending in endings for kind in ("json", "png")]


def write(report: dict[str, Any], directory: pathlib.Path, *, nodes: int) -> list[pathlib.Path]:
    """Write the timeline of each run's last step, as a trace and as a picture; their paths.

    That of a single run is timeline.json and timeline.png; of several, each name ends with the schedule.
    """
    found = []
    for run in report["schedules"]:
        if run["timeline"] is None:
            continue
        spans = [Span(*one) for one in run["timeline"]]
        end = "" if len(report["schedules"]) == 1 else _ending(run["schedule"])
        trace, picture = directory / f"timeline{end}.json", directory / f"timeline{end}.png"
        write_trace(spans, trace, compute=report["compute"])
        draw(spans, picture, title=f"{nodes} nodes, {run['schedule']}: {max(one.end for one in spans):,} cycles",
             note=f"measured; compute: {report['compute']}")
        found += [trace, picture]
    return found
