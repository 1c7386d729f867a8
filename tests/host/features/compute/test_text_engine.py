"""The text model on golden nodes that compute: bits are identical to the host's, and invalid options are rejected."""

import dataclasses

import numpy as np
import pytest

from hdl.config import NodeConfig
from hdl.features.compute.feature import Compute
from hdl.features.programs.feature import Programs
from host.driver.diagnosis import RingError
from host.features.compute.engine import engine_node, text_lists
from host.models import transformer
from host.training.optimizers import Adam
from host.training.record import DivergenceError, TrainingConfig
from host.training.trainer import make_trainer, train
from host.training.updates import check_run
from host.training.workloads import CharacterModel
from tests.host.golden import GoldenRing, compute_options, written_to

CONFIG = TrainingConfig(max_steps=20, interval=10, batch=7, compute="node", optimizer=Adam(learning_rate=0.02))
SHORT = dataclasses.replace(CONFIG, max_steps=3, interval=3)
WORDS = 16_384


def on_host(config):
    return dataclasses.replace(config, compute="host")


def ring_of(nodes, *, words=WORDS, **options):
    return GoldenRing(nodes, **compute_options(words=words, sequences=True, **options))


class TestSameBits:
    @pytest.mark.parametrize(("nodes", "words"), [(1, WORDS), (2, 2 * WORDS), (4, WORDS), (4, 2 * WORDS)])
    def test_as_on_the_host(self, text, nodes, words):
        """Weights, moments, losses and held-out losses of 20 steps equal the host's. Each node has up to seven
        sequences, which run in pairs if memory permits."""
        ring, other = ring_of(nodes, words=words), GoldenRing(nodes)
        training = train(ring, CharacterModel(text), CONFIG)
        expected = train(other, CharacterModel(text), on_host(CONFIG))
        np.testing.assert_array_equal(ring.weights, other.weights)
        np.testing.assert_array_equal(ring.state, other.state)
        assert [step.loss for step in training.steps] == [step.loss for step in expected.steps]
        assert (training.losses, training.measures) == (expected.losses, expected.measures)
        assert training.sample == expected.sample
        assert training.steps[-1].loss < 0.7 * training.steps[0].loss
        assert training.bit_exact
        planned, apart = ("9,312", "21,600: 56.9%") if words == WORDS else ("18,528", "43,104: 57.0%")
        assert training.search == [f"activations: planned, {planned} words (lowest fit by words), with a place for "
                                   f"each buffer {apart} fewer"]
        assert all(step.mask_cycles == 0 for step in training.steps)

    def test_host_computes_nothing(self, text, monkeypatch):
        """If results are not compared, all steps have the same bits as with comparison, although the host never runs
        the model."""
        other = GoldenRing(2)
        train(other, CharacterModel(text), on_host(SHORT))
        ring = ring_of(2)
        run = make_trainer(ring, CharacterModel(text), dataclasses.replace(SHORT, check=False))
        run.begin()
        monkeypatch.setattr(run.executor, "_measure", lambda: 0.0)
        monkeypatch.setattr(transformer.Transformer, "gradient_pass", None)
        while not run.complete:
            run.advance()
        np.testing.assert_array_equal(ring.weights, other.weights)

    def test_measure(self, text):
        """In a run without comparison, the held-out loss is computed from the nodes' weights."""
        ring, other = ring_of(2), GoldenRing(2)
        training = train(ring, CharacterModel(text), dataclasses.replace(SHORT, check=False))
        expected = train(other, CharacterModel(text), on_host(SHORT))
        assert (training.measures, training.bit_exact) == (expected.measures, None)


