"""Cycles of the streamed optimizer against its law, on the Verilated gateware, every cycle of it as the model has it.

A burst alone takes T + r + q cycles; bursts in a row follow each other every T cycles. ``python -m
sim.bench_optimizer`` prints the figures.
"""

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.golden.optimizer import Burst, Rule, Settings
from sim.verilated.optimizer import Lockstep, operands

__all__ = ["BURSTS", "DEPTHS", "rows"]

WORKERS = 2
LANES = 2
DEPTHS = (16, 64, 256)
BURSTS = 64


def rows() -> list[dict[str, Any]]:
    """One row per measurement, as in build/bench/bench.json."""
    generator = np.random.default_rng(1)

    def draw(name: str, count: int) -> npt.NDArray[np.uint32]:
        return generator.standard_normal(count).astype(np.float32).view(np.uint32)

    scale, rate, momentum = np.array([0.5, 0.1, 0.9], np.float32).view(np.uint32).tolist()
    settings = Settings(Rule.MOMENTUM, scale, rate, momentum)
    result = []
    for depth in DEPTHS:
        pair = Lockstep(workers=WORKERS, lanes=LANES, depth=depth)
        model = pair.model
        beats = depth // LANES
        law = beats + model.reducer_latency + model.update_latency

        def cycles(count: int, pair: Lockstep = pair, depth: int = depth, law: int = law) -> tuple[int, int]:
            """Cycles of the first burst, and from the end of the first to the end of the last."""
            bursts = [Burst(depth, (1 << WORKERS) - 1)] * count
            pair.unit.reset()
            trace = pair.run(bursts, settings, operands(pair.model, bursts, settings, draw),
                             cycles=(count + 2) * depth + law)
            return trace.ends[0] - trace.begins[0] + 1, trace.ends[-1] - trace.ends[0]

        config = f"{WORKERS} workers, {LANES} lanes, depth {depth}"
        measures = [("optimizer burst", cycles(1)[0], law),
                    (f"optimizer, {BURSTS - 1} bursts after the first", cycles(BURSTS)[1], (BURSTS - 1) * beats)]
        for name, measured, bound in measures:
            result.append({"name": name, "config": config, "measured": measured, "bound": bound,
                           "ratio": measured / bound, "unit": "cycles"})
    return result


if __name__ == "__main__":
    print(json.dumps(rows(), indent=2))
