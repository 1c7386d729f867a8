"""Sparse gradients of a training run, chosen by the nodes and compared with the golden model."""

from collections.abc import Sequence
from typing import Any

from host.driver.protocols import TrainingRing
from host.driver.results import Cycles
from host.driver.words import Vector
from host.training.comparison import names
from host.training.density import Threshold
from host.training.golden_run import Reference
from host.training.number_format import Elements
from host.training.record import DivergenceError, TrainingConfig

__all__ = ["Sparsifier"]


class Sparsifier:
    """Sparsification on the nodes, whose counts are compared with the golden model.

    Members
    -------
    dropped : int
        Elements that all nodes have not sent so far.
    threshold : float, optional
        Threshold of the last step.
    cycles : int
        Cycles of the last step.
    """

    def __init__(self, ring: TrainingRing, reference: Reference, form: Elements, config: TrainingConfig,
                 steps: int):
        self._ring = ring
        self._reference = reference
        self._form = form
        self._check = config.check
        self._controller: Threshold | None = None
        self.dropped = 0
        self.threshold: float | None = None
        self.cycles: Cycles = 0
        if config.density is not None:
            # A node without a link compresses the elements that it keeps: as at the only hop of two nodes.
            nodes = 2 if ring.formats.int16 else reference.equivalent_nodes
            self._controller = Threshold(density=config.density, nodes=nodes, steps=steps)

    def __call__(self, number: int, gradients: Sequence[Vector]) -> Sequence[Vector]:
        """Sparsify the gradients that nodes have in memory, and return those that they send."""
        if self._controller is None:
            return gradients
        threshold, self.threshold = self._form.threshold(self._controller.choose(gradients))
        outcome = self._ring.local.sparsify(self._reference.weights.size, threshold=threshold)
        self._controller.observe(sum(outcome.dropped))
        self.cycles = outcome.cycles
        self.dropped += sum(outcome.dropped)
        sent, expected = self._reference.sparsify(gradients, threshold)
        if self._check and outcome.dropped != expected:
            raise DivergenceError(f"Step {number}: nodes have dropped {names(outcome.dropped)} elements, and must "
                                  f"have dropped {names(expected)}")
        return sent

    def state(self) -> dict[str, Any]:
        """State that later thresholds depend on, and counts so far."""
        return {"dropped": self.dropped, "threshold": self.threshold, "cycles": self.cycles,
                "controller": None if self._controller is None else self._controller.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go back or on to another state."""
        self.dropped, self.threshold, self.cycles = state["dropped"], state["threshold"], state["cycles"]
        if self._controller is not None:
            self._controller.restore(state["controller"])

    def succeed(self, state: dict[str, Any]) -> None:
        """Go on from a state on other nodes."""
        self.restore(state)
        if self._controller is not None:
            self._controller.succeed(state["controller"])
