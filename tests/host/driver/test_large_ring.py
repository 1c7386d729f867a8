"""Rings of more nodes than ranks of 4 bits tell apart, against the golden model."""

import numpy as np
import pytest

from hdl.control.protocol import EventStatus
from host.driver.diagnosis import RingError
from host.training.optimizers import SGD
from sim.golden import ring as golden
from tests.host import rings

CONFIG = rings.CONFIGS["server"]
NODES = 17


def test_collectives():
    """All bits and words of sums, weights, momentum, parts and broadcasts; short blocks, of which some are empty."""
    generator, optimizer = np.random.default_rng(17), SGD(learning_rate=0.1, momentum=0.9)
    with rings.open_nodes(NODES, config=CONFIG, timeout=20_000, host_port=False) as (ring, simulation):
        simulation.set_far_speed(latency=16, rate=4)
        for length in (8192, 333):
            gradients = rings.random(generator, (NODES, length), density=0.6)
            ring.write_gradients(list(gradients))
            ring.clear_counters()
            ring.all_reduce(length)
            total, traffic = golden.all_reduce(golden.bits(gradients))
            assert (ring.read_gradients(length).view(np.uint32) == total).all(), length
            assert [node["WORDS_SENT"] for node in ring.counters()] == traffic.words.tolist(), length

            weights = rings.random(generator, (NODES, length))
            ring.write_weights_of(list(weights))
            ring.broadcast(length, root=NODES - 1)
            reference = rings.Reference(ring, weights[-1], planes=CONFIG.state_planes)
            reference.compare(f"broadcast of {length} elements")
            rings.train_twice(reference, optimizer, generator, packed_state=False, message=f"{length} elements")


def test_rank_that_there_is_not():
    """A node compares all bits of the rank, the root and the turn with the size of the ring."""
    with rings.open_nodes(NODES, config=CONFIG, timeout=2000, host_port=False) as (ring, _):
        ring.write_weights(np.ones(64, np.float32))
        for root in (NODES, NODES + 16, 255):
            with pytest.raises(RingError) as error:
                ring.broadcast(64, root=root)
            assert {event.status for event in error.value.events} == {EventStatus.BAD_RANK}
        ring.broadcast(64, root=16)
