"""Gradient codecs on simulated rings, where each hop decodes, adds and encodes: values, words, cycles, residuals."""

import functools

import numpy as np
import pytest

from hdl.config import NodeConfig
from hdl.control.protocol import EventStatus, Operation, Space
from host.driver.command import Command
from host.driver.device import Device
from host.driver.diagnosis import RingError
from host.driver.errors import BadAddressError
from host.driver.optimizer_settings import Rule, Settings
from host.driver.ring import Ring
from host.features.codebook.codebooks import codebook
from host.labs.bench.bench import update_bound
from host.models.digits import digits
from host.training.record import TrainingConfig
from host.training.trainer import train
from sim.golden import ring as golden
from sim.golden.codecs import GRADIENT_CODECS, WEIGHT_CODECS
from sim.golden.ring import block_indices
from tests.host import rings
from tests.host.rings import TIMEOUT, random
from tests.refusals import refuses

RAW, BOTH, WIDE = (rings.CONFIGS[name] for name in ("centroid", "mx9", "table"))
RESIDUALS = BOTH.memory_map["residuals"].number
CONFIGS = [RAW, BOTH, WIDE]
SETTINGS = Settings(rule=Rule.SGD, gradient_scale=0.25, learning_rate=0.5)


open_nodes = functools.partial(rings.open_nodes, config=BOTH)


class Reference(rings.Reference):
    """Golden reference with random weights, which are also written to all nodes."""

    def __init__(self, ring, length, *, seed=1):
        self.generator = np.random.default_rng(seed)
        weights = random(self.generator, length)
        super().__init__(ring, weights)
        ring.collectives.distribute(weights)
        ring.settings.write(SETTINGS)

    def gradients(self, *, density=0.8):
        """Draw new random gradients and write them to the nodes."""
        gradients = random(self.generator, self.errors.shape, density=density)
        self.ring.memory.write_gradients(list(gradients))
        return golden.bits(gradients)

    def update(self, gradients):
        return self.step(golden.floats(gradients), SETTINGS)

    def sum(self, operation, gradients):
        codec = GRADIENT_CODECS[self.ring.formats.gradient_codec]
        return operation(gradients, residuals=self.residuals, gradient_codec=codec, segment=self.ring.formats.segment,
                         lanes=self.ring.formats.lanes)

    def check_update(self, message="", *, density=0.8):
        """Run an update with new gradients on the ring and in the model; return the result, and the traffic in the
        model."""
        gradients = self.gradients(density=density)
        outcome = self.ring.collectives.fused_update(len(self.master))
        traffic = self.update(gradients)
        self.compare(message)
        return outcome, traffic

    def check_sum(self, name, message):
        """Sum new gradients on the ring and in the model, and return the traffic."""
        gradients = self.gradients()
        getattr(self.ring.collectives, name)(len(self.master))
        total, traffic = self.sum(getattr(golden, name), gradients)
        assert (self.ring.memory.read_gradients(len(self.master)).view(np.uint32) == total).all(), message
        self.compare_residuals(message)
        return traffic


def check_usable(ring, message, *, length=600):
    Reference(ring, length).check_update(message)


