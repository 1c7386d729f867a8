"""Benchmark two-dimensional fused updates against a flat ring and against separate commands.

Rows ``grid.fused_update`` are compared with a fused update on a flat ring of all nodes. Rows ``grid.commands``
compare three queued commands with the sum of their cycles when run separately.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hdl.config import NodeConfig, Weights
from hdl.features.grid.feature import Grid
from host.driver.optimizer_settings import Rule, Settings
from host.driver.results import Outcome, known
from host.driver.ring import Ring
from host.features.grid.grid import Shape
from host.features.grid.switching import GridNodes, GridRings
from host.transports.session import open_session

__all__ = ["CODECS", "COMMANDS", "GRIDS", "LENGTH", "UPDATE", "limit", "measure", "rows"]

#: Grids to measure as (rows, columns), the number of elements, and pairs of codecs for weights and gradients.
GRIDS = ((2, 3), (2, 4))
LENGTH = 16384
CODECS = (("raw", "raw"), ("raw", "zero_value"), ("mx9", "mx9"))

#: Names of the two kinds of benchmark rows.
UPDATE, COMMANDS = "grid.fused_update", "grid.commands"

_LIMITS = {UPDATE: 1.04, COMMANDS: 1.02}  # maximum ratios of a row's cycles to its bound

#: Fields of a command that describe its operands.
_FIELDS = ("gradient_base", "weight_base", "state_base", "length", "stride")

_SETTINGS = Settings(rule=Rule.MOMENTUM, gradient_scale=0.25, learning_rate=0.1, first_decay=0.9)


def limit(row: dict[str, Any]) -> float:
    """Return the maximum ratio of a row's cycles to its bound.

    Updates with a weight codec have no limit: in one command the optimizer (one weight per cycle) and the decoder
    (one word per cycle, for all blocks) take longer than the links, while in a flat ring they overlap.
    """
    return math.inf if row["name"] == UPDATE and "weights raw" not in row["config"] else _LIMITS[row["name"]]


def measure(grid: GridNodes, length: int = LENGTH) -> dict[str, list[int]]:
    """Measure the cycles of dense updates in a flat ring and of each grid command, run one by one (``alone``) and
    queued. Also return the words that each grid node sends per update."""
    generator = np.random.default_rng(0)
    gradients = list(generator.standard_normal((grid.nodes, length)).astype(np.float32))
    weights = generator.standard_normal(length).astype(np.float32)

    def prepared(ring: Ring | GridRings) -> None:
        ring.memory.clear_state(length, packed_state=False)
        ring.memory.write_gradients(gradients)
        ring.settings.write(_SETTINGS)

    plan = grid.grid.plan(Shape.FLAT)
    grid.switch(plan)
    ring = grid.ring(plan)
    ring.collectives.distribute(weights)
    prepared(ring)
    flat = [known(ring.collectives.fused_update(length).cycles)]

    plan = grid.grid.plan(Shape.GRID)
    grid.switch(plan)
    rings = grid.rings(plan)
    prepared(rings)
    rings.counters.clear()
    pending = rings.collectives.submit_fused_update(length)
    outcomes: list[Outcome] = rings.commands.wait(*pending)
    words = [node["WORDS_SENT"] for node in rings.counters.read()]
    alone = []
    for queued in pending:
        commands = [command for _, command in sorted(queued.commands.items())]
        fields = [{name: getattr(command, name) for name in _FIELDS} for command in commands]
        outcome = rings.collectives.submit(queued.operation, fields, ring=commands[0].port).result()
        alone.append(known(outcome.cycles))
    return {"flat": flat, "queued": [known(outcome.cycles) for outcome in outcomes], "words": words, "alone": alone}


def rows(*, announce: Callable[[str], None] = lambda stage: None) -> list[dict[str, Any]]:
    """Measure the benchmark rows. A row's bound is the cycle count that the grid is compared with."""
    result = []
    for weights, gradients in CODECS:
        config = NodeConfig(weights=Weights(codec=weights), gradients=gradients, topology=Grid())
        for height, width in GRIDS:
            name = f"{height} x {width}, K={LENGTH}, weights {weights}, gradients {gradients}"
            announce(f"grid: {name}")
            with open_session(config, nodes=height * width, grid=(height, width)) as session:
                assert session.grid is not None
                cycles = measure(session.grid)
            queued, alone, flat = (sum(cycles[which]) for which in ("queued", "alone", "flat"))
            result += [{"name": title, "config": name, "measured": queued, "bound": bound, "ratio": queued / bound,
                        "unit": "cycles"} for title, bound in ((UPDATE, flat), (COMMANDS, alone))]
    return result
