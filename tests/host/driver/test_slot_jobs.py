# amaranth: UnusedElaboratable=no
"""Two jobs on one ring of whole nodes: each command's cycles are the same whatever the other job does."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from hdl.config import NodeConfig
from hdl.control.protocol import Operation
from hdl.ring.control_words import units
from hdl.ring.slots.job_table import JOBS
from host.driver.slot_jobs import place_nodes
from host.reports import two_jobs
from sim.golden import ring as golden
from tests.host import rings
from tests.host.rings import random

#: Little memories, and room for the packets of a superframe.
CONFIG = NodeConfig(lanes=1, segment=32, gradient_words=512, weight_words=512, state_words=512, state_planes=0,
                    ingress_segments=15, update_interval=4, multiplier_dsps=1, masking=False, error_feedback=False,
                    queues=2, program_depth=2, nodes_max=4, replay=True, slots=True, interleaved=True, jobs=JOBS)
LENGTH = 500


@pytest.mark.parametrize("job", range(JOBS))
def test_apart(job):
    """Cycles of each command at each node, and all counters, while the other job rests, runs, stalls and fails: also
    if that is the one of rank 0. The bits of both are those of the golden model."""
    found = two_jobs.measure(CONFIG, rings.library(CONFIG), job, nodes=4, length=LENGTH,
                             operations=(Operation.FUSED_UPDATE, Operation.BROADCAST))
    assert list(found) == list(two_jobs.BEHAVIOURS)
    assert len(found["rests"]["counters"]) > 2 * 20
    assert all(cycles == found["rests"] for cycles in found.values()), found


def test_small():
    """Two jobs of two nodes, commands in turn; all nodes have one TIME, which no reset of a job makes invalid."""
    generator = np.random.default_rng(4)
    with two_jobs.open_jobs(CONFIG, rings.library(CONFIG), nodes=4, length=LENGTH) as jobs:
        for number in range(4):
            pending, sums = [], []
            for ring in jobs.rings:
                gradients = random(generator, (2, LENGTH), density=.3)
                ring.write_gradients(list(gradients))
                pending.append(ring.submit(Operation.ALL_REDUCE, LENGTH))
                sums.append(golden.all_reduce(golden.bits(gradients))[0])
            for ring, one, expected in zip(jobs.rings, pending, sums, strict=True):
                one.result()
                assert (ring.read_gradients(LENGTH).view(np.uint32) == expected).all()
            reset = jobs.rings[number % 2]
            before = [device.read_register("SUPERFRAMES") for ring in jobs.rings for device in ring.devices]
            for device in reset.devices:
                device.write_register("CONTROL", 1)
            jobs.simulation.run(5000)
            for ring in jobs.rings:
                for device in ring.devices:
                    assert device.read_fields("TIME_STATUS") == {"valid": 1, "lost": 0, "error": 0}
            after = [device.read_register("SUPERFRAMES") for ring in jobs.rings for device in ring.devices]
            assert all(now - then >= 4 for now, then in zip(after, before, strict=True))
            reset.recover()


@pytest.mark.parametrize(("jobs", "nodes"), [(1, 4), (2, 5), (2, 2)])
def test_places(jobs, nodes):
    devices = [SimpleNamespace(config=SimpleNamespace(jobs=jobs))] * nodes
    message = f"Nodes of a ring of jobs must have 2 jobs, and 2 nodes or more be of each, not {jobs} and {nodes} nodes"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        place_nodes(devices)


def test_units():
    """Nodes of two jobs hand on control words of the clock and of rooms alone."""
    assert [unit.name for unit in units(CONFIG)] == ["records", "clock"]
