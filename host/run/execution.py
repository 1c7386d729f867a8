"""Check a run before anything is built, and execute it with its schedule."""

from typing import Any

from host.run import couplings
from host.run.defaults import with_defaults
from host.run.processes import check_alone
from host.run.spec import RunSpec

__all__ = ["check", "train"]


def check(spec: RunSpec) -> None:
    """Raise ``ValueError`` if a run is impossible or an option has no effect. Nothing is built."""
    couplings.check(spec)
    spec = with_defaults(spec)
    spec.known_schedule.check(spec)


def train(spec: RunSpec) -> Any:
    """Execute a run and return its report, or the reports of concurrent jobs. Raises ``ValueError`` if the run is
    impossible or an option has no effect on it."""
    if not isinstance(spec, RunSpec):
        raise TypeError(f"Run must be a RunSpec, not {type(spec).__name__}: read one by RunSpec().replace() or "
                        f"host.run.spec.read")
    couplings.check(spec)
    spec = with_defaults(spec)
    schedule = spec.known_schedule
    if not schedule.has_processes:
        check_alone(f"A run with schedule {schedule.kind}")
    return schedule.train(spec)
