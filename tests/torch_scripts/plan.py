"""Random scripts as lists of actions. All ranks draw the same actions.

All numbers are small integers and powers of two, so sums are exact in any order and in nine-bit formats.
"""

import dataclasses
import random
from typing import Any

#: Shapes of the parameters of a module.
SHAPES = ((3,), (2, 5), (4,))


@dataclasses.dataclass(frozen=True)
class Script:
    """A random script: a module, and a list of actions on it, each with a name and arguments."""

    dtype: str
    half: bool  # whether only half of the ranks are in the module's process group
    view: bool  # whether gradients are views of buckets
    actions: list[tuple[str, Any]]


def _optimizer(source: random.Random) -> tuple[str, Any]:
    return "optimizer", {"slot": source.randrange(2), "nodes": source.random() < 0.7,
                         "momentum": source.choice((0.0, 0.0, 0.5)), "groups": source.random() < 0.3,
                         "parameters": source.choice(([0, 1, 2], [0, 1, 2], [0], [1, 2]))}


def _pass(source: random.Random, ranks: int) -> tuple[str, Any]:
    used = [source.random() < 0.97 for _ in SHAPES]
    return "pass", {
        "zero": source.choice(("none", "none", "zeros")), "seed": source.randrange(1 << 30),
        "used": [[use and source.random() < 0.9 for use in used] if source.random() < 0.3 else used
                 for _ in range(ranks)],
        "local": [source.randrange(2) for _ in range(ranks)] if source.random() < 0.3 else [0] * ranks,
        "infinite": source.randrange(ranks) if source.random() < 0.1 else None,
        "scaled": source.random() < 0.25, "clip": source.random() < 0.02,
        "step": source.random() < 0.9, "closure": source.random() < 0.1}


def _other(source: random.Random) -> tuple[str, Any]:
    return source.choice((
        ("freeze", (source.randrange(len(SHAPES)), source.random() < 0.4)),
        ("sum", (source.choice(("float32", "float64", "int64")), source.random() < 0.3, source.randrange(1 << 30))),
        ("delete", source.randrange(2)), ("remake", None), ("evaluate", None), ("save", source.randrange(2)),
        ("write", source.randrange(1 << 30))))


def draw(seed: int, ranks: int) -> Script:
    source = random.Random(seed)
    actions = [_optimizer(source)]
    for _ in range(source.randrange(4, 12)):
        kind = source.random()
        actions.append(_pass(source, ranks) if kind < 0.6 else
                       _optimizer(source) if kind < 0.72 else _other(source))
    return Script(dtype=source.choice(("float32",) * 8 + ("float64", "bfloat16")), half=source.random() < 0.08,
                  view=source.random() < 0.3, actions=actions)
