"""Rings with a host at node 0 only: the whole driver works over messages, even with losses and faults."""

import contextlib
import random as plain_random

import numpy as np
import pytest

from hdl.control.protocol import EventStatus, Opcode, Operation, Space
from hdl.features.slots.layouts import MESSAGE_OPCODE
from host.driver.device import Device
from host.driver.diagnosis import RingError
from host.driver.errors import BadAddressError, BadLengthError, NoAnswerError
from host.driver.optimizer_settings import Rule, Settings
from host.driver.ring import Ring
from host.features.slots.messages import MessageHub, place_of
from host.run import preparation
from host.transports import verilated
from host.transports.session import TransportName, open_session
from host.transports.verilated import OpenRing
from sim.golden import ring as golden
from sim.link_faults import RandomFaults
from sim.verilated.build import build_ring
from tests.host import rings
from tests.host.features.slots.test_slots import await_packet
from tests.host.rings import Reference, random
from tests.messages.measure import CONFIG, MOST, beside_updates, open_nodes

SETTINGS = Settings(rule=Rule.SGD, gradient_scale=0.25, learning_rate=0.5)


class Losing:
    """Transport to rank 0 that loses a fraction of the messages in each direction."""

    def __init__(self, transport, *, seed):
        self.transport, self.generator, self.rate, self.lost = transport, plain_random.Random(seed), 0, 0

    def _loses(self, packet):
        lost = int(packet[0]) >> 24 & 0x7F == MESSAGE_OPCODE and self.generator.random() < self.rate
        self.lost += lost
        return lost

    def send(self, packet):
        if not self._loses(packet):
            self.transport.send(packet)

    def receive(self, timeout_cycles):
        while self._loses(packet := self.transport.receive(timeout_cycles)):
            pass
        return packet

    def close(self):
        self.transport.close()


@contextlib.contextmanager
def opened(nodes, *, seed=0, latency=16, timeout=20_000, patience=200_000):
    """Open a ring that rank 0 drives with messages; yield the ring, its simulation, the message hub and rank 0's
    transport."""
    with OpenRing([rings.library(CONFIG)] * nodes) as ring:
        for link in ring.simulation.links:
            link.set_latency(data=latency, credit=latency)
        way = Losing(ring.transports[0], seed=seed)
        hub = MessageHub(way, nodes=nodes)
        devices = [Device(transport, CONFIG, name=f"node {rank}", timeout=patience)
                   for rank, transport in enumerate(hub.transports)]
        devices[0].write_register("SLOT_POSITION", place_of(nodes))
        connected = Ring(devices, timeout=timeout)
        connected.connect()
        yield connected, ring.simulation, hub, way


def update(ring, reference, generator, length):
    gradients = random(generator, (ring.nodes, length))
    ring.memory.write_gradients(list(gradients))
    ring.collectives.fused_update(length)
    reference.step(gradients, SETTINGS)
    reference.compare()


def test_driver():
    """Requests and answers of one or several messages work on all ranks, and so do errors and waits that expire."""
    generator = np.random.default_rng(2)
    with opened(4) as (ring, simulation, hub, _):
        words = generator.integers(0, 1 << 32, 200, np.uint64).astype(np.uint32)
        for device in ring.devices:
            for count in (0, 1, 62, 63, 64):
                assert (device.ping(words[:count]) == words[:count]).all()
            for count in (1, 62, 63, 200):
                begun = simulation.cycle
                device.write_memory(Space.GRADIENT, 100, words[:count])
                between = simulation.cycle
                assert (device.read_memory(Space.GRADIENT, 100, count) == words[:count]).all()
                print(f"{device.name}: {count} words in {between - begun:,} cycles, "
                      f"back in {simulation.cycle - between:,}")
            assert device.counters()["PACKETS_REFUSED"] == 0
            with pytest.raises(BadAddressError, match="of gradient memory"):
                device.read_memory(Space.GRADIENT, 16_300, 100)
            with pytest.raises(BadAddressError, match="after 62 words were written" if device.name != "node 0"
                               else "after 0 words were written"):
                device.write_memory(Space.GRADIENT, 16_384 - 70, words[:100])
            wrong = device._submit(Opcode.READ_REGISTER, "a read of nothing", count=0, words=[], answer=0)
            device.complete(wrong)
            assert isinstance(wrong.error, BadLengthError)
            begun = simulation.cycle
            assert device.pop_event(timeout=10_000) is None
            assert 10_000 <= simulation.cycle - begun < 16_000
        assert hub.repeated == 0


