"""Training with gradient codecs and with weight codecs, on golden nodes."""

import functools

import numpy as np
import pytest

from host.features.codebook.codebooks import codebook
from host.training.record import DivergenceError, TrainingConfig
from host.training.trainer import train
from host.training.workloads import Classifier
from sim.golden import ring as golden
from tests.host.golden import GoldenRing, after


@pytest.fixture(scope="module")
def accuracies(data):
    """Return a function that computes the mean test accuracy with a weight codec over seeds 0 to 4."""
    @functools.cache
    def measure(name):
        runs = [train(GoldenRing(4, weight_codec=name), data, TrainingConfig(seed=seed)) for seed in range(5)]
        assert all(run.bit_exact for run in runs)
        return np.mean([run.measures[-1] for run in runs])

    return measure


class TestGradientCodecs:
    def test_accuracy(self, data):
        """With mx6, accuracy is close to the 97.22 % of ``zero_value``; docs/training/figures.md lists more."""
        run = train(GoldenRing(4, gradient_codec="mx6"), data, TrainingConfig())
        assert run.bit_exact is True
        assert run.measures[-1] >= 0.9722 - 0.005

    def test_raw_sums_are_those_of_zero_value_compression(self, few):
        config = TrainingConfig(epochs=1, batch=25, hidden=(5,))
        plain, raw = (train(GoldenRing(3, gradient_codec=name), few, config) for name in ("zero_value", "raw"))
        assert raw.losses == plain.losses
        assert [step.scatter_words for step in raw.steps] != [step.scatter_words for step in plain.steps]

    @pytest.mark.parametrize("density", [None, 0.3])
    def test_residuals_are_compared(self, few, density):
        """At the end of a run, the residuals of a gradient codec are compared, in addition to sparsification
        errors."""
        def fault(ring):
            ring.residuals[2, 345] ^= 1

        config = TrainingConfig(epochs=1, batch=25, hidden=(), density=density)
        assert train(GoldenRing(4, gradient_codec="mx9"), few, config).bit_exact is True
        message = r"^Step 2: 1 of 650 residuals of node 2 differ from the golden model, first number 345, which is 0x"
        with pytest.raises(DivergenceError, match=message):
            train(GoldenRing(4, fault=after(2, fault), gradient_codec="mx9"), few, config)


class TestWeightCodecs:
    @pytest.mark.parametrize(("name", "points"), [("mx9", 0.005), ("mx6", 0.01), ("bf16", 0.005)])
    def test_accuracy(self, accuracies, name, points):
        """Codecs cost at most a few points of accuracy; see docs/training/figures.md for more codecs and seeds."""
        assert accuracies(name) >= accuracies("raw") - points

    @pytest.mark.parametrize(("name", "points"), [("table32", 0.005), ("centroid16", 0.01)])
    def test_accuracy_with_a_codebook(self, data, name, points):
        """With a codebook, a run with one seed is accurate enough and reports the number of words."""
        ring = GoldenRing(4, weight_codec=name)
        raw, coded = train(GoldenRing(4), data, TrainingConfig()), train(ring, data, TrainingConfig())
        assert coded.bit_exact is True
        assert coded.measures[-1] >= raw.measures[-1] - points
        assert [step.number for step in coded.steps if step.codebook_words] == list(range(1, 169, 12))
        elements = sum(step.weight_elements for step in coded.steps)
        assert elements == sum(step.weight_words for step in raw.steps) == 168 * 3 * 4810
        ratio = elements / sum(step.weight_words for step in coded.steps)
        assert ratio >= 3 if name == "table32" else ratio > 7.9

    @pytest.mark.parametrize("name", ["table32", "centroid16"])
    def test_codebooks(self, few, name):
        """The first codebook is fitted to the initial weights, later ones to the master weights."""
        ring = GoldenRing(2, weight_codec=name)
        masters, codebooks = [], []
        write = ring.memory.write_codebook
        ring.memory.write_codebook = lambda centroids: codebooks.append(centroids) or write(centroids)

        def remember(training):
            if len(training.steps) > len(masters) - 1:
                masters.append(golden.floats(ring.master).copy())

        workload = Classifier(few, ())
        workload.initialize(0)
        masters.append(workload.parameters.copy())
        training = train(ring, few, TrainingConfig(epochs=3, batch=25, hidden=(), refresh=2), on_step=remember)
        assert len(training.steps) == 6
        assert training.bit_exact is True
        assert [centroids.tolist() for centroids in codebooks] == [
            codebook(name, masters[number]).tolist() for number in (0, 2, 4)]
        words = 2 * 2 * len(codebooks[0])
        assert [step.codebook_words for step in training.steps] == [words, 0, words, 0, words, 0]

    @pytest.mark.parametrize("nodes", [1, 3])
    def test_gradients_are_those_at_decoded_weights(self, few, nodes):
        """Gradients are computed with decoded weights, from the first step on."""
        config = TrainingConfig(epochs=1, batch=25, hidden=(5,))
        raw, coded = (train(GoldenRing(nodes, weight_codec=name), few, config) for name in ("raw", "mx4"))
        assert raw.steps[0].loss != coded.steps[0].loss
        assert coded.bit_exact is True
        assert [step.words_dense for step in coded.steps] == [step.words_dense for step in raw.steps]
        if nodes > 1:
            assert coded.steps[0].words_sent < raw.steps[0].words_sent

    @pytest.mark.parametrize("step", [1, 2])
    def test_masters_are_compared(self, few, step):
        def fault(ring):
            masters = ring.master
            masters[345] ^= 1
            ring.memory.write_master(masters)

        message = (rf"^Step {step}: 1 of 650 master weights differ from the golden model, first number 345, on node "
                   r"1, which is 0x")
        with pytest.raises(DivergenceError, match=message):
            train(GoldenRing(4, fault=after(step + 1, fault), weight_codec="mx9"), few,  # plus the distribution
                  TrainingConfig(epochs=1, batch=25, hidden=()))

    def test_weights_are_compared_before_the_first_step(self, few):
        ring = GoldenRing(4, weight_codec="mx9")
        distribute = ring.collectives.distribute

        def careless(weights):
            distribute(weights)
            ring.weights[:] = ring.master

        ring.collectives.distribute = careless
        with pytest.raises(DivergenceError, match=r"^Step 0: \d+ of 650 weights of node 0 differ from the golden "):
            train(ring, few, TrainingConfig(epochs=1, batch=25, hidden=()))

    def test_no_check(self, few):
        ring = GoldenRing(4, weight_codec="mx9")
        training = train(ring, few, TrainingConfig(epochs=1, batch=25, check=False))
        assert training.bit_exact is None
        assert ring.reads == 3
