"""Tiling searches: budgets, costs of states that do not fit, and results in spaces with a known optimum."""

import dataclasses

import numpy as np
import pytest

from host.features.compute.instructions import Array
from host.features.compute.tiling.costs import estimated, product
from host.features.compute.tiling.searches import Network, actor_critic, annealing, best_first, numbers, random_search
from host.features.compute.tiling.space import Evaluations, ExhaustedError, Nest, Plan, Space
from host.labs.tiling.experiment import METHODS, TASKS, compare, optimum
from host.labs.tiling.lab import table

ARRAY = Array(rows=4, lanes=4)
OWN = best_first, actor_critic, annealing, random_search


def evaluations(budget, *, sizes=(64, 64, 64), depths=(2, 2, 2)):
    nest = Nest(Space(sizes, depths), ARRAY, product(sizes, ARRAY))
    return Evaluations(nest, estimated(nest.job, ARRAY), budget)


def test_evaluations():
    """Each state is evaluated only once. States that do not fit cost more than all others, increasing with their
    misfit."""
    trials = evaluations(4)
    near, far, fits = ((2, 4), (5, 1), (3, 3)), ((5, 1), (2, 4), (4, 2)), ((2, 4), (3, 3), (3, 3))
    assert trials.cost(far) == 5 * trials.worst
    assert trials.cost(near) == trials.cost(near) == 2 * trials.worst
    assert (trials.left, trials.measured, trials.best) == (2, 0, near)
    assert trials.cost(fits) < trials.worst
    assert (trials.best, trials.measured) == (fits, 1)
    assert 0.9 < trials.reward(fits) < 1
    assert trials.curve == [5 * trials.worst, 2 * trials.worst, trials.cost(fits)]
    trials.cost(((3, 3), (3, 3), (3, 3)))
    with pytest.raises(ExhaustedError):
        trials.cost(((1, 5), (3, 3), (3, 3)))


@pytest.mark.parametrize("search", OWN)
def test_budget(search):
    """A search uses its budget exactly and is reproducible for a given seed; a small space is searched completely."""
    runs = []
    for _ in range(2):
        trials = evaluations(50)
        search(trials, np.random.default_rng(7))
        assert (trials.left, len(trials.costs), len(trials.curve)) == (0, 50, 50)
        assert trials.costs.keys() <= set(trials.nest.space)
        runs.append(list(trials.costs.items()))
    assert runs[0] == runs[1]
    every = evaluations(1000, sizes=(16, 16, 8))
    search(every, np.random.default_rng(7))
    assert set(every.costs) == set(every.nest.space)


def test_starts():
    """A search evaluates its starting state first."""
    start = ((2, 4), (3, 3), (3, 3))
    for search in (best_first, actor_critic):
        trials = evaluations(20)
        search(trials, np.random.default_rng(1), start=start)
        assert next(iter(trials.costs)) == start


def test_optimum():
    """Both published searches find the best of 343 states within 70 evaluations in nearly all of 20 runs, and both
    beat random search in the larger space."""
    small, middle, _ = TASKS
    results, best = [], {}
    for task in (small, middle):
        cost = estimated(task.nest.job, ARRAY)
        best[task.name] = optimum(task, cost)
        results += compare(task, cost, ("G-BFS", "N-A2C", "random"))
    means = [np.mean(result.ratios(best[result.task])) for result in results]
    assert results[0].ratios(best[small.name]) == [1.0] * 20
    assert sum(ratio <= 1.02 for ratio in results[1].ratios(best[small.name])) >= 18
    assert means[3] * 1.1 <= means[5]
    assert means[4] * 1.1 <= means[5]
    assert table(results, best).cells[0][:7] == ["64 x 64 x 64", "G-BFS", "20", "1.000", "1.000", "20", "20"]


def test_network():
    """Gradients of the search's network match finite differences of its loss, and it learns the move with the best
    reward."""
    generator = np.random.default_rng(2)
    network = Network(6, 4, generator)
    x, moves, rewards = generator.standard_normal((5, 6)), generator.integers(0, 4, 5), generator.random(5)
    advantage = rewards - network.run(x)[2]

    def loss():
        _, odds, estimates = network.run(x)
        return np.mean(-np.log(odds[np.arange(5), moves]) * advantage + (rewards - estimates) ** 2)

    for number, (weights, biases) in enumerate(network.gradients(x, moves, rewards)):
        layer, bias = network._layers[number], network._biases[number]
        for parameter, gradient in ((layer.value, weights), (bias.value, biases)):
            index = np.unravel_index(np.abs(gradient).argmax(), gradient.shape)
            kept = parameter[index]
            parameter[index] = kept + 3e-3
            above = loss()
            parameter[index] = kept - 3e-3
            below = loss()
            parameter[index] = kept
            # Probabilities are binary32, so finite differences have an error of about 1e-8, plus an error from
            # curvature.
            assert abs((above - below) / 6e-3 - gradient[index]) < 2e-5
    state = np.ones((4, 6))
    for _ in range(300):
        network.learn(state, np.arange(4), np.array([0.0, 1.0, 0.0, 0.0]))
    assert network.run(state[:1])[1][0].argmax() == 1


def test_numbers():
    """Each factor of a state is encoded as the factor divided by the product of all factors of its dimension, minus
    1/2."""
    values = numbers(Space((8, 4, 2), (3, 2, 1)), ((3, 0, 0), (1, 1), (1,)))
    assert values.tolist() == [0.5, -0.375, -0.375, 0.0, 0.0, 0.5]


def test_optuna():
    """The Optuna search proposes only states of the space, and some of them fit."""
    trials = evaluations(30)
    METHODS["Optuna TPE"](trials, np.random.default_rng(1))
    assert trials.left == 0
    assert any(isinstance(trials.nest.plan(state), Plan) for state in trials.costs)


def test_seeds():
    """By default, a comparison uses the number of seeds given in the task; another number can be requested."""
    task = dataclasses.replace(TASKS[0], sizes=(16, 16, 16), budget=3, seeds=2)
    cost = estimated(task.nest.job, ARRAY)
    assert [len(compare(task, cost, ("random",), seeds=seeds)[0].best) for seeds in (None, 1, 5)] == [2, 1, 5]
