"""Execution of a sweep's jobs by workers or another engine, with an estimate of the remaining time."""

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

from host.labs.sweep.jobs import ROOT, Ended, Engine, Job, JobKind, Running, history, load
from host.labs.sweep.worker import GRACE, QUIET, order_of, work
from sim import json_files

__all__ = ["LocalEngine", "State", "estimate", "execute", "pending"]


class _Worker:
    """A worker process, which executes one job at a time."""

    def __init__(self, folder: Path, number: int):
        self._folder = folder
        self._log = folder / f"worker-{number}.log"
        self.launch()

    def launch(self) -> None:
        """Start the worker process without giving it a job."""
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path}
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", f"from {work.__module__} import work; work({str(self._folder)!r})"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, start_new_session=True)
        self.job: Job | None = None
        self.stage = ""
        self.begun = 0.0
        self._text = b""

    def start(self, job: Job) -> None:
        self.job, self.stage, self.begun = job, "", time.monotonic()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # if the process has exited, :meth:`answers` reports it
            self.process.stdin.write(json.dumps(order_of(job)).encode() + b"\n")
            self.process.stdin.flush()

    @property
    def output(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def answers(self) -> list[dict[str, Any]] | None:
        """Return the answers that the process has sent since the last call, or None after it has exited."""
        text = os.read(self.output.fileno(), 1 << 16)
        if not text:
            return None
        *lines, self._text = (self._text + text).split(b"\n")
        return [json_files.parse_product(line) for line in lines]

    def obituary(self) -> str:
        """Describe how the worker process ended."""
        code = self.process.wait(GRACE)
        how = f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
        last = self._log.read_text(errors="replace").strip().splitlines()[-5:]
        return "\n".join([f"The process that did it has ended {how}", *last])

    def end(self) -> None:
        """Close the standard input of the process, which then terminates itself and its child processes."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def reap(self) -> None:
        """Wait for the worker process to exit, and kill it if it does not."""
        try:
            self.process.wait(GRACE + 2)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.output.close()


@contextlib.contextmanager
def _workers(folder: Path, count: int) -> Iterator[list[_Worker]]:
    """Context manager for worker processes, which are terminated when the context ends, even after an error."""
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


class LocalEngine(Engine):
    """Worker processes on this machine, each executing one job at a time."""

    def __init__(self, folder: Path, processes: int):
        if processes < 1:
            raise ValueError(f"Jobs at a time must be at least 1, not {processes!r}")
        self.cores = min(processes, os.cpu_count() or 1)
        self._folder = folder
        self._processes = processes
        self._waiting: dict[str, tuple[Job, set[str]]] = {}
        self._unfinished: set[str] = set()

    def submit(self, job: Job, needs: Sequence[str]) -> None:
        self._waiting[job.name] = job, set(needs)
        self._unfinished.add(job.name)

    @contextlib.contextmanager
    def run(self) -> Iterator[Iterator[Ended | Running]]:
        with _workers(self._folder, min(self._processes, len(self._waiting))) as workers, \
                selectors.DefaultSelector() as selector:
            for worker in workers:
                selector.register(worker.output, selectors.EVENT_READ, worker)
            yield self._steps(workers, selector)

    def _steps(self, workers: list[_Worker], selector: selectors.BaseSelector) -> Iterator[Ended | Running]:
        while self._unfinished:
            for worker in workers:
                if worker.job is None:
                    self._give(worker)
            yield Running([(worker.job.name, worker.stage, time.monotonic() - worker.begun)
                           for worker in workers if worker.job is not None])
            for key, _ in selector.select(timeout=QUIET):
                worker = key.data
                answers = worker.answers()
                if answers is None:
                    selector.unregister(worker.output)
                    yield from self._hear(worker, [{"error": worker.obituary()}])
                    worker.end()
                    worker.reap()
                    worker.launch()
                    selector.register(worker.output, selectors.EVENT_READ, worker)
                else:
                    yield from self._hear(worker, answers)

    def _give(self, worker: _Worker) -> None:
        """Give a worker the first job with finished prerequisites, if there is one."""
        ready = next((job for job, needs in self._waiting.values() if not self._unfinished & needs), None)
        if ready is not None:
            del self._waiting[ready.name]
            worker.start(ready)

    def _hear(self, worker: _Worker, answers: list[dict[str, Any]]) -> Iterator[Ended]:
        for answer in answers:
            if worker.job is None:
                return
            if "stage" in answer:
                worker.stage = answer["stage"]
                continue
            job, worker.job = worker.job, None
            yield from self._finish(Ended(job, time.monotonic() - worker.begun, answer.get("error")))

    def _finish(self, ended: Ended) -> Iterator[Ended]:
        self._unfinished.discard(ended.job.name)
        yield ended
        if ended.error is not None:
            for other in [job for job, needs in self._waiting.values() if ended.job.name in needs]:
                del self._waiting[other.name]
                yield from self._finish(Ended(other, 0.0, f"{ended.job.name} has failed"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """State of a sweep in progress."""

    #: Number of finished jobs, and total number of jobs of the sweep.
    done: int
    total: int
    #: Seconds that the sweep has taken so far, and estimated remaining seconds.
    spent: float
    left: float
    running: list[tuple[str, str]]  # name and stage of each running job


def pending(jobs: Iterable[Job], folder: Path) -> list[Job]:
    """Return the jobs that have no result yet, except builds that no pending run needs."""
    left = [job for job in jobs if load(folder, job) is None]
    needed = {name for job in left for name in job.needs}
    return [job for job in left if job.kind is not JobKind.BUILD or job.name in needed]


def execute(jobs: Sequence[Job], folder: Path, *, engine: Engine | None = None, processes: int = 2,
            ended: Callable[[Ended], None] = lambda job: None,
            tick: Callable[[State], None] = lambda state: None) -> list[Ended]:
    """Execute the jobs that have no result in ``folder`` yet, by default in ``processes`` processes on this machine,
    and return the jobs that failed or depend on a failed one. ``ended`` is called with each completed job, and
    ``tick`` is called from time to time with the state.
    """
    engine = LocalEngine(folder, processes) if engine is None else engine
    folder.mkdir(parents=True, exist_ok=True)
    left = {job.name: job for job in pending(jobs, folder)}
    if not left:
        return []
    failures: list[Ended] = []
    clock = _Clock({job.name: history(folder, job) for job in left.values()}, engine.cores)
    unfinished = set(left)
    for job in left.values():
        engine.submit(job, [name for name in job.needs if name in left])
    with engine.run() as steps:
        for step in steps:
            if isinstance(step, Running):
                tick(State(done=len(left) - len(unfinished), total=len(left), spent=clock.spent,
                           left=clock.left(unfinished, {name: seconds for name, _, seconds in step.jobs}),
                           running=[(name, stage) for name, stage, _ in step.jobs]))
                continue
            unfinished.discard(step.job.name)
            clock.ended(step)
            ended(step)
            if step.error is not None:
                failures.append(step)
    return failures


class _Clock:
    """Estimate of a sweep's remaining time: the jobs' estimates, corrected by the durations of finished jobs."""

    def __init__(self, expected: Mapping[str, float], cores: int):
        self._expected = expected
        self._cores = cores
        self._begun = time.monotonic()
        self._guessed = self._took = 30.0  # so that the first jobs do not dominate the estimate

    @property
    def spent(self) -> float:
        return time.monotonic() - self._begun

    def ended(self, step: Ended) -> None:
        self._guessed += self._expected[step.job.name]
        self._took += step.seconds

    def left(self, unfinished: Iterable[str], running: Mapping[str, float]) -> float:
        """Return the seconds until all jobs are done; ``running`` gives the seconds spent so far on running jobs."""
        factor = self._took / self._guessed
        rest = factor * sum(self._expected[name] for name in unfinished)
        rest -= sum(min(seconds, 0.9 * factor * self._expected[name]) for name, seconds in running.items())
        return max(rest, 0.0) / self._cores


def estimate(jobs: Iterable[Job], folder: Path, cores: int) -> float:
    """Estimate how many seconds :func:`execute` will take with ``cores`` jobs running in parallel."""
    expected = {job.name: history(folder, job) for job in pending(jobs, folder)}
    return _Clock(expected, min(cores, os.cpu_count() or 1)).left(expected, {})
