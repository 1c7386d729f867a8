"""Order of summation: known answers, and a comparison of each function with plain Python loops."""

import math

import numpy as np
import pytest

from sim.golden import exponential
from sim.golden import summation as golden
from sim.golden.features.compute.row_functions import norm

NAN = 0x7FC0_0000


def single(*values):
    return np.array(values, np.float32)


def dot(a, b, initial=None):
    start = None if initial is None else single(initial)[:, None]
    return int(golden.product(single(*a)[None], single(*b)[:, None], start).view(np.uint32)[0, 0])


def bits(value):
    return int(np.float32(value).view(np.uint32))


@pytest.mark.filterwarnings("ignore:invalid value")
class TestKnownAnswers:
    @pytest.mark.parametrize(("terms", "expected"), [
        ([1e8, 1, -1e8], bits(0.0)), ([1e8, -1e8, 1], bits(1.0)), ([-0.0, -0.0], bits(0.0)), ([], bits(0.0)),
        ([np.inf, -np.inf], NAN), ([np.nan, 1], NAN), ([np.inf, 1], bits(np.inf)), ([1e-45, 0], 1),
        ([2**24, 1, 1], bits(2**24)), ([1, 1, 2**24], bits(2**24 + 2)),
    ], ids=str)
    def test_sums(self, terms, expected):
        """Dot products with ones, row sums, column sums, and rows that are added at one index give the same known
        sum."""
        assert dot(terms, [1] * len(terms)) == expected
        assert golden.row_sums(single(*terms)[None]).view(np.uint32).tolist() == [[expected]]
        assert golden.column_sums(single(*terms)[:, None]).view(np.uint32).tolist() == [expected]
        gathered = golden.gather_sums(single(*terms)[:, None], np.full(len(terms), 2), 4)
        assert gathered.view(np.uint32).tolist() == [[0], [0], [expected], [0]]

    def test_products(self):
        assert dot([-0.0, 0.0], [1, -1]) == bits(0.0)
        assert dot([2**-70], [2**-70]) == bits(2**-140)
        assert dot([2**-75], [2**-75]) == bits(0.0)
        assert dot([0], [np.inf]) == NAN
        # A fused multiply-add would give the exact sum, which is 2^-24.
        assert dot([-1 - 2**-11, 1 + 2**-12], [1, 1 + 2**-12]) == bits(0.0)

    def test_a_sum_goes_on(self):
        """A sum may have an initial value, and may be split. An initial value of -0.0 is kept if there are no
        terms."""
        assert dot([1, -1e8], [1, 1], 1e8) == bits(0.0)
        assert dot([], [], -0.0) == bits(-0.0)
        generator = np.random.default_rng(1)
        a, b, start = (generator.standard_normal(shape).astype(np.float32) for shape in ((5, 30), (30, 7), (5, 7)))
        whole = golden.product(a, b, start)
        for split in (0, 1, 17, 30):
            first = golden.product(a[:, :split], b[:split], start)
            assert golden.product(a[:, split:], b[split:], first).tobytes() == whole.tobytes()

    def test_wholly_masked_row(self):
        for columns in (1, 3, 7, 16):
            weights = golden.softmax(np.full((2, columns), -10_000, np.float32))
            assert (weights == np.float32(1) / np.float32(columns)).all()

    def test_masked_weight(self):
        assert golden.softmax(single(0, -10_000, 0)[None]).tolist() == [[0.5, 0, 0.5]]

    def test_not_finite(self):
        for row in ([np.nan, 1], [1, np.nan], [np.inf, 1], [-np.inf, -np.inf]):
            assert golden.softmax(single(*row)[None]).view(np.uint32).tolist() == [[NAN] * 2], row


class TestDefinitions:
    """The functions match Python loops in which each operation is rounded to binary32."""

    def rows(self, seed, shape):
        return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * 5

    def test_softmax(self):
        scores = self.rows(1, (6, 9))
        actual = golden.softmax(scores)
        for row, weights in zip(scores, actual, strict=True):
            powers = [exponential.exp(np.array([value - row.max()]))[0] for value in row]
            total = np.float32(0)
            for power in powers:
                total = total + power
            assert weights.tolist() == [power * (np.float32(1) / total) for power in powers]

    def test_cross_entropy(self):
        scores, labels = self.rows(2, (6, 9)), np.array([0, 8, 3, 3, 1, 7])
        loss, gradient = golden.cross_entropy(scores, labels)
        expected, quotients = np.float32(0), []
        for row, label in zip(scores, labels, strict=True):
            powers = exponential.exp(row - row.max())
            total = golden.row_sums(powers[None])[0]
            quotients.append(powers / total)
            expected = expected + (exponential.log(total)[0] - (row[label] - row.max()))
        assert loss == expected
        weights = np.array(quotients)
        assert weights.tobytes() != golden.softmax(scores).tobytes()  # the golden softmax multiplies by reciprocals
        weights[np.arange(6), labels] -= np.float32(1)
        assert gradient.tobytes() == weights.tobytes()
        exact = sum(math.log(np.exp(row.astype(float) - row[label]).sum())
                    for row, label in zip(scores, labels, strict=True))
        assert loss == pytest.approx(exact, rel=1e-6)

    def test_normalize(self):
        x = self.rows(3, (4, 6))
        normal, deviation = golden.normalize(x, 1e-5)
        share = np.float32(1 / 6)
        for actual, expected in zip(norm(x, np.float32(1e-5), share), (normal, deviation), strict=True):
            assert actual.tobytes() == expected.tobytes()
        for row, actual, spread in zip(x, normal, deviation[:, 0], strict=True):
            total = np.float32(0)
            for value in row:
                total = total + value
            centred = [value - total * share for value in row]
            square = np.float32(0)
            for value in centred:
                square = square + value * value
            assert spread == np.float32(1) / np.sqrt(square * share + np.float32(1e-5))
            assert actual.tolist() == [value * spread for value in centred]

    def test_binary64(self):
        """The functions also work without rounding to binary32, which finite differences need."""
        scores, labels = self.rows(4, (3, 5)).astype(np.float64), np.array([0, 1, 2])
        loss, gradient = golden.cross_entropy(scores, labels)
        shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        assert loss == pytest.approx(-np.log(shares[np.arange(3), labels]).sum(), rel=1e-12)
        shares[np.arange(3), labels] -= 1
        np.testing.assert_allclose(gradient, shares, rtol=1e-12, atol=1e-15)
        assert golden.product(scores, scores.T).dtype == np.float64
