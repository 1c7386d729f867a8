"""Tests of a ring's collective engines: rejections, restarts, settings and cycles (hdl/ring/collective.py).

tests/host/driver/test_ring.py checks values, words and counts of all operations on the same simulation.
"""

import itertools

import numpy as np
import pytest

from hdl.config import NodeConfig
from hdl.control.protocol import EventStatus, Operation
from host.driver.command import Command
from host.driver.device import Device
from host.driver.optimizer_settings import Rule, Settings
from host.driver.ring import Ring
from host.transports.verilated import open_ring
from sim.golden import ring as golden

CONFIG = NodeConfig()
TIMEOUT = 5000
#: Sequence numbers of collectives that tests push without the driver.
NUMBERS = itertools.count(1000)


@pytest.fixture(scope="module")
def opened():
    """Three nodes with timeouts that are short enough for tests."""
    with open_ring(CONFIG, nodes=3) as opened:
        devices = [Device(transport, CONFIG, name=f"node {rank}") for rank, transport in enumerate(opened.transports)]
        ring = Ring(devices, timeout=TIMEOUT)
        ring.connect()
        yield ring, opened.simulation


def push(ring, *, length=600, operation=Operation.ALL_REDUCE, each=None, **fields):
    """Push a command to every node, with different fields for some nodes, and return the events."""
    nodes = len(ring.devices)
    commands, number = {}, next(NUMBERS)
    for rank in range(nodes):
        options = {"operation": operation, "rank": rank, "size": nodes, "length": length, "collective": number,
                   **fields}
        options.update((each or {}).get(rank, {}))
        commands[rank] = Command(**options)
    for rank, device in enumerate(ring.devices):
        device.push(commands[rank])
    return [device.pop_event(20 * TIMEOUT) for device in ring.devices]


def statuses(events):
    return [event.status for event in events]


def check_usable(ring, *, epoch, **fields):
    nodes = len(ring.devices)
    gradients = np.arange(nodes * 600, dtype=np.float32).reshape(nodes, 600)
    ring.memory.write_gradients(list(gradients))
    assert statuses(push(ring, epoch=epoch, **fields)) == [EventStatus.OK] * nodes
    expected = golden.all_reduce(golden.bits(gradients))[0]
    assert (ring.memory.read_gradients(600).view(np.uint32) == expected).all()


