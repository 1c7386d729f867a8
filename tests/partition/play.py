"""Rings of whole nodes in any number of processes, and a digest of everything that can be observed of them."""

import dataclasses
import hashlib
import time

import numpy as np

from host.driver.optimizer_settings import Rule, Settings
from sim.link_faults import RandomFaults
from tests.host import rings

#: Links that send damaged words again, so that faults are repaired.
CONFIG = rings.CONFIGS["narrow"]
LENGTH = 480
RATE = 1e-4
SETTINGS = Settings(rule=Rule.MOMENTUM, gradient_scale=0.25, learning_rate=0.5, first_decay=0.9)


@dataclasses.dataclass(frozen=True)
class Case:
    """A ring, and the latency of its links in cycles."""

    nodes: int
    latency: int


@dataclasses.dataclass(frozen=True)
class Played:
    """Results of a run: a digest of responses, weights, cycles, words and counters, the number of faults, and run
    time."""

    digest: str
    cycles: int
    faults: int
    seconds: float


def play(case, *, processes=None, quantum=1 << 20, grid=16):
    """Run two fused updates and a sum through host ports, on links with random faults."""
    generator = np.random.default_rng(case.nodes)
    digest = hashlib.sha256()
    with rings.open_nodes(case.nodes, config=CONFIG, latency=case.latency, timeout=1 << 17,
                          processes=processes) as (ring, simulation):
        simulation.set_grid(grid)
        simulation.set_quantum(quantum)
        simulation.set_faults(RandomFaults(rate=RATE, seed=5))
        receive = simulation.receive

        def received(node):
            packet = receive(node)
            digest.update(f"{node} {simulation.cycle} {None if packet is None else packet.tolist()}\n".encode())
            return packet

        simulation.receive = received
        begun = time.monotonic()
        ring.collectives.distribute(rings.random(generator, LENGTH))
        ring.memory.clear_state(LENGTH)
        ring.settings.write(SETTINGS)
        for _ in range(2):
            ring.memory.write_gradients(list(rings.random(generator, (case.nodes, LENGTH), density=0.6)))
            ring.collectives.fused_update(LENGTH)
        ring.memory.write_gradients(list(rings.random(generator, (case.nodes, LENGTH))))
        ring.collectives.all_reduce(LENGTH)
        ring.memory.read_weights(LENGTH)
        counters = ring.counters.read()
        assert all(entry["WORDS_SENT"] for entry in counters)
        seconds = time.monotonic() - begun
        faults = [link.faults() for link in simulation.links]
        for seen in (counters, [simulation.status(node) for node in range(case.nodes)], faults,
                     [link.status() for link in simulation.links], simulation.cycle):
            digest.update(repr(seen).encode())
        return Played(digest.hexdigest()[:16], simulation.cycle, sum(entry.total for entry in faults), seconds)
