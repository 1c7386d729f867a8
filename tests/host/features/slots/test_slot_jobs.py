# amaranth: UnusedElaboratable=no
"""If two jobs share a ring of complete nodes, neither affects the other's cycles."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from hdl.config import Memories, NodeConfig, Optimizer, Peer, SingleRing
from hdl.control.protocol import Operation
from hdl.features.programs.feature import Programs
from hdl.features.replay.control_words import units
from hdl.features.slots.feature import JobSlots
from hdl.features.slots.job_table import JOBS
from host.driver.device import Device
from host.driver.diagnosis import RingError
from host.driver.transport import NodeTransport
from host.features.slots import side_by_side
from host.features.slots.rings import place_nodes, rings_of_jobs
from host.labs.two_jobs import lab as two_jobs
from host.transports import verilated
from host.transports.side_by_side import SharedTime
from host.transports.verilated import OpenRing
from sim.golden import ring as golden
from sim.verilated.build import build_ring
from tests.host import rings
from tests.host.rings import random
from tests.refusals import refuses

#: Nodes with small memories, in which the ingress holds the packets of one superframe.
CONFIG = NodeConfig(
    lanes=1, segment=32, topology=SingleRing(max_nodes=4),
    memories=Memories(gradient=1024, weight=1024, state=512, planes=1), optimizer=Optimizer(interval=4, dsps=1),
    masking=False, sparsify=False, link=JobSlots(ingress=15), role=Peer(interleaved=True),
    programs=Programs(depth=2))
LENGTH = 500


@pytest.mark.parametrize("job", range(JOBS))
def test_apart(job):
    """The cycles of each command on each node, and all counters, do not depend on whether the other job is idle,
    runs, stalls or fails, even if it contains rank 0. Both jobs match the golden model."""
    results = two_jobs.measure(CONFIG, rings.library(CONFIG), job, nodes=4, length=LENGTH,
                               operations=(Operation.FUSED_UPDATE, Operation.BROADCAST))
    assert list(results) == list(two_jobs.BEHAVIOURS)
    assert len(results["rests"]["counters"]) > 2 * 20
    assert all(cycles == results["rests"] for cycles in results.values()), results


def test_small():
    """Two jobs of two nodes run commands alternately; all nodes share a TIME that continues when a job is reset."""
    generator = np.random.default_rng(4)
    with two_jobs.open_jobs(CONFIG, rings.library(CONFIG), nodes=4) as jobs:
        for number in range(4):
            pending, sums = [], []
            for ring in jobs.rings:
                gradients = random(generator, (2, LENGTH), density=.3)
                ring.memory.write_gradients(list(gradients))
                pending.append(ring.collectives.submit(Operation.ALL_REDUCE, LENGTH))
                sums.append(golden.all_reduce(golden.bits(gradients))[0])
            for ring, command, expected in zip(jobs.rings, pending, sums, strict=True):
                command.result()
                assert (ring.memory.read_gradients(LENGTH).view(np.uint32) == expected).all()
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
    devices = [SimpleNamespace(config=SimpleNamespace(link=SimpleNamespace(jobs=jobs)))] * nodes
    message = (f"Nodes of a ring of jobs must have 2 jobs, and 2 nodes or more be of each, not {jobs} and {nodes} "
               f"nodes")
    refuses(message, place_nodes, devices)


def test_units():
    """The only slot units of nodes for two jobs are those that forward control words, for rooms and for the clock."""
    assert [unit.name for unit in units(CONFIG)] == ["rooms", "clock"]


def test_training(succeed, monkeypatch, tmp_path):
    """Two models train on one ring, and the weights of each model match its golden model after every step."""
    monkeypatch.setattr(side_by_side, "NodeConfig", lambda: CONFIG)
    monkeypatch.setattr(verilated, "build_ring", build_ring)  # no other test uses this library
    out = succeed("train", "--nodes", 4, "--steps", 2, "--hidden", "none", "--batch", 200, "--links", "slots",
                  "--jobs", 2, "--threads", 1, "--output", tmp_path)
    results = [json.loads((tmp_path / f"job-{job}" / "report.json").read_text()) for job in range(JOBS)]
    assert all(result["bit_exact"] and result["configuration"]["link"]["kind"] == "job_slots" for result in results)
    assert results[0]["accuracy"] != results[1]["accuracy"]
    assert "job 1, seed 1" in out


@pytest.mark.parametrize(("options", "message"), [
    (("--jobs", 2), "Option --jobs is for --links slots, not credits (jobs take turns in slots): leave it out"),
    (("--jobs", 3, "--links", "slots"), "Jobs must be between 1 and 2, not 3"),
    (("--jobs", 2, "--links", "slots", "--overlap", "none"), "Option --jobs is for a run without --overlap"),
    (("--jobs", 2, "--links", "slots", "--compare"), "Option --compare is for a run without --jobs"),
    (("--jobs", 2, "--links", "slots", "--nodes", 5),
     "Nodes (--nodes) of a run with --jobs must be a multiple of 2, not 5"),
    (("--jobs", 2, "--links", "slots", "--steps", 1, "--epochs", 1), "Epochs or steps must be given, not both"),
])
def test_options(run, options, message, tmp_path):
    code, _, err = run("train", *options, "--output", tmp_path)
    assert code == 1
    assert message in err


def test_no_packet():
    """A host that receives no packet in time raises an error, even if the other host has already ended."""
    with OpenRing([rings.library(CONFIG)] * 2) as opened:
        time = SharedTime(opened.simulation, 2)
        time.leave()
        with pytest.raises(TimeoutError, match="no packet from node 1 of the simulated ring within 100 cycles"):
            NodeTransport(time, 1).receive(100)


def test_long_links():
    """Links are rejected if words take longer than the window to travel twice around the ring."""
    with OpenRing([rings.library(CONFIG)] * 4) as opened:
        for link in opened.simulation.links:
            link.set_latency(data=58, credit=58)
        devices = [Device(transport, CONFIG, name=f"node {rank}") for rank, transport in enumerate(opened.transports)]
        with pytest.raises(RingError, match=r"^nodes without slots: .*node 3; links .* in a window of 268 cycles$"):
            rings_of_jobs(devices, timeout=4000)
