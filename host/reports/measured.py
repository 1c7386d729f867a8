"""Schedules of a training run as they were measured: figures, a table, and timelines."""

import itertools
import pathlib
from typing import Any

from host.columns import Column, Table, ratio_text
from host.driver.results import total
from host.reports.timeline import draw, write_trace
from host.training.record import Step, Training, TrainingConfig
from host.training.schedule import OVERLAPS
from sim.golden.program import Span

__all__ = ["SCHEDULES", "schedules_of", "timeline_names", "write"]

#: Layers of the largest chunks that a run may compare.
_MAX_CHUNK = 64

_Run = tuple[TrainingConfig, Training]


def _steps(run: _Run) -> list[Step]:
    """Steps by the schedule that a run has ended with."""
    steps = run[1].steps
    return [step for step in steps if step.schedule == steps[-1].schedule]


def _larger(*sums: float | None) -> float | None:
    return None if None in sums else max(value for value in sums if value is not None)


def _mean(name: str) -> Column:
    """Column with the mean of a figure over those steps."""
    def value(run: _Run) -> float | None:
        cycles = total(getattr(step, name) for step in _steps(run))
        return None if cycles is None else cycles / len(_steps(run))

    return Column(name, of=value)


def _member(part: int, name: str) -> Column:
    """Column of the configuration, which is part 0 of a run, or of the outcome, part 1."""
    return Column(name, of=lambda run: getattr(run[part], name))


_CYCLES, _MODELLED, _COMPUTE, _COMMUNICATE = map(_mean, (
    "cycles", "modelled_cycles", "compute_cycles", "communicate_cycles"))
#: Columns of a run by a schedule, from its configuration and its outcome.
SCHEDULES = (
    _member(0, "overlap"), _member(0, "macs"),
    Column("schedule", of=lambda run: run[1].steps[-1].schedule), _CYCLES, _MODELLED, _COMPUTE, _COMMUNICATE,
    Column("bound", of=lambda run: _larger(_COMPUTE.value(run), _COMMUNICATE.value(run))),
    _member(1, "search"), _member(1, "bit_exact"), _member(1, "timeline"))


def schedules_of(report: dict[str, Any]) -> list[Table]:
    """Table of the schedules of a run by a program; none of another run."""
    runs = report["schedules"]
    serial = next((run["cycles"] for run in runs if run["schedule"] == "none"), None)
    columns = (
        Column("schedule"), Column("cycles", format=",.0f", modelled=report["modelled"]),
        Column("of_serial", format=str, of=lambda run: ratio_text(run["cycles"], serial or 0)),
        Column("of_model", format=str, title="of modelled",
               of=lambda run: ratio_text(run["cycles"], run["modelled_cycles"] or 0)),
        *(Column(name, format=",.0f", title=name.removesuffix("_cycles"), modelled=report["modelled"])
          for name in ("compute_cycles", "communicate_cycles", "bound")))
    title = f"Cycles of a step, by schedule; compute: {report['compute']}"
    return [Table(f"{title}, {runs[0]['macs']} multiply-adds per cycle", columns, runs)] if runs else []


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
