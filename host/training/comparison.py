"""Bit-exact comparison of nodes with the golden model; any difference raises an error.

Nodes apply masks. Computing nodes do so as part of the matrix products in their instruction lists, and values that
the host computes later for comparison or measurement are then masked only by the golden model.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from host.driver.masking import MaskJob, Matrices
from host.driver.memory import errors_base
from host.driver.node_operations import NodeOperations
from host.driver.protocols import VectorRing
from host.driver.results import Cycles, Outcome, total
from host.driver.words import Vector
from host.models.layers import Array
from host.training.batches import counts_of
from host.training.nonfinite import Locate, first_nan, first_nonfinite
from host.training.number_format import Elements
from host.training.record import NODE, DivergenceError, Training, TrainingConfig, TrainingError
from host.training.reference import Reference, words_of

__all__ = ["Masks", "compare_end", "compare_master", "compare_memories", "compare_rows", "compare_scores",
           "gradients_of", "growth", "names", "no_masks", "read_weights", "refuse_nonfinite"]


def names(nodes: Sequence[float]) -> str:
    """Format numbers as text, separated by commas."""
    return ", ".join(map(str, nodes))


def read_weights(ring: VectorRing, reference: Reference, config: TrainingConfig, number: int) -> Vector:
    """Read a node's weights. In a checked run, first compare the weights and master weights of all nodes."""
    length = len(reference.weights)
    if not config.check:
        return np.asarray(ring.memory.read_weights(length, ranks=[0])[0])
    weights = ring.memory.read_weights(length)
    compare_rows("weights", number, reference.weights, words_of(weights))
    compare_master(ring, reference, number)
    return np.asarray(weights[0])


def compare_master(ring: VectorRing, reference: Reference, number: int) -> None:
    """Compare master weights with the golden model, if the nodes have any."""
    if reference.has_master:
        actual = ring.memory.read_master(len(reference.weights)).view(np.uint32)
        _compare_state(ring, "master weights", number, reference.master, actual)


def compare_scores(number: int, expected: Vector, actual: Vector) -> None:
    """Compare test set scores that nodes have computed with the golden model."""
    wrong = np.flatnonzero((expected.view(np.uint32) != np.ascontiguousarray(actual).view(np.uint32)).any(axis=1))
    if wrong.size:
        raise DivergenceError(f"Step {number}: scores of {wrong.size} of {len(expected)} examples differ from the "
                              f"golden model, first those of example {wrong[0]}")


def compare_rows(name: str, number: int, expected: npt.NDArray[np.uint32], nodes: npt.NDArray[np.uint32]) -> None:
    """Compare each node's vector, given as a row of ``nodes``, with the golden model."""
    wrong = nodes != expected
    if wrong.any():
        node = int(np.flatnonzero(wrong.any(axis=1))[0])
        index = int(np.flatnonzero(wrong[node])[0])
        same = [other for other in range(len(nodes)) if np.array_equal(nodes[other], nodes[node])]
        raise DivergenceError(
            f"Step {number}: {wrong[node].sum()} of {len(expected)} {name} of node {node} differ from the golden "
            f"model, first number {index}, which is 0x{nodes[node, index]:08x} and must be 0x{expected[index]:08x}; "
            f"nodes with the same {name}: {names(same)}")


def _compare_state(ring: VectorRing, name: str, number: int, expected: npt.NDArray[np.uint32],
                   actual: npt.NDArray[np.uint32]) -> None:
    """Compare a state plane of the whole vector, read from the blocks' owners, with the golden model."""
    _compare(name, number, expected, actual, lambda index: f", on node {ring.partition.owner(index, len(expected))}")


def _compare(name: str, number: int, expected: npt.NDArray[np.uint32], actual: npt.NDArray[np.uint32],
             where: Callable[[int], str] = lambda index: "") -> None:
    """Compare a vector with the golden model; ``where`` returns an element's node for the message."""
    wrong = np.flatnonzero(actual != expected)
    if wrong.size:
        index = int(wrong[0])
        raise DivergenceError(
            f"Step {number}: {wrong.size} of {len(expected)} {name} differ from the golden model, first number "
            f"{index}{where(index)}, which is 0x{actual[index]:08x} and must be 0x{expected[index]:08x}")


def compare_memories(ring: VectorRing, reference: Reference, config: TrainingConfig, number: int) -> None:
    """Compare the nodes' state, errors and residuals with the golden model."""
    length = len(reference.weights)
    planes = ["momenta"] if len(reference.state) == 1 else ["first moments", "second moments"]
    for plane, expected in enumerate(reference.state):
        actual = ring.memory.read_state(length, plane, packed_state=config.packed_state)
        _compare_state(ring, planes[plane], number, expected, actual.view(np.uint32))
    if config.density is not None:
        for rank, errors in enumerate(words_of(ring.memory.read_errors(length))):
            _compare(f"errors of node {rank}", number, reference.errors[rank], errors)
    if reference.residuals is not None:
        for rank, residuals in enumerate(ring.memory.read_residual(length).view(np.uint32)):
            _compare(f"residuals of node {rank}", number, reference.residuals[rank], residuals)


def compare_end(ring: VectorRing, reference: Reference, config: TrainingConfig, training: Training, *,
                weights: npt.NDArray[np.uint32], replaced: int, words: int) -> None:
    """Compare the nodes' memories and counters at the end of a run; ``weights`` are in memory layout."""
    number = len(training.steps)
    compare_memories(ring, reference, config, number)
    # Mask lists are stored after the weights; writing them must not have changed any weight since the last step.
    compare_rows("weights", number, weights, words_of(ring.memory.read_weights(training.parameters)))
    if (training.elements_masked, training.mask_words_fetched) != (replaced, words):
        raise DivergenceError(
            f"Step {number}: nodes have counted {training.elements_masked} elements masked and "
            f"{training.mask_words_fetched} words fetched, and must have counted {replaced} and {words}")


