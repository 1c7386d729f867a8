"""Carrying out a run: it is checked before anything is built, and done by its schedule."""

from typing import Any

from host.run import couplings
from host.run.defaults import with_defaults
from host.run.processes import check_alone
from host.run.schedule import Schedule
from host.run.spec import RunSpec

__all__ = ["check", "train"]


def _checked(spec: RunSpec) -> tuple[Schedule, RunSpec]:
    """Schedule of a run, and the run with all defaults."""
    couplings.check(spec)
    spec = with_defaults(spec)
    assert spec.schedule is not None
    return spec.schedule, spec


def check(spec: RunSpec) -> None:
    """Raise ``ValueError`` if a run is impossible, or an option has no effect on it. The data is read, and nothing is
    built."""
    schedule, spec = _checked(spec)
    schedule.check(spec)


def train(spec: RunSpec) -> Any:
    """Carry a run out; its report, or the reports of jobs side by side. ``ValueError`` if the run is impossible, or
    an option has no effect on it."""
    if not isinstance(spec, RunSpec):
        raise TypeError(f"Run must be a RunSpec, not {type(spec).__name__}: read one by RunSpec().replace() or "
                        f"host.run.spec.read")
    schedule, spec = _checked(spec)
    if not schedule.has_processes:
        check_alone(f"A run with schedule {schedule.kind}")
    return schedule.train(spec)
