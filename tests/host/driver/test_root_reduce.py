"""Collectives in which one root owns all groups, on simulated rings: docs/ring/root_reduce.md."""

import dataclasses

import numpy as np
import pytest

from hdl.config import NodeConfig, Peer, RootReduce, Weights
from hdl.control.protocol import EventStatus, Operation
from host.driver.command import Command
from host.driver.diagnosis import RingError
from host.driver.memory import Allocation
from host.driver.optimizer_settings import Rule, Settings
from host.driver.partitioning import choose, link_rates
from host.training.optimizers import SGD
from sim.golden import ring as golden
from sim.golden import root_reduce
from tests.host.rings import CONFIGS, Reference, open_nodes, random
from tests.refusals import refuses

CONFIG = CONFIGS["engines"]
SEGMENT, STATE = CONFIG.segment, CONFIG.memories.state
PLAIN = Settings(rule=Rule.SGD, gradient_scale=0.5, learning_rate=0.25)


def slow_links(simulation, generator):
    """Set a random rate and latency on every link."""
    for link in simulation.links:
        link.set_rate(int(generator.integers(1, 5)), 4)
        latency = int(generator.integers(1, 40))
        link.set_latency(data=latency, credit=latency)


def test_configuration():
    assert NodeConfig().hash == NodeConfig(role=Peer()).hash != NodeConfig(role=RootReduce()).hash
    with pytest.raises(ValueError, match=r"^role RootReduce needs weights\.codec raw, since "):
        NodeConfig(role=RootReduce(), weights=Weights(codec="mx9"))
    with pytest.raises(ValueError, match=r"^roles RootReduce and Worker need gradients zero_value, since "):
        NodeConfig(role=RootReduce(), gradients="raw")


@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 16])
def test_values_and_words(nodes):
    """If a single root owns all blocks, weights, state, sums, words and bursts match the golden model for arbitrary
    lengths, roots, rates and latencies."""
    generator = np.random.default_rng(nodes)
    with open_nodes(nodes, config=CONFIG, host_port=False, timeout=40000) as (ring, simulation):
        for length in (0, 1, 33, SEGMENT, 3 * SEGMENT - 1, 4 * SEGMENT, 4 * SEGMENT + 1, STATE):
            owner = int(generator.integers(nodes))
            case = f"{length} elements, owner {owner} of {nodes}"
            slow_links(simulation, generator)
            gradients = random(generator, (nodes, length), density=generator.choice([0.05, 0.5, 1]))
            gradients[generator.random(gradients.shape) < 0.05] = -0.0
            ring.memory.write_gradients(list(gradients), length)
            ring.counters.clear()
            ring.collectives.all_reduce(length, owner=owner)
            if nodes > 1:
                total, traffic = root_reduce.all_reduce(golden.bits(gradients), owner, segment=SEGMENT)
            else:
                total, traffic = golden.all_reduce(golden.bits(gradients), segment=SEGMENT)
            assert (ring.memory.read_gradients(length).view(np.uint32) == total).all(), case
            assert [node["WORDS_SENT"] for node in ring.counters.read()] == traffic.words.tolist(), case
            weights = random(generator, length)
            ring.partition.set_root(owner)
            reference = Reference(ring, weights, planes=1)
            ring.memory.write_weights(weights, length)
            if length in (33, 4 * SEGMENT + 1):
                packed = bool(generator.integers(2))
                ring.memory.clear_state(length, packed_state=packed)
                for step in range(2):
                    settings = dataclasses.replace(Settings(**dataclasses.asdict(
                        SGD(learning_rate=0.1, momentum=0.5).settings(step + 1, gradient_scale=0.5))),
                        packed_state=packed)
                    ring.settings.write(settings)
                    ring.memory.write_gradients(list(gradients), length)
                    ring.counters.clear()
                    ring.collectives.fused_update(length)
                    traffic = reference.step(gradients, settings)
                    reference.compare(case)
                    counters = ring.counters.read()
                    assert [node["WORDS_SENT"] for node in counters] == traffic.words.tolist(), case
                    if nodes > 1:
                        assert [node["OPTIMIZER_BURSTS"] > 0 for node in counters] == [
                            rank == owner for rank in range(nodes)], case
                state = ring.memory.read_state(length, packed_state=packed).view(np.uint32)
                assert (state == reference.state[0]).all(), case
            ring.partition.set_root(None)


