"""Execution of a sweep's jobs by several processes, with an estimate of the time that is left."""

import collections
import contextlib
import dataclasses
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from host.sweep.jobs import ROOT, Job, JobKind
from host.sweep.results import history, load
from host.sweep.worker import GRACE, QUIET, work

__all__ = ["Failure", "State", "estimate", "execute", "pending"]


@dataclasses.dataclass(frozen=True)
class Failure:
    """A job that was not done, and the reason."""

    job: Job
    message: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """Progress of a sweep.

    Members
    -------
    done, total : int
        Jobs.
    spent, left : float
        Seconds so far, and an estimate of those to come.
    running : list of tuple
        Name of each worker's job, and its stage.
    """

    done: int
    total: int
    spent: float
    left: float
    running: list[tuple[str, str]]


class _Worker:
    """A process that does one job at a time."""

    def __init__(self, folder: Path, number: int):
        self._folder = folder
        self._log = folder / f"worker-{number}.log"
        self.launch()

    def launch(self) -> None:
        """Start the process, which has no job."""
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path}
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"from {work.__module__} import work; work({str(self._folder)!r})"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, start_new_session=True)
        self.job: Job | None = None
        self.stage = ""
        self.begun = 0.0
        self._text = b""

    def start(self, job: Job) -> None:
        self.job, self.stage, self.begun = job, "", time.monotonic()
        order = {"kind": job.kind.value, "name": job.name, "parameters": job.parameters, "digest": job.digest}
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its end will be seen
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()

    @property
    def output(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def answers(self) -> list[dict[str, Any]] | None:
        """Answers of the process since the last call; None when it has ended."""
        found = os.read(self.output.fileno(), 1 << 16)
        if not found:
            return None
        *lines, self._text = (self._text + found).split(b"\n")
        return [json.loads(line) for line in lines]

    def obituary(self) -> str:
        """The way in which the process has ended."""
        code = self.process.wait(GRACE)
        how = f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
        last = self._log.read_text(errors="replace").strip().splitlines()[-5:]
        return "\n".join([f"The process that did it has ended {how}", *last])

    def end(self) -> None:
        """Close its standard input: the process ends itself and all that it has started."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def reap(self) -> None:
        """Wait for the process to end, and kill it if it does not."""
        try:
            self.process.wait(GRACE + 2)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.output.close()


@contextlib.contextmanager
def _workers(folder: Path, count: int) -> Iterator[list[_Worker]]:
    """Worker processes, all of which are gone in the end even after an error."""
    workers: list[_Worker] = []
    try:
        for number in range(count):
            workers.append(_Worker(folder, number))
        yield workers
    finally:
        for worker in workers:
            worker.end()
        for worker in workers:
            worker.reap()


def pending(jobs: Iterable[Job], folder: Path) -> list[Job]:
    """Jobs that have to be done: without a result, and for builds, with a run that needs it."""
    left = [job for job in jobs if load(folder, job) is None]
    needed = {name for job in left for name in job.needs}
    return [job for job in left if job.kind is not JobKind.BUILD or job.name in needed]


def execute(jobs: Sequence[Job], folder: Path, *, processes: int = 2,
            ended: Callable[[Job, float, str | None], None] = lambda job, seconds, error: None,
            tick: Callable[[State], None] = lambda state: None) -> list[Failure]:
    """Do jobs that have no result yet, and return those that failed or that need one that did.

    Parameters
    ----------
    jobs : sequence of Job
    folder : Path
        Folder of the results.
    processes : int
        Jobs at a time.
    ended : callable
        Called with each job that has ended, the seconds it took, and its error if it failed.
    tick : callable
        Called with the state now and then.
    """
    _check(processes)
    folder.mkdir(parents=True, exist_ok=True)
    left = collections.OrderedDict((job.name, job) for job in pending(jobs, folder))
    total = len(left)
    failures: list[Failure] = []
    if not left:
        return failures
    clock = _Clock({job.name: history(folder, job) for job in left.values()}, processes)
    unfinished = set(left)

    def finish(job: Job, seconds: float, error: str | None) -> None:
        unfinished.discard(job.name)
        ended(job, seconds, error)
        if error is not None:
            failures.append(Failure(job, error))
            for other in [other for other in left.values() if job.name in other.needs]:
                del left[other.name]
                finish(other, 0.0, f"{job.name} has failed")

    def give(worker: _Worker) -> None:
        """The first job whose needs are met, if there is one."""
        ready = next((job for job in left.values() if not unfinished & set(job.needs)), None)
        if ready is not None:
            worker.start(left.pop(ready.name))

    def hear(worker: _Worker, answers: list[dict[str, Any]]) -> None:
        for answer in answers:
            if worker.job is None:
                return
            if "stage" in answer:
                worker.stage = answer["stage"]
                continue
            job, seconds = worker.job, time.monotonic() - worker.begun
            worker.job = None
            clock.ended(job, seconds)
            finish(job, seconds, answer.get("error"))

    with _workers(folder, min(processes, total)) as workers, selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.output, selectors.EVENT_READ, worker)
        while unfinished:
            for worker in workers:
                if worker.job is None:
                    give(worker)
            running = [(worker.job, worker) for worker in workers if worker.job is not None]
            tick(State(done=total - len(unfinished), total=total, spent=clock.spent,
                       left=clock.left(unfinished, [(job.name, worker.begun) for job, worker in running]),
                       running=[(job.name, worker.stage) for job, worker in running]))
            for key, _ in selector.select(timeout=QUIET):
                worker = key.data
                answers = worker.answers()
                if answers is None:
                    selector.unregister(worker.output)
                    hear(worker, [{"error": worker.obituary()}])
                    worker.end()
                    worker.reap()
                    worker.launch()
                    selector.register(worker.output, selectors.EVENT_READ, worker)
                else:
                    hear(worker, answers)
    return failures


class _Clock:
    """Estimate of the time left, from the jobs' estimates and from their errors so far."""

    def __init__(self, expected: Mapping[str, float], processes: int):
        self._expected = expected
        self._cores = min(processes, os.cpu_count() or 1)
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
        for name, begun in running:
            rest -= min(time.monotonic() - begun, 0.9 * factor * self._expected[name])
        return max(rest, 0.0) / self._cores


def _check(processes: int) -> None:
    if processes < 1:
        raise ValueError(f"Jobs at a time must be at least 1, not {processes!r}")


def estimate(jobs: Iterable[Job], folder: Path, processes: int) -> float:
    """Estimate of the seconds that :func:`execute` will take."""
    _check(processes)
    expected = {job.name: history(folder, job) for job in pending(jobs, folder)}
    return _Clock(expected, processes).left(expected, [])
