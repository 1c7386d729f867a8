"""Rings that a run trains on, one after the other, as training asks for them."""

import abc
from collections.abc import Sequence
from typing import Any

from host.driver.protocols import TrainingRing
from host.training.record import Change, TrainingConfig

__all__ = ["RingStages"]


class RingStages(abc.ABC):
    """Rings of nodes that leave and come.

    Members
    -------
    ring : TrainingRing
        Driver of the nodes of the present stage.
    stage : int
        Number of the present stage.
    """

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
        """Form the rings of a stage, and put their links in order; nothing is carried over."""

    @abc.abstractmethod
    def due(self, steps: int) -> bool:
        """Whether the step after so many steps is one of another stage."""

    @abc.abstractmethod
    def move(self, steps: int, length: int, config: TrainingConfig) -> Change:
        """Go on to the stage of the next step, and give its nodes what those of the present one have: vectors of so
        many elements."""

    @abc.abstractmethod
    def balance(self, steps: int) -> None:
        """Raise ``DivergenceError`` unless all words that nodes have sent since the last change were received."""

    @abc.abstractmethod
    def handed_over(self, arrays: dict[str, Any], old: Any) -> dict[str, Any]:
        """Arrays of the golden model of the nodes of another plan, for the present ones."""

    @abc.abstractmethod
    def forget(self) -> None:
        """Count words anew, after a failure in which some were lost."""
