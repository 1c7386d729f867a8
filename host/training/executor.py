"""Execution of the steps of a run on nodes, at the request of the trainer.

An executor has nodes, the golden model that they are compared with, and the record of the run. Batches, counts of
steps and checkpoints belong to :class:`host.training.trainer.Trainer`.
"""

import abc
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from host.training.batches import Batch

__all__ = ["Executor"]

S = TypeVar("S")


class Executor(abc.ABC, Generic[S]):
    """Steps of a run on nodes."""

    #: Maximum steps of a block, which nodes do without a stop.
    most = 1
    #: Whether all batches of a block have the same size.
    equal = False

    @property
    def left(self) -> int:
        """Steps that follow, as far as is known, of a run that the trainer does not count down."""
        raise NotImplementedError

    @abc.abstractmethod
    def begin(self) -> None:
        """Give the nodes the first weights."""

    def prepare(self, number: int) -> None:
        """Prepare the step after the first ``number`` steps, before its batch is taken."""

    @abc.abstractmethod
    def execute(self, first: int, batches: Sequence[Batch]) -> Sequence[S]:
        """Do the steps of a block, from number ``first`` on, counted from 1, and compare the nodes with the golden
        model; return figures of each step, perhaps for fewer steps than batches."""

    def record(self, step: S) -> None:
        """Add a step to the record of the run, unless :meth:`execute` has done so."""

    def measure(self, number: int) -> None:
        """Measure the model after step ``number``."""

    def finish(self) -> None:
        """Do the remaining work after the last step."""

    def state(self) -> dict[str, Any]:
        """State that the rest of the run depends on, and the record: numbers, texts, arrays, and lists and
        dictionaries of them."""
        raise NotImplementedError

    def resume(self, state: dict[str, Any], *, restored: bool = False) -> None:
        """Continue from a state, in place of :meth:`begin`; ``restored`` nodes have their share of it already."""
        raise NotImplementedError
