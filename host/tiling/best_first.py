"""Greedy best-first search (G-BFS): neighbours of the best state, drawn at random, are evaluated next."""

import heapq

import numpy as np

from host.tiling.evaluations import Evaluations, ExhaustedError
from host.tiling.space import State

__all__ = ["NEIGHBOURS", "best_first"]

#: Neighbours that are drawn at a time (rho).
NEIGHBOURS = 3
#: Evaluations without a better state, as a part of the budget and at least, after which another start is drawn.
_PATIENCE, _LEAST = 12, 25


def best_first(evaluations: Evaluations, generator: np.random.Generator, *, start: State | None = None,
               neighbours: int = NEIGHBOURS) -> None:
    """Evaluate states until the budget has been used.

    Of the neighbours of the state with the least cost, ``neighbours`` of those that are new are drawn, evaluated and
    queued. A state leaves the queue with its last neighbour. If nothing better is found for a twelfth of the budget,
    25 evaluations at least, the search begins again elsewhere: the published rule has no such end, and stays within
    the states that one form of a tile can reach.

    Parameters
    ----------
    start : State, optional
        First state; by default a random one.
    neighbours : int
        States that are drawn, or all of fewer (rho).
    """
    space = evaluations.nest.space
    patience = max(_LEAST, evaluations.left // _PATIENCE)
    seen: set[State] = set()
    try:
        while evaluations.left:
            first = start or space.random(generator)
            start = None
            if first not in seen:
                _from(evaluations, generator, first, seen, neighbours=neighbours, patience=patience)
    except ExhaustedError:
        pass


def _from(evaluations: Evaluations, generator: np.random.Generator, start: State, seen: set[State], *,
          neighbours: int, patience: int) -> None:
    """Search from a start, until nothing better is found."""
    waiting: list[tuple[int, int, State]] = []
    drawn, idle, least = [start], 0, evaluations.cost(start)
    while drawn and idle < patience:
        for state in drawn:
            seen.add(state)
            cost = evaluations.cost(state)
            idle = idle + 1 if cost >= least else 0
            least = min(least, cost)
            heapq.heappush(waiting, (cost, len(seen), state))
        drawn = []
        while waiting and not drawn:
            new = [state for state in evaluations.nest.space.neighbours(waiting[0][2]) if state not in seen]
            drawn = [new[number] for number in generator.permutation(len(new))[:neighbours]]
            if len(drawn) == len(new):
                heapq.heappop(waiting)
