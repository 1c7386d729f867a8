"""Schedules of runs: how each is checked before anything is built, and carried out."""

from collections.abc import Callable
from typing import Any, NamedTuple

from host.features.quorum import run as quorum
from host.features.slots import side_by_side
from host.features.streaming import steps as streaming
from host.run import couplings, preparation, steps
from host.run.defaults import with_defaults
from host.run.processes import check_alone
from host.run.sections import Program, Quorum, SideBySide, Streaming, Update
from host.run.spec import RunSpec

__all__ = ["check", "train"]


class _Way(NamedTuple):
    """Functions of a schedule, which take a description with all defaults."""

    check: Callable[[RunSpec], object]
    train: Callable[[RunSpec], Any]
    #: Whether several processes of mpirun can simulate the nodes.
    has_processes: bool = False


_WAYS: dict[type[Any], _Way] = {
    Update: _Way(preparation.prepare, steps.train, has_processes=True),
    Program: _Way(preparation.prepare, steps.train, has_processes=True),
    Quorum: _Way(quorum.config_of, quorum.train),
    Streaming: _Way(streaming.check, streaming.train),
    SideBySide: _Way(side_by_side.check_jobs, side_by_side.train),
}


def check(spec: RunSpec) -> None:
    """Raise ``ValueError`` if a run is impossible, or an option has no effect on it. The data is read, and nothing is
    built."""
    couplings.check(spec)
    spec = with_defaults(spec)
    _WAYS[type(spec.schedule)].check(spec)


def train(spec: RunSpec) -> Any:
    """Carry a run out; its report, or the reports of jobs side by side. ``ValueError`` if the run is impossible, or
    an option has no effect on it."""
    if not isinstance(spec, RunSpec):
        raise TypeError(f"Run must be a RunSpec, not {type(spec).__name__}: read one by RunSpec().replace() or "
                        f"host.run.spec.read")
    couplings.check(spec)
    spec = with_defaults(spec)
    way = _WAYS[type(spec.schedule)]
    if not way.has_processes:
        check_alone(f"A run with schedule {spec.known('schedule.kind')}")
    return way.train(spec)
