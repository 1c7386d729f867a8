"""Interface of executors, which run the steps of a training run on nodes.

An executor owns the nodes, the golden model that they are compared with, and the record of the run. Batches, step
numbers and checkpoints belong to :class:`host.training.trainer.Trainer`.
"""

import abc
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from host.training.batches import Batch

__all__ = ["Executor"]

S = TypeVar("S")


class Executor(abc.ABC, Generic[S]):
    """Base class of executors, which run a training run's steps on nodes."""

    #: Maximum number of steps in a block, which the nodes run without stopping.
    most = 1
    #: Whether all batches of a block must have the same size.
    equal = False

    @property
    def left(self) -> int:
        """Number of steps known to remain in a run without a fixed total."""
        raise NotImplementedError

    @abc.abstractmethod
    def begin(self) -> None:
        """Write the initial weights to the nodes."""

    def prepare(self, number: int) -> None:
        """Prepare for the step that follows step ``number``; called before the batch of that step is taken."""

    @abc.abstractmethod
    def execute(self, first: int, batches: Sequence[Batch]) -> Sequence[S]:
        """Run the steps of a block, starting with step ``first`` (counted from 1), and compare the nodes with the
        golden model. Returns the figures of each step, possibly for fewer steps than batches."""

    def record(self, step: S) -> None:
        """Add a step to the run's record, unless :meth:`execute` has already added it."""

    def measure(self, number: int) -> None:
        """Measure the model's accuracy or loss after step ``number``."""

    def finish(self) -> None:
        """Complete the run after its last step."""

    def state(self) -> dict[str, Any]:
        """Return the record and the state that the rest of the run depends on, as lists and dictionaries of numbers,
        strings and arrays."""
        raise NotImplementedError

    def resume(self, state: dict[str, Any], *, restored: bool = False) -> None:
        """Resume from a state, instead of calling :meth:`begin`. If ``restored``, the nodes already have it."""
        raise NotImplementedError