class TestValues:
    @pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.gradients)
    @pytest.mark.parametrize("nodes", [1, 2, 3, 4])
    def test_every_operation(self, config, nodes):
        """Each operation adds the residuals that the previous operation left."""
        with open_nodes(nodes, config=config) as (ring, _):
            for length in (0, 1, 31, 33, 700, 1300):
                reference = Reference(ring, length, seed=nodes * 10_000 + length)
                for step in (1, 2):
                    message = f"{length} elements, step {step}"
                    ring.counters.clear()
                    _, traffic = reference.check_update(message)
                    assert [node["WORDS_SENT"] for node in ring.counters.read()] == traffic.words.tolist(), message
                for name in ("all_reduce", "reduce_scatter"):
                    message = f"{length} elements, {name}"
                    ring.counters.clear()
                    traffic = reference.check_sum(name, message)
                    assert [node["WORDS_SENT"] for node in ring.counters.read()] == traffic.words.tolist(), message

    @pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.gradients)
    def test_not_finite(self, config):
        """Non-finite gradients are reported. Residuals stay finite, so the next sum is correct."""
        length = 700
        with open_nodes(3, config=config) as (ring, _):
            for operation in ("fused_update", "all_reduce", "reduce_scatter"):
                reference = Reference(ring, length)
                gradients = golden.floats(reference.gradients())
                gradients[0, [3, 200]] = np.nan, np.inf
                gradients[1, [300, 301, 302]] = 3e38, -np.inf, -0.0
                gradients[2, [300, 450, 650]] = 3e38, 3e38, 1e-45
                ring.memory.write_gradients(list(gradients))
                outcome = getattr(ring.collectives, operation)(length)
                assert outcome.local_nan == (0,)
                assert outcome.not_finite
                if operation == "fused_update":
                    reference.update(golden.bits(gradients))
                else:
                    total, _ = reference.sum(getattr(golden, operation), golden.bits(gradients))
                    assert (ring.memory.read_gradients(length).view(np.uint32) == total).all()
                reference.compare_residuals(operation)
                gradients = reference.gradients()
                ring.collectives.all_reduce(length)
                total, _ = reference.sum(golden.all_reduce, gradients)
                assert np.isfinite(golden.floats(total)).all()
                assert (ring.memory.read_gradients(length).view(np.uint32) == total).all()

    def test_bases(self):
        """Residuals have the same addresses as their gradients."""
        length, base = 600, 96
        with open_nodes(2) as (ring, _):
            reference = Reference(ring, length)
            gradients = reference.gradients()
            for rank, device in enumerate(ring.devices):
                device.write_memory(Space.GRADIENT, base, gradients[rank])
                device.write_memory(RESIDUALS, base, np.zeros(length, np.uint32))
                device.push(Command(operation=Operation.ALL_REDUCE, rank=rank, size=2, length=length, epoch=1,
                                    collective=1000, gradient_base=base))
            assert [device.pop_event(20 * TIMEOUT).status for device in ring.devices] == [EventStatus.OK] * 2
            total, _ = reference.sum(golden.all_reduce, gradients)
            for rank, device in enumerate(ring.devices):
                assert (device.read_memory(Space.GRADIENT, base, length) == total).all()
                actual = device.read_memory(RESIDUALS, base, length)
                assert (actual == reference.residuals[rank]).all()

    @pytest.mark.parametrize("config", [RAW, BOTH], ids=lambda config: config.gradients)
    def test_other_operations(self, config):
        """A broadcast does not change weights; an all-gather uses the weight codec."""
        length = 700
        weights = random(np.random.default_rng(5), (3, length))
        with open_nodes(3, config=config) as (ring, _):
            ring.memory.write_weights_of(list(weights))
            ring.collectives.broadcast(length, root=1)
            assert (ring.memory.read_weights(length) == weights[1]).all()
            ring.memory.write_weights_of(list(weights))
            codec = WEIGHT_CODECS[config.weights.codec]
            if ring.formats.has_codebook:
                centroids = codebook(config.weights.codec, weights.ravel())
                ring.memory.write_codebook(centroids)
                codec = codec.bind(centroids)
            ring.collectives.all_gather(length)
            gathered, _ = golden.all_gather(golden.bits(weights), weight_codec=codec, segment=config.segment)
            assert (ring.memory.read_weights(length).view(np.uint32) == gathered).all()


def test_counts_of_units():
    """Counters have the expected values. For each of a block's four segments, three nodes send sums and the optimizer
    computes the last sum."""
    nodes, length = 4, 4096
    names = ("ENCODES", "COMPRESSED_ADDS", "DECODES", "OPTIMIZER_BURSTS", "PACKETS_SENT", "WORDS_SENT",
             "COMPRESSED_WORDS", "ELEMENTS_ENCODED", "POSITIONS_ADDED")
    with open_nodes(nodes) as (ring, _):
        reference = Reference(ring, length)
        for operation, expected in (
                ("fused_update", (12, 8, 12, 4, 24, 24 * 76, 12 * 72, 3072, 0)),
                ("all_reduce", (16, 12, 24, 0, 24, 24 * 76, 24 * 72, 4096, 0)),
                ("reduce_scatter", (12, 12, 12, 0, 12, 12 * 76, 12 * 72, 3072, 0))):
            reference.gradients()
            ring.counters.clear()
            getattr(ring.collectives, operation)(length)
            for counters in ring.counters.read():
                assert tuple(counters[name] for name in names) == expected, operation


