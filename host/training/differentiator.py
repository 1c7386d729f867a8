"""Computation of gradients on nodes, as training asks for it."""

import abc
from collections.abc import Sequence
from typing import Any

from host.driver.results import Cycles
from host.models.layers import Array

__all__ = ["Differentiator"]


class Differentiator(abc.ABC):
    """Lists of instructions that the nodes of a ring carry out in a step."""

    #: Lines about the lists, for the report: the plan of the activation memory first.
    notes: list[str]
    #: Examples that each node has been given.
    lengths: list[int]
    #: Multiplications with centroids of all nodes in the last :meth:`run`, as their events have counted them.
    multiplications: int = 0
    #: Whether :meth:`run` gives nodes programs, in place of those that they had.
    programmed: bool = False
    #: Commands of the lists, for a schedule.
    commands: Sequence[Any] = ()
    #: Whether nodes can compute :meth:`scores`.
    has_scores: bool = False

    @abc.abstractmethod
    def prepare(self) -> None:
        """Write the lists; ``PlanError`` if they are not the program of their memory plan; nothing is written
        then."""

    @abc.abstractmethod
    def give(self, shares: Sequence[Any], *, odd: int = 0) -> None:
        """Write the examples of each node's share, as the workload's ``examples_of`` has them; those of an odd pass
        to a place of their own."""

    @abc.abstractmethod
    def run(self) -> Cycles:
        """Have nodes differentiate what they were given, and return the cycles of all commands."""

    @abc.abstractmethod
    def losses(self) -> list[float]:
        """Losses of the shares that were differentiated last."""

    def scores(self, x: Array, *, odd: int = 0) -> Array:
        """Scores of examples, by the lists of even passes or of odd ones."""
        raise NotImplementedError
