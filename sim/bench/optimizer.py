"""Cycles of the Verilated streamed optimizer, compared with formulas and, in lockstep, with the model.

A burst of T beats takes T + r + q cycles, where r and q are the latencies of reducer and update. Further bursts
follow every T cycles; each parameter is transferred once. ``python -m sim.bench.optimizer`` prints the figures.
"""

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.optimizer.rules import Rule as HardwareRule
from sim.golden import ring as golden
from sim.golden.optimizer import Rule, Settings
from sim.golden.optimizer_burst import Burst, Model
from sim.payload import unpack
from sim.verilated.optimizer import Lockstep, operands

__all__ = ["BURSTS", "DEPTHS", "rows"]

LANES = 2
DEPTHS = (16, 64, 256)
BURSTS = 64


def _operands(model: Model, bursts: list[Burst], settings: Settings) -> dict[str, list[npt.NDArray[np.uint32]]]:
    generator = np.random.default_rng(1)
    return operands(model, bursts, settings, lambda name, count: np.abs(
        generator.standard_normal(count)).astype(np.float32).view(np.uint32))


def _settings(rule: Rule) -> Settings:
    return golden.settings(rule, gradient_scale=0.5, learning_rate=0.1, first_decay=0.9, first_gain=0.1,
                           second_decay=0.99, second_gain=0.01, epsilon=1e-8)


def _row(name: str, config: str, measured: float, bound: int, unit: str = "cycles") -> dict[str, Any]:
    return {"name": name, "config": config, "measured": measured, "bound": bound, "ratio": measured / bound,
            "unit": unit}


def _bursts(pair: Lockstep, rule: Rule, config: str) -> list[dict[str, Any]]:
    """Measure a single burst and many consecutive bursts."""
    model, settings = pair.model, _settings(rule)
    beats = model.depth // model.update_lanes
    law = beats + model.reducer_latency + model.update_latency
    traces = []
    for count in (1, BURSTS):
        bursts = [Burst(model.depth, (1 << model.workers) - 1)] * count
        pair.unit.reset()
        traces.append(pair.run(bursts, settings, _operands(model, bursts, settings),
                               cycles=(count + 2) * model.depth + law))
    alone, many = traces
    return [_row("optimizer burst", config, alone.ends[0] - alone.begins[0] + 1, law),
            _row(f"optimizer, {BURSTS - 1} bursts after the first", config, many.ends[-1] - many.ends[0],
                 (BURSTS - 1) * beats)]


def _bytes(pair: Lockstep, rule: Rule, config: str) -> dict[str, Any]:
    """Bytes transferred between memory and the unit, counted beat by beat, without broadcasts."""
    model, settings = pair.model, _settings(rule)
    bursts = [Burst(model.depth, 1)] * 4
    fills = _operands(model, bursts, settings)
    pair.unit.reset()
    ports = pair.drive(bursts, settings, fills, stalls={}, cycles=6 * model.depth + 500)
    moved = 0
    for name in ports:
        stream, separator, _ = name.rpartition("__valid")
        if separator and not stream.startswith(("command", "broadcast")):
            taken = (ports[name] & ports[f"{stream}__ready"]).astype(bool)
            keep = unpack(pair.row, ports[f"{stream}__payload"][taken])["keep"]
            moved += 4 * sum(int(bits).bit_count() for bits in keep)
    # The gradient and the weight are read, the new weight is written, and each state plane is read and written.
    bound = 4 * (3 + 2 * rule.planes)
    return _row("optimizer, bytes per parameter", config, moved / sum(burst.count for burst in bursts), bound,
                unit="bytes")


def rows() -> list[dict[str, Any]]:
    """Rows for build/bench/bench.json, one per measurement."""
    result = []
    rules = (HardwareRule.SGD, HardwareRule.MOMENTUM)
    for depth in DEPTHS:
        pair = Lockstep(workers=2, lanes=LANES, depth=depth, rules=rules)
        result += _bursts(pair, Rule.MOMENTUM, f"momentum, 2 workers, {LANES} lanes, depth {depth}")
    pair = Lockstep(workers=1, lanes=LANES, depth=256)
    for rule in Rule:
        config = f"{rule.name}, 1 worker, {LANES} lanes, depth 256"
        if rule in (Rule.SGD, Rule.ADAM):
            result += _bursts(pair, rule, config)
        result.append(_bytes(pair, rule, config))
    return result


if __name__ == "__main__":
    print(json.dumps(rows(), indent=2))
