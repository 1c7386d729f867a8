"""Searches: budgets, costs of states that do not fit, and what each finds in spaces whose optimum is known."""

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
    """Each state is evaluated once; one that does not fit costs more than all others, by how far it does not."""
    found = evaluations(4)
    near, far, fits = ((2, 4), (5, 1), (3, 3)), ((5, 1), (2, 4), (4, 2)), ((2, 4), (3, 3), (3, 3))
    assert found.cost(far) == 5 * found.worst
    assert found.cost(near) == found.cost(near) == 2 * found.worst
    assert (found.left, found.measured, found.best) == (2, 0, near)
    assert found.cost(fits) < found.worst
    assert (found.best, found.measured) == (fits, 1)
    assert 0.9 < found.reward(fits) < 1
    assert found.curve == [5 * found.worst, 2 * found.worst, found.cost(fits)]
    found.cost(((3, 3), (3, 3), (3, 3)))
    with pytest.raises(ExhaustedError):
        found.cost(((1, 5), (3, 3), (3, 3)))


@pytest.mark.parametrize("search", OWN)
def test_budget(search):
    """A search uses its whole budget, not more, and is the same with the same seed; a small space is exhausted."""
    runs = []
    for _ in range(2):
        found = evaluations(50)
        search(found, np.random.default_rng(7))
        assert (found.left, len(found.costs), len(found.curve)) == (0, 50, 50)
        assert found.costs.keys() <= set(found.nest.space)
        runs.append(list(found.costs.items()))
    assert runs[0] == runs[1]
    every = evaluations(1000, sizes=(16, 16, 8))
    search(every, np.random.default_rng(7))
    assert set(every.costs) == set(every.nest.space)


def test_starts():
    """A start is the first evaluation."""
    start = ((2, 4), (3, 3), (3, 3))
    for search in (best_first, actor_critic):
        found = evaluations(20)
        search(found, np.random.default_rng(1), start=start)
        assert next(iter(found.costs)) == start


def test_optimum():
    """Both published searches find the optimum of 343 states within 70 evaluations, with 20 seeds; the larger space
    is searched better than at random."""
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
    """Gradients of the network against differences of its loss; with them it learns which of two moves pays."""
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
            place = np.unravel_index(np.abs(gradient).argmax(), gradient.shape)
            kept = parameter[place]
            parameter[place] = kept + 3e-3
            above = loss()
            parameter[place] = kept - 3e-3
            below = loss()
            parameter[place] = kept
            # Probabilities are binary32, so a difference has an error of about 1e-8, and that of its curve.
            assert abs((above - below) / 6e-3 - gradient[place]) < 2e-5
    state = np.ones((4, 6))
    for _ in range(300):
        network.learn(state, np.arange(4), np.array([0.0, 1.0, 0.0, 0.0]))
    assert network.run(state[:1])[1][0].argmax() == 1


def test_numbers():
    """Factors over their product, less a half."""
    found = numbers(Space((8, 4, 2), (3, 2, 1)), ((3, 0, 0), (1, 1), (1,)))
    assert found.tolist() == [0.5, -0.375, -0.375, 0.0, 0.0, 0.5]


def test_optuna():
    """The tuner of PyPI proposes states of the space, some of which fit."""
    found = evaluations(30)
    METHODS["Optuna TPE"](found, np.random.default_rng(1))
    assert found.left == 0
    assert any(isinstance(found.nest.plan(state), Plan) for state in found.costs)


def test_seeds():
    """The number of seeds that is asked for, or that of the task."""
    task = dataclasses.replace(TASKS[0], sizes=(16, 16, 16), budget=3, seeds=2)
    cost = estimated(task.nest.job, ARRAY)
    assert [len(compare(task, cost, ("random",), seeds=seeds)[0].best) for seeds in (None, 1, 5)] == [2, 1, 5]
