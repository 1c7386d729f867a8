"""Test rings of more nodes than a 4-bit rank can number, against the golden model."""

import functools

import numpy as np
import pytest

from hdl.control.protocol import EventStatus
from host.driver.diagnosis import RingError
from host.training.optimizers import SGD
from sim.golden import ring as golden
from tests.host import rings

CONFIG = rings.CONFIGS["server"]
NODES = 17

open_nodes = functools.partial(rings.open_nodes, NODES, config=CONFIG, timeout=20_000, host_port=False)


def test_sums():
    """Sums and word counts match for blocks of several segments, single-group blocks and empty blocks."""
    generator = np.random.default_rng(NODES)
    with open_nodes() as (ring, _):
        for length in (8192, 333):
            gradients = rings.random(generator, (NODES, length), density=0.6)
            ring.memory.write_gradients(list(gradients))
            ring.counters.clear()
            ring.collectives.all_reduce(length)
            total, traffic = golden.all_reduce(golden.bits(gradients))
            assert (ring.memory.read_gradients(length).view(np.uint32) == total).all(), length
            assert [node["WORDS_SENT"] for node in ring.counters.read()] == traffic.words.tolist(), length


def test_updates():
    """A broadcast and two updates match the golden model in every bit and word count."""
    generator, optimizer = np.random.default_rng(NODES), SGD(learning_rate=0.1, momentum=0.9)
    with open_nodes() as (ring, simulation):
        simulation.set_far_speed(latency=16, rate=4)
        for length in (2500, 333):
            weights = rings.random(generator, (NODES, length))
            ring.memory.write_weights_of(list(weights))
            ring.collectives.broadcast(length, root=NODES - 1)
            reference = rings.Reference(ring, weights[-1], planes=CONFIG.memories.planes)
            reference.compare(f"broadcast of {length} elements")
            rings.train_twice(reference, optimizer, generator, packed_state=False, message=f"{length} elements")


def test_rank_that_there_is_not():
    """A node compares all bits of ``root`` with the ring size, so it rejects a root that does not exist."""
    with open_nodes(timeout=2000) as (ring, _):
        ring.memory.write_weights(np.ones(64, np.float32))
        for root in (NODES, NODES + 16, 255):
            with pytest.raises(RingError) as error:
                ring.collectives.broadcast(64, root=root)
            assert {event.status for event in error.value.events} == {EventStatus.BAD_RANK}, root
        ring.collectives.broadcast(64, root=16)