class TestTiming:
    def test_same_bits_for_any_threads_and_latency(self):
        results = []
        for threads, latency in [(1, 16), (2, 16), (2, 1), (1, 90)]:
            with open_nodes(4, threads=threads, latency=latency) as (ring, _):
                outcome, _ = Reference(ring, 1000).check_update(f"{threads} threads, latency {latency}")
                results.append(outcome.cycles)
        assert results[0] == results[1]
        assert results[2] < results[0] < results[3]

    @pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.gradients)
    @pytest.mark.parametrize("rates", [(1, 2, 3), (7, 1, 1)])
    def test_slow_links(self, config, rates):
        """Words may arrive one at a time and at any interval, even in a packet with only one block of elements."""
        with open_nodes(3, config=config) as (ring, simulation):
            for link, rate in zip(simulation.links, rates, strict=True):
                link.set_rate(1, rate)
            for length in (40, 96, 2000):
                reference = Reference(ring, length)
                reference.check_update(f"{length} elements")
                for name in ("all_reduce", "reduce_scatter"):
                    reference.check_sum(name, f"{length} elements, {name}")

    def test_nodes_start_at_any_time(self):
        generator = np.random.default_rng(4)
        with open_nodes(3) as (ring, simulation):
            for seed in range(6):
                reference = Reference(ring, 1500, seed=seed)
                gradients = reference.gradients()
                operation, add = [(Operation.FUSED_UPDATE, None), (Operation.ALL_REDUCE, golden.all_reduce),
                                  (Operation.REDUCE_SCATTER, golden.reduce_scatter)][seed % 3]
                for rank in generator.permutation(3).tolist():
                    simulation.run(int(generator.integers(0, 1500)))
                    ring.devices[rank].push(Command(operation=operation, rank=rank, size=3, length=1500, epoch=1,
                                                    collective=1000 + seed))
                events = [device.pop_event(20 * TIMEOUT) for device in ring.devices]
                assert [event.status for event in events] == [EventStatus.OK] * 3, f"{seed=}"
                if add is None:
                    reference.update(gradients)
                else:
                    total, _ = reference.sum(add, gradients)
                    assert (ring.memory.read_gradients(1500).view(np.uint32) == total).all(), f"{seed=}"
                reference.compare(f"{seed=}")

    @pytest.mark.parametrize(("nodes", "ratio"), [(2, 1.08), (4, 1.20)])
    def test_cycles(self, nodes, ratio):
        """Updating a long vector takes only a few more cycles than its weights and gradients have words. With two
        nodes, the bottleneck is the optimizer, which computes one weight per cycle."""
        length = 16384
        with open_nodes(nodes) as (ring, _):
            outcome, traffic = Reference(ring, length).check_update(density=1)
            assert traffic.bound == (nodes - 1) * 64 // nodes * (72 + 72)
            assert outcome.cycles <= ratio * update_bound(ring, traffic, length)