_ADVICE = "training has diverged, try a smaller learning rate"


def growth(name: str, before: list[dict[str, int]], after: list[dict[str, int]]) -> list[int]:
    """Return the increase of a counter on each node. Counters wrap at 32 bits."""
    return [(now[name] - was[name]) % (1 << 32) for was, now in zip(before, after, strict=True)]


def most(name: str, before: list[dict[str, int]], after: list[dict[str, int]]) -> int | None:
    """Return the largest increase of a counter on any node, or None if the counter is not modelled."""
    return max(growth(name, before, after)) if name in after[0] else None


def gradients_of(number: int, form: Elements, differences: Sequence[Array]) -> list[Vector]:
    """Convert the gradients of step ``number`` to the nodes' element format, one vector per node."""
    try:
        return form.gradients(differences)
    except ValueError as error:
        raise TrainingError(f"Step {number}: {error}; {_ADVICE}") from None


def refuse_nonfinite(outcome: Outcome, nodes: Sequence[int], steps: Mapping[int, Sequence[Vector]],
                     locate: Locate) -> None:
    """Raise ``TrainingError`` if a node has reported a NaN or a non-finite sum.

    Parameters
    ----------
    outcome : Outcome
        Outcome of one or more steps.
    nodes : sequence of int
        Numbers of the nodes.
    steps : mapping of int to sequence of Vector
        Gradients of each step, in order of rank. If they cannot be divided equally among the nodes, the first nodes
        have more. The sequence is empty if the host does not know the step's gradients.
    locate : Locate
    """
    for ranks, text, first in (
            (outcome.local_nan, "NaN among the gradients of node", first_nan),
            (outcome.not_finite, "a sum of gradients is not finite, found by node", first_nonfinite)):
        if ranks:
            number, cause = _first_cause(nodes, steps, functools.partial(first, locate=locate))
            raise TrainingError(f"Step {number}: {text} {names([nodes[rank] for rank in ranks])}{cause}; {_ADVICE}")


def _first_cause(nodes: Sequence[int], steps: Mapping[int, Sequence[Vector]],
                 first: Callable[[Sequence[Vector], Sequence[int]], str | None]) -> tuple[int, str]:
    """Return the first step with a wrong element and a description of the element; by default, the last step."""
    for number, gradients in steps.items():
        if gradients:
            owners = np.repeat(nodes, counts_of(len(gradients), len(nodes))).tolist()
            cause = first(gradients, owners)
            if cause is not None:
                return number, f" ({cause})"
    return max(steps), ""


def no_masks(jobs: Sequence[Sequence[MaskJob]], alternative: float) -> list[list[Matrices]]:
    """Placeholder for the masks of a workload that has no masks."""
    raise ValueError("Workload must be one without masks")


class Masks:
    """Masking on the nodes, with results that are compared with the golden model."""

    def __init__(self, local: NodeOperations, reference: Reference, config: TrainingConfig):
        length = reference.weights.size
        self._local, self._reference = local, reference
        self._check = config.check
        self._apart = config.compute == NODE
        self._first_free = length if config.density is None else errors_base(length) + length
        #: Number of the current step.
        self.number = 0
        #: Total cycles of all mask commands so far, each on its slowest node.
        self.cycles: Cycles = 0
        #: Totals so far: elements replaced by the alternative value, all elements, and external mask words.
        self.replaced = self.elements = self.words = 0

    def __call__(self, jobs: Sequence[Sequence[MaskJob]], alternative: float) -> list[list[Matrices]]:
        if self._apart:
            return [[self._reference.masked(job, alternative) for job in own] for own in jobs]
        idle: list[list[MaskJob]] = [[]] * (len(self._reference.errors) - len(jobs))  # for the other nodes
        outcome = self._local.mask([*jobs, *idle], alternative=alternative, behind=self._first_free)
        self.cycles = total([self.cycles, outcome.cycles])
        self.replaced += sum(outcome.replaced)
        self.elements += sum(job.matrices.size for own in jobs for job in own)
        self.words += sum(-(-job.matrices.size // 32) for own in jobs for job in own if job.mask.external)
        if self._check:
            for rank, (own, results) in enumerate(zip(jobs, outcome.results, strict=False)):
                replaced = sum(self._compare(rank, number, job, result, alternative)
                               for number, (job, result) in enumerate(zip(own, results, strict=True)))
                if outcome.replaced[rank] != replaced:
                    raise DivergenceError(f"Step {self.number}: node {rank} has replaced {outcome.replaced[rank]} "
                                          f"elements, and must have replaced {replaced}")
        return outcome.results[:len(jobs)]

    def _compare(self, rank: int, number: int, job: MaskJob, result: Matrices, alternative: float) -> int:
        """Compare the result of a job and return the number of elements replaced by the mask."""
        expected, replaced = self._reference.mask(job, alternative)
        actual = words_of(result)
        wrong = np.argwhere(actual != expected)
        if len(wrong):
            matrix, row, column = index = tuple(wrong[0].tolist())
            raise DivergenceError(
                f"Step {self.number}: {len(wrong)} of {actual.size} masked elements of job {number} of node {rank} "
                f"differ from the golden model, first matrix {matrix}, row {row}, column {column}, which is "
                f"0x{actual[index]:08x} and must be 0x{expected[index]:08x}")
        return replaced

    def state(self) -> dict[str, Any]:
        """Return the current counts, to be saved in a checkpoint."""
        return {"cycles": self.cycles, "replaced": self.replaced, "elements": self.elements, "words": self.words}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from saved counts."""
        vars(self).update(state)
