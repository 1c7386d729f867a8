"""Compare methods that search for tiling factors of matrix products, on gateware if the products are small.

| product | levels of m, k and n | states | budget | cost |
|---|---|---:|---:|---|
| 64 by 64 by 64 | 2, 2, 2 | 343 | 70 | cycles that a node counts |
| 32 by 64 by 32 | 3, 2, 3 | 3,087 | 93 | cycles that a node counts |
| 1,024 by 1,024 by 1,024 | 4, 2, 4 | 899,756 | 899 | estimate; its fourth level is checked on gateware |
"""

import contextlib
import dataclasses
import importlib.util
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from hdl.features.compute.layer_list import MAX_INSTRUCTIONS
from host.features.compute.instructions import Array
from host.features.compute.tiling.costs import GatewareCost, ModelCost, estimated, node_of, product
from host.features.compute.tiling.searches import actor_critic, annealing, best_first, optuna_search, random_search
from host.features.compute.tiling.space import Cost, Evaluations, Level, Levels, Nest, Plan, Space
from host.transports.session import open_session
from sim.verilated.native import Arithmetic

__all__ = ["ARRAY", "METHODS", "TASKS", "Check", "Cost", "Level", "Result", "Task", "check", "check_installed",
           "compare", "compare_all", "optimum"]

#: Multiply-add array that computes the matrix products.
ARRAY = Array(rows=4, lanes=4)

#: Search methods, keyed by name.
METHODS: Mapping[str, Callable[[Evaluations, np.random.Generator], None]] = {
    "G-BFS": best_first,
    "N-A2C": actor_critic,
    "random": random_search,
    "annealing": annealing,
    "Optuna TPE": optuna_search,
}

#: Maximum number of seeds for Optuna in large spaces, where it takes minutes, and size of a large space in states.
_FEW, _LARGE = 3, 100_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A task: the matrix product to find tiling factors for, and the budget of a search."""

    sizes: tuple[int, int, int]  # dimensions m, k and n of the product
    depths: tuple[int, int, int]  # number of tiling levels of m, k and n
    budget: int  # number of evaluations per search
    seeds: int
    gateware: bool = True  # whether a simulated node measures the cost; otherwise it is estimated

    @property
    def name(self) -> str:
        return " x ".join(map(str, self.sizes))

    @property
    def nest(self) -> Nest:
        return Nest(Space(self.sizes, self.depths), ARRAY, product(self.sizes, ARRAY))


TASKS = (
    Task(sizes=(64, 64, 64), depths=(2, 2, 2), budget=70, seeds=20),
    Task(sizes=(32, 64, 32), depths=(3, 2, 3), budget=93, seeds=20),
    Task(sizes=(1024, 1024, 1024), depths=(4, 2, 4), budget=899, seeds=10, gateware=False),
)


@dataclasses.dataclass(frozen=True)
class Result:
    """Results of the searches for one product with one method."""

    task: str  # name of the product
    method: str  # name of the search method
    best: list[int]  # lowest cost found with each seed
    curves: list[list[int]]  # lowest cost after each evaluation
    measured: float  # mean number of evaluated states that fit into memory

    def ratios(self, optimum: int) -> list[float]:
        return [cost / optimum for cost in self.best]


@dataclasses.dataclass(frozen=True)
class Check:
    """Comparison of the model with a node, for the states of one product that were run on the node."""

    name: str  # name of the product, and its tiling levels
    states: int  # number of tiling states that were run
    wrong: int  # number of states with cycle counts that differ from the model
    digest: str  # SHA-256 of the result matrix C, the same for all states
    least: float  # minimum ratio of estimated to counted cycles
    most: float  # maximum ratio of estimated to counted cycles


def check_installed(methods: Sequence[str]) -> None:
    """Raise ``ValueError``, with advice, if a search requires a package that is not installed."""
    if any(method.startswith("Optuna") for method in methods) and importlib.util.find_spec("optuna") is None:
        raise ValueError("Optuna is not installed: run 'make tiling', which installs it, or choose other searches, "
                         "as in --methods G-BFS,N-A2C,random,annealing")


def plans(nest: Nest) -> list[Plan]:
    """Return the distinct plans of a loop nest's states, without states that do not fit into memory."""
    return list(dict.fromkeys(plan for plan in map(nest.plan, nest.space) if isinstance(plan, Plan)))


