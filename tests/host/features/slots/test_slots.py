"""Rings of nodes that send words in slots of a common TIME: all bits are correct, and faults end commands."""


import numpy as np
import pytest

from hdl.config import Memories, NodeConfig, Optimizer, SingleRing
from hdl.control.protocol import EventStatus, Operation
from hdl.features.programs.feature import Programs
from hdl.features.slots.feature import Slots
from host.driver.diagnosis import RingError
from host.driver.optimizer_settings import Rule, Settings
from host.run import preparation
from host.run.preparation import with_links
from host.transports import verilated
from sim.golden import ring as golden
from sim.verilated.build import build_ring
from tests.host import rings
from tests.host.rings import Reference, random

#: Nodes with small memories, minimal packet buffers, and an optimizer with state.
CONFIG = NodeConfig(
    lanes=2, segment=32, topology=SingleRing(max_nodes=4),
    memories=Memories(gradient=1024, weight=1024, state=512, planes=1), optimizer=Optimizer(interval=4, dsps=1),
    masking=False, sparsify=False, link=Slots(ingress=2), programs=Programs(depth=2))
SETTINGS = Settings(rule=Rule.MOMENTUM, gradient_scale=0.25, learning_rate=0.5, first_decay=0.9)


def open_nodes(nodes, **options):
    return rings.open_nodes(nodes, config=CONFIG, **{"host_port": False, **options})


def states(ring):
    return [device.read_fields("TIME_STATUS") for device in ring.devices]


def check_sum(ring, generator, length, *, density=1.0):
    """Run an all-reduce, and compare it bit by bit with the golden model."""
    gradients = random(generator, (ring.nodes, length), density=density)
    ring.memory.write_gradients(list(gradients))
    ring.collectives.all_reduce(length)
    expected = golden.all_reduce(golden.bits(gradients))[0]
    assert (ring.memory.read_gradients(length).view(np.uint32) == expected).all(), (length, density)


@pytest.mark.parametrize("nodes", [2, 4])
def test_collectives(nodes):
    """All-reduces and fused updates, dense and sparse, match the golden model, even for lengths that end in empty
    segments. So do broadcasts, in which nodes send different amounts. All nodes have the same TIME."""
    generator = np.random.default_rng(nodes)
    with open_nodes(nodes, latency=5) as (ring, _):
        assert all(state == {"valid": 1, "lost": 0, "error": 0} for state in states(ring))
        for length, density in ((1024, 1.0), (700, 0.1), (32 * nodes + 32, 1.0), (32, 1.0), (5, 0.5)):
            check_sum(ring, generator, length, density=density)
            weights = random(generator, length)
            ring.collectives.distribute(weights)
            ring.memory.clear_state(length)
            ring.settings.write(SETTINGS)
            reference = Reference(ring, weights, planes=1)
            for _ in range(2):
                gradients = random(generator, (nodes, length), density=density)
                ring.memory.write_gradients(list(gradients))
                ring.counters.clear()
                ring.collectives.fused_update(length)
                traffic = reference.step(gradients, SETTINGS)
                reference.compare(f"{length} elements")
                assert [node["WORDS_SENT"] for node in ring.counters.read()] == traffic.words.tolist()
        weights = [random(generator, 1024) for _ in range(nodes)]
        for root in range(nodes):
            for device, values in zip(ring.devices, weights, strict=True):
                device.write_memory(1, 0, values.view(np.uint32))
            ring.collectives.broadcast(1000, root=root)
            assert (ring.memory.read_weights(1000) == weights[root][:1000]).all()
        assert all(state == {"valid": 1, "lost": 0, "error": 0} for state in states(ring))


def test_pairs():
    """Commands can be queued back to back even if nodes receive them at different times."""
    generator = np.random.default_rng(7)
    with open_nodes(4) as (ring, simulation):
        gradients = random(generator, (4, 256))
        ring.memory.write_gradients(list(gradients))
        sums = golden.bits(gradients)
        pending = []
        for _ in range(4):
            pending.append(ring.collectives.submit(Operation.ALL_REDUCE, 256))
            simulation.run(int(generator.integers(2000)))
            sums = np.broadcast_to(golden.all_reduce(sums)[0], sums.shape)
        ring.commands.wait(*pending)
        assert (ring.memory.read_gradients(256).view(np.uint32) == sums[0]).all()


def await_packet(simulation, link):
    """Simulate until a link carries a packet of 38 words; return the number of the word after the next one."""
    carried = link.status().words_carried
    for _ in range(5000):
        simulation.run(18)
        before, carried = carried, link.status().words_carried
        if carried - before > 16:
            return link.status().words_sent + 2
    raise AssertionError("no packet came")


