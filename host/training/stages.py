"""Successive rings that a run trains on."""

import abc
from collections.abc import Sequence
from typing import Any

from host.driver.protocols import TrainingRing
from host.training.record import Change, TrainingConfig

__all__ = ["RingStages"]


class RingStages(abc.ABC):
    """Rings of a run with nodes that leave and join, one stage after another."""

    #: Driver of the nodes of the current stage, and number of the stage.
    ring: TrainingRing
    stage: int

    @property
    @abc.abstractmethod
    def plan(self) -> Any:
        """Plan of the current rings, for their golden model."""

    @property
    @abc.abstractmethod
    def flat(self) -> bool:
        """Whether the nodes form one ring."""

    @property
    @abc.abstractmethod
    def order(self) -> Sequence[int]:
        """Numbers of the nodes, in the order in which a batch is divided among them."""

    @abc.abstractmethod
    def enter(self, stage: int) -> TrainingRing:
        """Form the rings of a stage, and reset their links; no state is handed over."""

    @abc.abstractmethod
    def due(self, steps: int) -> bool:
        """Whether the step after the first ``steps`` steps belongs to a new stage."""

    @abc.abstractmethod
    def move(self, steps: int, length: int, config: TrainingConfig) -> Change:
        """Enter the stage for the next step, and hand over the state, in vectors of ``length`` elements."""

    @abc.abstractmethod
    def balance(self, steps: int) -> None:
        """Raise ``DivergenceError`` unless all words sent by nodes since the last change were received."""

    @abc.abstractmethod
    def handed_over(self, arrays: dict[str, Any], old: Any) -> dict[str, Any]:
        """Convert a golden model's arrays for the nodes of an ``old`` plan to arrays for the current nodes."""

    @abc.abstractmethod
    def forget(self) -> None:
        """Restart the count of words at zero, after a failure that lost words."""
