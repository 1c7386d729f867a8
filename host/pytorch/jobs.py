"""Jobs that the ranks of a PyTorch script run on simulated rings, and the cost of each operation."""

import _thread
import contextlib
import dataclasses
import enum
import itertools
import signal
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hdl.compression.registry import RAW
from hdl.config import Weights
from host.jobs.figures import Figures
from host.jobs.job import Job
from host.jobs.simulate import MomentsWarning, simulate
from host.pytorch.messages import AllReduce, Announce, Buffers, Open, Request, Save, Step, optimizers_text
from host.pytorch.norms import norms_of
from host.training.optimizers import Optimizer, moments_note
from host.transports.session import LATENCY, TransportName
from sim.verilated.native import Arithmetic

__all__ = ["MOST_NONFINITE", "Jobs", "Kind", "Operation", "Operations", "Options", "WatchedJobs",
           "nonfinite_text", "present_on_any", "unequal_text", "used_optimizers"]


class Kind(enum.StrEnum):
    """Kinds of rings for a script, named as on the command line of ``gradring launch``."""

    VERILATED = "verilated"
    GOLDEN = "golden"  # golden models instead of nodes, with modelled cycles; see docs/simulation.md
    SOFTWARE = "software"  # the ranks themselves, with compiled kernels and modelled cycles


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Options that apply to all jobs of a script; see :func:`host.jobs.simulate.simulate`."""

    nodes: int
    gradients: str = RAW
    weights: str = Weights.codec
    density: float | None = None
    packed_state: bool = False
    check: bool = True
    threads: int = 1
    arithmetic: Arithmetic = Arithmetic.GATEWARE
    host_port: bool = False
    link_latency: int = LATENCY
    transport: Kind | None = Kind.VERILATED  # None to choose by the length of the first vector


#: Maximum number of non-finite elements that a report lists.
MOST_NONFINITE = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operation:
    """A completed operation, with its cost."""

    kind: str  # kind of the operation: ``all_reduce`` or ``step``
    job: int
    figures: Figures
    # Euclidean norm of each rank's gradients, or None if it is not finite. Empty under join(), and for sums of values
    # other than gradients.
    norms: tuple[float | None, ...] = ()


def nonfinite_text(row: dict[str, Any]) -> str:
    """Describe the first non-finite element of one rank in one operation."""
    indices = f" at ({', '.join(map(str, row['indices']))})" if row["indices"] else ""
    return f"{row['value']} in rank {row['rank']}'s gradient of {row['parameter']}{indices}{_pass_text(row)}"


def unequal_text(row: dict[str, Any]) -> str:
    """Describe the ranks with weights that differ from the weights of other ranks."""
    ranks = f"rank{'s' * (len(row['ranks']) > 1)} {', '.join(map(str, row['ranks']))}"
    return f"weights of {ranks} differ from the others', first in {row['parameter']}{_pass_text(row)}"


def _pass_text(row: dict[str, Any]) -> str:
    """Return the end of a sentence, with the step or backward pass. Both are unknown under ``join()``."""
    for name in ("step", "backward_pass"):
        if row.get(name):
            return f", {name.replace('_', ' ')} {row[name]:,}"
    return ""


class Operations:
    """Record of the operations of a script. ``say`` is called once with each line about a job."""

    def __init__(self, options: Options, say: Callable[[str], None] = lambda text: None) -> None:
        self._options, self._say = options, say
        self._notes: set[str] = set()
        self.operations: list[Operation] = []  # operations completed so far
        self.nonfinite: list[dict[str, Any]] = []  # non-finite elements, at most MOST_NONFINITE
        self.nonfinite_operations = 0  # number of operations with non-finite elements
        self.unequal_weights: list[dict[str, Any]] = []  # comparisons in which the weights of ranks differed
        self.build_seconds = 0.0  # seconds spent in builds
        self.cycles = 0  # simulated cycles, including modelled cycles of the host ports

    def __len__(self) -> int:
        raise NotImplementedError

    def answer(self, requests: Sequence[Request]) -> Any:
        """Execute an operation that all ranks request with the same title. Raises ``ValueError`` if the ranks
        disagree, or if the job is impossible."""
        raise NotImplementedError

    def save(self, request: Save) -> dict[str, Any]:
        """Return the state of a job."""
        raise NotImplementedError

    def spend(self, seconds: float) -> None:
        """Add to the seconds of the last operation, which ranks of a ring in software tell later."""
        if self.operations:
            last = self.operations[-1]
            figures = dataclasses.replace(last.figures, seconds=last.figures.seconds + seconds)
            self.operations[-1] = dataclasses.replace(last, figures=figures)

    def _shape(self, optimizers: Sequence[Optimizer]) -> dict[str, Any]:
        """Options of a job with these optimizers; prints a note about moments that do not decay, once."""
        shape = {field.name: getattr(self._options, field.name) for field in dataclasses.fields(self._options)}
        if not optimizers or not optimizers[0].planes:
            shape["packed_state"] = False
        note = moments_note(optimizers, packed_state=shape["packed_state"])
        if note is not None and note not in self._notes:
            self._notes.add(note)
            self._say(note)
        return shape

    def _note_nonfinite(self, requests: Sequence[Request]) -> None:
        """Record non-finite elements of the ranks' gradients before they are summed."""
        if all(request.nonfinite is None for request in requests):
            return
        self.nonfinite_operations += 1
        for rank, request in enumerate(requests):
            element, made = request.nonfinite, request.made
            if element is None or len(self.nonfinite) == MOST_NONFINITE:
                continue
            self.nonfinite.append({
                "rank": rank, "operation": len(self.operations) + 1, "step": made.steps if made else None,
                "backward_pass": made.backward if made else None, **dataclasses.asdict(element)})
            if len(self.nonfinite) == 1:
                self._say(f"{nonfinite_text(self.nonfinite[0])}; report.json names the first {MOST_NONFINITE}")

    def _compare_weights(self, requests: Sequence[AllReduce | Announce]) -> None:
        """Record ranks whose weights differ from the majority of ranks, or from rank 0 if there is no majority."""
        checksums = [request.weights for request in requests if request.weights is not None]
        if len(checksums) < len(requests):
            return
        usual = max(checksums, key=checksums.count)
        if 2 * checksums.count(usual) <= len(checksums):
            usual = checksums[0]
        others = [rank for rank, own in enumerate(checksums) if own != usual]
        if not others:
            return
        names = dict.fromkeys(itertools.chain(usual, *(checksums[rank] for rank in others)))
        parameter = next(name for name in names
                         if any(checksums[rank].get(name) != usual.get(name) for rank in others))
        made = requests[0].made
        self.unequal_weights.append({"ranks": others, "parameter": parameter,
                                     "backward_pass": made.backward if made else None})
        if len(self.unequal_weights) == 1:
            self._say(unequal_text(self.unequal_weights[0]))


