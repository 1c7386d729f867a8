"""Requests of one rank to a ring in software, in place of a launcher's."""

import atexit
import contextlib
import functools
import os
import queue
import sys
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hdl.compression.registry import GRADIENT_CODECS, RAW, WEIGHT_CODECS
from host.driver.diagnosis import RingError
from host.pytorch.connection import Connection
from host.pytorch.jobs import nonfinite_text, used_optimizers
from host.pytorch.messages import (
    GRADIENTS,
    PACKED_STATE,
    WEIGHTS,
    AllReduce,
    Asked,
    Buffers,
    Open,
    Request,
    Save,
    Step,
    Vector,
    contents_text,
    difference_text,
    optimizers_text,
)
from host.pytorch.software.codecs import kernels_of
from host.pytorch.software.job import SoftwareJob
from host.pytorch.software.links import Links
from host.pytorch.software.requests import GatherShards, KeptAllReduce, ReduceShards
from host.pytorch.software.ring import RankRing
from host.versions import version
from sim.arithmetic import formats
from sim.verilated.toolchain import ToolError

__all__ = ["SoftwareClient", "codecs_of_environment", "contents_of"]

#: Seconds for an operation in progress to end when the process ends.
_GRACE = 1.0


class SoftwareClient(Connection):
    """Operations of one rank, which are done in a thread of their own in the order of the requests.

    Every operation begins with a comparison of the requests of all ranks. After an error, the ring cannot be used any
    more: ranks that the error has not reached would wait for packets.

    Parameters
    ----------
    gradients, weights : str
        Codecs of gradients and of new weights.
    packed_state : bool
        Whether the state of optimizers is stored as bfloat16.
    """

    shards = True

    def __init__(self, *, gradients: str = RAW, weights: str = RAW, packed_state: bool = False) -> None:
        super().__init__()
        self._codecs, self._packed = {"gradients": gradients, "weights": weights}, packed_state
        self._ring: RankRing | None = None
        self._failed: RingError | None = None
        self._jobs: list[SoftwareJob] = []
        self._requests: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._process = os.getpid()
        self._said = False

    @property
    def keeps(self) -> bool:
        """Whether ranks keep coding errors of gradients and add them to later gradients."""
        return not GRADIENT_CODECS[self._codecs["gradients"]].exact

    @property
    def codes_weights(self) -> bool:
        """Whether the codec of weights changes them."""
        return bool(self._codecs["weights"] != RAW)

    def of_some(self) -> "SoftwareClient":
        """Return a client with the same codecs and a ring of its own."""
        return SoftwareClient(**self._codecs, packed_state=self._packed)

    def connect(self, backend: Callable[[], Any], rank: int, ranks: int, *, number: int) -> None:
        """Connect the ranks of a new process group; ``backend`` creates a gloo backend for this purpose.

        Raises ``RingError`` on all ranks if they have other codecs, and ``ToolError`` without a compiler.
        """
        self.disconnect()
        ring = RankRing(Links(backend(), rank, ranks, number=number), **self._codecs)
        own = f"{self._codecs['gradients']} gradients, {self._codecs['weights']} weights, packed state {self._packed}"
        if not ring.links.equal(f"{own}, gradring {version()}"):
            texts = ring.links.texts(f"{own} of gradring {version()}")
            each = zip(ring.links.numbers, texts, strict=True)
            raise RingError(f"All ranks must have the same codecs in {GRADIENTS}, {WEIGHTS} and {PACKED_STATE}, not "
                            f"{'; '.join(f'rank {number} {text}' for number, text in each)}", cause=None, events=[])
        formats.arithmetic()
        for job in self._jobs:
            job.attach(ring)
        self._ring, self._failed = ring, None
        atexit.register(self.disconnect)

    def disconnect(self) -> None:
        """End the thread and the links, which must not outlive the process group or the interpreter."""
        atexit.unregister(self.disconnect)
        if self._thread is not None and self._process == os.getpid():
            self._requests.put(None)
            self._thread.join(_GRACE)
        self._thread = self._ring = None

    def begin(self, request: Request | Save) -> "Future[Any]":
        """Request an operation; return a future for its result. Raises ``RingError`` before :meth:`connect`."""
        if self._process != os.getpid():
            raise RingError("Rank must ask the ring in the process that called init_process_group(), not in one that "
                            "fork() made", cause=None, events=[])
        if self._ring is None:
            raise RingError('Rank must call init_process_group("gradring") before it can ask the ring for something',
                            cause=None, events=[])
        answer: Future[Any] = Future()
        self._requests.put((functools.partial(self._execute, self._ring, request), answer))
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True)
                self._thread.start()
        return answer

    def _work(self) -> None:
        while (request := self._requests.get()) is not None:
            execute, answer = request
            try:
                answer.set_result(execute())
            except Exception as error:
                answer.set_exception(error)
            del request, execute, answer  # they refer to links

    def _execute(self, ring: RankRing, request: Request | Save) -> Any:
        if self._failed is not None:
            raise RingError(str(self._failed), cause=None, events=[])
        try:
            self._compare(ring, request)
            return self._answer(ring, request)
        except Exception as error:  # any error of one rank must end the ring, or the other ranks wait
            self._failed = failure = _ring_error(error)
            with contextlib.suppress(RuntimeError):
                ring.links.abort()
            raise failure from (None if failure is error else error)

    def _compare(self, ring: RankRing, request: Request | Save) -> None:
        """Raise ``RingError`` on all ranks unless they ask for the same."""
        own = _aspects(request)
        text = "\n".join(own)
        if ring.links.equal(text):
            return
        first, *rest = (_Aspects(*other.split("\n")) for other in ring.links.texts(text))
        zero, *numbers = ring.links.numbers
        rank, other = next((rank, other) for rank, other in zip(numbers, rest, strict=True) if other != first)
        if other[:2] != first[:2]:
            message = difference_text(*(Asked(number, aspects.title, aspects.made or None)
                                        for number, aspects in ((zero, first), (rank, other))))
        elif other.optimizers != first.optimizers:
            message = optimizers_text(rank, other.optimizers, first.optimizers)
        else:
            message = contents_text(rank)
        raise RingError(message, cause=None, events=[])

    def _answer(self, ring: RankRing, request: Request | Save) -> Any:
        if isinstance(request, Save):
            return self._jobs[request.job].state()
        self._note_nonfinite(ring, request)
        if isinstance(request, Open):
            self._jobs.append(SoftwareJob(ring, request.lengths, optimizers=request.optimizers,
                                          packed_state=self._packed))
            return len(self._jobs) - 1
        if isinstance(request, AllReduce):
            return self._all_reduce(ring, request)
        if isinstance(request, ReduceShards):
            return self._reduce_shards(ring, request)
        if isinstance(request, GatherShards):
            ring.gather_shards(request.values.view(np.uint32))
            return request.values
        return None if isinstance(request, Buffers) else self._step(ring, request)  # type: ignore[arg-type]

    def _note_nonfinite(self, ring: RankRing, request: Request) -> None:
        """Print the first element of this rank's gradients that is not finite, once."""
        if request.nonfinite is not None and not self._said:
            self._said = True
            made = request.made
            print(nonfinite_text({**vars(request.nonfinite), "rank": ring.links.number, "step": made and made.steps,
                                  "backward_pass": made and made.backward}), file=sys.stderr, flush=True)

    def _all_reduce(self, ring: RankRing, request: AllReduce) -> Any:
        if request.weights is not None:
            self._compare_weights(ring, request.weights)
        sums = request.values
        ring.all_reduce(sums.view(np.uint32), begin=request.begin, residuals=self._residuals(request))
        return sums

    def _residuals(self, request: AllReduce) -> npt.NDArray[np.uint32] | None:
        """Residuals for a sum, as bit patterns, or None if it has none."""
        if isinstance(request, KeptAllReduce):
            return _patterns(request.residuals)
        residuals = None if request.job is None else self._jobs[request.job].residuals
        return None if residuals is None else residuals[request.begin:request.begin + request.values.size]

    def _reduce_shards(self, ring: RankRing, request: ReduceShards) -> Vector:
        """Sum this rank's shards."""
        sums = np.empty(request.values.size // ring.size, np.float32)
        ring.reduce_shards(request.values.view(np.uint32), sums.view(np.uint32),
                           residuals=_patterns(request.residuals))
        return sums

    def _compare_weights(self, ring: RankRing, checksums: dict[str, int]) -> None:
        """Print the first parameter that differs from that of the previous rank."""
        own = np.array(list(checksums.values()), np.uint32)
        other = ring.links.exchange(own)
        if (different := np.flatnonzero(own != other)).size:
            previous = ring.links.numbers[ring.links.previous]
            print(f"weights of rank {ring.links.number} differ from those of rank {previous}, first in "
                  f"{list(checksums)[different[0]]}", file=sys.stderr, flush=True)

    def _step(self, ring: RankRing, request: Step) -> Any:
        job = self._jobs[request.job]
        flags = ring.links.largest(np.concatenate([np.array(group, np.uint8) for group in request.present]))
        ends = np.cumsum([len(group) for group in request.present])[:-1]
        used = used_optimizers(request, [part.astype(bool).tolist() for part in np.split(flags, ends)])
        if request.state is not None:
            job.restore(request.state)
        if request.weights is not None:
            job.load(request.weights, fresh=request.state is None and not any(job.steps))
        return job.step(request.gradients, used)


def _patterns(values: Vector | None) -> npt.NDArray[np.uint32] | None:
    """Bit patterns of numbers, in the same memory."""
    return None if values is None else values.view(np.uint32)


def _ring_error(error: Exception) -> RingError:
    """Return an error with the same text for ranks, and with its class unless the text alone says what to do."""
    if isinstance(error, RingError):
        return error
    own = isinstance(error, ValueError | ToolError)
    return RingError(str(error) if own else f"{type(error).__name__}: {error}", cause=None, events=[])


class _Aspects(NamedTuple):
    """What must be the same on all ranks in a request: lines of text, which may be empty."""

    title: str
    made: str
    optimizers: str = ""
    arrays: str = ""


def _aspects(request: Request | Save) -> _Aspects:
    """Return what must be the same on all ranks."""
    if isinstance(request, Save):
        return _Aspects(request.title, "")
    aspects = _Aspects(request.title, "" if request.made is None else str(request.made))
    if isinstance(request, Step):
        return aspects._replace(optimizers=", ".join(map(str, request.optimizers)), arrays=contents_of(request))
    if isinstance(request, AllReduce) and request.weights is not None:
        return aspects._replace(arrays=f"{len(request.weights)} parameters")
    return aspects


def contents_of(step: Step) -> str:
    """Checksums of the weights and state that a step begins with."""
    arrays = {**({} if step.state is None else step.state.get("contents", {})), "weights": step.weights}
    return str({name: zlib.crc32(array) for name, array in sorted(arrays.items()) if array is not None})


def codecs_of_environment() -> dict[str, Any]:
    """Arguments of a client that the environment names; raises ``ValueError`` if they are not possible."""
    chosen = {"gradients": os.environ.get(GRADIENTS, RAW), "weights": os.environ.get(WEIGHTS, RAW)}
    for variable, name, codecs in ((GRADIENTS, chosen["gradients"], GRADIENT_CODECS),
                                   (WEIGHTS, chosen["weights"], WEIGHT_CODECS)):
        if name not in codecs:
            raise ValueError(f"{variable} must be one of {', '.join(codecs)}, not {name!r}")
        kernels_of(name)
    packed = os.environ.get(PACKED_STATE, "0")
    if packed not in ("0", "1"):
        raise ValueError(f"{PACKED_STATE} must be 0 or 1, not {packed!r}")
    return {**chosen, "packed_state": packed == "1"}
