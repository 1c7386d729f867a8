# amaranth: UnusedElaboratable=no
"""Simulation speed of a multiply-accumulate array with gateware arithmetic and native arithmetic.

Both runs must produce the same results in the same cycles. ``python -m sim.bench.array_speed`` prints the figures.
"""

import statistics
import time
from typing import Any

import numpy as np

from hdl.features.compute.array import TILES, MacArray, term_layout
from hdl.features.compute.multiply_accumulate import SLOTS
from sim.payload import pack
from sim.verilated.native import Arithmetic
from sim.verilated.vectors import Feed, Unit

__all__ = ["ROWS", "measure", "rows"]

#: Number of rows and columns of the array.
ROWS = 4
#: Number of rounds per sum, of sums per run, and of runs, the median of which is reported.
ROUNDS, SUMS, RUNS = 64, 100, 5

#: Minimum speedup of native arithmetic over gateware arithmetic.
BAR = 2.0


def _beats() -> np.ndarray:
    """Generate the operands of back-to-back sums."""
    generator = np.random.default_rng(1)
    count = SUMS * ROUNDS * SLOTS
    rounds = np.arange(count) // SLOTS % ROUNDS
    a, b = generator.standard_normal((2, count, ROWS)).astype(np.float32).view(np.uint32)
    beats: np.ndarray = pack(term_layout(ROWS, ROWS), {
        "a": a, "b": b, "rows": np.full(count, (1 << ROWS) - 1), "initial": np.zeros(count, int),
        "first": rounds == 0, "last": rounds == ROUNDS - 1, "tile": np.full(count, TILES // 2)})
    return beats


def measure() -> dict[Arithmetic, float]:
    """Measure the simulated cycles per second with each kind of arithmetic."""
    beats = _beats()
    cycles = len(beats) + SLOTS * SLOTS
    units = {arithmetic: Unit(MacArray(rows=ROWS, columns=ROWS), arithmetic=arithmetic, level="-O3")
             for arithmetic in Arithmetic}
    seconds: dict[Arithmetic, list[float]] = {arithmetic: [] for arithmetic in units}
    outputs = {}
    for _ in range(RUNS):
        for arithmetic, unit in units.items():
            unit.reset()
            begun = time.perf_counter()
            trace = unit.lockstep(sources={"i": Feed(beats)}, sinks={"o": True}, cycles=cycles)
            seconds[arithmetic].append(time.perf_counter() - begun)
            trace["o__payload"][trace["o__valid"] == 0] = 0
            outputs[arithmetic] = {name: values.tobytes() for name, values in trace.items()}
    if outputs[Arithmetic.GATEWARE] != outputs[Arithmetic.NATIVE]:
        raise AssertionError("Arrays with arithmetic of gateware and with native arithmetic gave different results")
    return {arithmetic: cycles / statistics.median(times) for arithmetic, times in seconds.items()}


def rows(speeds: dict[Arithmetic, float]) -> list[dict[str, Any]]:
    """Return the row for ``bench.json``: time per cycle with native arithmetic, and its limit."""
    gateware, native = speeds[Arithmetic.GATEWARE], speeds[Arithmetic.NATIVE]
    config = f"{ROWS} x {ROWS} units, native arithmetic {native:,.0f} cycles/s, {native / gateware:.2f} x gateware"
    return [{"name": "simulation.array", "config": config, "measured": 1e6 / native, "bound": 1e6 / (BAR * gateware),
             "ratio": BAR * gateware / native, "unit": "us/cycle"}]


def main() -> None:
    speeds = measure()
    for arithmetic, cycles in speeds.items():
        print(f"array of {ROWS} x {ROWS} units, arithmetic {arithmetic.value}: {cycles:,.0f} cycles/s")
    print(f"ratio {speeds[Arithmetic.NATIVE] / speeds[Arithmetic.GATEWARE]:.2f}")


if __name__ == "__main__":
    main()
