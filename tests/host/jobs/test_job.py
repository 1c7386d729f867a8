"""Jobs sum and update vectors of any length; parts of a vector use the nodes' memories one after another."""

import dataclasses

import numpy as np
import pytest

from host.jobs.figures import Figures
from host.jobs.job import JobError
from host.jobs.simulate import simulate
from host.training.optimizers import SGD, Adam, AdamW
from host.transports.session import TransportName
from tests.host.rings import CONFIGS
from tests.refusals import refuses

#: Node configurations that other tests use too, so that they share libraries.
DEFAULT, LOSSY = CONFIGS["default"], CONFIGS["mx9"]


def gradients(seed, nodes, length):
    print(f"seed {seed}")
    generator = np.random.default_rng(seed)
    values = generator.standard_normal((nodes, length)).astype(np.float32)
    return np.where(generator.random(values.shape) < 0.2, np.float32(0), values)


def bits(values):
    return np.ascontiguousarray(values, np.float32).view(np.uint32)


def test_sums():
    values = gradients(1, 3, 1000)
    with simulate(nodes=3, length=1000, node=DEFAULT) as job:
        sums, figures = job.all_reduce(values)
        np.testing.assert_allclose(sums, values.sum(axis=0, dtype=np.float64), rtol=1e-5, atol=1e-6)  # other order
        assert (figures.elements, figures.commands) == (1000, 1)
        assert figures.bound <= figures.cycles < 2 * figures.bound
        assert 0.8 < figures.density < 1
        assert figures.words_dense > figures.words == figures.words_zero_value > 0
        assert figures.host_cycles > 2000
        assert figures.seconds > 0
        single, _ = job.all_reduce(values[:, :1])
        np.testing.assert_array_equal(bits(single), bits(sums[:1]))
        assert job.figures.elements == 1001


def test_raw_gradients():
    """If no codec is named, gradients are raw: sums and weights are the same as with zero_value, and the figures show
    how many words zero_value would have sent."""
    values = gradients(5, 3, 1000)
    with simulate(nodes=3, length=1000, optimizer=Adam(0.01)) as raw, \
            simulate(nodes=3, length=1000, optimizer=Adam(0.01), node=DEFAULT) as masked:
        for operation in ("all_reduce", "step"):
            (sums, figures), (expected, other) = (getattr(job, operation)(values) for job in (raw, masked))
            np.testing.assert_array_equal(bits(sums), bits(expected))
            assert figures.words == figures.words_dense == other.words_dense
            assert figures.words_zero_value == other.words == other.words_zero_value < figures.words


def test_sums_in_parts():
    """Sums in parts equal the sums of the whole vector, whether the job or the caller splits it. The figures of the
    parts are added up."""
    values = gradients(2, 3, 1000)
    with simulate(nodes=3, length=1000) as whole, simulate(nodes=3, length=1000, part=416) as job:
        expected, _ = whole.all_reduce(values)
        sums, figures = job.all_reduce(values)
        pieces = [job.all_reduce(values[:, first:first + 416], begin=first) for first in range(0, 1000, 416)]
    np.testing.assert_array_equal(bits(sums), bits(expected))
    np.testing.assert_array_equal(bits(sums), bits(np.concatenate([piece for piece, _ in pieces])))
    apart = Figures.total(each for _, each in pieces)
    assert figures.commands == apart.commands == 3
    assert (figures.words, figures.bound) == (apart.words, apart.bound)


@pytest.mark.parametrize("optimizer", [None, Adam(0.01)])
def test_sum_longer_than_the_job(optimizer):
    """If a vector is longer than the job's own vector, the sums are the same as in a job of the vector's length."""
    values = gradients(3, 3, 100)
    options = {"nodes": 3, "transport": TransportName.GOLDEN, "gradients": "raw"}
    with simulate(length=100, **options) as job:
        expected, _ = job.all_reduce(values)
    for length in (1, 33, [3, 40]):
        optimizers = [optimizer] * 2 if optimizer and length == [3, 40] else optimizer
        with simulate(length=length, optimizer=optimizers, **options) as job:
            sums, _ = job.all_reduce(values)
        np.testing.assert_array_equal(bits(sums), bits(expected))


