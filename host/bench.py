"""Measured cycles against their bounds: the ring's own, and those of every unit that has a benchmark.

A row is ``{"name", "config", "measured", "bound", "ratio", "unit"}``; less is better. Rows in cycles must not exceed
their :func:`limit`. Rows in time depend on the machine, and are shown only. So is the scatter-reduce phase of a
plain all-reduce: its last sum is read and added while the phase lasts, but counts as the first step of the
all-gather, which sends it.
"""

import importlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from hdl.config import NodeConfig
from host.masking import Mask, MaskJob
from host.optimizers import Adam
from host.ring import Ring
from host.session import open_session
from host.settings import Rule, Settings
from sim.golden import ring as golden

__all__ = ["LENGTH", "NODES", "collect", "limit", "missed", "node_rows", "ring_rows", "table", "write"]

Row = dict[str, Any]

NODES = (2, 4, 8)
LENGTH = 16384
SPARSE = 0.1
SIZE = 64

#: Most that a row in cycles may be of its bound: collectives on dense and on sparse gradients, and units, whose
#: measured cycles hold their latency as well.
_LIMITS = {"dense": 1.05, "sparse": 1.10}
_UNIT_LIMIT = 1.05


def _row(name: str, config: str, measured: int, bound: int) -> Row:
    return {"name": name, "config": config, "measured": measured, "bound": bound, "ratio": measured / bound,
            "unit": "cycles"}


def limit(row: Row) -> float:
    """Most that the ratio of a row may be."""
    if row["unit"] != "cycles" or row["name"] == "ring.all_reduce.scatter_reduce":
        return math.inf
    if not row["name"].startswith("ring."):
        return _UNIT_LIMIT
    return _LIMITS["dense" if "dense" in row["config"] else "sparse"]


def missed(row: Row) -> bool:
    """Whether a row takes more than it may."""
    return bool(row["ratio"] > limit(row))


def gradients(nodes: int, density: float) -> np.ndarray:
    """Random gradients which are zero in the same positions on all nodes."""
    generator = np.random.default_rng(nodes)
    values = generator.standard_normal((nodes, LENGTH)).astype(np.float32)
    values[:, generator.permutation(LENGTH)[round(density * LENGTH):]] = 0
    return values


def ring_rows(ring: Ring) -> list[Row]:
    """Plain and fused all-reduce of dense and of sparse gradients, and the scatter-reduce phase of each.

    The fused update is SGD's, and that of dense gradients Adam's as well, which moves the most state.
    """
    rows = []
    weights = np.zeros(LENGTH, dtype=np.uint32)
    settings = golden.settings(Rule.SGD, gradient_scale=1.0, learning_rate=0.1)
    sgd = Settings(rule=Rule.SGD, gradient_scale=1.0, learning_rate=0.1)
    ring.write_settings(sgd)
    for kind, density in (("dense", 1.0), ("sparse", SPARSE)):
        values = gradients(ring.nodes, density)
        patterns = golden.bits(values)
        shape: dict[str, Any] = {"segment": ring.segment, "lanes": ring.lanes}
        collectives = {
            "all_reduce": golden.all_reduce(patterns, **shape)[1],
            "fused_update": golden.fused_update(patterns, weights, [weights], settings, **shape).traffic,
        }
        for name, traffic in collectives.items():
            ring.write_gradients(list(values))
            ring.clear_counters()
            cycles = getattr(ring, name)(LENGTH).cycles
            scatter = max(counters["SCATTER_REDUCE_CYCLES"] for counters in ring.counters())
            config = f"N={ring.nodes}, K={LENGTH}, {kind}" + ("" if kind == "dense" else f" {density:.0%}")
            rows.append(_row(f"ring.{name}", config, cycles, traffic.bound))
            rows.append(_row(f"ring.{name}.scatter_reduce", config, scatter, traffic.scatter_bound))
        if kind == "dense":
            ring.clear_state(LENGTH)
            ring.write_settings(Adam().settings(1, gradient_scale=1.0))
            cycles = ring.fused_update(LENGTH).cycles
            rows.append(_row("ring.fused_update", f"{config}, Adam", cycles, collectives["fused_update"].bound))
            ring.write_settings(sgd)
    return rows


def node_rows(ring: Ring) -> list[Row]:
    """Masks that a node makes and that it fetches, and gradients made sparse: a row of memory per cycle at best."""
    rows = []
    generator = np.random.default_rng(0)
    matrices = generator.standard_normal((1, SIZE, SIZE)).astype(np.float32)
    external = generator.random(matrices.shape) < 0.5
    for kind, mask, words in (("made", Mask(triangle=True, padding=True, length_rows=SIZE, length_columns=48), None),
                              ("fetched", Mask(external=True), external)):
        jobs = [MaskJob(matrices=matrices, mask=mask, external=words)] * (LENGTH // matrices.size)
        cycles = ring.mask([jobs] * ring.nodes, alternative=-10000.0).cycles
        rows.append(_row("node.mask", f"K={LENGTH}, {SIZE} x {SIZE}, {kind}", cycles, LENGTH // ring.lanes))
    length = LENGTH // 2  # the errors are behind as many weights
    cycles = ring.sparsify(length, threshold=0.5).cycles
    rows.append(_row("node.sparsify", f"K={length}", cycles, length // ring.lanes))
    return rows


def collect(*, announce: Callable[[str], None] = lambda stage: None) -> list[Row]:
    """All rows; ``announce`` is called with the name of each stage as it begins."""
    rows = []
    for unit in ("zero_value", "optimizer"):
        announce(unit)
        rows += importlib.import_module(f"sim.bench_{unit}").rows()
    for nodes in NODES:
        with open_session(NodeConfig(), nodes=nodes, announce=announce) as session:
            announce(f"ring of {nodes}")
            rows += ring_rows(session.ring)
            if nodes == NODES[0]:
                rows += node_rows(session.ring)
    from sim import bench_ring_speed

    rows += bench_ring_speed.rows(bench_ring_speed.measure(announce=announce))
    return rows


def write(rows: list[Row], directory: Path) -> Path:
    """Write bench.json; its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "bench.json"
    path.write_text(json.dumps({"rows": rows}, indent=2, allow_nan=False) + "\n")
    return path


def table(rows: list[Row]) -> Table:
    """The rows, to be printed."""
    result = Table(title="measured against bounds", title_justify="left", border_style="dim")
    for heading in ("name", "configuration"):
        result.add_column(heading)
    for heading in ("measured", "bound", "ratio", "unit"):
        result.add_column(heading, justify="left" if heading == "unit" else "right")
    for row in rows:
        figures = [f"{row[name]:,}" if isinstance(row[name], int) else f"{row[name]:.2f}"
                   for name in ("measured", "bound")]
        result.add_row(row["name"], row["config"], *figures, f"{row['ratio']:.3f}", row["unit"],
                       style="bold red" if missed(row) else None)
    return result
