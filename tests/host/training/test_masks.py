"""Training on text with golden nodes, which mask scores and gradients."""

import dataclasses

import numpy as np
import pytest

from host.models.layers import ALTERNATIVE
from host.models.text import collate, topics
from host.training.record import DivergenceError
from host.training.trainer import train
from host.training.workloads import CharacterModel
from tests.host.golden import SMALL, TEXT, GoldenRing, masked, schedule
from tests.host.models.tiny import mean_loss
from tests.refusals import refuses


def small(lines, **options):
    return CharacterModel(lines, SMALL, chunk=5, **options)


class TestText:
    def test_reaches_the_bar(self):
        """A shorter version of the training run of the command line, on golden nodes only."""
        workload = CharacterModel(topics(context=16))
        config = dataclasses.replace(TEXT, batch=64, max_steps=150, interval=100)
        training = train(GoldenRing(4), workload, config)
        assert training.measures[-1] < workload.bigram_loss - 0.1
        assert training.measured == [100, 150]
        assert training.bit_exact is True
        assert training.mask_words_fetched == 0
        assert len(training.sample["written"]) == 80

    @pytest.mark.parametrize("nodes", [1, 2, 7])
    def test_same_as_numpy(self, lines, nodes):
        """Masks applied by nodes give the same bits as masks applied by the model, even if a node has no
        sequences."""
        workload = small(lines)
        ring = GoldenRing(nodes)
        config = dataclasses.replace(TEXT, batch=5, max_steps=3, interval=None)
        losses = []
        differentiate = workload.differentiate

        def compared(shares, masks):
            results = differentiate(shares, masks)
            for share, (loss, gradient) in zip(shares, results, strict=True):
                batch = collate([lines.train[example] for example in share])
                expected_loss, expected = workload.model.differentiate(batch)
                assert loss == expected_loss
                assert np.array_equal(gradient.view(np.uint32), expected.view(np.uint32))
            losses.append(sum(loss for loss, _ in results))
            return results

        workload.differentiate = compared
        training = train(ring, workload, config)
        assert [step.loss * workload.count(batch.examples) for step, batch in zip(
            training.steps, schedule(200, config), strict=True)] == pytest.approx(losses)
        assert training.measures[-1] == pytest.approx(mean_loss(workload.model, lines.test), rel=1e-5)
        assert training.measured == [3]

    def test_figures(self, lines):
        ring = GoldenRing(4)
        seen, alternatives = [], []
        mask = ring.local.mask
        ring.local.mask = lambda jobs, *, alternative, **options: alternatives.append(alternative) or mask(
            jobs, alternative=alternative, **options)
        training = train(ring, small(lines), TEXT,
                         on_step=lambda training: seen.append((len(training.steps), len(training.measures))))
        assert seen == [(1, 0), (2, 0), (2, 1), (3, 1), (4, 1), (4, 2), (5, 2), (5, 3)]
        assert training.measured == [2, 4, 5]
        assert len(training.losses) == 3
        for step, batch in zip(training.steps, schedule(200, TEXT), strict=True):
            assert step.mask_cycles is None  # golden nodes do not model these cycles
            lengths = [len(lines.train[example]) - 1 for example in batch.examples]
            through = kept = 0
            for share in np.array_split(lengths, 4):
                longest = max(share)
                through += len(share) * (2 * longest ** 2 + 64 * longest)
                kept += sum(length * (length + 1) + 2 * (longest - length) * length + 64 * length for length in share)
            assert step.elements_through == through
            assert step.elements_masked == through - kept
        assert training.elements_through > sum(step.elements_through for step in training.steps)
        assert training.elements_masked > sum(step.elements_masked for step in training.steps)
        assert training.mask_cycles is None
        assert alternatives[:4] == [ALTERNATIVE, 0.0] * 2
        assert training.losses[0] > training.losses[-1]

    def test_measured_on_a_part_before_the_end(self, lines):
        workload = small(lines, sample=3)
        workload.initialize(0)
        parts = []
        for last in (False, True):
            parts.append(workload.measure(3, masked, last=last))
        assert parts[0] == pytest.approx(mean_loss(workload.model, lines.test[::3]), rel=1e-5)
        assert parts[1] == pytest.approx(mean_loss(workload.model, lines.test), rel=1e-5)

    def test_seed(self, lines):
        first, second, other = (train(GoldenRing(2), small(lines), dataclasses.replace(TEXT, seed=seed))
                                for seed in (0, 0, 1))
        assert first == second
        assert first.losses != other.losses

    def test_one_bit_of_one_mask(self, lines):
        def faulty():
            ring, calls = GoldenRing(2), []
            mask = ring.local.mask

            def fault(jobs, **options):
                outcome = mask(jobs, **options)
                calls.append(jobs)
                if len(calls) == 3:
                    outcome.results[1][3].view(np.uint32)[1, 0, 2] ^= 1
                return outcome

            ring.local.mask = fault
            return ring

        message = (r"^Step 2: 1 of \d+ masked elements of job 3 of node 1 differ from the golden model, first matrix "
                   r"1, row 0, column 2, which is 0xc61c4001 and must be 0xc61c4000$")
        with pytest.raises(DivergenceError, match=message):
            train(faulty(), small(lines), TEXT)
        train(faulty(), small(lines), dataclasses.replace(TEXT, max_steps=2, check=False))

    def test_counters(self, lines):
        def fault(ring):
            ring.golden.counters["MASK_WORDS_FETCHED"][:] = 1

        message = (r"^Step 5: nodes have counted (\d+) elements masked and 2 words fetched, and must have counted \1 "
                   r"and 0$")
        with pytest.raises(DivergenceError, match=message):
            train(GoldenRing(2, fault=fault), small(lines), TEXT)

    @pytest.mark.parametrize("options", [{"sample": 0}, {"chunk": 0}])
    def test_arguments(self, lines, options):
        name, = options
        refuses(f"{name.capitalize()} must be at least 1, not 0", CharacterModel, lines, SMALL, **options)
