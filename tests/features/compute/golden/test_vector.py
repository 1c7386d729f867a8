import numpy as np
import pytest

from hdl.features.compute.layer_list import PADDING
from sim.golden import summation
from sim.golden.features.compute.vector import CrossEntropy, Job, Read, Write, cross_entropy, reads, softmax, writes
from sim.golden.features.compute.vector_cycles import VectorCycles


def test_right_labels():
    """With valid labels, the loss and the gradient equal the results of the host's functions."""
    generator = np.random.default_rng(1)
    scores = (5 * generator.standard_normal((30, 10))).astype(np.float32)
    labels = generator.integers(10, size=30)
    loss, gradient = summation.cross_entropy(scores, labels)
    result = cross_entropy(scores.view(np.uint32), labels)
    assert not result.wrong
    assert result.loss == np.float32(loss).view(np.uint32)
    np.testing.assert_array_equal(result.gradient, gradient.view(np.uint32))


def test_wrong_labels():
    """The gradient of a row with a wrong label is its softmax; the row does not add to the loss."""
    scores = np.array([[0, 1], [2, 2], [3, 1]], np.float32)
    result = cross_entropy(scores.view(np.uint32), np.array([1, 2, 0]))
    right = [0, 2]
    loss, gradient = summation.cross_entropy(scores[right], np.array([1, 0]))
    assert result.wrong
    assert result.loss == np.float32(loss).view(np.uint32)
    np.testing.assert_array_equal(result.gradient[right], gradient.view(np.uint32))
    assert result.gradient.view(np.float32)[1].tolist() == [0.5, 0.5]
    assert cross_entropy(scores.view(np.uint32), np.array([2, 3, 1 << 32])).loss == 0


def test_bits_of_a_wrong_row():
    """The gradient of a row with a wrong label consists of rounded quotients, unlike SOFTMAX's products."""
    scores = (5 * np.random.default_rng(2).standard_normal((30, 10))).astype(np.float32)
    wrong = cross_entropy(scores.view(np.uint32), np.full(30, 10)).gradient.view(np.float32)
    _, gradient = summation.cross_entropy(scores, np.zeros(30, np.int64))
    np.testing.assert_array_equal(wrong[:, 1:], gradient[:, 1:])
    assert (wrong.view(np.uint32) != softmax(scores.view(np.uint32))).any()


def test_padding():
    """With ``sequences``, a padding row has zero gradient and no loss; otherwise it is an error."""
    scores = np.array([[0, 1], [2, np.nan], [3, 1]], np.float32).view(np.uint32)
    labels = np.array([1, PADDING, 0])
    loss, gradient = summation.cross_entropy(scores.view(np.float32)[[0, 2]], labels[[0, 2]])
    result = cross_entropy(scores, labels, sequences=True)
    assert not result.wrong
    assert result.loss == np.float32(loss).view(np.uint32)
    np.testing.assert_array_equal(result.gradient[[0, 2]], gradient.view(np.uint32))
    assert result.gradient[1].tolist() == [0, 0]
    assert cross_entropy(scores, np.array([1, 2, PADDING]), sequences=True).wrong
    without = cross_entropy(scores, labels)
    assert without.wrong
    assert without.gradient[1].tolist() == [0x7FC0_0000] * 2


def test_not_a_number():
    """A NaN with any bit pattern turns its row and the loss into canonical NaNs."""
    scores = np.zeros((2, 3), np.uint32)
    scores[0, 1] = 0xFFC1_2345
    result = cross_entropy(scores, np.array([0, 0]))
    assert result.gradient[0].tolist() == [0x7FC0_0000] * 3
    assert result.loss == 0x7FC0_0000
    assert result.gradient.view(np.float32)[1, 1] == np.float32(1) / np.float32(3)


def test_reads_and_writes():
    job = Job(rows=2, columns=5, source=(2, 10), labels=(1, 3), target=(0, 20), loss=(2, 40), labels_lane=3,
              loss_lane=1, stride_source=2, stride_labels=6, stride_target=3)
    assert reads(job, 4) == [
        Read(1, 3, 0, -1, 3), Read(2, 10, 0, 0), Read(2, 11, 0, 4), Read(1, 5, 1, -1, 1), Read(2, 12, 1, 0),
        Read(2, 13, 1, 4)]
    result = CrossEntropy(99, np.arange(10, dtype=np.uint32).reshape(2, 5), False)
    assert writes(job, result, 4) == [
        Write(0, 20, {0: 0, 1: 1, 2: 2, 3: 3}), Write(0, 21, {0: 4}), Write(0, 23, {0: 5, 1: 6, 2: 7, 3: 8}),
        Write(0, 24, {0: 9}), Write(2, 40, {1: 99})]


@pytest.mark.parametrize(("job", "legal"), [
    ({}, True), ({"columns": 64}, True), ({"rows": 4095}, True), ({"columns": 65}, False), ({"rows": 0}, False),
    ({"columns": 0}, False), ({"function": 1}, False),
])
def test_legal(job, legal):
    assert Job(**{"rows": 1, "columns": 1, **job}).legal(64) == legal


def test_cycles():
    """Loading, program frames, quotients and the end of a job take the stated cycles, for one element and two blocks.
    """
    loading, frames, quotients = 3 + 5 + 2 + 2, 12 + 1 + 17, 1 + 53 + 2 + 1
    assert VectorCycles().job(1, 1) == loading + 16 * frames + quotients + 5
    assert VectorCycles().job(1, 1, loss_lane=3) == VectorCycles().job(1, 1) + 3
    single, double = (VectorCycles().job(64 * blocks, 8) for blocks in (1, 2))
    assert double - single == 64 * 9 + 16 * (12 * 8 + 8 + 17) + 1 + 2 * 511 + 55 + 1
    # With few columns, summing the losses (one per frame) takes longer than computing the quotients.
    assert VectorCycles().job(64, 1) - VectorCycles().job(63, 1) == 2 + 16