def optimum(task: Task, cost: Cost) -> int:
    """Return the lowest cost of all states of a task."""
    return min(map(cost, plans(task.nest)))


@contextlib.contextmanager
def node_cost(nest: Nest, arithmetic: Arithmetic, *,
              announce: Callable[[str], None] = lambda stage: None) -> Iterator[GatewareCost]:
    """Context manager for a cost function that measures plans on a simulated node."""
    config = node_of(nest.job, nest.array, products=MAX_INSTRUCTIONS - 1)
    with open_session(config, nodes=1, host_port=False, arithmetic=arithmetic, announce=announce) as session:
        yield GatewareCost(session.ring, nest.job)


def compare(task: Task, cost: Cost, methods: Sequence[str] = tuple(METHODS), *, seeds: int | None = None,
            announce: Callable[[str], None] = lambda stage: None) -> list[Result]:
    """Run searches with several seeds, each with the same budget; return the results."""
    results = []
    for method in methods:
        few = method.startswith("Optuna") and len(task.nest.space) >= _LARGE
        count = min(seeds or task.seeds, _FEW) if few else seeds or task.seeds
        runs = []
        for seed in range(count):
            announce(f"{task.name}: {method}, seed {seed} of {count}")
            evaluations = Evaluations(task.nest, cost, task.budget)
            METHODS[method](evaluations, np.random.default_rng(seed))
            runs.append(evaluations)
        results.append(Result(task.name, method, [run.curve[-1] for run in runs], [run.curve for run in runs],
                              statistics.mean(run.measured for run in runs)))
    return results


def compare_all(arithmetic: Arithmetic, methods: Sequence[str], *, seeds: int | None = None,
                announce: Callable[[str], None] = lambda stage: None) -> tuple[list[Result], dict[str, int]]:
    """Run the searches of all tasks; return the results and the optimum of each task."""
    results, best = [], {}
    for task in TASKS:
        with (node_cost(task.nest, arithmetic, announce=announce) if task.gateware
              else contextlib.nullcontext(estimated(task.nest.job, ARRAY))) as cost:
            best[task.name] = optimum(task, cost)
            results += compare(task, cost, methods, seeds=seeds, announce=announce)
    return results, best


def check(sizes: tuple[int, int, int], depths: tuple[int, int, int], arithmetic: Arithmetic, *, levels: Levels = (),
          most: int | None = None, array: Array = ARRAY,
          announce: Callable[[str], None] = lambda stage: None) -> Check:
    """Run all states that fit, or ``most`` random ones, on a node and compare their cycles with the model.

    Raises ``WrongProductError`` if two plans give different results.
    """
    nest = Nest(Space(sizes, depths), array, product(sizes, array), levels)
    chosen = plans(nest)
    if Level.PRODUCTS in levels:
        chosen = [plan for plan in chosen if plan.products > 1]
    if most is not None and most < len(chosen):
        picked = np.random.default_rng(0).choice(len(chosen), most, replace=False)
        chosen = [chosen[number] for number in picked]
    model, estimate = ModelCost(nest.job, array), estimated(nest.job, array)
    name = f"{' x '.join(map(str, sizes))}, levels {', '.join(level.value for level in nest.names)}"
    announce(f"{name}: {len(chosen)} states on a node")
    with node_cost(nest, arithmetic, announce=announce) as cost:
        cycles = [cost(plan) for plan in chosen]
    wrong = sum(model(plan) != count for plan, count in zip(chosen, cycles, strict=True))
    ratios = [estimate(plan) / count for plan, count in zip(chosen, cycles, strict=True)]
    return Check(name, len(chosen), wrong, cost.digest, min(ratios), max(ratios))