class TestRefusal:
    """A node rejects a wrong packet, the other nodes abort as well, and the next command works."""

    @pytest.mark.parametrize(
        ("status", "field", "value"),
        [
            (EventStatus.WRONG_COLLECTIVE, "collective", 8),
            (EventStatus.WRONG_SEQUENCE, "epoch", 3),
            (EventStatus.WRONG_LENGTH, "length", 596),
            (EventStatus.WRONG_CODEC, "operation", Operation.ALL_GATHER),
            (EventStatus.BAD_RANK, "size", 17),
            (EventStatus.BAD_BASE, "gradient_base", 16),
            (EventStatus.BAD_BASE, "gradient_base", 1 << 20),
            (EventStatus.BAD_LENGTH, "length", 16385),
            (EventStatus.UNKNOWN_OPERATION, "operation", 99),
        ],
    )
    def test_one_node_differs(self, opened, status, field, value):
        ring, _ = opened
        ring.memory.write_gradients(list(np.ones((3, 600), dtype=np.float32)))
        events = push(ring, epoch=2, collective=7, each={1: {field: value}})
        actual = statuses(events)
        assert EventStatus.OK not in actual
        if status in (EventStatus.BAD_RANK, EventStatus.BAD_BASE, EventStatus.BAD_LENGTH,
                      EventStatus.UNKNOWN_OPERATION):
            # This node never takes part in the collective, so its neighbours wait until they time out.
            assert actual[1] == status
            assert {actual[0], actual[2]} <= {
                EventStatus.INGRESS_TIMEOUT, EventStatus.EGRESS_TIMEOUT, EventStatus.PEER_ABORT}
            ring.recover()
        elif field == "epoch":
            # A node that is already in a later epoch treats packets of this epoch as old.
            assert set(actual) <= {EventStatus.WRONG_SEQUENCE, EventStatus.PEER_ABORT, EventStatus.INGRESS_TIMEOUT,
                                   EventStatus.EGRESS_TIMEOUT}
            ring.recover()
        else:
            # Either node 1 rejects node 0's packet or node 2 rejects node 1's packet, whichever happens first.
            assert status in actual
            assert set(actual) <= {status, EventStatus.WRONG_BLOCK, EventStatus.PEER_ABORT}
        check_usable(ring, epoch=4, collective=9)

    def test_wrong_block(self, opened):
        ring, _ = opened
        events = push(ring, epoch=2, each={0: {"rank": 1}, 1: {"rank": 0}})
        assert {EventStatus.WRONG_SOURCE} <= set(statuses(events)) <= {
            EventStatus.WRONG_SOURCE, EventStatus.WRONG_BLOCK, EventStatus.PEER_ABORT}
        check_usable(ring, epoch=3)

    @pytest.mark.parametrize("word", [0, 1, 2, 40, 270, 1000])
    def test_damaged_word(self, opened, word):
        """Wherever the damage is, every node reports an error, and nothing of the damaged segment is stored."""
        ring, simulation = opened
        gradients = np.ones((3, 2000), dtype=np.float32)
        ring.memory.write_gradients(list(gradients))
        link = simulation.links[0]
        link.corrupt(word=link.status().words_carried + word, bit=word % 32)
        events = push(ring, length=2000, epoch=2)
        assert statuses(events)[1] == EventStatus.BAD_CRC
        assert EventStatus.OK not in statuses(events)
        assert set(np.unique(ring.memory.read_gradients(2000))) <= {1.0, 3.0}
        check_usable(ring, epoch=3)

    @pytest.mark.parametrize("word", [238, *range(616, 868, 36)])
    def test_queued_behind_damage(self, opened, word):
        """If damage ends a command, the queued command of the next epoch is not affected, even if a node receives an
        ABORT without a truncated packet before it, or packets immediately after an ABORT."""
        ring, simulation = opened
        gradients = np.random.default_rng(word).standard_normal((3, 1200)).astype(np.float32)
        ring.memory.write_gradients(list(gradients))
        link = simulation.links[0]
        link.corrupt(word=link.status().words_carried + word, bit=3)
        for rank, device in enumerate(ring.devices):
            for epoch, base in ((10, 0), (11, 608)):
                device.push(Command(operation=Operation.ALL_REDUCE, rank=rank, size=3, length=592, epoch=epoch,
                                    collective=epoch, gradient_base=base))
        events = [[device.pop_event(20 * TIMEOUT) for device in ring.devices] for _ in range(2)]
        assert set(statuses(events[0])) == {EventStatus.BAD_CRC, EventStatus.PEER_ABORT}
        assert statuses(events[1]) == [EventStatus.OK] * 3
        expected = golden.all_reduce(golden.bits(gradients[:, 608:1200]))[0]
        assert (ring.memory.read_gradients(1200)[:, 608:].view(np.uint32) == expected).all()

    def test_random_damage_never_hangs_nor_corrupts(self, opened):
        ring, simulation = opened
        generator = np.random.default_rng(11)
        gradients = generator.standard_normal((3, 1500)).astype(np.float32)
        total = golden.all_reduce(golden.bits(gradients))[0]
        for seed in range(25):
            ring.memory.write_gradients(list(gradients))
            link = simulation.links[generator.integers(0, 3)]
            word = link.status().words_carried + int(generator.integers(0, 2000))
            link.corrupt(word=word, bit=int(generator.integers(0, 33)))
            events = push(ring, length=1500, epoch=2 * seed)
            actual = ring.memory.read_gradients(1500).view(np.uint32)
            own = golden.bits(gradients)
            assert ((actual == own) | (actual == total)).all(), f"round {seed}"
            assert EventStatus.OK not in statuses(events), f"round {seed}"
            ring.recover()
            check_usable(ring, epoch=2 * seed + 1)


class TestLinkReset:
    def test_at_any_time(self, opened):
        """A command ends with LINK_RESET if the links are reset at any point of its execution."""
        ring, simulation = opened
        device = ring.devices[0]
        for delay in range(0, 120, 3):
            device.push(Command(operation=Operation.ALL_REDUCE, rank=0, size=3, length=600, epoch=1))
            simulation.run(delay)
            device.write_register("CONTROL", 1)
            event = device.pop_event(1000)
            assert event is not None, f"after {delay} cycles"
            assert event.status == EventStatus.LINK_RESET, f"after {delay} cycles"
            ring.recover()
        check_usable(ring, epoch=2)


class TestAlone:
    def test_has_nobody_to_wait_for(self):
        """A ring of one node sends nothing on its links and may run longer than the timeout."""
        length = 1300
        with open_ring(CONFIG, nodes=1) as opened:
            ring = Ring([Device(opened.transports[0], CONFIG)], timeout=500)
            ring.connect()
            gradients = np.random.default_rng(5).standard_normal(length).astype(np.float32)
            ring.memory.write_gradients([gradients])
            (device,) = ring.devices
            device.push(Command(operation=Operation.ALL_REDUCE, rank=0, size=1, length=length, collective=1))
            event = device.pop_event(20 * TIMEOUT)
            assert (event.status, event.detail) == (EventStatus.OK, 0)
            assert event.cycles > 2 * 500
            # Sums are not weights, but writing any result to the weight memory counts as a new weight version.
            version = event.weight_version
            for number, (operation, new) in enumerate((
                    (Operation.REDUCE_SCATTER, 0), (Operation.ALL_GATHER, 1), (Operation.BROADCAST, 1),
                    (Operation.ALL_REDUCE, 0)), 2):
                device.push(Command(operation=operation, rank=0, size=1, length=32, collective=number))
                event = device.pop_event(20 * TIMEOUT)
                version += new
                assert (event.status, event.weight_version) == (EventStatus.OK, version), operation
            assert (ring.memory.read_gradients(length).view(np.uint32) == golden.bits(gradients)).all()


