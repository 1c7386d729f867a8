"""Jobs on a ring of nodes: summing vectors and updating weights.

:func:`host.jobs.simulate.simulate` opens a job on simulated nodes.
"""

import contextlib
import dataclasses
import os
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from hdl.group import GROUP
from host.arguments import Flag, Instance, Integer, Items, Optional, checked, represent
from host.driver.memory import Buffers
from host.driver.results import Cycles, Outcome, total
from host.errors import ExpectedError
from host.jobs import checks
from host.jobs.figures import Figures
from host.jobs.slots import Places, Slots, parts_of
from host.printable import one_line
from host.training.optimizers import Optimizer
from host.training.reference import Reference
from host.training.sparsifier import Threshold
from host.transports.session import Elapsed, Session

if TYPE_CHECKING:
    from sim.golden.ring import Traffic

__all__ = ["Job", "JobError", "Vector"]

Vector = npt.NDArray[np.float32]


class JobError(ExpectedError, RuntimeError):
    """Raised if the nodes and the golden model disagree."""


def _close(owned: contextlib.ExitStack, process: int) -> None:
    """Close a job's context managers, but only in the process that entered them."""
    if os.getpid() == process:
        owned.close()


class Job:
    """Vectors of any length on a ring; closed at the end of a ``with`` block or by :meth:`close`.

    The job's vector consists of one or more groups of elements, each with its own optimizer; see :attr:`groups`.
    Every group begins at a multiple of 32 elements; elements between two groups are unused. An element's summation
    order depends only on its index in its group, not on how a group that exceeds the nodes' memories is split into
    parts.

    Parameters
    ----------
    session : Session
        An open ring.
    lengths : sequence of int
        Number of elements of each group.
    optimizers : sequence of Optimizer
        One optimizer for each group, all with the same number of state planes; empty if the job only sums.
    packed_state : bool
        Whether nodes store state as bfloat16.
    density : float, optional
        Mean fraction of the job's elements that nodes send, above 0 and at most 1; the remaining elements are added
        to later gradients. By default nodes send all nonzero elements.
    check : bool
        Whether every result is compared with the golden model, which also predicts the traffic.
    part : int, optional
        Maximum number of elements in a part; by default as large as the nodes' memories allow. Must be a multiple of
        32 or, in a job with optimizers, of 32 times the number of nodes.

    Members
    -------
    weights : array of float32
        Weights of the whole vector, as stored by the nodes.
    steps : list of int
        Number of updates of each group so far.
    figures : Figures
        Sum of the figures of all operations.
    """

    @checked(session=Instance(Session, "a Session, as open_session() gives"), lengths=checks.SEVERAL_LENGTHS,
             optimizers=checks.SEVERAL_OPTIMIZERS, packed_state=Flag(), density=checks.DENSITY, check=Flag(),
             part=Optional(Integer(1)))
    def __init__(self, session: Session, lengths: Sequence[int], *, optimizers: Sequence[Optimizer] = (),
                 packed_state: bool = False, density: float | None = None, check: bool = True,
                 part: int | None = None) -> None:
        self._session, self._ring, self._density = session, session.ring, density
        self._optimizers, self._packed = list(optimizers), packed_state
        largest = checks.check_job(session.config, lengths, nodes=self.nodes, optimizers=optimizers,
                                   packed_state=packed_state, density=density, part=part)
        planes = optimizers[0].planes if optimizers else 0
        self.groups = checks.groups_of(lengths)
        self.length = self.groups[-1].stop
        self._parts = parts_of(self.groups, largest)
        # A job that only sums accepts vectors of any length, not just the length of a part.
        sizes = [len(places) for _, places in self._parts] if optimizers else [largest]
        self._slots = Slots(self._ring, sizes, length=self.length, planes=planes, packed_state=packed_state,
                            errors=density is not None, updates=bool(optimizers))
        self._model = Reference(self._ring, np.zeros(self.length, np.float32), planes) if check else None
        self._thresholds: dict[tuple[int, int], Threshold] = {}
        self.steps = [0] * len(self.groups)
        self.figures = Figures()
        self._begun: tuple[Elapsed, float] | None = None
        self._loaded = False
        self._closed = False
        self._close: weakref.finalize[[contextlib.ExitStack, int], Job] | None = None

    # Closing.

    def own(self, owned: contextlib.ExitStack) -> None:
        """Close the context managers when the job is closed or garbage-collected, or the process exits."""
        Instance(contextlib.ExitStack, "an ExitStack").take("Owned", owned)
        self._close = weakref.finalize(self, _close, owned, os.getpid())

    def close(self) -> None:
        """Close the job, and the simulation if :func:`~host.jobs.simulate.simulate` started it."""
        self._closed = True
        if self._close is not None:
            self._close()

    def __enter__(self) -> Self:
        self._require_open()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _require_open(self) -> None:
        if self._closed:
            raise ValueError("Job must be open, not closed: make another by simulate()")

    @property
    def nodes(self) -> int:
        """Number of nodes in the ring."""
        return int(self._ring.nodes)

    @property
    def session(self) -> Session:
        """The session, which provides the ring, its configuration and the elapsed time."""
        return self._session

    @property
    def weights(self) -> Vector:
        """Weights of the whole vector as stored by the nodes."""
        return self._slots.weights.copy()

    # Sums.

    @checked(begin=Integer(0))
    def all_reduce(self, values: npt.ArrayLike, *, places: npt.ArrayLike | None = None,
                   begin: int = 0) -> tuple[Vector, Figures]:
        """Sum one vector of any length per node.

        Parameters
        ----------
        values : array of float32, shape (nodes, n)
        places : array of int, shape (n,), optional
            Indices of the elements in the job's vector. Gradient values of these elements held back earlier by a
            lossy codec or a density are added. Without indices, nothing is added or held back, and every nonzero
            element is sent.
        begin : int
            If the values are part of a longer vector, the index of the first one: a multiple of 32. The sums are the
            same as for the longer vector, however it is split.

        Returns
        -------
        sums : array of float32, shape (n,)
        figures : Figures
        """
        self._require_open()
        if begin % GROUP:
            raise ValueError(f"Part of a longer vector must begin at a multiple of {GROUP}, not at {begin:,}")
        vectors = self._checked("Values", values)
        where = None if places is None else self._places(places, vectors.shape[1])
        if self._optimizers and where is not None:
            raise ValueError("Places must be left out in a job with an optimizer, whose steps add what they keep "
                             "back")
        sums = np.empty(vectors.shape[1], np.float32)
        figures = Figures()
        for first in range(0, vectors.shape[1], self._slots.longest):
            run = slice(first, min(first + self._slots.longest, vectors.shape[1]))
            sums[run], cost = self._all_reduce(vectors[:, run], None if where is None else where[run], begin + first)
            figures += cost
        self.figures += figures
        return sums, figures

    def _all_reduce(self, values: Vector, places: Places | None, begin: int) -> tuple[Vector, Figures]:
        ring = self._ring
        self._start()
        if places is None:
            buffers = self._slots.borrow(values.shape[1])
            if ring.formats.has_residual:
                ring.memory.clear_residual(buffers)
        else:
            buffers = self._slots.bring(places)
        ring.memory.write_gradients(list(values), buffers)
        sent, chosen = self._sparsify(list(values), places, buffers)
        outcome = ring.collectives.all_reduce(buffers, begin=begin)
        actual = ring.memory.read_gradients(buffers)
        traffic = None
        if self._model is not None:
            total, traffic = self._model.all_reduce(sent, places, begin)
            self._compare("sums", total, actual)
        return actual[0], self._cost(values.shape[1], outcome, chosen, traffic)

    # Updates.

    @checked(fresh=Flag())
    def load(self, weights: npt.ArrayLike, *, fresh: bool = True) -> None:
        """Replace the weights, which are initially zero.

        Parameters
        ----------
        weights : array of float32, shape (length,)
        fresh : bool
            Whether the job restarts at step 0 with zero state; otherwise, the optimizer state and the values held
            back by a density are preserved. Residuals of a gradient codec are lost.
        """
        self._require_open()
        array = _array("Weights", weights)
        if array.dtype != np.float32 or array.shape != (self.length,):
            kind = ValueError if array.dtype == np.float32 else TypeError
            raise kind(f"Weights must be {self.length:,} numbers of float32, not {array.dtype} of shape "
                       f"{array.shape}")
        if not self._optimizers:
            raise ValueError("Job must have an optimizer to have weights: give simulate() one")
        if fresh:
            self._slots.clear()
            self.steps = [0] * len(self.groups)
            self._thresholds.clear()
        for _, places in self._parts:
            buffers = self._slots.bring(places)
            self._ring.collectives.distribute(array[places], buffers)
            self._slots.weights[places] = self._ring.memory.read_weights(buffers, ranks=[0])[0]
            if self._model is not None:
                self._model.load(array[places].view(np.uint32), places, fresh=fresh)
        self._loaded = True

    def step(self, gradients: npt.ArrayLike,
             optimizers: Sequence[Optimizer | None] | None = None) -> tuple[Vector, Figures]:
        """Update the weights with the mean of the nodes' gradients, using each group's optimizer.

        Parameters
        ----------
        gradients : array of float32, shape (nodes, length)
        optimizers : sequence of Optimizer or None, optional
            Optimizer of each group in this step, e.g. with a different learning rate; None for unchanged groups.

        Returns
        -------
        weights : array of float32, shape (length,)
        figures : Figures
        """
        self._require_open()
        if not self._optimizers:
            raise ValueError("Job must have an optimizer for a step: give simulate() one")
        vectors = self._checked("Gradients", gradients)
        if vectors.shape[1] != self.length:
            raise ValueError(f"Gradients must have {self.length:,} elements per node, not {vectors.shape[1]:,}")
        count = len(self.groups)
        each = Items((Optional(checks.OPTIMIZER),) * count,
                     f"a sequence of an optimizer, or None, for each of {count} groups")
        used: Sequence[Optimizer | None] = (
            self._optimizers if optimizers is None else each.take("Optimizers", optimizers))
        for chosen, own in zip(used, self._optimizers, strict=True):
            if chosen is not None and chosen.rule != own.rule:
                raise ValueError(f"Optimizer of a group must stay {own.name}, not become {chosen.name}")
        if not self._loaded:
            self.load(np.zeros(self.length, np.float32))
        for group, chosen in enumerate(used):
            self.steps[group] += chosen is not None
        figures = Figures()
        for group, places in self._parts:
            optimizer = used[group]
            if optimizer is not None:
                figures += self._step(vectors[:, places], places, optimizer, self.steps[group])
        self.figures += figures
        return self.weights, figures

    def _step(self, gradients: Vector, places: Places, optimizer: Optimizer, number: int) -> Figures:
        ring = self._ring
        self._start()
        buffers = self._slots.bring(places)
        settings = dataclasses.replace(optimizer.settings(number, gradient_scale=1 / self.nodes),
                                       packed_state=self._packed and bool(optimizer.planes))
        ring.memory.write_gradients(list(gradients), buffers)
        sent, chosen = self._sparsify(list(gradients), places, buffers)
        ring.settings.write(settings)
        outcome = ring.collectives.fused_update(buffers)
        actual = ring.memory.read_weights(buffers, ranks=[0] if self._model is None else None)
        self._slots.weights[places] = actual[0]
        traffic = None
        if self._model is not None:
            traffic = self._model.step(sent, settings, places=places)
            self._compare("weights", self._model.weights[places], actual)
        return self._cost(len(places), outcome, chosen, traffic)

    # State.

    def state(self) -> dict[str, Any]:
        """Return everything later steps depend on: arrays, and the number of updates of each group."""
        self._require_open()
        self._slots.collect()
        return {"weights": self.weights, "steps": list(self.steps),
                "contents": {name: array.copy() for name, array in self._slots.contents.items()},
                "thresholds": {key: threshold.state() for key, threshold in self._thresholds.items()}}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state of a job of the same kind.

        Raises ``TypeError`` if it is not a job's state, and ``ValueError`` if it is from a different kind of job.
        """
        self._require_open()
        checks.check_state(state, {name: array.shape for name, array in self._slots.contents.items()},
                           groups=len(self.groups), length=self.length)
        self._slots.forget()
        self._slots.weights[...] = state["weights"]
        for name, array in state["contents"].items():
            self._slots.contents[name][...] = array
        self.steps = list(state["steps"])
        self._thresholds.clear()
        for key, content in state["thresholds"].items():
            self._threshold(key).restore(content)
        self._loaded = True
        if self._model is not None:
            self._restore_model(self._model)

    def _restore_model(self, model: Reference) -> None:
        bits = {name: array.view(np.uint32) for name, array in self._slots.contents.items()}
        model.weights[...] = self._slots.weights.view(np.uint32)
        model.master[...] = bits.get("master", model.weights)
        for plane, array in enumerate(model.state):
            array[...] = bits[f"state_{plane}"]
        if "errors" in bits:
            model.errors[...] = bits["errors"]
        if model.residuals is not None:
            model.residuals[...] = bits["residual"]

    # Helpers of the operations above.

    def _checked(self, name: str, values: npt.ArrayLike) -> Vector:
        """Convert values to float32, with one row per node."""
        array = _array(name, values)
        if array.dtype != np.float32:
            raise TypeError(f"{name} must be float32, not {array.dtype}: use .astype(numpy.float32)")
        if array.ndim != 2 or array.shape[0] != self.nodes or not array.shape[1]:
            raise ValueError(f"{name} must be of shape ({self.nodes}, n), a row for each node, not {array.shape}")
        return array

    def _places(self, places: npt.ArrayLike, count: int) -> Places:
        array = _array("Places", places)
        if array.dtype.kind not in "iu":
            raise TypeError(f"Places must be integers, not {array.dtype}")
        array = array.astype(np.int64)
        if array.shape != (count,):
            raise ValueError(f"Places must be {count:,} integers, one for each element, not of shape {array.shape}")
        if array.min() < 0 or array.max() >= self.length or len(np.unique(array)) != count:
            raise ValueError(f"Places must differ, and lie within the {self.length:,} elements of the job's vector")
        return array

    def _threshold(self, key: tuple[int, int]) -> Threshold:
        assert self._density is not None
        if key not in self._thresholds:
            self._thresholds[key] = Threshold(density=self._density, nodes=self.nodes, steps=None)
        return self._thresholds[key]

    def _sparsify(self, gradients: list[Vector], places: Places | None,
                  buffers: Buffers) -> tuple[list[Vector], Cycles]:
        """Return the gradients that nodes send at the job's density, and the cycles that selection takes."""
        if places is None or self._density is None:
            return gradients, 0
        threshold = self._threshold((int(places[0]), len(places)))
        bound = threshold.choose(gradients)
        outcome = self._ring.local.sparsify(buffers, threshold=bound)
        threshold.observe(sum(outcome.dropped))
        if self._model is None:
            return gradients, outcome.cycles
        sent, dropped = self._model.sparsify(gradients, bound, places)
        if dropped != outcome.dropped:
            raise JobError(f"Nodes have dropped {outcome.dropped} elements, and must have dropped {dropped}")
        return sent, outcome.cycles

    def _compare(self, name: str, expected: npt.NDArray[np.uint32], actual: Vector) -> None:
        wrong = actual.view(np.uint32) != expected
        if wrong.any():
            node = int(np.flatnonzero(wrong.any(axis=1))[0])
            index = int(np.flatnonzero(wrong[node])[0])
            raise JobError(
                f"{np.count_nonzero(wrong[node])} of {len(expected)} {name} of node {node} differ from the golden "
                f"model, first number {index}, which is 0x{actual.view(np.uint32)[node, index]:08x} and must be "
                f"0x{expected[index]:08x}")

    def _start(self) -> None:
        """Start to measure the cost of an operation."""
        self._ring.counters.clear()
        self._begun = self._session.elapsed, self._session.seconds

    def _cost(self, elements: int, outcome: Outcome, chosen: Cycles, traffic: "Traffic | None") -> Figures:
        """Return the cost of the operation that started at the last call of :meth:`_start`."""
        assert self._begun is not None
        words = [counters["WORDS_SENT"] for counters in self._ring.counters.read()]
        elapsed, seconds = self._session.elapsed.since(self._begun[0]), self._session.seconds - self._begun[1]
        commands = None if self._session.golden else total([outcome.cycles, chosen])
        cost = Figures(elements=elements, commands=1, cycles=outcome.cycles, sparsify_cycles=chosen, words=sum(words),
                       host_cycles=None if commands is None else max(elapsed.cycles - commands, 0), seconds=seconds)
        if traffic is None:
            return cost
        if words != traffic.words.tolist():
            raise JobError(f"Nodes have sent {words} words, and must have sent {traffic.words.tolist()}")
        sent = traffic.density.size * elements
        return dataclasses.replace(cost, bound=traffic.bound, words_dense=traffic.dense_words,
                                   words_zero_value=traffic.masked_words, sent=sent,
                                   nonzeros=round(float(traffic.density.sum()) * elements))


def _array(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    """Convert values, such as a list or a tensor, to an array."""
    try:
        return np.ascontiguousarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # PyTorch raises RuntimeErrors
        raise TypeError(f"{name} must be an array, not {represent(values)}: {one_line(error)}") from None
