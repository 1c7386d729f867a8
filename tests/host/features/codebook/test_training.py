"""Test weights sent through tables and centroids that the host loads: values, words, loading and errors."""

import numpy as np
import pytest

from hdl.config import NodeConfig, Weights
from hdl.control.protocol import EventStatus, Operation, Space
from host.driver.command import Command
from host.driver.device import Device
from host.driver.diagnosis import RingError
from host.driver.optimizer_settings import Rule, Settings
from host.driver.ring import Ring
from host.features.codebook.codebooks import codebook, codebook_words
from host.models.digits import digits
from host.training.optimizers import SGD
from host.training.record import TrainingConfig
from host.training.trainer import train
from sim.golden import ring as golden
from sim.golden.codecs import WEIGHT_CODECS
from tests.host import rings
from tests.host.rings import TIMEOUT
from tests.refusals import refuses

CONFIGS = {"table32": rings.CONFIGS["table"], "centroid16": rings.CONFIGS["centroid"]}
SETTINGS = Settings(rule=Rule.SGD, gradient_scale=0.25, learning_rate=0.5)
both = pytest.mark.parametrize("name", ["table32", "centroid16"])


def open_nodes(name, nodes, **options):
    return rings.open_nodes(nodes, config=CONFIGS[name], **options)


def random(generator, shape):
    return 0.1 * rings.random(generator, shape)


class Reference(rings.Reference):
    """Expected state of a ring. If the weight codec is table32, the signs and exponents of weights must be exact."""

    def compare(self, message=""):
        super().compare(message)
        if self.ring.formats.weight_codec == "table32":
            actual = self.ring.memory.read_weights(len(self.master)).view(np.uint32)
            assert ((actual ^ self.master) >> 23 == 0).all(), message


def update(ring, reference, generator):
    """Run a fused update with random gradients, both on the ring and in the reference model."""
    length = len(reference.master)
    gradients = random(generator, (ring.nodes, length)) * (generator.random((ring.nodes, length)) < 0.6)
    ring.settings.write(SETTINGS)
    ring.memory.write_gradients(list(gradients))
    ring.counters.clear()
    ring.collectives.fused_update(length)
    traffic = reference.step(gradients, SETTINGS)
    reference.compare()
    assert [counters["WORDS_SENT"] for counters in ring.counters.read()] == traffic.words.tolist()


