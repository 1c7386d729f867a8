"""Time of the compiled optimizer for every rule, compared with copying the weights in numpy.

``python -m sim.bench.optimizers`` prints nanoseconds per element, on one core, of an update of ten million
parameters, which do not fit in any cache. An in-place update reads the gradient, and reads and writes the weight and
each plane of state: 12 bytes for SGD, 28 for Adam, or 20 with state as bfloat16.
"""

from typing import Any

import numpy as np

from sim.arithmetic import optimizer
from sim.bench.formats import fastest
from sim.golden import ring
from sim.golden.optimizer import Rule, Settings

__all__ = ["LENGTH", "RULES", "measure", "rows"]

#: Number of parameters.
LENGTH = 10_000_000

#: Optimizer rules, and whether Nesterov momentum is used, keyed by name.
RULES = {"sgd": (Rule.SGD, False), "momentum": (Rule.MOMENTUM, False), "nesterov": (Rule.MOMENTUM, True),
         "adam": (Rule.ADAM, False), "adamw": (Rule.ADAMW, False)}


def _settings(name: str) -> Settings:
    """Settings as in training, with clipping and weight decay."""
    rule, nesterov = RULES[name]
    factor = 1 - 1e-5 if rule == Rule.ADAMW else 1e-2
    return ring.settings(rule, nesterov=nesterov, gradient_scale=0.125, learning_rate=1e-3, clip=1.0,
                         weight_factor=factor, first_decay=0.9, first_gain=0.1, second_decay=0.999,
                         second_gain=0.001, epsilon=1e-8)


def measure(name: str, *, length: int = LENGTH) -> dict[str, float]:
    """Measure a rule of :data:`RULES` in nanoseconds per element: with state in binary32, with state in bfloat16 if
    the rule has state, and a copy for comparison."""
    generator, settings = np.random.default_rng(1), _settings(name)
    gradient, weights = (generator.standard_normal(length).astype(np.float32).view(np.uint32) for _ in range(2))
    whole, packed = (np.zeros((settings.planes, size), np.uint32) for size in (length, -(-length // 2)))
    times = {"binary32": fastest(lambda: optimizer.update(gradient, weights, list(whole), settings), length)}
    if settings.planes:
        times["bfloat16"] = fastest(
            lambda: optimizer.update(gradient, weights, list(packed), settings, packed=True), length)
    return times | {"copy": fastest(lambda: np.copyto(weights, gradient), length)}


def rows() -> list[dict[str, Any]]:
    """Rows for build/bench/bench.json: time per element, compared with the time of a copy."""
    result = []
    for name in RULES:
        times = measure(name)
        copy = times.pop("copy")
        result += [{"name": "arithmetic.update", "config": f"{name}, state {state}, {LENGTH} elements",
                    "measured": value, "bound": copy, "ratio": value / copy, "unit": "ns/element"}
                   for state, value in times.items()]
    return result


def main() -> None:
    columns = ("binary32", "bfloat16", "copy")
    print(f"{'ns per element':16}" + "".join(f"{column:>10}" for column in columns))
    for name in RULES:
        times = measure(name)
        print(f"{name:16}" + "".join(f"{times[column]:10.2f}" if column in times else f"{'':10}"
                                     for column in columns))


if __name__ == "__main__":
    main()
