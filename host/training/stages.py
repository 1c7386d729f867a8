"""Rings that a run trains on, one after the other, at the request of training."""

import abc
from collections.abc import Sequence
from typing import Any

from host.driver.protocols import TrainingRing
from host.training.record import Change, TrainingConfig

__all__ = ["RingStages"]


class RingStages(abc.ABC):
    """Rings of nodes that leave and join."""

    #: Driver of the nodes of the present stage, and its number.
    ring: TrainingRing
    stage: int

    @property
    @abc.abstractmethod
    def plan(self) -> Any:
        """Plan of the present rings, for their golden model."""

    @property
    @abc.abstractmethod
    def flat(self) -> bool:
        """Whether the nodes form one ring."""

    @property
    @abc.abstractmethod
    def order(self) -> Sequence[int]:
        """Numbers of the nodes, in the order of their shares of a batch."""

    @abc.abstractmethod
    def enter(self, stage: int) -> TrainingRing:
        """Form the rings of a stage, and put their links in order; no state is handed over."""

    @abc.abstractmethod
    def due(self, steps: int) -> bool:
        """Whether the step after the first ``steps`` belongs to another stage."""

    @abc.abstractmethod
    def move(self, steps: int, length: int, config: TrainingConfig) -> Change:
        """Enter the stage of the next step, and hand the nodes' state over: vectors of ``length`` elements."""

    @abc.abstractmethod
    def balance(self, steps: int) -> None:
        """Raise ``DivergenceError`` unless all words that nodes have sent since the last change were received."""

    @abc.abstractmethod
    def handed_over(self, arrays: dict[str, Any], old: Any) -> dict[str, Any]:
        """Arrays of the golden model of the nodes of another plan, for the present ones."""

    @abc.abstractmethod
    def forget(self) -> None:
        """Count words again from zero, after a failure that lost some."""
