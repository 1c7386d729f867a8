"""Rings of nodes with different configurations: bits, words, cycles, states, and parameters that must match."""

import functools
import operator

import numpy as np
import pytest

from hdl.board import BOARDS
from hdl.config import NodeConfig, Peer, RootReduce, Weights
from hdl.control.protocol import EventStatus, Operation, Space
from hdl.features.compute_stub.feature import ComputeStub
from hdl.features.programs.feature import Programs
from hdl.features.replay.feature import Replay
from hdl.features.slots.feature import JobSlots, Slots
from host.driver.device import Device
from host.driver.devices import ALIKE
from host.driver.diagnosis import RingError
from host.driver.errors import ConfigurationError
from host.driver.memory import Allocation
from host.driver.optimizer_settings import Rule, Settings
from host.driver.ring import Ring
from host.transports.verilated import OpenRing, open_ring
from sim.golden import ring as golden
from sim.verilated.ring import VerilatedRing
from tests.host import rings
from tests.refusals import refuses

RELAY = rings.MIXED["relay"]
WORKER, SERVER = RELAY[0], RELAY[-1]
NODES = len(RELAY)
RATES = {"rule": Rule.SGD, "gradient_scale": 0.25, "learning_rate": 0.1}
SETTINGS = Settings(**RATES)

open_streaming = functools.partial(rings.open_nodes, NODES, config=RELAY)


def play(seed, *, threads, host_port, data=16, credit=16):
    """Compare collectives on a streaming ring with the golden model; return cycles and final state."""
    message = f"seed {seed}, {threads} threads"
    generator = np.random.default_rng(seed)
    cycles = []
    with open_streaming(threads=threads, host_port=host_port) as (ring, simulation):
        for link in simulation.links:
            link.set_latency(data=data, credit=credit)
        for root, length in ((0, 333), (NODES - 1, 2048), (1, 40)):
            weights = rings.random(generator, (NODES, length))
            ring.memory.write_weights_of(list(weights))
            cycles.append(ring.collectives.broadcast(length, root=root).cycles)
            assert (ring.memory.read_weights(length).view(np.uint32) == golden.bits(weights[root])).all(), message

            gradients = rings.random(generator, (NODES, length), density=0.6)
            ring.memory.write_gradients(list(gradients))
            cycles.append(ring.collectives.all_reduce(length).cycles)
            total, _ = golden.all_reduce(golden.bits(gradients))
            assert (ring.memory.read_gradients(length).view(np.uint32) == total).all(), message

            ring.settings.write(SETTINGS)
            ring.memory.write_gradients(list(gradients))
            ring.counters.clear()
            cycles.append(ring.collectives.fused_update(length).cycles)
            expected = golden.fused_update(golden.bits(gradients), golden.bits(weights[root]), [],
                                           golden.settings(**RATES))
            assert (ring.memory.read_weights(length).view(np.uint32) == expected.weights).all(), message
            counters = ring.counters.read()
            assert [node["WORDS_SENT"] for node in counters] == expected.traffic.words.tolist(), message
        return cycles, simulation.cycle, simulation.save()


@pytest.mark.parametrize("seed", range(3))
def test_collectives(seed):
    """Bits and words match the golden model; cycles and state do not depend on the number of threads (1 to 3)."""
    generator = np.random.default_rng(seed)
    data, credit = (int(cycles) for cycles in generator.integers(1, 60, 2))
    results = [play(seed, threads=threads, host_port=False, data=data, credit=credit) for threads in (1, 2, 3)]
    assert results[1:] == results[:1] * 2, f"seed {seed}"


def test_host_port():
    """Commands take the same cycles whether memories are accessed through host ports or directly."""
    through, around = (play(7, threads=2, host_port=host_port) for host_port in (True, False))
    assert through[0] == around[0]


def test_memories():
    """Each node has the memories of its own configuration, with the memory numbers of this configuration."""
    with open_streaming() as (ring, simulation):
        spaces = [[space for space in config.memory_map if space.name != "trace"] for config in RELAY]
        assert simulation.spaces == tuple(map(len, spaces)) == (3, 3, 5)
        assert simulation.far_widths == tuple(config.lanes if config.far_words else 0 for config in RELAY)
        for rank, device in enumerate(ring.devices):
            for space in spaces[rank]:
                words = np.arange(space.words, dtype=np.uint32) + (1000 * rank + space.number)
                device.write_memory(space.number, 0, words)
                simulation.run(100)  # until the words are in far memory
                assert (simulation.memory(rank, space.number) == words).all()
        assert all(simulation.counters(rank)[0] for rank in range(NODES))
        refuses("Memory space must be one of the 3 that the library knows, not 3", simulation.memory, 0, 3)
        before = [simulation.memory(rank, Space.WEIGHT).copy() for rank in range(NODES)]
        with pytest.raises(KeyError, match="Memory must be one of gradients, weights, activations, trace, not "
                                           "'state_0'"):
            ring.memory.write_state(np.ones(300, np.float32))
        assert all((simulation.memory(rank, Space.WEIGHT) == words).all() for rank, words in enumerate(before))
        ring.memory.clear_state(300)  # the server's block has 96 elements
        simulation.run(100)
        for plane in range(2):
            words = simulation.memory(NODES - 1, Space.STATE + plane)
            assert not words[:96].any()
            assert words[128:].all()