class TestTime:
    def test_nodes_start_at_any_time(self, opened):
        """Nodes may receive a command at very different times; early packets wait at the link."""
        ring, simulation = opened
        generator = np.random.default_rng(4)
        gradients = generator.standard_normal((3, 1000)).astype(np.float32)
        expected = golden.all_reduce(golden.bits(gradients))[0]
        for _ in range(6):
            ring.memory.write_gradients(list(gradients))
            number = next(NUMBERS)
            for rank in generator.permutation(3):
                simulation.run(int(generator.integers(0, 1500)))
                ring.devices[rank].push(
                    Command(operation=Operation.ALL_REDUCE, rank=int(rank), size=3, length=1000, epoch=1,
                            collective=number))
            events = [device.pop_event(20 * TIMEOUT) for device in ring.devices]
            assert statuses(events) == [EventStatus.OK] * 3
            assert (ring.memory.read_gradients(1000).view(np.uint32) == expected).all()

    @pytest.mark.parametrize("rates", [(1, 2, 3), (7, 1, 1)])
    def test_slow_links(self, opened, rates):
        ring, simulation = opened
        gradients = np.random.default_rng(8).standard_normal((3, 1000)).astype(np.float32)
        ring.memory.write_gradients(list(gradients))
        for link, rate in zip(simulation.links, rates, strict=True):
            link.set_rate(1, rate)
        events = push(ring, length=1000, epoch=1)
        for link in simulation.links:
            link.set_rate(1, 1)
        assert statuses(events) == [EventStatus.OK] * 3
        expected = golden.all_reduce(golden.bits(gradients))[0]
        assert (ring.memory.read_gradients(1000).view(np.uint32) == expected).all()
        assert max(event.cycles for event in events) > 1300 * max(rates)

    def test_settings_are_sampled_at_the_start(self, opened):
        """Changing the learning rate does not affect a running command."""
        ring, simulation = opened
        ring.settings.write(Settings(rule=Rule.SGD, gradient_scale=1, learning_rate=1))
        ring.memory.write_gradients(list(np.ones((3, 3000), dtype=np.float32)))
        ring.memory.write_weights(np.zeros(3000, dtype=np.float32))
        number = next(NUMBERS)
        for rank, device in enumerate(ring.devices):
            device.push(Command(operation=Operation.FUSED_UPDATE, rank=rank, size=3, length=3000, epoch=1,
                                collective=number))
        simulation.run(500)
        for device in ring.devices:
            device.write_register("LEARNING_RATE", 100.0)
        events = [device.pop_event(20 * TIMEOUT) for device in ring.devices]
        assert statuses(events) == [EventStatus.OK] * 3
        assert (ring.memory.read_weights(3000) == -3.0).all()


class TestCycles:
    """The measured cycles are within the stated ratios of the link-cycle bound (docs/ring/collective/figures.md)."""

    @pytest.mark.parametrize("nodes", [2, 4, 8])
    def test_long_vectors(self, nodes):
        length = 16384
        generator = np.random.default_rng(nodes)
        with open_ring(CONFIG, nodes=nodes) as opened:
            devices = [Device(transport, CONFIG) for transport in opened.transports]
            ring = Ring(devices, timeout=TIMEOUT)
            ring.connect()
            ring.settings.write(Settings(rule=Rule.SGD, gradient_scale=1, learning_rate=1))
            for density, most in ((1.0, 1.05), (0.1, 1.10)):
                mask = generator.random(length) < density
                gradients = np.where(mask, generator.standard_normal((nodes, length)), 0).astype(np.float32)
                weights = np.zeros(length, dtype=np.float32)
                plain = golden.all_reduce(golden.bits(gradients))[1]
                gather = (nodes - 1) * -(-length // nodes)
                for operation, bound in (
                    (ring.collectives.all_reduce, plain.bound),
                    (ring.collectives.fused_update, plain.scatter_bound + gather),
                ):
                    ring.memory.write_gradients(list(gradients))
                    ring.memory.write_weights(weights)
                    outcome = operation(length)
                    assert outcome.cycles <= most * bound, f"{operation.__name__} at density {density}"
