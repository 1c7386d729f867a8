"""Measure matrix products on the Verilated gateware, compared with the ideal of one term per unit and cycle.

The time from the job to the last result row includes all loads: rows of A and B arrive through one port, one row of
``columns`` words per cycle. Results must be bit-identical to numpy sums in ascending order of k. ``python -m
sim.bench.product`` prints the figures.
"""

import json
from typing import Any

import numpy as np

from hdl.features.compute.array import result_layout
from hdl.features.compute.loop_nest import job_layout
from hdl.features.compute.multiply_accumulate import product_latency
from hdl.features.compute.panel import fill_layout
from hdl.features.compute.product import MatrixProduct
from sim.golden.features.compute.loop_nest import Job
from sim.golden.features.compute.mac_array import SLOTS
from sim.golden.features.compute.product import MatrixProduct as Model
from sim.payload import pack, unpack
from sim.verilated.vectors import Feed, Unit

__all__ = ["JOBS", "rows"]

ROWS = COLUMNS = 4
BLOCKS = 128

#: Measured job, which keeps its sums in the array between panels.
JOBS = (Job(m=256, n=256, k=256, tile=2, rounds=7),)


def _rows(fills: list[Any]) -> np.ndarray:
    layout = fill_layout(COLUMNS, BLOCKS)
    fields = {name: np.concatenate([getattr(fill, name) for fill in fills])
              for name in layout.members if name != "last"}
    ends = np.concatenate([np.arange(len(fill.row)) == len(fill.row) - 1 for fill in fills])
    beats: np.ndarray = pack(layout, {**fields, "last": ends})
    return beats


def _measure(unit: Unit, model: Model, job: Job) -> int:
    """Return the cycles until the last result row; raise RuntimeError unless all bits are correct."""
    generator = np.random.default_rng(1)
    a, b = (generator.standard_normal(shape).astype(np.float32) for shape in ((job.m, job.k), (job.k, job.n)))
    fills = model.fills(job, a.view(np.uint32), b.view(np.uint32), by_rows=(True, True))
    cycles = model.loops.cycles(job) * 9 // 8 + 4_000
    # The shape of the tile requires two rows of A for each row of B, through one port.
    turn = np.arange(cycles) % 3 != 2
    layout = job_layout()
    unit.reset()
    trace = unit.lockstep(
        sources={"job": Feed(pack(layout, {name: np.array([getattr(job, name)]) for name in layout.members})),
                 "fill_a": Feed(_rows(fills["a"]), turn), "fill_b": Feed(_rows(fills["b"]), ~turn)},
        sinks={"panels": True, "tiles": True, "o": True}, cycles=cycles)
    taken = np.flatnonzero(trace["o__valid"])
    want = np.zeros((job.m, job.n), np.float32)
    for k in range(job.k):
        want += a[:, k, None] * b[k]
    tile_rows, tile_columns = ROWS << job.tile, COLUMNS * (SLOTS >> job.tile)
    order = [(m, n) for m in range(0, job.m, tile_rows) for n in range(0, job.n, tile_columns)]
    got = unpack(result_layout(ROWS, COLUMNS), trace["o__payload"][taken])["elements"]
    tiles = got.reshape(len(order), tile_rows, tile_columns)
    for index, (m, n) in enumerate(order):
        if tiles[index].tobytes() != want[m:m + tile_rows, n:n + tile_columns].tobytes():
            raise RuntimeError(f"Tile must have numpy's sums, not others, at {m}, {n}")
    return int(taken[-1]) + 1


def rows() -> list[dict[str, Any]]:
    """One row per measurement, as in build/bench/bench.json."""
    component = MatrixProduct(rows=ROWS, columns=COLUMNS, blocks=BLOCKS)
    unit = Unit(component)
    model = Model(rows=ROWS, columns=COLUMNS, blocks=BLOCKS, product=product_latency(4))
    result = []
    for job in JOBS:
        measured, bound = _measure(unit, model, job), job.m * job.n * job.k // (ROWS * COLUMNS)
        result.append({"name": "compute.product", "config": f"{job.m} x {job.n} x {job.k}, {ROWS * COLUMNS} units",
                       "measured": measured, "bound": bound, "ratio": measured / bound, "unit": "cycles"})
    return result


if __name__ == "__main__":
    print(json.dumps(rows(), indent=2))
