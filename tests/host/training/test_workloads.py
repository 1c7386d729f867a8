import dataclasses

import numpy as np
import pytest

from hdl.config import NodeConfig
from host.driver.device import Device
from host.driver.masking import Mask
from host.driver.ring import Ring
from host.models.digits import Dataset, digits
from host.models.layers import keep, mask, mask_rows
from host.models.text import Batch, Text, topics
from host.models.transformer import Request, TransformerConfig, Use, lockstep
from host.training.optimizers import Adam
from host.training.record import TrainingConfig
from host.training.trainer import train
from host.training.workloads import CharacterModel, Classifier, mask_jobs
from host.transports.verilated import OpenRing
from sim.golden import masking as golden
from tests.host.rings import library

SMALL = TransformerConfig(width=8, heads=2, hidden=6, context=10)


@pytest.fixture(scope="module")
def lines():
    text = topics(context=SMALL.context)
    return Text(text.train[:120], text.test[:30])


@pytest.fixture(scope="module")
def ring():
    with OpenRing(library(NodeConfig()), nodes=3, threads=1) as opened:
        ring = Ring([Device(transport, NodeConfig(), name=f"node {rank}")
                     for rank, transport in enumerate(opened.transports)], timeout=3000)
        ring.connect()
        yield ring


class TestJobs:
    @pytest.mark.parametrize(("use", "shape"), [(Use.SCORES, (3, 2, 5, 5)), (Use.ROWS, (3, 1, 5, 7))])
    def test_mask_what_numpy_masks(self, use, shape):
        values = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        lengths = np.array([5, 1, 3])
        jobs = mask_jobs(Request(use=use, values=values, lengths=lengths))
        assert len(jobs) == 3
        expected = {Use.SCORES: mask, Use.ROWS: mask_rows}[use](values, lengths)
        alternative = expected[1, 0, 3, 4]
        for number, job in enumerate(jobs):
            kept = golden.kept(golden.Job(count=job.count, rows=job.rows, columns=job.columns,
                                          mask=golden.Mask(**vars(job.mask))))
            assert np.array_equal(np.where(kept, job.matrices, alternative), expected[number])

    def test_scores(self):
        request = Request(use=Use.SCORES, values=np.zeros((1, 2, 5, 5), np.float32), lengths=np.array([3]))
        job, = mask_jobs(request)
        assert job.mask == Mask(triangle=True, padding=True, length_rows=5, length_columns=3)
        assert job.matrices.shape == (2, 5, 5)


class TestClassifier:
    def test_shares(self):
        data = digits()
        workload = Classifier(data, (5,))
        workload.initialize(1)
        shares = [np.arange(4), np.arange(0), np.arange(4, 9)]
        results = workload.differentiate(shares, None)
        assert [workload.count(share) for share in shares] == [4, 0, 5]
        assert not results[1][1].any()
        assert results[0][1].shape == workload.parameters.shape
        assert workload.examples == len(data.train_x)
        assert 0 <= workload.measure(3, None, last=True) <= 1
        assert workload.sample(3, None) is None

    def test_data_set_or_workload(self, ring):
        data = digits()
        few = Dataset(data.train_x[:20], data.train_y[:20], data.test_x[:20], data.test_y[:20], data.classes)
        config = TrainingConfig(epochs=1, batch=10, hidden=(3,))
        assert train(ring, few, config).losses == train(ring, Classifier(few, (3,)), config).losses


class TestOnNodes:
    @pytest.mark.parametrize("layers", [1, 2])
    def test_trains(self, ring, lines, layers):
        workload = CharacterModel(lines, dataclasses.replace(SMALL, layers=layers), sample=1, chunk=8)
        config = TrainingConfig(batch=20, max_steps=6, interval=3, optimizer=Adam(learning_rate=0.03))
        training = train(ring, workload, config)
        assert training.bit_exact is True
        assert training.mask_words_fetched == 0
        assert training.elements_masked > 0
        assert training.measures[1] < training.measures[0]
        for step in training.steps:
            commands = layers + 1
            assert step.elements_through / 4 / 3 < step.mask_cycles < step.elements_through / 4 + 100 * commands

    def test_with_a_density(self, ring, lines):
        """In weight memory, errors are stored after the weights, and mask lists after the errors."""
        workload = CharacterModel(lines, SMALL)
        config = TrainingConfig(batch=20, max_steps=4, interval=2, optimizer=Adam(learning_rate=0.03), density=0.3)
        training = train(ring, workload, config)
        assert training.bit_exact is True
        assert all(step.sparsify_cycles for step in training.steps)

    def test_causal(self, ring):
        """If a character changes, earlier outputs stay the same; without the nodes' masks, they would change too."""
        workload = CharacterModel(Text(topics(context=16).train[:20], topics(context=16).test[:2]))
        model = workload.model
        workload.initialize(5)
        generator = np.random.default_rng(5)
        inputs = generator.integers(0, 64, (3, 16))
        lengths = np.array([16, 16, 9])

        def outputs(inputs, answer):
            return lockstep([model.output_pass(Batch(inputs, inputs, lengths))], answer)[0]

        def nodes(requests):
            outcome = ring.local.mask([[], mask_jobs(requests[0]), []], alternative=-10000.0, behind=model.size)
            return [np.stack(outcome.results[1])]

        def nothing(requests):
            return [requests[0].values]

        before, weights = outputs(inputs, nodes)
        assert np.array_equal(weights[0] > 0, np.broadcast_to(keep(16, lengths)[:, None], weights[0].shape))
        unmasked = outputs(inputs, nothing)[0]
        for t in range(16):
            changed = inputs.copy()
            changed[:, t] = (changed[:, t] + generator.integers(1, 64, 3)) % 64
            after = outputs(changed, nodes)[0]
            assert np.array_equal(before[:, :t].view(np.uint32), after[:, :t].view(np.uint32))
            assert (before[:2, t:] != after[:2, t:]).any(axis=-1).all()
            if t:
                assert (unmasked[:, :t] != outputs(changed, nothing)[0][:, :t]).any(axis=-1).all()

    def test_sample(self, ring, lines):
        workload = CharacterModel(lines, SMALL)
        workload.initialize(0)
        sample = workload.sample(3, lambda jobs, alternative: ring.local.mask(jobs, alternative=alternative).results)
        attention = np.array(sample["attention"])
        length = len(sample["text"])
        assert attention.shape == (2, 10, 10)
        assert np.array_equal(attention > 0, np.broadcast_to(keep(10, np.array([length]))[0], attention.shape))
        assert attention.sum(axis=-1) == pytest.approx(1, abs=1e-6)
        assert length < 10
        assert sample["written"].startswith("the ")
        assert len(sample["written"]) == 80