@pytest.mark.parametrize(("nodes", "gradient_codec"), [(2, "zero_value"), (3, "mx9"), (5, "raw")])
def test_any_cut(nodes, gradient_codec):
    """No bit of the sums, weights, state and residuals depends on the length of parts."""
    length, results = 1_700, []
    values = [gradients(60 + step, nodes, length) for step in range(2)]
    options = {"nodes": nodes, "length": length, "gradients": gradient_codec, "transport": TransportName.GOLDEN}
    for part in (None, 160, 992):
        with simulate(**options, part=part) as job:
            sums = [job.all_reduce(each, places=np.arange(length))[0] for each in values]
        results.append(bits(sums).tobytes())
    assert len(set(results)) == 1
    states = []
    for part in (None, 160 * nodes):
        with simulate(**options, optimizer=Adam(0.01), part=part) as job:
            job.load(values[0][0])
            weights = [job.step(each)[0] for each in values]
            contents = job.state()["contents"]
        states.append(b"".join(bits(each).tobytes() for each in (*weights, *contents.values())))
    assert len(set(states)) == 1


@pytest.mark.parametrize("part", [None, 640, 256])
def test_steps(part):
    """Weights and state have the same bits whether they stay on the nodes, are swapped, or are restored."""
    length, optimizer = 640, AdamW(0.01)
    first = gradients(3, 1, length)[0]
    shares = [gradients(4 + step, 2, length) for step in range(4)]
    with simulate(nodes=2, length=length, optimizer=optimizer, part=part) as job:
        job.load(first)
        for share in shares[:2]:
            job.step(share)
        state = job.state()
        weights = [job.step(share)[0] for share in shares[2:]]
        job.step(shares[0])
        job.restore(state)
        again = [job.step(share)[0] for share in shares[2:]]
        assert job.steps == [4]
    np.testing.assert_array_equal(bits(weights), bits(again))
    expected = adamw(optimizer, first, [share.mean(axis=0, dtype=np.float64) for share in shares])
    np.testing.assert_allclose(weights[-1], expected, rtol=1e-4, atol=1e-5)  # computed in double precision


def adamw(optimizer, weights, means):
    """AdamW in double precision, as defined in its paper."""
    weights, moment, square = weights.astype(np.float64), 0.0, 0.0
    first, second = optimizer.betas
    for number, mean in enumerate(means, start=1):
        moment, square = first * moment + (1 - first) * mean, second * square + (1 - second) * mean ** 2
        weights = weights * (1 - optimizer.learning_rate * optimizer.weight_decay)
        weights = weights - optimizer.learning_rate * (moment / (1 - first ** number)) / (
            np.sqrt(square / (1 - second ** number)) + optimizer.eps)
    return weights


def test_groups():
    """Each parameter group has its own optimizer and its own step count."""
    lengths = (100, 70)
    optimizers = [SGD(0.5, momentum=0.9), SGD(0.25, momentum=0.9)]
    with simulate(node=DEFAULT, nodes=2, length=lengths, optimizer=optimizers) as job:
        assert job.groups == [slice(0, 100), slice(128, 198)]
        values = np.ones((2, job.length), np.float32)
        weights, _ = job.step(values)
        assert set(weights[:100]) == {-0.5}
        assert set(weights[128:]) == {-0.25}
        assert set(weights[100:128]) == {0}
        weights, figures = job.step(values, [None, SGD(1.0, momentum=0.9)])
        assert figures.commands == 1
        assert set(weights[:100]) == {-0.5}
        np.testing.assert_allclose(weights[128:], -0.25 - 1.9, rtol=1e-6)
        assert job.steps == [1, 2]