class Jobs(Operations):
    """All jobs of a script, each on its own simulated ring. Closing ``stack`` closes the rings.

    A sum that belongs to no job is computed by the most recent job or, if there is none, by a new job. ``announce``
    is called with the name of each build stage.
    """

    def __init__(self, options: Options, stack: contextlib.ExitStack,
                 announce: Callable[[str], None] = lambda stage: None,
                 say: Callable[[str], None] = lambda text: None) -> None:
        super().__init__(options, say)
        self._stack, self._announce = stack, announce
        self._jobs: list[Job] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def answer(self, requests: Sequence[Request]) -> Any:
        """Execute an operation that all ranks request with the same title. Raises ``ValueError`` if the ranks
        disagree, or if the job is impossible."""
        first = requests[0]
        self._note_nonfinite(requests)
        if isinstance(first, Buffers):
            return None
        if isinstance(first, Open):
            result: Any = self._open(first)
        elif isinstance(first, AllReduce):
            self._compare_weights(requests)  # type: ignore[arg-type]
            result = self._all_reduce(requests)  # type: ignore[arg-type]
        else:
            result = self._step(requests)  # type: ignore[arg-type]
        self.cycles = sum(job.session.elapsed.cycles for job in self._jobs)
        return result

    def save(self, request: Save) -> dict[str, Any]:
        """Return the state of a job."""
        return self._jobs[request.job].state()

    def _open(self, request: Open) -> int:
        shape = self._shape(request.optimizers)
        shape["transport"] = TransportName((self._options.transport or Kind.VERILATED).value)
        begun = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MomentsWarning)  # the ranks have already issued the warning
            self._jobs.append(self._stack.enter_context(simulate(
                length=list(request.lengths), optimizer=list(request.optimizers) or None, announce=self._announce,
                **shape)))
        self.build_seconds += time.monotonic() - begun
        self._announce("run")
        return len(self._jobs) - 1

    def _all_reduce(self, requests: Sequence[AllReduce]) -> Any:
        first = requests[0]
        number = first.job
        if number is None:
            number = len(self._jobs) - 1 if self._jobs else self._open(Open(lengths=(first.values.size,)))
        places = None if first.job is None else np.arange(first.begin, first.begin + first.values.size)
        sums, figures = self._jobs[number].all_reduce(np.stack([ask.values for ask in requests]), places=places,
                                                      begin=first.begin)
        # A hook divides gradients by the number of ranks before they are summed.
        norms = () if first.made is None else norms_of([ask.values for ask in requests], scale=len(requests))
        self.operations.append(Operation(kind="all_reduce", job=number, figures=figures, norms=norms))
        return sums

    def _step(self, requests: Sequence[Step]) -> Any:
        first = requests[0]
        job = self._jobs[first.job]
        for rank, request in enumerate(requests):
            if request.optimizers != first.optimizers:
                raise ValueError(optimizers_text(rank, request.optimizers, first.optimizers))
            if request.weights is not None and first.weights is not None:
                wrong = np.flatnonzero(request.weights.view(np.uint32) != first.weights.view(np.uint32))
                if wrong.size:
                    raise ValueError(f"Weights of rank {rank} must be those of rank 0, and differ in {wrong.size:,} "
                                     f"of {request.weights.size:,} elements: broadcast them first, as "
                                     f"DistributedDataParallel does")
        used = used_optimizers(first, present_on_any(requests))
        if first.state is not None:
            job.restore(first.state)
        if first.weights is not None:
            job.load(first.weights, fresh=first.state is None and not any(job.steps))
        weights, figures = job.step(np.stack([request.gradients for request in requests]), used)
        norms = norms_of([request.gradients for request in requests])
        self.operations.append(Operation(kind="step", job=first.job, figures=figures, norms=norms))
        return weights