class TestValues:
    @both
    @pytest.mark.parametrize("nodes", [1, 2, 3, 4])
    def test_lengths(self, name, nodes):
        """With centroids fitted to the weights, values and words match the model for all lengths."""
        with open_nodes(name, nodes) as (ring, _):
            for length in (0, 1, 33, 500, 1000 if nodes > 1 else 512):
                generator = np.random.default_rng(100 * nodes + length)
                weights = random(generator, length)
                centroids = codebook(name, weights)
                assert ring.memory.write_codebook(centroids) == nodes * CONFIGS[name].codebook_words
                reference = Reference(ring, weights, centroids=centroids)
                ring.collectives.distribute(weights)
                reference.compare(f"{length=}")
                update(ring, reference, generator)

    @both
    def test_nothing_loaded(self, name):
        """Until a codebook is loaded, all centroids are zero, so every weight becomes zero or a power of two."""
        weights = random(np.random.default_rng(1), 300)
        with open_nodes(name, 2) as (ring, _):
            reference = Reference(ring, weights)
            ring.collectives.distribute(weights)
            reference.compare()
            actual = ring.memory.read_weights(300).view(np.uint32)
            assert ((actual & 0x7F_FFFF if name == "table32" else actual) == 0).all()
            update(ring, reference, np.random.default_rng(2))

    def test_numbers_of_all_kinds_through_tables(self):
        """Zeros and infinities are exact, subnormals do not become zero, and NaNs stay NaNs."""
        generator = np.random.default_rng(3)
        corners = np.array([0, 1, 0x7F_FFFF, 0x80_0000, 0x3F80_0000, 0x7F7F_FFFF, 0x7F80_0000, 0x7F80_0001,
                            0x7FC0_0000, 0x7FFF_FFFF], np.uint32)
        # Segments with only corner cases, with 64 different exponents, with one exponent, and with a few corner
        # cases.
        parts = [np.resize(np.concatenate([corners, corners | 0x8000_0000]), 64),
                 np.arange(40, 104, dtype=np.uint32) << 23 | generator.integers(0, 1 << 23, 64, dtype=np.uint32),
                 np.uint32(0x3F80_0000) | generator.integers(0, 1 << 23, 64, dtype=np.uint32),
                 np.where(np.arange(64) % 9, random(generator, 64).view(np.uint32), np.resize(corners, 64))]
        weights = np.concatenate([*parts, *parts[1:], parts[1][:50]]).astype(np.uint32).view(np.float32)
        centroids = codebook("table32", weights)
        for nodes in (1, 3):
            with open_nodes("table32", nodes) as (ring, _):
                ring.memory.write_codebook(centroids)
                ring.memory.write_master(weights)
                ring.memory.write_gradients([np.zeros(len(weights), np.uint32)] * nodes)
                settings = Settings(rule=Rule.SGD, gradient_scale=0, learning_rate=0)
                ring.settings.write(settings)
                ring.collectives.fused_update(len(weights))
                reference = Reference(ring, weights, centroids=centroids)
                reference.step(np.zeros((nodes, len(weights)), np.float32), settings)
                # The optimizer quiets NaNs; tables pass special values through unchanged.
                reference.compare(f"{nodes=}")
                decoded = ring.memory.read_weights(len(weights))[0]
                master = golden.floats(reference.master)
                assert (np.isnan(decoded) == np.isnan(master)).all()
                assert (np.isinf(decoded) == np.isinf(master)).all()
                assert ((decoded == 0) == (master == 0)).all()

    def test_numbers_of_all_kinds_through_centroids(self):
        """Infinities and NaNs map to the outermost centroids. Ties go to the lower centroid."""
        numbers = np.linspace(-2, 1.75, 16, dtype=np.float32)
        above = np.nextafter(np.float32(1.625), np.float32(2))
        special = [np.inf, -np.inf, np.nan, 0, -0.0, 1e-45, 1.625, above, -1.875]
        weights = np.array(special, np.float32)
        weights[2:3].view(np.uint32)[0] |= 0x8000_0000
        with open_nodes("centroid16", 1) as (ring, _):
            centroids = numbers.view(np.uint32)
            ring.memory.write_codebook(centroids)
            ring.collectives.distribute(weights)
            reference = Reference(ring, weights, centroids=centroids)
            decoded = ring.memory.read_weights(len(weights))[0]
            assert decoded[3:].tolist() == [0, 0, 0, 1.5, 1.75, -2]
            assert decoded[:2].tolist() == [1.75, -2]
            assert (decoded[3:].view(np.uint32) == reference.weights[3:]).all()


class TestLoading:
    @both
    def test_codebook_memory(self, name):
        """All nodes store the bounds, a zero word and the centroids after the master weights in memory."""
        with open_nodes(name, 2) as (ring, _):
            centroids = codebook(name, random(np.random.default_rng(1), 500))
            ring.memory.write_codebook(centroids)
            words = codebook_words(name, centroids)
            count = len(centroids)
            assert words[count - 1] == 0
            assert (words[count:] == centroids).all()
            assert (words[:count - 1] == WEIGHT_CODECS[name].bind(centroids).table.bounds(centroids)).all()
            for device in ring.devices:
                space = Space.STATE + CONFIGS[name].memories.planes + 1  # follows the master weights
                assert (device.read_memory(space, 0, 2 * count) == words).all()

    @both
    def test_another_one_counts_from_the_next_update_on(self, name):
        generator = np.random.default_rng(4)
        weights = random(generator, 700)
        with open_nodes(name, 3) as (ring, _):
            first = codebook(name, weights)
            ring.memory.write_codebook(first)
            reference = Reference(ring, weights, centroids=first)
            ring.collectives.distribute(weights)
            for step in range(4):
                update(ring, reference, generator)
                if step % 2:
                    centroids = codebook(name, ring.memory.read_master(700))
                    ring.memory.write_codebook(centroids)
                    reference.compare("not before the next update")
                    reference.bind(centroids)

    def test_written_during_an_update(self):
        """A codebook written while an update is sending words takes effect in the next update."""
        generator = np.random.default_rng(6)
        weights = random(generator, 900)
        with open_nodes("centroid16", 2) as (ring, simulation):
            first, second = codebook("centroid16", weights), codebook("centroid16", 2 * weights)
            ring.memory.write_codebook(first)
            reference = Reference(ring, weights, centroids=first)
            ring.collectives.distribute(weights)
            gradients = random(generator, (2, 900))
            ring.settings.write(SETTINGS)
            ring.memory.write_gradients(list(gradients))
            for rank, device in enumerate(ring.devices):
                device.push(Command(operation=Operation.FUSED_UPDATE, rank=rank, size=2, length=900, epoch=1,
                                    collective=1000))
            simulation.run(200)
            ring.memory.write_codebook(second)
            assert [device.pop_event(20 * TIMEOUT).status for device in ring.devices] == [EventStatus.OK] * 2
            reference.step(gradients, SETTINGS)
            reference.compare()
            reference.bind(second)
            update(ring, reference, generator)

    def test_codebooks_of_wrong_kinds(self):
        ring = Ring([Device(None, NodeConfig(weights=Weights(codec="mx9")))])
        assert not ring.formats.has_codebook
        with pytest.raises(ValueError, match=r"^Nodes must have a weight codec with a codebook, not mx9$"):
            ring.memory.write_codebook(np.zeros(32, np.uint32))
        ring = Ring([Device(None, CONFIGS["table32"])])
        assert ring.formats.has_codebook
        refuses("Codebook of table32 must be 32 words, not uint32 of shape (31,)", ring.memory.write_codebook,
                np.zeros(31, np.uint32))


