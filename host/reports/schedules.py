"""Schedules of a training run as they were measured: figures, and a table."""

from typing import Any

from host.columns import Column, Table, ratio_text
from host.driver.results import total
from host.training.record import Step, Training, TrainingConfig

__all__ = ["SCHEDULES", "schedules_of"]

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
