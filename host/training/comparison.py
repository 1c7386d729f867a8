"""Comparison of nodes with the golden model, as bit patterns; the first difference is an error."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from host.driver.protocols import VectorRing
from host.driver.results import Outcome
from host.driver.words import Vector
from host.models.layers import Array
from host.training.number_format import Elements
from host.training.record import DivergenceError, Training, TrainingConfig, TrainingError
from host.training.reference import Reference, words_of

__all__ = ["compare_end", "compare_master", "compare_memories", "compare_rows", "compare_scores", "gradients_of",
           "growth", "names", "read_weights", "refuse_nonfinite"]


def names(nodes: Sequence[float]) -> str:
    """Text of numbers with commas between them."""
    return ", ".join(map(str, nodes))


def read_weights(ring: VectorRing, reference: Reference, config: TrainingConfig, number: int) -> Vector:
    """Weights of a node; if the run is checked, those of all nodes are compared first, masters too."""
    length = len(reference.weights)
    if not config.check:
        return np.asarray(ring.memory.read_weights(length, ranks=[0])[0])
    weights = ring.memory.read_weights(length)
    compare_rows("weights", number, reference.weights, words_of(weights))
    compare_master(ring, reference, number)
    return np.asarray(weights[0])


def compare_master(ring: VectorRing, reference: Reference, number: int) -> None:
    """Compare masters, where nodes have them."""
    if reference.has_master:
        found = ring.memory.read_master(len(reference.weights)).view(np.uint32)
        _compare_state(ring, "master weights", number, reference.master, found)


def compare_scores(number: int, expected: Vector, found: Vector) -> None:
    """Compare the scores of the test set, which nodes have computed, with the golden model's."""
    wrong = np.flatnonzero((expected.view(np.uint32) != np.ascontiguousarray(found).view(np.uint32)).any(axis=1))
    if wrong.size:
        raise DivergenceError(f"Step {number}: scores of {wrong.size} of {len(expected)} examples differ from the "
                              f"golden model, first those of example {wrong[0]}")


def compare_rows(name: str, number: int, expected: npt.NDArray[np.uint32], nodes: npt.NDArray[np.uint32]) -> None:
    """Compare each row of ``nodes`` with the golden model."""
    wrong = nodes != expected
    if wrong.any():
        node = int(np.flatnonzero(wrong.any(axis=1))[0])
        index = int(np.flatnonzero(wrong[node])[0])
        others = [other for other in range(len(nodes)) if np.array_equal(nodes[other], nodes[node])]
        raise DivergenceError(
            f"Step {number}: {wrong[node].sum()} of {len(expected)} {name} of node {node} differ from the golden "
            f"model, first number {index}, which is 0x{nodes[node, index]:08x} and must be 0x{expected[index]:08x}; "
            f"nodes with the same {name}: {names(others)}")


def _compare_state(ring: VectorRing, name: str, number: int, expected: npt.NDArray[np.uint32],
                   found: npt.NDArray[np.uint32]) -> None:
    """Compare a state plane of the whole vector, each block from its owner, with the golden model."""
    _compare(name, number, expected, found, lambda index: f", on node {ring.partition.owner(index, len(expected))}")


def _compare(name: str, number: int, expected: npt.NDArray[np.uint32], found: npt.NDArray[np.uint32],
             where: Callable[[int], str] = lambda index: "") -> None:
    """Compare a vector with the golden model; ``where`` adds to a message the place of an element."""
    wrong = np.flatnonzero(found != expected)
    if wrong.size:
        index = int(wrong[0])
        raise DivergenceError(
            f"Step {number}: {wrong.size} of {len(expected)} {name} differ from the golden model, first number "
            f"{index}{where(index)}, which is 0x{found[index]:08x} and must be 0x{expected[index]:08x}")


def compare_memories(ring: VectorRing, reference: Reference, config: TrainingConfig, number: int) -> None:
    """Compare what nodes keep from one step to the next beside weights and masters: state, errors, residuals."""
    length = len(reference.weights)
    planes = ["momenta"] if len(reference.state) == 1 else ["first moments", "second moments"]
    for plane, expected in enumerate(reference.state):
        found = ring.memory.read_state(length, plane, packed_state=config.packed_state)
        _compare_state(ring, planes[plane], number, expected, found.view(np.uint32))
    if config.density is not None:
        for rank, errors in enumerate(words_of(ring.memory.read_errors(length))):
            _compare(f"errors of node {rank}", number, reference.errors[rank], errors)
    if reference.residuals is not None:
        for rank, residuals in enumerate(ring.memory.read_residual(length).view(np.uint32)):
            _compare(f"residuals of node {rank}", number, reference.residuals[rank], residuals)


def compare_end(ring: VectorRing, reference: Reference, config: TrainingConfig, training: Training, *,
                weights: npt.NDArray[np.uint32], replaced: int, words: int) -> None:
    """Compare memories and counters of the nodes at the end of a run with the golden model; ``weights`` are those
    that lie from the base on."""
    number = len(training.steps)
    compare_memories(ring, reference, config, number)
    # Lists of masks are written behind the weights, of which none may have changed since the last step.
    compare_rows("weights", number, weights, words_of(ring.memory.read_weights(training.parameters)))
    if (training.elements_masked, training.mask_words_fetched) != (replaced, words):
        raise DivergenceError(
            f"Step {number}: nodes have counted {training.elements_masked} elements masked and "
            f"{training.mask_words_fetched} words fetched, and must have counted {replaced} and {words}")


_ADVICE = "training has diverged, try a smaller learning rate"


def growth(name: str, before: list[dict[str, int]], after: list[dict[str, int]]) -> list[int]:
    """Growth of a counter of each node, which wraps at 32 bits."""
    return [(now[name] - was[name]) % (1 << 32) for was, now in zip(before, after, strict=True)]


def most(name: str, before: list[dict[str, int]], after: list[dict[str, int]]) -> int | None:
    """Largest growth of a counter of a node; None where nodes do not have it, since it is not modelled."""
    return max(growth(name, before, after)) if name in after[0] else None


def gradients_of(number: int, form: Elements, differences: Sequence[Array]) -> list[Vector]:
    """Gradients of each node in step ``number``, in the form in which it is given them."""
    try:
        return form.gradients(differences)
    except ValueError as error:
        raise TrainingError(f"Step {number}: {error}; {_ADVICE}") from None


def refuse_nonfinite(number: int, outcome: Outcome, nodes: Sequence[int]) -> None:
    """Raise ``TrainingError`` if nodes have found NaN or a sum that is not finite; ``nodes`` has their numbers."""
    if outcome.local_nan:
        found = names([nodes[rank] for rank in outcome.local_nan])
        raise TrainingError(f"Step {number}: NaN among the gradients of node {found}; {_ADVICE}")
    if outcome.not_finite:
        found = names([nodes[rank] for rank in outcome.not_finite])
        raise TrainingError(f"Step {number}: a sum of gradients is not finite, found by node {found}; {_ADVICE}")