@pytest.mark.parametrize(("nodes", "rate"), [(3, .15), (2, .25)])
def test_lost(nodes, rate):
    """Although messages are lost in both directions, all bits are correct and no command runs twice."""
    generator = np.random.default_rng(nodes)
    with opened(nodes, seed=nodes) as (ring, _, hub, way):
        weights = random(generator, 700)
        ring.collectives.distribute(weights)
        ring.settings.write(SETTINGS)
        reference = Reference(ring, weights)
        before = [device.read_register("WEIGHT_VERSION") for device in ring.devices]
        way.rate = rate
        for _ in range(2):
            update(ring, reference, generator, 700)
        for _ in range(6):
            ring.collectives.quiesce()
        way.rate = 0
        assert [device.read_register("WEIGHT_VERSION") - old for device, old in zip(ring.devices, before, strict=True)
                ] == [2] * nodes
        assert all(device.pop_event(timeout=100) is None for device in ring.devices)
        print(f"{way.lost} messages were lost, {hub.repeated} went again")
        assert hub.repeated > 10 < way.lost


def test_faults():
    """The ring recovers from damaged packets and control words, and from a time without any messages."""
    generator = np.random.default_rng(11)
    with opened(3, patience=60_000) as (ring, simulation, hub, way):
        gradients = random(generator, (3, 2560))
        expected = golden.all_reduce(golden.bits(gradients))[0]

        def right():
            ring.memory.write_gradients(list(gradients))
            ring.collectives.all_reduce(2560)
            assert (ring.memory.read_gradients(2560).view(np.uint32) == expected).all()

        for number in range(3):
            ring.memory.write_gradients(list(gradients))
            pending = ring.collectives.submit(Operation.ALL_REDUCE, 2560)
            link = simulation.links[number]
            word = await_packet(simulation, link)
            if number < 2:
                link.corrupt(word=word, bit=number)
                with pytest.raises(RingError, match=rf"node {number + 1}: .* ended with ") as caught:
                    pending.result()
                assert EventStatus.BAD_CRC in [event.status for event in caught.value.events]
            else:
                ring.recover()
                with pytest.raises(RingError, match="was recovered before"):
                    pending.result()
            right()
        before = hub.repeated
        for number, link in enumerate(simulation.links):
            link.set_faults(RandomFaults(rate=2e-3, seed=number))
        for device in ring.devices[1:] * 10:
            words = generator.integers(0, 1 << 32, 62, np.uint64).astype(np.uint32)
            device.write_memory(Space.GRADIENT, 0, words)
            assert (device.read_memory(Space.GRADIENT, 0, 62) == words).all()
        simulation.set_faults(None)
        assert hub.repeated > before
        ring.recover()
        right()
        way.rate = 1
        with pytest.raises(NoAnswerError, match=r"^node 2: a ping of 1 words was refused with NO_ANSWER; check"):
            ring.devices[2].ping(np.ones(1, np.uint32))
        way.rate = 0
        right()


def test_cycles():
    """Messages over seven hops take the predicted cycles, at most 1,700, although one node starts late."""
    with open_nodes() as (ring, simulation):
        run = beside_updates(ring, simulation, updates=1, length=16_384, seed=1)
    print(f"messages take {sorted(run.taken)} cycles, the update {run.updates}, superframes {run.superframes}")
    assert run.restarts == 0
    assert len(run.taken) > 20
    assert max(run.taken) <= MOST


def test_training(train, monkeypatch):
    """With ``--transport messages``, a job's weights match the golden model after every step."""
    monkeypatch.setattr(preparation, "NodeConfig", lambda **options: CONFIG)
    monkeypatch.setattr(verilated, "build_ring", build_ring)
    _, result = train("--nodes", 3, "--steps", 2, "--hidden", "none", "--batch", 200, "--links", "slots",
                      "--transport", "messages", "--optimizer", "sgd", "--threads", 1)
    assert (result["links"], result["transport"], result["bit_exact"]) == ("slots", "messages", True)
    assert result["configuration"]["link"]["messages"]


def test_session():
    with pytest.raises(ValueError, match=r"^Nodes for transport messages must be two or more, and have messages$"), \
            open_session(CONFIG, nodes=1, transport=TransportName.MESSAGES):
        pass
