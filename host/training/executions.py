"""Execution of a step of training on nodes: a fused update, with gradients of the host or of the nodes."""

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
    """Lists of instructions that the nodes of a ring carry out in a step."""

    #: Lines about the lists, for the report: the plan of the activation memory first.
    notes: list[str]
    #: Examples that each node has.
    lengths: list[int]
    #: Multiplications with centroids of all nodes in the last :meth:`run`, as their events have counted them.
    multiplications: int = 0
    #: Whether :meth:`run` gives nodes programs, in place of their earlier ones.
    programmed: bool = False
    #: Commands of the lists, for a schedule.
    commands: Sequence[Any] = ()
    #: Whether nodes can compute :meth:`scores`.
    has_scores: bool = False

    @abc.abstractmethod
    def prepare(self) -> None:
        """Write the lists, unless they are not the program of their memory plan: ``PlanError``."""

    @abc.abstractmethod
    def give(self, shares: Sequence[Any], *, odd: int = 0) -> None:
        """Write the examples of each node's share, as the workload's ``examples_of`` has them; examples of an odd
        pass have their own address."""

    @abc.abstractmethod
    def run(self) -> Cycles:
        """Make nodes differentiate their examples, and return the cycles of all commands."""

    @abc.abstractmethod
    def losses(self) -> list[float]:
        """Losses of the shares that were differentiated last."""

    def scores(self, x: Array, *, odd: int = 0) -> Array:
        """Scores of examples, by the lists of even passes or of odd ones."""
        raise NotImplementedError


class Execution:
    """The steps of a run on a ring, or on the rings of a grid, with vectors of ``length`` elements."""

    #: Computation of gradients, where nodes compute.
    computer: Differentiator | None = None
    #: Collectives of the last step; None for one fused update of the whole vector.
    parts: list[Part] | None = None

    def __init__(self, ring: TrainingRing, length: int):
        self._ring = ring
        self._length = length

    @property
    def log(self) -> list[str]:
        """Lines about choices."""
        return []

    @property
    def timeline(self) -> list[list[Any]] | None:
        """Commands of the last pass, where nodes have traced them."""
        return None

    def write(self, gradients: Sequence[Vector]) -> None:
        """Write the gradients of each node."""
        self._ring.memory.write_gradients(gradients)

    def compute(self, shares: Sequence[Any]) -> None:
        """Give each node the examples of its share, where nodes compute."""
        raise NotImplementedError

    def update(self) -> Outcome:
        """Make the nodes sum the gradients and update the weights."""
        return self._ring.collectives.fused_update(self._length)

    def figures(self, before: list[dict[str, int]], after: list[dict[str, int]]) -> dict[str, Any]:
        """Further figures of the last step, from counters of all nodes before it and after it."""
        return {}

    def warm_up(self) -> None:
        """Make the nodes do the commands of the last step once more, on any gradients; this counts as no step."""
        self.update()

    def state(self) -> dict[str, Any]:
        """State that later steps depend on."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state."""


def execution_of(ring: TrainingRing, workload: Workload, config: TrainingConfig) -> Execution:
    """Execution of a run's steps: by programs on nodes that have them or compute, or by a schedule."""
    if config.overlap is None and config.compute != NODE and ring.config.programs is None:
        return Execution(ring, int(workload.parameters.size))
    return feature("programs").execution(ring, workload, config)