class TestSteps:
    def test_words(self, text):
        """In each step the host writes 64 words per sequence and no gradients. Lists are written only once."""
        ring = ring_of(3)
        written = written_to(ring)
        run = make_trainer(ring, CharacterModel(text), SHORT)
        run.begin()
        lists = written["activations"]
        assert written["gradients"] == 0
        run.advance()
        assert written == {"gradients": 0, "activations": lists + 7 * 64}
        assert ring.lists == 7 * 2
        assert run.executor.training.steps[0].compute_cycles is None  # golden nodes do not model these cycles

    def test_together(self, text):
        """Nodes with four and three sequences process them in pairs, and the last pair is padded."""
        ring = ring_of(2, words=2 * WORDS)
        written = written_to(ring)
        run = make_trainer(ring, CharacterModel(text), SHORT)
        run.begin()
        lists = written["activations"]
        run.advance()
        assert written["activations"] == lists + 8 * 64
        assert ring.lists == 2 * 2 * 2

    def test_repeats(self, text):
        """A step that fails on a node is retried, including its lists, and gives the same result."""
        def fail(ring):
            if ring.lists == 20:
                ring.activations[...] = ring.gradients[...] = 0x7FC0_0002
                ring.hooks.lists += 1
                raise RingError("node 1 failed", cause=1, events=[])

        other, ring = GoldenRing(2), ring_of(2, broken=fail)
        train(other, CharacterModel(text), on_host(SHORT))
        assert train(ring, CharacterModel(text), SHORT).repeats == 1
        np.testing.assert_array_equal(ring.weights, other.weights)

    def test_goes_on_elsewhere(self, text):
        other, ring = GoldenRing(2), ring_of(2)
        expected = train(other, CharacterModel(text), on_host(SHORT))
        run = make_trainer(ring_of(2), CharacterModel(text), SHORT)
        run.begin()
        run.advance()
        again = make_trainer(ring, CharacterModel(text), SHORT)
        again.resume(run.state())
        while not again.complete:
            again.advance()
        again.finish()
        assert again.executor.training.measures == expected.measures
        np.testing.assert_array_equal(ring.weights, other.weights)

    def test_divergence(self, text):
        def broken(ring):
            if ring.lists == 14:
                lists = text_lists(CharacterModel(text), SHORT, ring.config, 2, WORDS)
                ring.activations[1, lists.data + 2 * lists.context] ^= 1 << 10

        with pytest.raises(DivergenceError, match=r"^Step 1: nodes have computed losses of [\d.]+, [\d.]+, and must "
                                                  r"have computed [\d.]+, [\d.]+$"):
            train(ring_of(2, broken=broken), CharacterModel(text), SHORT)


class TestNodes:
    def test_room(self, text):
        """Nodes get all features that the lists need, and room for two sequences at a time. With less room, sequences
        run one at a time."""
        node = engine_node(NodeConfig(), CharacterModel(text), CONFIG, nodes=4)
        assert node == NodeConfig(masking=False, programs=Programs(), compute=Compute(
            rows=4, activations=2 * WORDS, scale_mask=True, sequences=True, buffer_tags=True))
        for words, together in ((2 * WORDS, 2), (WORDS, 1)):
            config = node.replace(compute={"activations": words})
            check_run(config, CharacterModel(text), CONFIG, nodes=4)
            assert text_lists(CharacterModel(text), CONFIG, config, 4, words).together == together

    @pytest.mark.parametrize(("options", "node", "message"), [
        ({"batch": 2}, {}, r"^Batches must have an example for each of the 3 nodes that compute, not 2: take larger "
                           r"batches$"),
        ({}, {"compute": None}, r"^Nodes must have a compute engine to compute$"),
        ({}, {"compute": {"sequences": False}},
         r"^Nodes must scale and mask, and have functions of sequences, to compute text$"),
        ({}, {"compute": {"scale_mask": False}}, r"^Nodes must scale and mask, and have functions"),
        ({}, {"compute": {"activations": 8192}}, r"^3 sequences of nodes that compute need [\d,]+ elements of the "),
        ({"tiling": "searched"}, {}, r"^Tiling must be default for workload text, not 'searched'$"),
        ({"overlap": "none"}, {}, r"^Workload of a schedule must be digits, not text$"),
    ], ids=str)
    def test_errors(self, text, options, node, message):
        config = dataclasses.replace(CONFIG, **options)
        made = engine_node(NodeConfig(), CharacterModel(text), CONFIG, nodes=3)
        with pytest.raises(ValueError, match=message):
            check_run(made.replace(**node), CharacterModel(text), config, nodes=3)
