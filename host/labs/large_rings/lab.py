"""Collectives on simulated rings of more than 16 nodes (``make large-rings``): bits and words are compared with the
golden model, cycles with the prediction, and the simulation speed is measured.
"""

import sys
import time
from typing import Annotated, Any

import numpy as np

from host.columns import Table, columns_of, show
from host.cycles.collective import collective_cycles
from host.cycles.costs import Format
from host.cycles.estimate import Collective
from host.cycles.timing import timing_of
from host.driver.optimizer_settings import Rule, Settings
from host.labs.kit import numbers
from host.labs.predict.points import SMALL
from host.options import SEEDS, Option, command
from host.transports.session import LATENCY, Session, open_session
from sim.golden import ring as golden

__all__ = ["large_rings_lab"]

_SCALARS = {"rule": Rule.SGD, "gradient_scale": 0.25, "learning_rate": 0.1}


def _run(session: Session, kind: Collective, gradients: np.ndarray, weights: np.ndarray) -> tuple[int, int, float]:
    """Run a collective, and return its cycles, the words sent by the busiest node, and the number of cycles simulated
    per processor second. Raises ``ValueError`` if any bit is wrong."""
    ring, length = session.ring, len(weights)
    ring.memory.write_weights(weights)
    ring.memory.write_gradients(list(gradients))
    ring.counters.clear()
    cycle, begun = session.cycle, time.process_time()
    outcome = getattr(ring.collectives, kind.name.lower())(length)
    speed = (session.cycle - cycle) / (time.process_time() - begun)
    if kind is Collective.ALL_REDUCE:
        expected, traffic = golden.all_reduce(golden.bits(gradients), lanes=SMALL.lanes)
        actual = ring.memory.read_gradients(length)
    else:
        update = golden.fused_update(golden.bits(gradients), golden.bits(weights), [], golden.settings(**_SCALARS),
                                     lanes=SMALL.lanes)
        expected, traffic = update.weights, update.traffic
        actual = ring.memory.read_weights(length)
    words = [int(counters["WORDS_SENT"]) for counters in ring.counters.read()]
    if not (actual.view(np.uint32) == expected).all() or words != traffic.words.tolist():
        raise ValueError(f"{kind.name} on {ring.nodes} nodes must have the bits and words of the golden model")
    return outcome.cycles, max(words), speed


def _rows(session: Session, *, latency: int, length: int, seed: int) -> list[dict[str, Any]]:
    """Measure an all-reduce and a fused update on one ring, and return one result row for each."""
    ring = session.ring
    generator = np.random.default_rng([seed, ring.nodes])
    gradients = generator.standard_normal((ring.nodes, length)).astype(np.float32)
    weights = generator.standard_normal(length).astype(np.float32)
    ring.settings.write(Settings(**_SCALARS))
    rows = []
    for kind in (Collective.ALL_REDUCE, Collective.FUSED_UPDATE):
        cycles, words, speed = _run(session, kind, gradients, weights)
        predicted = collective_cycles(kind, Format(), timing_of(SMALL), length=length, nodes=ring.nodes,
                                      latency=latency).cycles
        rows.append({"nodes": ring.nodes, "collective": kind.name.lower().replace("_", " "), "words": words,
                     "cycles": cycles, "predicted": predicted, "error": predicted / cycles - 1,
                     "cycles_per_cpu_second": speed})
    return rows


@command
def large_rings_lab(
    *,
    nodes: Annotated[str, Option("Comma-separated ring sizes.")] = "17,32,64,255",
    latency: Annotated[int, Option("Latency of each link in cycles.")] = LATENCY,
    length: Annotated[int, Option("Elements of a vector.", minimum=1, maximum=SMALL.memories.gradient)] = 8192,
    seed: Annotated[int, Option("Seed of gradients and weights.", minimum=0, maximum=SEEDS)] = 0,
) -> None:
    """Run collectives on rings of more than 16 nodes, and compare bits, words and predicted cycles."""
    rows = []
    for size in numbers("Ring sizes", nodes):
        with open_session(SMALL, nodes=size, latency=latency, host_port=False,
                          announce=lambda stage: print(stage, file=sys.stderr)) as session:
            rows += _rows(session, latency=latency, length=length, seed=seed)
    show(Table(f"{length:,} elements, links of {latency} cycles: bits and words equal", columns_of(
        "nodes:, collective words:, cycles:, predicted:, error:+.2% cycles_per_cpu_second:,.0f"), rows))
