"""Requests of one rank to a ring in software, in place of a launcher's."""

import atexit
import functools
import os
import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np

from hdl.compression.registry import GRADIENT_CODECS, RAW, WEIGHT_CODECS
from host.driver.diagnosis import RingError
from host.pytorch.connection import Connection
from host.pytorch.jobs import nonfinite_text, used_optimizers
from host.pytorch.messages import AllReduce, Buffers, Open, Request, Save, Step
from host.pytorch.software.job import SoftwareJob
from host.pytorch.software.links import Links
from host.pytorch.software.ring import RankRing, kernels_of

__all__ = ["GRADIENTS", "PACKED_STATE", "WEIGHTS", "SoftwareClient", "software_client"]

# Environment variables, in place of options of a launcher.
#: Codec of gradients.
GRADIENTS = "GRADRING_GRADIENTS"
#: Codec of new weights.
WEIGHTS = "GRADRING_WEIGHTS"
#: 1 to store the state of optimizers as bfloat16.
PACKED_STATE = "GRADRING_PACKED_STATE"

#: Seconds for an operation in progress to end when the process ends.
_GRACE = 1.0


class SoftwareClient(Connection):
    """Operations of one rank, which are done in a thread of their own in the order of the requests.

    Every operation begins with a comparison of the requests of neighbouring ranks.

    Parameters
    ----------
    gradients, weights : str
        Codecs of gradients and of new weights.
    packed_state : bool
        Whether the state of optimizers is stored as bfloat16.
    """

    def __init__(self, *, gradients: str = RAW, weights: str = RAW, packed_state: bool = False) -> None:
        super().__init__()
        self._codecs, self._packed = {"gradients": gradients, "weights": weights}, packed_state
        self._ring: RankRing | None = None
        self._jobs: list[SoftwareJob] = []
        self._requests: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._said = False

    @property
    def keeps(self) -> bool:
        """Whether ranks keep coding errors of gradients and add them to later gradients."""
        return not GRADIENT_CODECS[self._codecs["gradients"]].exact

    def connect(self, backend: Callable[[], Any], rank: int, ranks: int) -> None:
        """Make links among the ranks of a new group; ``backend`` makes a gloo backend that nothing else uses."""
        self._ring = RankRing(Links(backend(), rank, ranks), **self._codecs)
        self._jobs.clear()
        atexit.register(self.close)

    def close(self) -> None:
        """End the thread and the links, which must not outlive the interpreter."""
        atexit.unregister(self.close)
        if self._thread is not None:
            self._requests.put(None)
            self._thread.join(_GRACE)
            self._thread = None
        self._ring = None
        self._jobs.clear()

    def begin(self, request: Request | Save) -> "Future[Any]":
        """Request an operation; return a future for its result. Raises ``RingError`` before :meth:`connect`."""
        if self._ring is None:
            raise RingError('Rank must call init_process_group("gradring") before it can ask the ring for something',
                            cause=None, events=[])
        answer: Future[Any] = Future()
        self._requests.put((functools.partial(self._execute, self._ring, request), answer))
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
                answer.set_exception(error if isinstance(error, RingError) else RingError(
                    str(error), cause=None, events=[]))
            del request, execute, answer  # they refer to links

    def _execute(self, ring: RankRing, request: Request | Save) -> Any:
        ring.links.compare(f"the state of job {request.job}" if isinstance(request, Save) else
                           request.title if request.made is None else f"{request.title}, after {request.made}")
        if isinstance(request, Save):
            return self._jobs[request.job].state()
        if request.nonfinite is not None and not self._said:
            self._said = True
            made = request.made
            print(nonfinite_text({**vars(request.nonfinite), "rank": ring.rank, "step": made and made.steps,
                                  "backward_pass": made and made.backward}), file=sys.stderr, flush=True)
        if isinstance(request, Open):
            self._jobs.append(SoftwareJob(ring, request.lengths, optimizers=request.optimizers,
                                          packed_state=self._packed))
            return len(self._jobs) - 1
        if isinstance(request, AllReduce):
            return self._all_reduce(ring, request)
        return None if isinstance(request, Buffers) else self._step(ring, request)  # type: ignore[arg-type]

    def _all_reduce(self, ring: RankRing, request: AllReduce) -> Any:
        if request.weights is not None:
            self._compare_weights(ring, request.weights)
        residuals = None if request.job is None else self._jobs[request.job].residuals
        sums = request.values
        ring.all_reduce(sums.view(np.uint32), begin=request.begin, residuals=None if residuals is None else
                        residuals[request.begin:request.begin + sums.size])
        return sums

    def _compare_weights(self, ring: RankRing, checksums: dict[str, int]) -> None:
        """Print the first parameter that differs from that of the previous rank."""
        own = np.array(list(checksums.values()), np.uint32)
        other = ring.links.exchange(own)
        if (different := np.flatnonzero(own != other)).size:
            print(f"weights of rank {ring.rank} differ from those of rank {ring.links.previous}, first in "
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


def software_client() -> SoftwareClient:
    """Return a client with the codecs that the environment names; raise ``ValueError`` if they are not possible."""
    chosen = {"gradients": os.environ.get(GRADIENTS, RAW), "weights": os.environ.get(WEIGHTS, RAW)}
    if chosen["gradients"] not in GRADIENT_CODECS:
        raise ValueError(f"{GRADIENTS} must be one of {', '.join(GRADIENT_CODECS)}, not {chosen['gradients']!r}")
    if chosen["weights"] not in WEIGHT_CODECS:
        raise ValueError(f"{WEIGHTS} must be one of {', '.join(WEIGHT_CODECS)}, not {chosen['weights']!r}")
    for name in chosen.values():
        kernels_of(name)
    return SoftwareClient(**chosen, packed_state=os.environ.get(PACKED_STATE) == "1")