class TestResiduals:
    def test_memory(self):
        """The residual memory is as long as the gradient memory; only the trace memory follows it."""
        with open_nodes(1) as (ring, _):
            device, space = ring.devices[0], RESIDUALS
            assert space == Space.STATE + BOTH.memories.planes + 1
            device.write_memory(space, BOTH.memories.gradient - 2, np.array([1, 2], np.uint32))
            assert device.read_memory(space, BOTH.memories.gradient - 2, 2).tolist() == [1, 2]
            assert space == BOTH.memory_map["trace"].number - 1
            for outside, address in ((space, BOTH.memories.gradient - 1), (len(BOTH.memory_map), 0)):
                with pytest.raises(BadAddressError):
                    device.read_memory(outside, address, 2)

    def test_cleared(self):
        with open_nodes(2) as (ring, _):
            for device in ring.devices:
                device.write_memory(RESIDUALS, 0, np.full(100, 0x7FC0_0000, np.uint32))
            ring.memory.clear_residual(60)
            residual = ring.memory.read_residual(100)
            assert not residual[:, :60].any()
            assert np.isnan(residual[:, 60:]).all()
            ring.collectives.distribute(np.ones(100, np.float32))
            assert not ring.memory.read_residual(100).any()
            assert (ring.memory.read_weights(100) == 1).all()

    def test_added_as_they_are(self):
        """Residuals that the host writes are added to the next sum, except for the owner's, which only the optimizer
        reads."""
        length = 500
        with open_nodes(2) as (ring, _):
            reference = Reference(ring, length)
            reference.residuals[...] = golden.bits(random(reference.generator, (2, length)))
            before = reference.residuals.copy()
            for rank, device in enumerate(ring.devices):
                device.write_memory(RESIDUALS, 0, reference.residuals[rank])
            reference.check_update()
            for rank in range(2):
                owned = block_indices(length, 2)[1 - rank]
                assert (reference.residuals[rank, owned] == before[rank, owned]).all()

    @pytest.mark.parametrize("name", ["zero_value", "raw"])
    def test_none_where_nothing_is_lost(self, name):
        ring = Ring([Device(None, NodeConfig(gradients=name))])
        for access in (ring.memory.read_residual, ring.memory.clear_residual):
            refuses(f"Nodes must have a gradient codec that loses something to have residuals, not {name}", access, 1)


class TestFailures:
    @pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.gradients)
    def test_random_damage_never_hangs(self, config):
        """After random damage, all weights and residuals have their old or new values, and the next command works."""
        generator = np.random.default_rng(11)
        length = 2000
        with open_nodes(3, config=config) as (ring, simulation):
            for number in range(8):
                reference = Reference(ring, length, seed=number)
                before = reference.weights
                gradients = reference.gradients()
                traffic = reference.update(gradients)
                rank = int(generator.integers(0, 3))
                link = simulation.links[rank]
                word = link.status().words_carried + int(generator.integers(0, traffic.words[rank]))
                link.corrupt(word=word, bit=int(generator.integers(0, 33)))
                with pytest.raises(RingError):
                    ring.collectives.fused_update(length)
                actual = ring.memory.read_weights(length).view(np.uint32)
                assert ((actual == before) | (actual == reference.weights)).all(), f"{number=}"
                if ring.formats.has_residual:
                    actual = ring.memory.read_residual(length).view(np.uint32)
                    assert ((actual == 0) | (actual == reference.residuals)).all(), f"{number=}"
                ring.recover()
                check_usable(ring, f"{number=}")

    def test_damaged_word(self):
        with open_nodes(2) as (ring, simulation):
            reference = Reference(ring, 512)
            reference.gradients()
            link = simulation.links[0]
            link.corrupt(word=link.status().words_carried + 20, bit=3)
            with pytest.raises(RingError, match=r"^fused-update failed: node 1: .* ended with BAD_CRC: "):
                ring.collectives.fused_update(512)
            ring.recover()
            check_usable(ring, "afterwards")

    def test_one_node_gathers(self):
        """If one node runs an all-gather instead of the update, it sends weights, and the command fails on every
        node.
        """
        with open_nodes(3, config=WIDE) as (ring, _):
            reference = Reference(ring, 600)
            reference.gradients()
            for rank, device in enumerate(ring.devices):
                operation = Operation.ALL_GATHER if rank == 1 else Operation.FUSED_UPDATE
                device.push(Command(operation=operation, rank=rank, size=3, length=600, epoch=2, collective=1000))
            statuses = {device.pop_event(20 * TIMEOUT).status for device in ring.devices}
            assert EventStatus.WRONG_CODEC in statuses
            assert EventStatus.OK not in statuses
            ring.recover()
            check_usable(ring, "afterwards")


def test_training():
    """In training, all nodes are bit-identical after every step, and the final residuals match the model."""
    with open_nodes(4, host_port=False) as (ring, _):
        training = train(ring, digits(), TrainingConfig(epochs=2))
    assert training.bit_exact is True
    assert training.measures[-1] >= 0.80
    assert sum(step.words_sent for step in training.steps) < 0.35 * sum(
        step.words_dense for step in training.steps)
