"""Evaluations of states: the cost of each, which is asked for once, and the best one so far."""

from collections.abc import Callable

from host.tiling.nest import Nest, Plan
from host.tiling.space import State

__all__ = ["Cost", "Evaluations", "ExhaustedError"]

#: Cycles of the products of a plan.
Cost = Callable[[Plan], int]


class ExhaustedError(Exception):
    """The budget has been used, or all states have been evaluated."""


class Evaluations:
    """States of a search, with their costs.

    A state that the array cannot carry out is an evaluation like the others. It costs more than any that it can, by
    how many factors of two it does not fit: so a search that begins with one finds the way to those that fit.

    Parameters
    ----------
    cost : callable
    budget : int
        Most evaluations.

    Members
    -------
    costs : dict
        Cost of each state, in the order of evaluation.
    measured : int
        Evaluations of states that fit.
    curve : list of int
        Least cost after each evaluation; that of a state that does not fit as long as none does.
    best : State or None
        State of the least cost; the first of several.
    """

    def __init__(self, nest: Nest, cost: Cost, budget: int):
        self.nest = nest
        self._cost = cost
        self._most = min(budget, len(nest.space))
        self.costs: dict[State, int] = {}
        self.measured = 0
        self.curve: list[int] = []
        self.best: State | None = None

    @property
    def worst(self) -> int:
        """Cycles of one unit that computes alone, which are more than those of any plan."""
        job = self.nest.job
        return 8 * job.m * job.k * job.n

    @property
    def left(self) -> int:
        """Evaluations that may still be asked for."""
        return self._most - len(self.costs)

    def cost(self, state: State) -> int:
        """Cost of a state.

        Raises
        ------
        ExhaustedError
            It is not known, and the budget has been used.
        """
        if state not in self.costs:
            if not self.left:
                raise ExhaustedError
            plan = self.nest.plan(state)
            if isinstance(plan, Plan):
                self.measured += 1
                found = self._cost(plan)
            else:
                found = self.worst * (1 + plan)
            self.costs[state] = found
            if not self.curve or found < self.curve[-1]:
                self.best = state
            self.curve.append(min([found, *self.curve[-1:]]))
        return self.costs[state]

    def reward(self, state: State) -> float:
        """Cycles of an array that is never idle, in terms of the cost."""
        job, array = self.nest.job, self.nest.array
        return job.m * job.k * job.n / (array.rows * array.lanes) / self.cost(state)