def test_queued():
    """Updates and sums of whole or partial vectors can be queued, even if the owner changes, some commands partition
    the groups, and nodes start at different times."""
    generator = np.random.default_rng(4)
    nodes, length = 4, 5 * SEGMENT
    with open_nodes(nodes, config=CONFIG, host_port=False, timeout=40000) as (ring, simulation):
        ring.settings.write(PLAIN)
        settings = golden.settings(Rule.SGD, gradient_scale=0.5, learning_rate=0.25)
        for seed in range(12):
            slow_links(simulation, generator)
            gradients, weights = random(generator, (nodes, length), density=0.7), random(generator, length)
            ring.memory.write_gradients(list(gradients))
            ring.memory.write_weights(weights)
            expected, sums, pending = golden.bits(weights), golden.bits(gradients), []
            for _ in range(6):
                owner = generator.choice([None, *range(nodes)])
                owner = None if owner is None else int(owner)
                operation = Operation(generator.choice([Operation.FUSED_UPDATE, Operation.ALL_REDUCE]))
                if operation == Operation.FUSED_UPDATE:
                    cut = 32 * int(generator.integers(0, length // 32 + 1))
                    pending += [
                        ring.collectives.submit(operation, length, owner=owner, first=first, length=last - first)
                        for first, last in ((0, cut), (cut, length))]
                    update = (golden.fused_update(sums, expected, [], settings) if owner is None else
                              root_reduce.fused_update(sums, expected, [], settings, owner))
                    expected = update.weights
                else:
                    pending.append(ring.collectives.submit(Operation.ALL_REDUCE, length, owner=owner))
                    total = golden.all_reduce(sums)[0] if owner is None else root_reduce.all_reduce(sums, owner)[0]
                    sums = np.stack([total] * nodes)
            ring.commands.wait(*pending)
            assert (ring.memory.read_weights(length).view(np.uint32) == expected).all(), seed
            assert (ring.memory.read_gradients(length).view(np.uint32) == sums).all(), seed


def push(ring, operation, *, collective, each=None, **fields):
    """Push a command to each node and return the status of each event."""
    for rank, device in enumerate(ring.devices):
        device.push(Command(operation=operation, **{
            "rank": rank, "size": ring.nodes, "collective": collective, "epoch": 77, "root_reduce": 1, **fields,
            **(each or {}).get(rank, {})}))
    return [device.pop_event(200_000).status for device in ring.devices]


def test_refused():
    """A root that does not exist, or lacks memory for the whole state, is rejected by both host and nodes."""
    with open_nodes(3, config=CONFIG, host_port=False) as (ring, _):
        ring.settings.write(SGD(learning_rate=0.1, momentum=0.5).settings(1, gradient_scale=0.5))
        for length, status in ((STATE + 32, EventStatus.BAD_LENGTH), (STATE, EventStatus.OK)):
            statuses = push(ring, Operation.FUSED_UPDATE, collective=length, length=length, root=1)
            assert statuses == [status] * 3
        # The same length fits if blocks are partitioned over three nodes. With SGD, which has no state, any length
        # fits.
        more = {"operation": Operation.FUSED_UPDATE, "length": STATE + 32}
        assert push(ring, collective=1, root_reduce=0, **more) == [EventStatus.OK] * 3
        ring.settings.write(PLAIN)
        assert push(ring, collective=2, root=2, **more) == [EventStatus.OK] * 3
        for operation, owned in ((Operation.FUSED_UPDATE, True), (Operation.ALL_REDUCE, True),
                                 (Operation.REDUCE_SCATTER, False), (Operation.ALL_GATHER, False)):
            statuses = push(ring, operation, collective=10 + operation, length=64, root=3)
            assert statuses == [EventStatus.BAD_RANK if owned else EventStatus.OK] * 3
        ring.recover()
        refuses("Owner must be a rank below 3, not 3", ring.collectives.fused_update, 64, owner=3)
        refuses("Owner of all groups must have room for their state, 544 words, not for 512: rank 1 cannot own them",
                ring.memory.move_state, 1, STATE + 32)
        refuses("Operation with an owner of all groups must be one of FUSED_UPDATE, ALL_REDUCE, not ALL_GATHER",
                ring.collectives.submit, Operation.ALL_GATHER, 64, owner=1)
        ring.partition.set_root(1)
        refuses("Groups must be dealt to all nodes for each to update its own, not to rank 1 alone",
                ring.collectives.submit_owned_update, 64)
        ring.partition.set_root(None)
        ring.settings.write(SGD(learning_rate=0.1, momentum=0.5).settings(1, gradient_scale=0.5))
        vector = ring.memory.allocate(Allocation(length=600, planes=1))
        refuses("State of a block must take at most the 216 words of its buffer, not 600",
                ring.collectives.fused_update, vector, owner=0)
    with open_nodes(2, config=CONFIGS["default"], host_port=False) as (ring, _):
        refuses("Nodes must have role RootReduce(), for one of them to own all groups", ring.collectives.all_reduce,
                64, owner=1)
        assert choose(ring, 16384, [0.25, 1]).root is None


def test_buffers():
    """A root's buffers have room for all state, which can be moved to another partitioning and back."""
    generator = np.random.default_rng(9)
    optimizer = SGD(learning_rate=0.1, momentum=0.5)
    with open_nodes(3, config=CONFIG, host_port=False) as (ring, _):
        length = 300
        ring.memory.allocate(Allocation(length=100, planes=1))  # words before the vector under test
        vector = ring.memory.allocate(Allocation(length=length, planes=1, root_reduce=True))
        weights = random(generator, length)
        reference = Reference(ring, weights, planes=1)
        ring.memory.write_weights(weights, vector)
        ring.memory.clear_state(vector)
        for step, owner in enumerate((None, 2, 2, 0, None, 1)):
            ring.memory.move_state(owner, vector)
            assert ring.partition.root == owner
            settings = optimizer.settings(step + 1, gradient_scale=0.5)
            gradients = random(generator, (3, length))
            ring.settings.write(settings)
            ring.memory.write_gradients(list(gradients), vector)
            ring.collectives.fused_update(vector)
            reference.step(gradients, settings)
            assert (ring.memory.read_weights(vector).view(np.uint32) == reference.weights).all(), step
            assert (ring.memory.read_state(vector).view(np.uint32) == reference.state[0]).all(), step
        assert ring.partition.owner(299, length) == 1


def test_training():
    """Two steps of a stateful optimizer with a single root match the reference."""
    generator = np.random.default_rng(11)
    with open_nodes(4, config=CONFIG, host_port=False) as (ring, _):
        ring.partition.set_root(3)
        reference = Reference(ring, random(generator, 400), planes=1)
        ring.memory.write_weights(golden.floats(reference.weights))
        ring.counters.clear()
        ring.memory.clear_state(400)
        settings = SGD(learning_rate=0.1, momentum=0.9, weight_decay=0.25)
        for step in (1, 2):
            gradients = random(generator, (4, 400))
            step_settings = settings.settings(step, gradient_scale=0.25)
            ring.settings.write(step_settings)
            ring.memory.write_gradients(list(gradients))
            ring.collectives.fused_update(400)
            reference.step(gradients, step_settings)
            reference.compare(f"step {step}")


class TestFaults:
    """After a fault on any link has ended a command early, the ring still works."""

    @pytest.mark.parametrize("link", range(4))
    def test_damage(self, link):
        generator = np.random.default_rng(link)
        length, nodes = 5 * SEGMENT, 4
        gradients = random(generator, (nodes, length))
        with open_nodes(nodes, config=CONFIG, host_port=False, timeout=3000) as (ring, simulation):
            for number in range(12):
                owner = int(generator.integers(nodes))
                ring.memory.write_gradients(list(gradients))
                damaged = simulation.links[link]
                carried = damaged.status().words_carried
                sent = root_reduce.all_reduce(golden.bits(gradients), owner, segment=SEGMENT)[1].words[link]
                damaged.corrupt(word=carried + int(generator.integers(sent)), bit=int(generator.integers(32)))
                pending = ring.collectives.submit(Operation.ALL_REDUCE, length, owner=owner)
                with pytest.raises(RingError):
                    pending.result()
                ring.recover()
                ring.memory.write_gradients(list(gradients))
                owner = (owner + 1) % nodes
                ring.collectives.all_reduce(length, owner=owner)
                expected = root_reduce.all_reduce(golden.bits(gradients), owner)[0]
                assert (ring.memory.read_gradients(length).view(np.uint32) == expected).all(), number

    def test_cut(self):
        generator = np.random.default_rng(5)
        length, nodes = 5 * SEGMENT, 4
        gradients = random(generator, (nodes, length))
        with open_nodes(nodes, config=CONFIG, host_port=False, timeout=1500) as (ring, simulation):
            for link in range(nodes):
                ring.memory.write_gradients(list(gradients))
                simulation.links[link].cut(simulation.cycle + int(generator.integers(300)))
                with pytest.raises(RingError):
                    ring.collectives.all_reduce(length, owner=2)
                simulation.links[link].cut(0, 0)
                ring.recover()
                ring.memory.write_gradients(list(gradients))
                ring.collectives.all_reduce(length, owner=2)
                expected = root_reduce.all_reduce(golden.bits(gradients), 2)[0]
                assert (ring.memory.read_gradients(length).view(np.uint32) == expected).all(), link

    def test_another_owner(self):
        """If the commands of a ring name different roots, nodes receive unexpected packets and compute no sum."""
        with open_nodes(3, config=CONFIG, host_port=False, timeout=3000) as (ring, _):
            statuses = push(ring, Operation.ALL_REDUCE, collective=5, length=600, root=0, each={1: {"root": 1}})
            assert EventStatus.OK not in statuses
            ring.recover()
            assert push(ring, Operation.ALL_REDUCE, collective=6, length=600, root=1) == [EventStatus.OK] * 3


class TestPartitioning:
    """Measuring the rates of links, and choosing a root accordingly."""

    @pytest.mark.parametrize("nodes", [1, 2, 4])
    def test_rates(self, nodes):
        with open_nodes(nodes, config=CONFIG, host_port=False, timeout=40000) as (ring, simulation):
            ring.memory.write_weights(np.arange(1000, dtype=np.float32))
            assert link_rates(ring) == pytest.approx((1.0,) * nodes, abs=0.02)
            if nodes == 1:
                assert choose(ring, 512, [1.0]).root is None
                return
            for rank, rate in ((0, (1, 2)), (nodes - 1, (1, 4)), (1, (3, 4))):
                simulation.links[rank].set_rate(*rate)
                measured = link_rates(ring)
                expected = [1.0] * nodes
                expected[rank] = rate[0] / rate[1]
                assert measured == pytest.approx(expected, abs=0.03), (rank, rate)
                simulation.links[rank].set_rate(1, 1)
            assert (ring.memory.read_weights(1000) == np.arange(1000)).all()

    def test_choice(self):
        with open_nodes(4, config=CONFIG, host_port=False) as (ring, _):
            rates = [1, 1, 0.5, 1]
            # A segment of 64 is short relative to the ring latency, so a single root pays off only with a slow link.
            partitioning = choose(ring, 2048, rates)
            assert partitioning.root == 2
            assert partitioning.gain > 0.05
            assert str(partitioning).startswith(
                "slowest link: from rank 2, 0.50 words per cycle; groups of rank 2 alone")
            assert choose(ring, 2048, rates, planes=1).root is None  # the root lacks memory for the whole state
            assert choose(ring, 2048, [1] * 4).root is None
            assert str(choose(ring, 2048, [1] * 4)).endswith("groups in turn")