def test_lossy_sums():
    """Errors of a lossy codec are added to the same elements of the next sum, even after sums of other elements."""
    values = gradients(9, 2, 700)
    order = np.random.default_rng(9).permutation(700)
    with simulate(nodes=2, length=700, node=LOSSY) as job:
        alone, _ = job.all_reduce(values)
        first, _ = job.all_reduce(values, places=np.arange(700))
        np.testing.assert_array_equal(bits(first), bits(alone))
        job.all_reduce(values[:, :32])
        exact = values.sum(axis=0, dtype=np.float64)
        means = [first]
        for _step in range(15):  # elements in random order, in two pieces
            total = np.empty(700, np.float32)
            for piece in (order[:300], order[300:]):
                total[piece], _ = job.all_reduce(values[:, piece], places=piece)
            means.append(total)
    lost = np.abs(first - exact).max()
    assert 0 < np.abs(np.mean(means, axis=0) - exact).max() < lost / 4


def test_lossy_steps():
    """Master weights, residuals and state match the golden model even if parts share the nodes' memories."""
    length = 900
    with simulate(nodes=2, length=length, node=LOSSY, optimizer=Adam(0.01), part=320) as job:
        job.load(gradients(10, 1, length)[0])
        for step in range(3):
            weights, figures = job.step(gradients(11 + step, 2, length))
            job.all_reduce(gradients(20 + step, 2, 64))
        state = job.state()
        assert figures.words < 0.5 * figures.words_dense
    assert np.abs(state["contents"]["residual"]).max() > 0
    assert np.abs(state["contents"]["master"] - weights).max() > 0


def test_density():
    """In each sum, nodes send only a fraction of the elements, and keep the rest for later sums."""
    length, density = 1000, 0.2
    with simulate(nodes=2, length=length, density=density, part=512) as job:
        sums, added = np.zeros(length), np.zeros(length)
        for step in range(30):
            values = gradients(30 + step, 2, length)
            total, _ = job.all_reduce(values, places=np.arange(length))
            sums += total
            added += values.sum(axis=0)
        assert 0.5 * density < job.figures.density < 1.5 * density
        assert job.figures.sparsify_cycles > 0
        errors = job.state()["contents"]["errors"].sum(axis=0)
        np.testing.assert_allclose(sums + errors, added, rtol=1e-4, atol=1e-4)  # errors hold the values not yet sent
        _whole, figures = job.all_reduce(values)
        assert figures.density > 0.7
        assert figures.sparsify_cycles == 0


def test_moments():
    """State in bfloat16 keeps its exact value when parts of a vector are swapped out and back in."""
    with simulate(nodes=3, length=500, optimizer=Adam(0.01, betas=(0.9, 0.99)), packed_state=True, part=192) as job:
        for step in range(3):
            job.step(gradients(40 + step, 3, 500))
        for plane in (0, 1):
            assert not (bits(job.state()["contents"][f"state_{plane}"]) & 0xFFFF).any()


def test_difference(monkeypatch):
    """If a result differs from the golden model, an error names the node."""
    with simulate(nodes=2, length=64) as job:
        values = gradients(50, 2, 64)
        read = job.session.ring.memory.read_gradients

        def broken(where):
            rows = read(where)
            rows[1, 5] += 1
            return rows

        monkeypatch.setattr(job.session.ring.memory, "read_gradients", broken)
        with pytest.raises(JobError, match=r"^1 of 64 sums of node 1 differ from the golden model, first number 5, "):
            job.all_reduce(values)
        monkeypatch.undo()
        monkeypatch.setattr(job.session.ring.counters, "read", lambda: [{"WORDS_SENT": 1}] * 2)
        with pytest.raises(JobError, match=r"^Nodes have sent \[1, 1\] words, and must have sent "):
            job.all_reduce(values)


