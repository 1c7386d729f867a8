"""Checks of numbers that go to the nodes and come from them in a step of training."""

from collections.abc import Sequence

from host.driver.results import Outcome
from host.driver.words import Vector
from host.models.layers import Array
from host.training.comparison import names
from host.training.number_format import Elements
from host.training.record import TrainingError

__all__ = ["gradients_of", "growth", "refuse_nonfinite"]

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