def test_faults():
    """As on any other link, a damaged packet or a reset ends the current command. The ring works afterwards, and a
    retry gives the golden bits."""
    generator = np.random.default_rng(11)
    with open_nodes(4) as (ring, simulation):
        gradients = random(generator, (4, 1024))
        for number in range(3):
            ring.memory.write_gradients(list(gradients))
            link = simulation.links[number]
            pending = ring.collectives.submit(Operation.ALL_REDUCE, 1024)
            if number < 2:
                link.corrupt(word=await_packet(simulation, link), bit=number)
                with pytest.raises(RingError, match=rf"node {number + 1}: .* ended with BAD_CRC") as caught:
                    pending.result()
                assert caught.value.transient
                statuses = [event.status for event in caught.value.events]
                assert sorted(statuses) == sorted([EventStatus.BAD_CRC] + [EventStatus.PEER_ABORT] * 3)
                check_sum(ring, generator, 300)  # the ring works without a reset
            else:
                await_packet(simulation, link)
                ring.recover()
                with pytest.raises(RingError, match="was recovered before"):
                    pending.result()
            ring.memory.write_gradients(list(gradients))
            ring.collectives.all_reduce(1024)
            expected = golden.all_reduce(golden.bits(gradients))[0]
            assert (ring.memory.read_gradients(1024).view(np.uint32) == expected).all()


def test_damage():
    """If packet words and control words are damaged at random, a command succeeds either at once or when it is
    retried."""
    generator = np.random.default_rng(5)
    failed = 0
    with open_nodes(3, timeout=3000) as (ring, simulation):
        for _ in range(12):
            gradients = random(generator, (3, 500), density=0.5)
            ring.memory.write_gradients(list(gradients))
            link = simulation.links[int(generator.integers(3))]
            word = link.status().words_sent + int(generator.integers(400))
            link.corrupt(word=word, bit=int(generator.integers(33)))
            try:
                ring.collectives.all_reduce(500)
            except RingError:
                failed += 1
                ring.recover()
                ring.memory.write_gradients(list(gradients))
                ring.collectives.all_reduce(500)
            expected = golden.all_reduce(golden.bits(gradients))[0]
            assert (ring.memory.read_gradients(500).view(np.uint32) == expected).all()
    assert 0 < failed < 12


def test_no_table():
    """Nodes without assigned slots, each of which has its own TIME, send no packets."""
    with open_nodes(2, timeout=3000) as (ring, simulation):
        frames = [device.read_register("SUPERFRAMES") for device in ring.devices]
        simulation.run(2000)
        assert [device.read_register("SUPERFRAMES") for device in ring.devices] > frames
        for device in ring.devices:
            device.write_register("CONTROL", 1)
            device.write_register("SLOT_POSITION", 0)
        for device in ring.devices:
            device.write_register("CONTROL", 0)
        ring.counters.clear()
        carried = [link.status().words_carried for link in simulation.links]
        with pytest.raises(RingError, match="INGRESS_TIMEOUT"):
            ring.collectives.all_reduce(100)
        # Only START words are sent on the links.
        assert all(link.status().words_carried - before <= 2
                   for link, before in zip(simulation.links, carried, strict=True))
        assert not any(state["valid"] for state in states(ring))
        ring.recover()
        check_sum(ring, np.random.default_rng(2), 100)


def test_time():
    """The drift of clocks is corrected. If a TIME is far off, the next SYNC sets it."""
    with open_nodes(3) as (ring, simulation):
        ring.devices[1].write_register("TIME_TEST", 105)
        ring.devices[2].write_register("TIME_TEST", 1 << 24 | (1 << 16) - 900 << 8)
        simulation.run(5000)
        times = []
        for device in ring.devices:
            before = simulation.cycle
            times.append(device.read_register("TIME") - before)
        assert max(times) - min(times) < 200  # TIME is read from one node after another
        check_sum(ring, np.random.default_rng(3), 500)
        assert all(state["valid"] and not state["lost"] for state in states(ring))


def test_training(train, monkeypatch):
    """With --links slots, the main job's weights match the golden model after each step."""
    monkeypatch.setattr(preparation, "NodeConfig", lambda **options: CONFIG)
    monkeypatch.setattr(verilated, "build_ring", build_ring)  # no other test uses this library
    out, result = train("--nodes", 3, "--steps", 2, "--hidden", "none", "--batch", 200, "--links", "slots",
                        "--threads", 1)
    assert result["links"] == "slots"
    assert result["bit_exact"]
    assert result["configuration"]["link"]["kind"] == "slots"
    assert "slots" in out


def test_option():
    """With the option `credits`, a configuration stays as it is; with `slots`, nodes get messages only on request."""
    assert with_links("credits", NodeConfig()) == NodeConfig()
    assert [with_links("slots", NodeConfig(), messages=messages).link.messages for messages in (False, True)] == [
        False, True]
