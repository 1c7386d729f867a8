"""Execute training steps on nodes: fused updates, with gradients from the host or from the nodes."""

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
    """Interface for computing gradients on a ring of nodes, which execute instruction lists in each step."""

    #: Lines about the instruction lists for the report. The first line describes the plan of the activation memory.
    notes: list[str]
    #: Number of examples on each node.
    lengths: list[int]
    #: Number of centroid multiplications on all nodes in the last :meth:`run`, from the nodes' events.
    multiplications: int = 0
    #: Whether :meth:`run` loads programs, which replace earlier ones on the nodes.
    programmed: bool = False
    #: Commands that execute the instruction lists, for use in a schedule.
    commands: Sequence[Any] = ()
    #: Whether nodes can compute :meth:`scores`.
    has_scores: bool = False

    @abc.abstractmethod
    def prepare(self) -> None:
        """Write the instruction lists to the nodes; raise ``PlanError`` if they do not match the memory plan."""

    @abc.abstractmethod
    def give(self, shares: Sequence[Any], *, odd: int = 0) -> None:
        """Write each node's share of examples, as returned by the workload's ``examples_of``. Even and odd passes use
        different addresses."""

    @abc.abstractmethod
    def run(self) -> Cycles:
        """Make the nodes compute gradients for their examples; return the cycles of all commands."""

    @abc.abstractmethod
    def losses(self) -> list[float]:
        """Return the losses from the last :meth:`run`, for the share of each node."""

    def scores(self, x: Array, *, odd: int = 0) -> Array:
        """Compute scores of examples with the instruction lists for even or odd passes."""
        raise NotImplementedError


class Execution:
    """Executes a run's steps on a ring or on the rings of a grid, for vectors of ``length`` elements."""

    #: Computation of gradients on the nodes, or None if the host computes them.
    computer: Differentiator | None = None
    #: Collectives of the last step, or None if it was a single fused update of the whole vector.
    parts: list[Part] | None = None

    def __init__(self, ring: TrainingRing, length: int):
        self._ring = ring
        self._length = length

    @property
    def log(self) -> list[str]:
        """Lines for the report about choices that were made, such as tilings and the schedule."""
        return []

    @property
    def timeline(self) -> list[list[Any]] | None:
        """Return the commands of the last pass, if the nodes traced them."""
        return None

    def write(self, gradients: Sequence[Vector]) -> None:
        """Write the gradients of each node to its memory."""
        self._ring.memory.write_gradients(gradients)

    def compute(self, shares: Sequence[Any]) -> None:
        """Write each node's share of examples, if the nodes compute."""
        raise NotImplementedError

    def update(self) -> Outcome:
        """Sum gradients and update weights on the nodes."""
        return self._ring.collectives.fused_update(self._length)

    def figures(self, before: list[dict[str, int]], after: list[dict[str, int]]) -> dict[str, Any]:
        """Return additional figures for the last step, from counters of all nodes before and after it."""
        return {}

    def warm_up(self) -> None:
        """Repeat the last step's commands with arbitrary gradients, without counting it as a step."""
        self.update()

    def finish(self) -> None:
        """Restore the settings of nodes that would affect later commands."""

    def state(self) -> dict[str, Any]:
        """Return the state that later steps depend on."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""


def execution_of(ring: TrainingRing, workload: Workload, config: TrainingConfig) -> Execution:
    """Create the execution: from the programs feature if nodes compute, have programs or use a schedule, and from the
    microbatches feature if nodes have several gradients."""
    if config.microbatches is not None:
        return feature("microbatches").execution(ring, workload, config)
    if ring.config.has("microbatches"):
        ring.microbatches.clear()  # an earlier run may have been interrupted
    if config.overlap is None and config.compute != NODE and ring.config.programs is None:
        return Execution(ring, int(workload.parameters.size))
    return feature("programs").execution(ring, workload, config)