def present_on_any(requests: Sequence[Step | Announce]) -> list[list[bool]]:
    """For each parameter of each group of a step, whether any rank has a gradient."""
    return [[any(flags) for flags in zip(*group, strict=True)]
            for group in zip(*(request.present for request in requests), strict=True)]


def used_optimizers(step: Step | Announce, present: Sequence[Sequence[bool]]) -> list[Optimizer | None]:
    """Optimizer of each group in a step, or None if the group has no gradients.

    ``present`` says of each parameter of each group whether any rank has a gradient. Raises ``ValueError`` if a group
    has gradients of only some of its parameters.
    """
    used = [optimizer if any(flags) else None for optimizer, flags in zip(step.optimizers, present, strict=True)]
    for optimizer, flags, names in zip(used, present, step.names, strict=True):
        absent = [name for name, flag in zip(names, flags, strict=True) if not flag]
        if absent and optimizer is not None:
            raise ValueError(
                f"Parameters of a group must all have a gradient on some rank, or none of them; {', '.join(absent)} "
                f"has none on any: freeze it by requires_grad_(False) before the optimizer is made, or give it a "
                f"group of its own")
    return used


class WatchedJobs:
    """Jobs with operations that are interrupted if a rank ends with an error in the meantime.

    A separate thread checks the ranks every ``look`` seconds. If ``ended`` returns a sentence about a rank that has
    ended with an error, the thread calls ``tell`` with the sentence, ends the operation as SIGTERM would, and calls
    ``end`` to end the other ranks. Under :func:`~sim.verilated.processes.ended_by_signals`, the main thread raises
    :class:`~sim.verilated.processes.EndedError`, which also ends the programs of a build. A simulation continues
    until the call of its library returns.
    """

    def __init__(self, jobs: Any, *, ended: Callable[[], str | None], tell: Callable[[str], None],
                 end: Callable[[], None], look: float) -> None:
        self._jobs, self._ended, self._tell, self._end, self._look = jobs, ended, tell, end, look
        self.interrupted = False

    def answer(self, requests: Sequence[Request]) -> Any:
        """Execute the operation that all ranks request; see :meth:`Jobs.answer`."""
        done = threading.Event()

        def watch() -> None:
            while not done.wait(self._look):
                reason = self._ended()
                if reason is not None:
                    self._tell(reason)
                    self.interrupted = True
                    _thread.interrupt_main(signal.SIGTERM)
                    self._end()
                    return

        threading.Thread(target=watch, daemon=True).start()
        try:
            return self._jobs.answer(requests)
        finally:
            done.set()

    def save(self, request: Save) -> dict[str, Any]:
        """Return the state of a job."""
        return dict(self._jobs.save(request))

