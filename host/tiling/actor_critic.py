"""Search by a small actor-critic network (N-A2C), round the best state so far.

A network with one hidden layer sees the factors of a state, and has a probability for each move and an estimate of
the reward. From the best state so far it goes a few steps, some of which are random; when it has met enough states
that are new, they are evaluated, and it learns from the moves that led to them.
"""

import dataclasses

import numpy as np
import numpy.typing as npt

from host.tiling.evaluations import Evaluations, ExhaustedError
from host.tiling.space import Space, State
from sim.golden.exponential import exp

__all__ = ["Network", "actor_critic"]

Array = npt.NDArray[np.float64]

#: Units of the hidden layer, and the learning rate.
_HIDDEN, _RATE = 128, 1e-3
#: Steps from the best state, part of them that is random, and new states that are evaluated together.
_STEPS, _RANDOM, _BATCH = 3, 0.1, 6
#: Walks without a new state, after which those for the same evaluations begin elsewhere.
_PATIENCE = 20


def _product(a: Array, b: Array) -> Array:
    """Matrix product whose sums have the same order on every processor."""
    found: Array = np.add.reduce(a[:, :, None] * b[None], axis=1)
    return found


@dataclasses.dataclass
class _Adam:
    """Adam for one array, with the usual decays."""

    value: Array
    first: Array = dataclasses.field(init=False)
    second: Array = dataclasses.field(init=False)
    steps: int = 0

    def __post_init__(self) -> None:
        self.first, self.second = np.zeros_like(self.value), np.zeros_like(self.value)

    def descend(self, gradient: Array) -> None:
        self.steps += 1
        self.first += 0.1 * (gradient - self.first)
        self.second += 0.001 * (gradient**2 - self.second)
        rate = _RATE * np.sqrt(1 - 0.999**self.steps) / (1 - 0.9**self.steps)
        self.value -= rate * self.first / (np.sqrt(self.second) + 1e-8)


class Network:
    """Actor and critic, which share a hidden layer with ReLU.

    Parameters
    ----------
    inputs, moves : int
        Numbers of a state, and moves.
    generator : Generator
        For the first weights.
    """

    def __init__(self, inputs: int, moves: int, generator: np.random.Generator):
        def weights(rows: int, columns: int) -> _Adam:
            bound = 1 / np.sqrt(columns)
            return _Adam(generator.uniform(-bound, bound, (rows, columns)))

        self._layers = [weights(_HIDDEN, inputs), weights(moves, _HIDDEN), weights(1, _HIDDEN)]
        self._biases = [_Adam(np.zeros(len(layer.value))) for layer in self._layers]

    def run(self, x: Array) -> tuple[Array, Array, Array]:
        """Hidden values, probabilities of moves and estimates of rewards, for rows of inputs."""
        hidden = np.maximum(_product(x, self._layers[0].value.T) + self._biases[0].value, 0)
        scores, estimates = (_product(hidden, layer.value.T) + bias.value
                             for layer, bias in zip(self._layers[1:], self._biases[1:], strict=True))
        odds = exp((scores - scores.max(1, keepdims=True)).astype(np.float32)).astype(np.float64)
        return hidden, odds / odds.sum(1, keepdims=True), estimates[:, 0]

    def gradients(self, x: Array, moves: npt.NDArray[np.int64], rewards: Array) -> list[tuple[Array, Array]]:
        """Gradients of the loss with respect to weights and biases of each layer.

        The loss of a move is -log p · A + (reward - estimate)², with the advantage A = reward - estimate as a number,
        and its mean over all moves counts.
        """
        hidden, odds, estimates = self.run(x)
        advantage = rewards - estimates
        actor = odds * advantage[:, None] / len(x)
        actor[np.arange(len(x)), moves] -= advantage / len(x)
        critic = -2 * advantage[:, None] / len(x)
        below = (_product(actor, self._layers[1].value) + _product(critic, self._layers[2].value)) * (hidden > 0)
        return [(_product(delta.T, given), delta.sum(0))
                for delta, given in ((below, x), (actor, hidden), (critic, hidden))]

    def learn(self, x: Array, moves: npt.NDArray[np.int64], rewards: Array) -> None:
        """Take a step of Adam against these gradients."""
        for number, (weights, bias) in enumerate(self.gradients(x, moves, rewards)):
            self._layers[number].descend(weights)
            self._biases[number].descend(bias)


def numbers(space: Space, state: State) -> Array:
    """A state as the network sees it: each factor over its product, less a half."""
    return np.array([2.0 ** (factor - exponent) - 0.5
                     for factors, exponent in zip(state, space.exponents, strict=True) for factor in factors])


def actor_critic(evaluations: Evaluations, generator: np.random.Generator, *, start: State | None = None) -> None:
    """Evaluate states until the budget has been used.

    Where walks from the best state meet nothing new, one begins with a state that was evaluated before, or with a
    random one.

    Parameters
    ----------
    start : State, optional
        First state; by default a random one.
    """
    space = evaluations.nest.space
    moves = space.moves
    network = Network(sum(space.depths), len(moves), generator)
    try:
        evaluations.cost(start or space.random(generator))
        while evaluations.left:
            met: dict[State, tuple[State, int]] = {}
            idle = 0
            while len(met) < min(_BATCH, evaluations.left):
                assert evaluations.best is not None
                state = evaluations.best
                if idle >= _PATIENCE:
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
    except ExhaustedError:
        pass


def _step(network: Network, space: Space, state: State, evaluations: Evaluations,
          met: dict[State, tuple[State, int]], generator: np.random.Generator) -> State:
    """Go to a neighbour, and note it if it is new."""
    moves = space.moves
    possible = np.array([space.step(state, move) is not None for move in moves])
    if generator.random() < _RANDOM:
        odds = possible / possible.sum()
    else:
        odds = network.run(numbers(space, state)[None])[1][0] * possible
        odds /= odds.sum()
    move = int(generator.choice(len(moves), p=odds))
    found = space.step(state, moves[move])
    assert found is not None
    if found not in evaluations.costs and found not in met:
        met[found] = state, move
    return found
