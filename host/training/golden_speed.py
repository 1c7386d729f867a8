"""Compare the CPU time of training on golden nodes with bit-identical training on Verilated nodes."""

import time
from typing import Any

from hdl.config import NodeConfig
from host.driver.memory import fitted
from host.models.digits import digits
from host.training.record import TrainingConfig
from host.training.trainer import train
from host.training.workloads import Classifier
from host.transports.session import TransportName, open_session

__all__ = ["BAR", "measure", "rows"]

#: Maximum CPU time of a golden run, as a fraction of the CPU time of a Verilated run.
BAR = 0.35

NODES, STEPS = 4, 24


def measure() -> tuple[float, float]:
    """Measure CPU seconds on golden nodes and on checked Verilated nodes; weights must be bit-identical."""
    seconds, weights = [], []
    for transport in (TransportName.GOLDEN, TransportName.VERILATED):
        config = TrainingConfig(max_steps=STEPS, check=transport is not TransportName.GOLDEN)
        task = Classifier(digits(), config.hidden)
        node = fitted(NodeConfig(), [config.allocation(task.parameters.size)], nodes=NODES)
        with open_session(node, nodes=NODES, transport=transport, threads=1) as session:
            begun = time.process_time()
            train(session.ring, task, config)
            seconds.append(time.process_time() - begun)
        weights.append(task.parameters.tobytes())
    if weights[0] != weights[1]:
        raise AssertionError("Golden and Verilated nodes gave different weights")
    return seconds[0], seconds[1]


def rows(seconds: tuple[float, float]) -> list[dict[str, Any]]:
    """Return a row for ``bench.json``: CPU time on golden nodes, and its limit."""
    golden, verilated = seconds
    config = f"{NODES} nodes, digits, {STEPS} steps; {verilated:.2f} s on Verilated nodes"
    return [{"name": "golden.train", "config": config, "measured": golden, "bound": BAR * verilated,
             "ratio": golden / (BAR * verilated), "unit": "CPU s"}]
