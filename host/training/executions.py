"""Execution of a training step on nodes: a fused update, with gradients computed by the host or by the nodes."""

import abc
from collections.abc import Sequence
from typing import Any

from host.driver.protocols import TrainingRing
from host.driver.results import Cycles, Outcome
from host.driver.words import Vector
from host.feature import feature
from host.models.layers import Array
from host.training.record import NODE, TrainingConfig
from host.training.reference import Part
from host.training.workloads import Workload

__all__ = ["Differentiator", "Execution", "execution_of"]


class Differentiator(abc.ABC):
    """Computation of gradients with lists of instructions, executed by the nodes of a ring in each step."""

    #: Lines about the lists for the report; the first line is about the plan of the activation memory.
    notes: list[str]
    #: Number of examples on each node.
    lengths: list[int]
    #: Multiplications with centroids on all nodes in the last :meth:`run`, as counted by the nodes' events.
    multiplications: int = 0
    #: Whether :meth:`run` loads programs into nodes, replacing earlier ones.
    programmed: bool = False
    #: Commands that execute the lists, for a schedule.
    commands: Sequence[Any] = ()
    #: Whether nodes can compute :meth:`scores`.
    has_scores: bool = False

    @abc.abstractmethod
    def prepare(self) -> None:
        """Write the lists; raises ``PlanError`` if they do not belong to the nodes' memory plan."""

    @abc.abstractmethod
    def give(self, shares: Sequence[Any], *, odd: int = 0) -> None:
        """Write the examples of each node's share, as returned by the workload's ``examples_of``; an odd pass has a
        separate address for its examples."""

    @abc.abstractmethod
    def run(self) -> Cycles:
        """Make nodes compute the gradients of their examples, and return the cycles of all commands."""

    @abc.abstractmethod
    def losses(self) -> list[float]:
        """Losses of the shares in the last :meth:`run`."""

    def scores(self, x: Array, *, odd: int = 0) -> Array:
        """Compute scores of examples, with the lists of even or of odd passes."""
        raise NotImplementedError


class Execution:
    """Steps of a run on a ring, or on the rings of a grid, with vectors of ``length`` elements."""

    #: Computation of gradients on the nodes; None if the host computes.
    computer: Differentiator | None = None
    #: Collectives of the last step; None if a single fused update handled the whole vector.
    parts: list[Part] | None = None

    def __init__(self, ring: TrainingRing, length: int):
        self._ring = ring
        self._length = length

    @property
    def log(self) -> list[str]:
        """Lines about choices that were made."""
        return []

    @property
    def timeline(self) -> list[list[Any]] | None:
        """Commands of the last pass, if nodes have traced them."""
        return None

    def write(self, gradients: Sequence[Vector]) -> None:
        """Write the gradients of each node."""
        self._ring.memory.write_gradients(gradients)

    def compute(self, shares: Sequence[Any]) -> None:
        """Write the examples of each node's share, if nodes compute."""
        raise NotImplementedError

    def update(self) -> Outcome:
        """Sum the gradients and update the weights on the nodes."""
        return self._ring.collectives.fused_update(self._length)

    def figures(self, before: list[dict[str, int]], after: list[dict[str, int]]) -> dict[str, Any]:
        """Additional figures of the last step, from counters of all nodes before and after it."""
        return {}

    def warm_up(self) -> None:
        """Execute the last step's commands once more, on arbitrary gradients. This does not count as a step."""
        self.update()

    def state(self) -> dict[str, Any]:
        """State that later steps depend on."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""


def execution_of(ring: TrainingRing, workload: Workload, config: TrainingConfig) -> Execution:
    """Execution of steps: by feature programs if nodes compute or have programs, or with a schedule."""
    if config.overlap is None and config.compute != NODE and ring.config.programs is None:
        return Execution(ring, int(workload.parameters.size))
    return feature("programs").execution(ring, workload, config)
