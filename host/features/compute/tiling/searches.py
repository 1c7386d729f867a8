"""Searches for good tiling factors: two published methods and three baselines.

===========  ================================================================================================
G-BFS        greedy best-first search: neighbours of the best state, drawn at random, are evaluated next
N-A2C        a small actor-critic network with one hidden layer. Its input is the factors of a state, its outputs
             a probability for each move and an estimate of the reward. It takes a few steps, some of them random,
             from the best state so far; after it has found enough new states, they are evaluated, and it learns
             from the moves that led to them
baselines    random states, simulated annealing, and a tuner from PyPI
===========  ================================================================================================
"""

import contextlib
import heapq
from typing import Any

import numpy as np
import numpy.typing as npt

from host.features.compute.tiling.space import Evaluations, ExhaustedError, Space, State
from sim.golden.exponential import exp

__all__ = ["Network", "actor_critic", "annealing", "best_first", "optuna_search", "random_search"]

_NEIGHBOURS = 3  # number of neighbours chosen at a time (rho)
#: A search restarts after 1/12 of its budget without improvement, but at least 25 evaluations.
_PATIENCE, _LEAST = 12, 25


def best_first(evaluations: Evaluations, generator: np.random.Generator, *, start: State | None = None) -> None:
    """Evaluate states until the budget is exhausted, starting from ``start`` or a random state.

    A few new neighbours of the state with the lowest cost are chosen at random, evaluated and queued. A state is
    removed from the queue when its last neighbour has been chosen. After a twelfth of the budget, but at least 25
    evaluations, without improvement, the search restarts from a different state. The published rule never restarts,
    and is limited to the states that are reachable with one form of tile.
    """
    space = evaluations.nest.space
    patience = max(_LEAST, evaluations.left // _PATIENCE)
    seen: set[State] = set()
    with contextlib.suppress(ExhaustedError):
        while evaluations.left:
            first = start or space.random(generator)
            start = None
            if first not in seen:
                _from(evaluations, generator, first, seen, patience)


def _from(evaluations: Evaluations, generator: np.random.Generator, start: State, seen: set[State],
          patience: int) -> None:
    """Search from ``start`` until ``patience`` consecutive evaluations have found no better state."""
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
            drawn = [new[number] for number in generator.permutation(len(new))[:_NEIGHBOURS]]
            if len(drawn) == len(new):
                heapq.heappop(waiting)


Array = npt.NDArray[np.float64]

#: Number of hidden units, and learning rate.
_HIDDEN, _RATE = 128, 1e-3
#: Number of steps from the best state, fraction of random steps, and number of new states evaluated together.
_STEPS, _RANDOM, _BATCH = 3, 0.1, 6
_IDLE_WALKS = 20  # number of walks without a new state before a different starting state is used


def _product(a: Array, b: Array) -> Array:
    """Matrix product with the same summation order on every processor."""
    return np.asarray(np.add.reduce(a[:, :, None] * b[None], axis=1))


class _Adam:
    """Adam optimizer for one array, with the usual decay rates."""

    def __init__(self, value: Array) -> None:
        self.value, self.first, self.second = value, np.zeros_like(value), np.zeros_like(value)
        self.steps = 0

    def descend(self, gradient: Array) -> None:
        self.steps += 1
        self.first += 0.1 * (gradient - self.first)
        self.second += 0.001 * (gradient**2 - self.second)
        rate = _RATE * np.sqrt(1 - 0.999**self.steps) / (1 - 0.9**self.steps)
        self.value -= rate * self.first / (np.sqrt(self.second) + 1e-8)


class Network:
    """Actor-critic network for a given number of inputs and moves, with one shared ReLU layer."""

    def __init__(self, inputs: int, moves: int, generator: np.random.Generator):
        def weights(rows: int, columns: int) -> _Adam:
            bound = 1 / np.sqrt(columns)
            return _Adam(generator.uniform(-bound, bound, (rows, columns)))

        self._layers = [weights(_HIDDEN, inputs), weights(moves, _HIDDEN), weights(1, _HIDDEN)]
        self._biases = [_Adam(np.zeros(len(layer.value))) for layer in self._layers]

    def run(self, x: Array) -> tuple[Array, Array, Array]:
        """Compute hidden activations, move probabilities and estimated rewards for rows of inputs."""
        hidden = np.maximum(_product(x, self._layers[0].value.T) + self._biases[0].value, 0)
        scores, estimates = (_product(hidden, layer.value.T) + bias.value
                             for layer, bias in zip(self._layers[1:], self._biases[1:], strict=True))
        odds = exp((scores - scores.max(1, keepdims=True)).astype(np.float32)).astype(np.float64)
        return hidden, odds / odds.sum(1, keepdims=True), estimates[:, 0]

    def gradients(self, x: Array, moves: npt.NDArray[np.int64], rewards: Array) -> list[tuple[Array, Array]]:
        """Compute the gradients of the loss with respect to each layer's weights and biases.

        The loss is the mean over all moves of -log p · A + (reward - estimate)², where the advantage A = reward -
        estimate is treated as a constant.
        """
        hidden, odds, estimates = self.run(x)
        advantage = rewards - estimates
        actor = odds * advantage[:, None] / len(x)
        actor[np.arange(len(x)), moves] -= advantage / len(x)
        critic = -2 * advantage[:, None] / len(x)
        below = (_product(actor, self._layers[1].value) + _product(critic, self._layers[2].value)) * (hidden > 0)
        return [(_product(delta.T, source), delta.sum(0))
                for delta, source in ((below, x), (actor, hidden), (critic, hidden))]

    def learn(self, x: Array, moves: npt.NDArray[np.int64], rewards: Array) -> None:
        """Take an Adam step for the given moves and rewards."""
        for number, (weights, bias) in enumerate(self.gradients(x, moves, rewards)):
            self._layers[number].descend(weights)
            self._biases[number].descend(bias)


def numbers(space: Space, state: State) -> Array:
    """Encode a state as network inputs: each factor as a fraction of its dimension, minus a half."""
    return np.array([2.0 ** (factor - exponent) - 0.5
                     for factors, exponent in zip(state, space.exponents, strict=True) for factor in factors])


def actor_critic(evaluations: Evaluations, generator: np.random.Generator, *, start: State | None = None) -> None:
    """Evaluate states until the budget is exhausted, starting from ``start`` or a random state.

    If walks from the best state find nothing new, they restart from an evaluated or a random state.
    """
    space = evaluations.nest.space
    moves = space.moves
    network = Network(sum(space.depths), len(moves), generator)
    with contextlib.suppress(ExhaustedError):
        evaluations.cost(start or space.random(generator))
        while evaluations.left:
            met: dict[State, tuple[State, int]] = {}
            idle = 0
            while len(met) < min(_BATCH, evaluations.left):
                assert evaluations.best is not None
                state = evaluations.best
                if idle >= _IDLE_WALKS:
                    known = list(evaluations.costs)
                    state = (known[generator.integers(len(known))] if generator.random() < 0.5
                             else space.random(generator))
                before = len(met)
                for _ in range(_STEPS):
                    state = _step(network, space, state, evaluations, met, generator)
                idle += len(met) == before
            for state in met:
                evaluations.cost(state)
            network.learn(np.array([numbers(space, source) for source, _ in met.values()]),
                          np.array([move for _, move in met.values()]),
                          np.array([evaluations.reward(state) for state in met]))


def _step(network: Network, space: Space, state: State, evaluations: Evaluations,
          met: dict[State, tuple[State, int]], generator: np.random.Generator) -> State:
    """Move to a neighbour and record it if it is new."""
    moves = space.moves
    possible = np.array([space.step(state, move) is not None for move in moves])
    if generator.random() < _RANDOM:
        odds = possible / possible.sum()
    else:
        odds = network.run(numbers(space, state)[None])[1][0] * possible
        odds /= odds.sum()
    move = int(generator.choice(len(moves), p=odds))
    neighbour = space.step(state, moves[move])
    assert neighbour is not None
    if neighbour not in evaluations.costs and neighbour not in met:
        met[neighbour] = state, move
    return neighbour


#: Initial and final temperature, as fractions of the cost.
_HOT, _COLD = 1.0, 0.01
_IDLE = 50  # maximum number of consecutive steps to known states


def random_search(evaluations: Evaluations, generator: np.random.Generator) -> None:
    """Evaluate random states until the budget is exhausted; repeated states do not count."""
    while evaluations.left:
        evaluations.cost(evaluations.nest.space.random(generator))


def annealing(evaluations: Evaluations, generator: np.random.Generator) -> None:
    """Simulated annealing: accept random neighbours if they cost less, else with a falling probability.

    The temperature falls geometrically with the number of evaluations; known neighbours do not count. After many
    consecutive steps to known states, the search continues from a random state.
    """
    space, budget = evaluations.nest.space, evaluations.left
    with contextlib.suppress(ExhaustedError):
        state = space.random(generator)
        cost, idle, left = evaluations.cost(state), 0, budget
        while evaluations.left:
            idle = idle + 1 if evaluations.left == left else 0
            left = evaluations.left
            if idle == _IDLE:
                state = space.random(generator)
                cost, idle = evaluations.cost(state), 0
            temperature = _HOT * (_COLD / _HOT) ** (1 - evaluations.left / budget)
            around = space.neighbours(state)
            other = around[generator.integers(len(around))]
            rise = evaluations.cost(other) / cost - 1
            # True with probability exp(-rise / temperature), and always if the cost does not rise.
            if rise < temperature * generator.exponential():
                state, cost = other, evaluations.cost(other)


def optuna_search(evaluations: Evaluations, generator: np.random.Generator) -> None:
    """Search with Optuna's tree-structured Parzen estimator, which proposes how to split each dimension."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = evaluations.nest.space

    def objective(trial: Any) -> float:
        factors = []
        for name, exponent, depth in zip("mkn", space.exponents, space.depths, strict=True):
            cuts = sorted(trial.suggest_int(f"{name}{number}", 0, exponent) for number in range(depth - 1))
            factors.append(tuple(after - before for before, after in zip([0, *cuts], [*cuts, exponent], strict=True)))
        return float(evaluations.cost(tuple(factors)))

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=int(generator.integers(1 << 31))))
    for _ in range(10 * evaluations.left):  # limits the trials: known states take time but are not counted
        if not evaluations.left:
            break
        study.optimize(objective, n_trials=1)
    random_search(evaluations, generator)
