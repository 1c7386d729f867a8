"""Execution of a sweep's jobs by an engine, with an estimate of the time that is left."""

import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from host.sweep.jobs import Ended, Engine, Job, JobKind, Running, history, load
from host.sweep.local import LocalEngine

__all__ = ["Failure", "State", "estimate", "execute", "pending"]


@dataclasses.dataclass(frozen=True)
class Failure:
    """A job that was not done, and the reason."""

    job: Job
    message: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """Progress of a sweep."""

    #: Jobs.
    done: int
    total: int
    #: Seconds so far, and an estimate of those to come.
    spent: float
    left: float
    #: Name of each worker's job, and its stage.
    running: list[tuple[str, str]]


def pending(jobs: Iterable[Job], folder: Path) -> list[Job]:
    """Jobs that have to be done: without a result, and for builds, with a run that needs it."""
    left = [job for job in jobs if load(folder, job) is None]
    needed = {name for job in left for name in job.needs}
    return [job for job in left if job.kind is not JobKind.BUILD or job.name in needed]


def execute(jobs: Sequence[Job], folder: Path, *, engine: Engine | None = None, processes: int = 2,
            ended: Callable[[Job, float, str | None], None] = lambda job, seconds, error: None,
            tick: Callable[[State], None] = lambda state: None) -> list[Failure]:
    """Do jobs that have no result yet, and return those that failed or that need one that did.

    Parameters
    ----------
    folder : Path
        Folder of the results.
    engine : Engine, optional
        What does them; by default ``processes`` of this machine, so many jobs at a time.
    ended : callable
        Called with each job that has ended, the seconds it took, and its error if it failed.
    tick : callable
        Called with the state now and then.
    """
    engine = LocalEngine(folder, processes) if engine is None else engine
    folder.mkdir(parents=True, exist_ok=True)
    left = {job.name: job for job in pending(jobs, folder)}
    failures: list[Failure] = []
    if not left:
        return failures
    clock = _Clock({job.name: history(folder, job) for job in left.values()}, engine.cores)
    unfinished = set(left)
    for job in left.values():
        engine.submit(job, [name for name in job.needs if name in left])
    with engine.run() as steps:
        for step in steps:
            if isinstance(step, Ended):
                unfinished.discard(step.job.name)
                clock.ended(step.job, step.seconds)
                ended(step.job, step.seconds, step.error)
                if step.error is not None:
                    failures.append(Failure(step.job, step.error))
            else:
                tick(_state(step, clock, total=len(left), unfinished=unfinished))
    return failures


def _state(running: Running, clock: "_Clock", *, total: int, unfinished: set[str]) -> State:
    return State(done=total - len(unfinished), total=total, spent=clock.spent,
                 left=clock.left(unfinished, [(name, seconds) for name, _, seconds in running.jobs]),
                 running=[(name, stage) for name, stage, _ in running.jobs])


class _Clock:
    """Estimate of the time left, from the jobs' estimates and from their errors so far."""

    def __init__(self, expected: Mapping[str, float], cores: int):
        self._expected = expected
        self._cores = cores
        self._begun = time.monotonic()
        self._guessed = self._took = 30.0  # so that one job alone does not decide

    @property
    def spent(self) -> float:
        return time.monotonic() - self._begun

    def ended(self, job: Job, seconds: float) -> None:
        self._guessed += self._expected[job.name]
        self._took += seconds

    def left(self, unfinished: Iterable[str], running: Iterable[tuple[str, float]]) -> float:
        factor = self._took / self._guessed
        rest = factor * sum(self._expected[name] for name in unfinished)
        for name, seconds in running:
            rest -= min(seconds, 0.9 * factor * self._expected[name])
        return max(rest, 0.0) / self._cores


def estimate(jobs: Iterable[Job], folder: Path, cores: int) -> float:
    """Estimate of the seconds that :func:`execute` will take, with so many jobs at a time."""
    expected = {job.name: history(folder, job) for job in pending(jobs, folder)}
    return _Clock(expected, min(cores, os.cpu_count() or 1)).left(expected, [])
