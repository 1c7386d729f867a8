"""Tiling factors for a run's products, found by searches on the gateware and stored for later runs.

Each product uses a greedy best-first search that starts from the default factors, on one simulated node with the
run's configuration. The default factors are measured too, and kept unless other factors take fewer cycles.
"""

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hdl.config import NodeConfig
from host.driver.ring import Ring
from host.features.compute.instructions import FACTORS, Array, best_factors
from host.features.compute.tiling.costs import GatewareCost, product, room
from host.features.compute.tiling.searches import best_first
from host.features.compute.tiling.space import Evaluations, Nest, Plan, Space, State
from host.output import write_json
from host.transports.session import open_session
from sim import json_files
from sim.golden.features.compute.gemm import GemmJob
from sim.verilated.native import Arithmetic

__all__ = ["BUDGET", "SearchedFactors", "Tiling"]

#: Number of evaluations for each product.
BUDGET = 60


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tiling:
    """Tiling factors chosen for a product, and the cycle count of a command that consists of this product only."""

    factors: dict[str, int]  # fields of an instruction
    cycles: int
    default: int  # cycles with the default factors
    evaluations: int


class SearchedFactors(contextlib.ExitStack):
    """Factors for products, callable like :func:`host.features.compute.instructions.best_factors`.

    A product is searched when it is first requested, on a simulated node with the run's configuration, and the result
    is written to a file; the node's arithmetic does not affect cycles. Products that do not fit in the memories of
    the node use the default factors. The node is simulated until the context ends.
    """

    def __init__(self, node: NodeConfig, path: Path, *, arithmetic: Arithmetic = Arithmetic.NATIVE):
        super().__init__()
        self._node = node
        self._arithmetic = arithmetic
        self._path = path
        self._ring: Ring | None = None
        self._kept: dict[str, dict[str, Any]] = {}
        with contextlib.suppress(FileNotFoundError, ValueError):
            self._kept = json_files.read_sealed(path)
        self.found: dict[str, Tiling] = {}  # tilings of requested products, keyed by sizes and options

    def _words(self, memory: str) -> int:
        """Size in words of one of the node's memories."""
        return int(getattr(self._node.compute if memory == "activations" else self._node.memories, memory))

    def __call__(self, array: Array, sizes: tuple[int, int, int], **options: bool) -> Mapping[str, int]:
        default = dict(best_factors(array, sizes, **options))
        job = product(sizes, array, **options)
        name = " ".join([f"{array.operands} {array.rows}x{array.lanes}x{array.blocks}", "x".join(map(str, sizes)),
                         *sorted(name for name, enabled in options.items() if enabled)])
        if name not in self.found:
            if name not in self._kept:
                if any(self._words(memory) < words for memory, words in room(job, array.lanes).items()):
                    return default
                self._kept[name] = dataclasses.asdict(self._search(array, job, default))
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_json(self._path, json_files.sealed(self._kept))
            self.found[name] = Tiling(**self._kept[name])
        return self.found[name].factors

    def _search(self, array: Array, job: GemmJob, default: dict[str, int]) -> Tiling:
        if self._ring is None:
            session = self.enter_context(open_session(
                self._node, nodes=1, host_port=False, arithmetic=self._arithmetic))
            self._ring = session.ring
        cost = GatewareCost(self._ring, job)
        fields: dict[str, Any] = dict(default)
        begins = cost(Plan(1, 1, dataclasses.replace(job, **fields)))
        nest = Nest(_space(array, job), array, job)
        evaluations = Evaluations(nest, cost, BUDGET)
        best_first(evaluations, np.random.default_rng(0), start=_state(nest, default))
        plan = None if evaluations.best is None else nest.plan(evaluations.best)
        factors, cycles = default, begins
        if isinstance(plan, Plan) and cost(plan) < begins:
            factors, cycles = {name: int(getattr(plan.job, name)) for name in FACTORS}, cost(plan)
        return Tiling(factors=factors, cycles=cycles, default=begins, evaluations=len(evaluations.costs))

    @property
    def line(self) -> str:
        """Describe the cycles saved by the searched tilings in one line; equal products count once."""
        before, after = (sum(getattr(kept, name) for kept in self.found.values()) for name in ("default", "cycles"))
        gain = (before - after) / before if before else 0.0
        return (f"tiling: searched, {len(self.found)} products in {after:,} cycles, by default in {before:,}: "
                f"{gain:.2%} fewer")


def _space(array: Array, job: GemmJob) -> Space:
    """Search space for sizes rounded up to powers of two, with room for at least one tile."""
    m, k, n = (1 << (size - 1).bit_length() for size in (job.m, job.k, job.n))
    m, n = max(m, array.rows), max(n, array.lanes)
    tile = 8 * array.rows * array.lanes
    return Space((m, k, max(n, -(-tile // m))), (3, 2, 3))


def _state(nest: Nest, factors: Mapping[str, int]) -> State | None:
    """State with these factors, or None if there is none."""
    return next((state for state in nest.space if isinstance(plan := nest.plan(state), Plan)
                 and all(getattr(plan.job, name) == factors[name] for name in FACTORS)), None)
