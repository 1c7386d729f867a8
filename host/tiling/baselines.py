"""Searches that the published ones are compared with: random states, simulated annealing, and a tuner of PyPI."""

from typing import Any

import numpy as np

from host.tiling.evaluations import Evaluations, ExhaustedError
from host.tiling.space import State

__all__ = ["annealing", "optuna_search", "random_search"]

#: Temperature at the beginning and at the end, as parts of the cost.
_HOT, _COLD = 1.0, 0.01
#: Most steps among states that are known.
_IDLE = 50


def random_search(evaluations: Evaluations, generator: np.random.Generator) -> None:
    """Evaluate random states, each once."""
    while evaluations.left:
        evaluations.cost(evaluations.nest.space.random(generator))


def annealing(evaluations: Evaluations, generator: np.random.Generator) -> None:
    """Go from a state to a random neighbour: always if it costs less, and else more rarely the more and the later.

    The temperature falls geometrically with the evaluations; a neighbour that is known costs none. After many steps
    among those that are known the search goes on from a random state.
    """
    space, budget = evaluations.nest.space, evaluations.left
    try:
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
            # With the probability exp(-rise / temperature), or always.
            if rise < temperature * generator.exponential():
                state, cost = other, evaluations.cost(other)
    except ExhaustedError:
        pass


def optuna_search(evaluations: Evaluations, generator: np.random.Generator) -> None:
    """Evaluate the states that Optuna's tree-structured Parzen estimator proposes.

    It chooses where each dimension is cut, so that every choice is a state.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = evaluations.nest.space

    def objective(trial: Any) -> float:
        factors = []
        for name, exponent, depth in zip("mkn", space.exponents, space.depths, strict=True):
            cuts = sorted(trial.suggest_int(f"{name}{number}", 0, exponent) for number in range(depth - 1))
            factors.append(tuple(after - before for before, after in zip([0, *cuts], [*cuts, exponent], strict=True)))
        state: State = (factors[0], factors[1], factors[2])
        return float(evaluations.cost(state))

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=int(generator.integers(1 << 31))))
    # A state that is proposed again costs no evaluation, but time.
    for _ in range(10 * evaluations.left):
        if not evaluations.left:
            break
        study.optimize(objective, n_trials=1)
    random_search(evaluations, generator)
