"""How the nodes do a step of training: here by a fused update, for which the host writes the gradients."""

from collections.abc import Sequence
from typing import Any

from host.driver.protocols import TrainingRing
from host.driver.results import Outcome
from host.driver.words import Vector
from host.feature import feature
from host.training.differentiator import Differentiator
from host.training.record import NODE, TrainingConfig
from host.training.reference import Part
from host.training.workloads import Workload

__all__ = ["Execution", "execution_of"]


class Execution:
    """The steps of a run on a ring, or on the rings of a grid, with vectors of so many elements."""

    #: Computation of gradients, where nodes compute.
    computer: Differentiator | None = None
    #: Collectives of the last step; None for one fused update of the whole vector.
    parts: list[Part] | None = None

    def __init__(self, ring: TrainingRing, length: int):
        self._ring = ring
        self._length = length

    @property
    def log(self) -> list[str]:
        """Lines about what was chosen."""
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
        """Have the nodes sum the gradients and update the weights."""
        return self._ring.collectives.fused_update(self._length)

    def figures(self, before: list[dict[str, int]], after: list[dict[str, int]]) -> dict[str, Any]:
        """Further figures of the last step, from counters of all nodes before it and after it."""
        return {}

    def warm_up(self) -> None:
        """Have the nodes do the commands of the last step once more, on any gradients, as no step of its own."""
        self.update()

    def state(self) -> dict[str, Any]:
        """State that later steps depend on."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""


def execution_of(ring: TrainingRing, workload: Workload, config: TrainingConfig) -> Execution:
    """The way to do a run's steps: by programs on nodes that have them or compute, or by a schedule."""
    if config.overlap is None and config.compute != NODE and ring.config.programs is None:
        return Execution(ring, int(workload.parameters.size))
    execution: Execution = feature("programs").execution(ring, workload, config)
    return execution