@both
def test_random_damage_never_hangs(name):
    """After random damage, each weight has its old or its new value, and the next command reloads the codebook."""
    generator = np.random.default_rng(11)
    length = 900
    weights = random(generator, length)
    with open_nodes(name, 3) as (ring, simulation):
        centroids = codebook(name, weights)
        ring.memory.write_codebook(centroids)
        for number in range(10):
            reference = Reference(ring, weights, centroids=centroids)
            ring.collectives.distribute(weights)
            before = reference.weights
            gradients = random(generator, (3, length))
            ring.settings.write(SETTINGS)
            ring.memory.write_gradients(list(gradients))
            traffic = reference.step(gradients, SETTINGS)
            rank = int(generator.integers(0, 3))
            # The first three runs may damage any word; all further runs damage a word of the all-gather.
            first = 0 if number < 3 else int(traffic.scatter_words[:, rank].sum() * 0.6)
            link = simulation.links[rank]
            word = link.status().words_carried + int(generator.integers(first, traffic.words[rank]))
            link.corrupt(word=word, bit=int(generator.integers(0, 33)))
            with pytest.raises(RingError):
                ring.collectives.fused_update(length)
            actual = ring.memory.read_weights(length).view(np.uint32)
            assert ((actual == before) | (actual == reference.weights)).all(), f"{number=}"
            ring.recover()
            ring.collectives.distribute(weights)
            reference = Reference(ring, weights, centroids=centroids)
            reference.compare(f"{number=}")
            update(ring, reference, generator)


class TestTraining:
    @both
    def test_training(self, name):
        """All nodes agree bit for bit after every step, including steps that change the codebook."""
        config = TrainingConfig(epochs=1, hidden=(), refresh=5, optimizer=SGD(learning_rate=0.5))
        with open_nodes(name, 4, host_port=False) as (ring, _):
            training = train(ring, digits(), config)
        assert training.bit_exact is True
        assert len(training.steps) == 12
        words = 4 * CONFIGS[name].codebook_words
        assert [step.codebook_words for step in training.steps] == [
            words if number in (1, 6, 11) else 0 for number in range(1, 13)]
        assert training.steps[-1].loss < training.steps[0].loss

    def test_beside_gradients_through_a_codec(self):
        """Train with coded gradients and weights. The codebook and the residuals use separate memories."""
        with open_nodes("table32", 4, host_port=False) as (ring, _):
            training = train(ring, digits(), TrainingConfig(epochs=1, refresh=5, optimizer=SGD(learning_rate=0.5)))
        assert training.bit_exact is True
        assert len(training.steps) == 12
        assert training.steps[-1].loss < training.steps[0].loss
        assert sum(step.words_sent for step in training.steps) < 0.40 * sum(
            step.words_dense for step in training.steps)