def test_saved_in_mid_command():
    """A ring saved during a command resumes with a different number of threads, and a reset restores every node."""
    libraries = [rings.library(config) for config in RELAY]
    generator = np.random.default_rng(5)
    with open_streaming(threads=2, host_port=False) as (ring, simulation):
        gradients = rings.random(generator, (NODES, 1500), density=0.6)
        ring.settings.write(SETTINGS)
        ring.memory.write_weights(rings.random(generator, 1500))
        ring.memory.write_gradients(list(gradients))
        pending = ring.collectives.submit(Operation.FUSED_UPDATE, 1500)
        simulation.run(700)
        state = simulation.save()
        simulation.run(9000)
        ended = simulation.save()
        with OpenRing(libraries) as fresh:
            fresh.simulation.restore(state)
            fresh.simulation.run(9000)
            assert fresh.simulation.save() == ended
        assert pending.result().cycles
        simulation.reset()
        with VerilatedRing(libraries) as fresh:
            assert simulation.save() == fresh.save()


def test_built_by_configurations():
    with open_ring(RELAY) as opened:
        assert opened.simulation.nodes == NODES
        assert set(opened.seconds) == {"Verilog"}
        devices = [Device(transport, config, name="one")
                   for transport, config in zip(opened.transports, RELAY[::-1], strict=True)]
        with pytest.raises(ConfigurationError, match=f"^one: configuration hash must be 0x{SERVER.hash:08x}, that "):
            Ring(devices).connect()
    with pytest.raises(ValueError, match=r"^Ring must have between 1 and 2 nodes, not 3$"):
        open_ring([WORKER, SERVER.replace(topology={"max_nodes": 2}), WORKER])


def test_rule_that_some_nodes_lack():
    with open_streaming() as (ring, _):
        ring.settings.write(Settings(rule=Rule.MOMENTUM, gradient_scale=1, learning_rate=0.5))
        ring.memory.write_weights(np.ones(100, np.float32))
        with pytest.raises(RingError, match="needs more state planes than the node has") as refused:
            ring.collectives.fused_update(100)
        assert [event.status for event in refused.value.events[:2]] == [EventStatus.BAD_RULE] * 2
        ring.recover()
        ring.collectives.all_gather(100)
        assert (ring.memory.read_weights(100) == 1).all()


def ring_of(*configs):
    """A ring of devices without transports, which cannot send anything."""
    return Ring([Device(None, config) for config in configs])


def test_room_is_that_of_the_smallest():
    other = WORKER.replace(lanes=8, memories={"gradient": 2048, "planes": 2})
    ring = ring_of(WORKER, other, WORKER)
    assert [ring.memory.allocator.room(space) for space in ("gradients", "weights")] == [2048, 8320]
    with pytest.raises(ValueError, match=r"^Vector must have at most the 2,048 elements of a node's memories, not "
                                         r"2,049: "):
        ring.memory.allocate(Allocation(length=2049))
    with pytest.raises(ValueError, match=r"^Optimizer must need at most the 0 state planes of a node, not 1$"):
        ring.memory.allocate(Allocation(length=64, planes=1))
    refuses("Region must be one of gradients, weights, activations, trace, not 'state'", ring.memory.allocator.room,
            "state")
    assert not ring.memory.allocator.buffers
    assert ring.memory.allocate(Allocation(length=1024)).weights.base == 0
    with pytest.raises(ValueError, match=r"^Nodes of a ring must have the same lanes, not 4 and 8$"):
        assert ring.formats.lanes


#: Parameters that all nodes of a ring must share, each with a non-default value.
OTHERS = {"segment": {"segment": 128}, "weights": {"weights": Weights(codec="mx9")},
          "gradients": {"gradients": "raw"}, "link": {"link": Replay()}, "queues": {"programs": Programs()},
          "role.root_reduce": {"role": RootReduce()}, "role.interleaved": {"role": Peer(interleaved=True)}}


@pytest.mark.parametrize("name", OTHERS)
def test_what_must_be_alike(name):
    other = NodeConfig(**OTHERS[name])
    values = " and ".join(repr(operator.attrgetter(name)(config)) for config in (NodeConfig(), other))
    refuses(f"Nodes of a ring must have the same {name}, not {values}", ring_of, NodeConfig(), NodeConfig(), other)


def test_elements_quorum_and_links_must_be_alike():
    assert set(ALIKE) == {*OTHERS, "element", "has_quorum"}
    with pytest.raises(ValueError, match=r"^Nodes of a ring must have the same element, not 'fp32' and 'int16'$"):
        ring_of(NodeConfig(), BOARDS["icebreaker"].node)
    quorum = NodeConfig(link=Replay(), programs=Programs(), stub=ComputeStub(quorum=True))
    with pytest.raises(ValueError, match=r"^Nodes of a ring must have the same has_quorum, not True and False$"):
        ring_of(quorum, quorum.replace(stub=ComputeStub()))
    slots = NodeConfig(link=Slots(), programs=Programs())
    for other in (Replay(), JobSlots(), Slots(messages=True), Slots(ingress=3)):
        refuses(f"Nodes of a ring must have the same link, not {Slots()} and {other}", ring_of, slots,
                slots.replace(link=other))