def test_without_check():
    """Results are bit-identical without the golden model; figures that need it are missing."""
    values = gradients(60, 2, 96)
    with simulate(node=DEFAULT, nodes=2, length=96, optimizer=SGD(0.1), check=False) as job:
        weights, figures = job.step(values)
    assert (figures.bound, figures.words_dense, figures.density) == (0, 0, None)
    with simulate(node=DEFAULT, nodes=2, length=96, optimizer=SGD(0.1)) as job:
        expected, checked = job.step(values)
    np.testing.assert_array_equal(bits(weights), bits(expected))
    assert (figures.words, figures.cycles) == (checked.words, checked.cycles)


def test_bad_input():
    values = np.zeros((2, 64), np.float32)
    with simulate(nodes=2, length=64) as job:
        with pytest.raises(TypeError, match=r"^Values must be float32, not float64: use \.astype\(numpy\.float32\)$"):
            job.all_reduce(np.zeros((2, 64)))
        for shape in ((3, 64), (64,), (2, 0)):
            with pytest.raises(ValueError, match=r"^Values must be of shape \(2, n\), a row for each node, not \("):
                job.all_reduce(np.zeros(shape, np.float32))
        with pytest.raises(ValueError, match=r"^Places must be 64 integers, one for each element, not of shape \(3,"):
            job.all_reduce(values, places=[1, 2, 3])
        for places in (np.arange(1, 65), np.zeros(64, int), np.arange(-1, 63)):
            with pytest.raises(ValueError, match=r"^Places must differ, and lie within the 64 elements of the job's"):
                job.all_reduce(values, places=places)
        refuses("Job must have an optimizer for a step: give simulate() one", job.step, values)
        refuses("Job must have an optimizer to have weights: give simulate() one", job.load, values[0])
    with simulate(node=DEFAULT, nodes=2, length=64, optimizer=SGD(0.1)) as job:
        refuses("Gradients must have 64 elements per node, not 63", job.step, values[:, 1:])
        with pytest.raises(TypeError, match=r"^Weights must be 64 numbers of float32, not float64 of shape \("):
            job.load(np.zeros(64))
        with pytest.raises(ValueError, match=r"^Optimizers must be a sequence of an optimizer, or None, for each"):
            job.step(values, [None, None])
        refuses("Optimizer of a group must stay sgd, not become adam", job.step, values, [Adam()])
        with pytest.raises(ValueError, match=r"^Places must be left out in a job with an optimizer, whose steps "):
            job.all_reduce(values, places=np.arange(64))
        state = job.state()
        with pytest.raises(ValueError, match=r"^State must have 1 groups and arrays \{'weights': \(64,\)\}, not 2 "):
            job.restore({**state, "steps": [0, 0]})


def test_values_of_bits():
    """NaN, infinities, subnormals and signed zeros are summed as the formats of the nodes specify."""
    corners = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-45, 3.4e38], np.float32)
    values = np.stack([np.repeat(corners, len(corners)), np.tile(corners, len(corners))])
    with simulate(nodes=2, length=values.shape[1]) as job:
        sums, _ = job.all_reduce(values)
    with np.errstate(all="ignore"):
        expected = values[0] + values[1]
    np.testing.assert_array_equal(np.isnan(sums), np.isnan(expected))
    same = ~np.isnan(expected)
    np.testing.assert_array_equal(bits(sums)[same], bits(expected + np.float32(0))[same])


def test_replaced_optimizer():
    """If a job's optimizer is replaced, as a learning rate schedule does, only the scalar settings of a step
    change."""
    values = np.ones((2, 32), np.float32)
    optimizer = SGD(1.0)
    with simulate(node=DEFAULT, nodes=2, length=32, optimizer=optimizer) as job:
        for rate in (1.0, 0.5, 0.25):
            weights, _ = job.step(values, [dataclasses.replace(optimizer, learning_rate=rate)])
    assert set(weights) == {-1.75}
