"""Measure the processor time of a job's all-reduces, once with simulated and once with modelled host ports.

The sums must be the same in both cases.
"""

import time
from typing import Any

import numpy as np

from hdl.compression.registry import ZERO_VALUE
from host.jobs.simulate import simulate

__all__ = ["BARS", "NODES", "measure", "rows"]

#: Maximum processor time in seconds of an all-reduce on four default nodes, keyed by its length.
BARS = {10_000: 0.3, 100_000: 3.0}

NODES, PART = 4, 16_384


def measure() -> dict[int, tuple[float, float]]:
    """Measure the processor time in seconds for each length, with modelled and with simulated ports.

    Raises ``AssertionError`` unless the two sums are bit-identical.
    """
    result = {}
    for length in BARS:
        values = np.random.default_rng(length).standard_normal((NODES, length)).astype(np.float32)
        seconds, sums = [], []
        for host_port in (False, True):
            with simulate(nodes=NODES, length=length, part=PART, gradients=ZERO_VALUE,
                          host_port=host_port) as job:
                job.all_reduce(values[:, :32])
                begun = time.process_time()
                sums.append(job.all_reduce(values)[0].tobytes())
                seconds.append(time.process_time() - begun)
        if sums[0] != sums[1]:
            raise AssertionError("Modelled and simulated host ports gave different sums")
        result[length] = (seconds[0], seconds[1])
    return result


def rows(seconds: dict[int, tuple[float, float]]) -> list[dict[str, Any]]:
    """Return rows for ``bench.json``: processor time with modelled ports, and its limit."""
    return [{"name": "job.all_reduce",
             "config": f"{NODES} nodes, {length:,} elements; {simulated:.2f} s with simulated host ports",
             "measured": modelled, "bound": BARS[length], "ratio": modelled / BARS[length], "unit": "CPU s"}
            for length, (modelled, simulated) in seconds.items()]
