"""Stages of a run: the successive rings that it trains on."""

import abc
from collections.abc import Sequence
from typing import Any

from host.driver.protocols import TrainingRing
from host.training.record import Change, TrainingConfig

__all__ = ["RingStages"]


class RingStages(abc.ABC):
    """Sequence of the stages of a run. Between stages, nodes leave and join the rings."""

    #: Driver of the nodes in the current stage, and the number of the stage.
    ring: TrainingRing
    stage: int

    @property
    @abc.abstractmethod
    def plan(self) -> Any:
        """Plan of the current rings, from which the golden model is made."""

    @property
    @abc.abstractmethod
    def flat(self) -> bool:
        """Whether the current nodes form a single ring."""

    @property
    @abc.abstractmethod
    def order(self) -> Sequence[int]:
        """Numbers of the current nodes, in the order in which a batch is divided among them."""

    @abc.abstractmethod
    def enter(self, stage: int) -> TrainingRing:
        """Form the rings of a stage and reset their links, without handing over any state."""

    @abc.abstractmethod
    def due(self, steps: int) -> bool:
        """Whether a new stage begins after the first ``steps`` steps."""

    @abc.abstractmethod
    def move(self, steps: int, length: int, config: TrainingConfig) -> Change:
        """Enter the stage of the next step, and hand over the state: vectors of ``length`` elements."""

    @abc.abstractmethod
    def balance(self, steps: int) -> None:
        """Raise ``DivergenceError`` unless all words sent since the last stage change have been received."""

    @abc.abstractmethod
    def handed_over(self, arrays: dict[str, Any], old: Any) -> dict[str, Any]:
        """Convert a golden model's arrays from the nodes of an ``old`` plan to the current nodes."""

    @abc.abstractmethod
    def forget(self) -> None:
        """Restart the count of sent and received words at zero, after a failure that lost words."""
