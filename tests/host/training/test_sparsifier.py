"""Training with sparse gradients, on golden nodes."""

import dataclasses

import numpy as np
import pytest

from host.training.record import DivergenceError, TrainingConfig
from host.training.trainer import train
from tests.host.golden import GoldenRing, after


class TestDensity:
    def test_accuracy_and_density(self, data):
        dense = train(GoldenRing(4), data, TrainingConfig())
        sparse = train(GoldenRing(4), data, TrainingConfig(density=0.1))
        assert np.mean([step.density for step in sparse.steps]) <= 0.1
        assert sparse.measures[-1] >= dense.measures[-1] - 0.01
        assert sparse.bit_exact is True
        assert sum(step.words_sent for step in sparse.steps) < 0.75 * sum(step.words_sent for step in dense.steps)
        assert sum(step.scatter_words for step in sparse.steps) < sum(step.scatter_words for step in dense.steps) / 4

    def test_figures(self, few):
        ring = GoldenRing(2)
        training = train(ring, few, TrainingConfig(epochs=2, batch=25, density=0.2))
        assert [step.sparsify_cycles for step in training.steps] == [None] * 4  # golden nodes do not model cycles
        assert all(step.threshold > 0 for step in training.steps)
        assert training.elements_masked == sum(ring.golden.counters["ELEMENTS_MASKED"]) - 2 * ((1 << 32) - 10)
        assert ring.errors.any()
        plain = train(GoldenRing(2), few, TrainingConfig(epochs=2, batch=25))
        assert plain.steps[0].threshold is None
        assert plain.steps[0].sparsify_cycles == plain.elements_masked == 0

    def test_one_bit_of_the_errors(self, few):
        def fault(ring):
            ring.errors[1, 7] ^= 1

        message = r"^Step 2: 1 of 650 errors of node 1 differ from the golden model, first number 7, which is 0x"
        config = TrainingConfig(epochs=1, batch=25, hidden=(), density=0.2)
        with pytest.raises(DivergenceError, match=message):
            train(GoldenRing(2, fault=after(2, fault)), few, config)

    def test_dropped(self, few, monkeypatch):
        ring = GoldenRing(2)
        sparsify = ring.local.sparsify

        def one_more(length, *, threshold):
            outcome = sparsify(length, threshold=threshold)
            return dataclasses.replace(outcome, dropped=[outcome.dropped[0], outcome.dropped[1] - 1])

        monkeypatch.setattr(ring.local, "sparsify", one_more)
        message = r"^Step 1: nodes have dropped (\d+), (\d+) elements, and must have dropped \1, (\d+)$"
        with pytest.raises(DivergenceError, match=message):
            train(ring, few, TrainingConfig(epochs=1, batch=25, hidden=(), density=0.2))
