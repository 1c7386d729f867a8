"""Nodes that differentiate their shares of a batch, whatever the model."""

import abc
from collections.abc import Sequence
from typing import Any

from host.driver.results import Cycles

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

    @abc.abstractmethod
    def prepare(self) -> None:
        """Write the lists.

        Raises
        ------
        PlanError
            The lists are not the program of their memory plan; nothing is written then.
        """

    @abc.abstractmethod
    def give(self, shares: Sequence[Any]) -> None:
        """Write the examples of each node's share, as the workload's ``examples_of`` has them."""

    @abc.abstractmethod
    def run(self) -> Cycles:
        """Have nodes differentiate what they were given, and return the cycles of all commands."""

    @abc.abstractmethod
    def losses(self) -> list[float]:
        """Losses of the shares that were differentiated last."""
