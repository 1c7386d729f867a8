import numpy as np
import pytest

from sim.golden.features.compute import row_functions as model

EPSILON = np.float32(1e-5)


def _draw(generator, *shape):
    return generator.standard_normal(shape).astype(np.float32)


class TestNorm:
    def test_by_hand(self):
        """Layer norm of a row with mean 2 and variance 4, in exact numbers."""
        normal, deviation = model.norm(np.array([[0, 0, 4, 4]], np.float32), np.float32(0), np.float32(0.25))
        assert normal.tolist() == [[-1, -1, 1, 1]]
        assert deviation.tolist() == [[0.5]]

    def test_factor(self):
        """The mean of a layer norm is the sum of the row times the given factor, whatever the row length."""
        normal, deviation = model.norm(np.array([[3, 3]], np.float32), np.float32(1), np.float32(1))
        assert deviation.tolist() == [[np.float32(1) / np.sqrt(np.float32(19))]]
        assert normal.tolist() == [[-3 * deviation[0, 0]] * 2]

    def test_order_of_sums(self):
        """Sums start at column 0, so 1e8 absorbs the small terms that follow it."""
        x = np.array([[1, 1e8, -1e8, 1]], np.float32)
        _, deviation = model.norm(x, np.float32(0), np.float32(0.25))
        centred = x - np.float32(0.25)
        total = np.float32(0)
        for element in centred[0]:
            total = total + element * element
        assert deviation[0, 0] == np.float32(1) / np.sqrt(total * np.float32(0.25))

    @pytest.mark.parametrize("columns", [2, 7, 32, 64])
    def test_real_numbers(self, columns):
        generator = np.random.default_rng(columns)
        x = _draw(generator, 9, columns)
        normal, deviation = model.norm(x, EPSILON, np.float32(1 / columns))
        wide = x.astype(np.float64)
        want = 1 / np.sqrt(wide.var(axis=1, keepdims=True) + np.float64(EPSILON))
        np.testing.assert_allclose(deviation, want, rtol=1e-5)
        np.testing.assert_allclose(normal, (wide - wide.mean(axis=1, keepdims=True)) * want, rtol=1e-4, atol=1e-5)

    def test_specials(self):
        """A row that has an infinity, or a negative variance plus epsilon, becomes canonical NaNs."""
        for row, epsilon in (([1, np.inf], EPSILON), ([1, 1], np.float32(-1))):
            with np.errstate(all="ignore"):
                normal, deviation = model.norm(np.array([row], np.float32), epsilon, np.float32(0.5))
            for array in (normal, deviation):
                assert {hex(bits) for bits in array.view(np.uint32).ravel().tolist()} == {"0x7fc00000"}


class TestGradients:
    def test_norm_by_hand(self):
        """Gradient of a norm by hand: ((2 - 4) + 2) · 3 and ((6 - 4) - 2) · 3 for products (2, 6) with mean 4."""
        arrays = [np.array(row, np.float32) for row in ([[1, 2]], [[-1, 1]], [[3]], [[2, 3]])]
        assert model.norm_back(*arrays, np.float32(0.5)).tolist() == [[0, 0]]
        assert model.norm_back(*arrays, np.float32(0.25)).tolist() == [[3, 9]]

    @pytest.mark.parametrize("columns", [3, 16, 32])
    def test_norm_by_differences(self, columns):
        """The gradient of the layer norm matches finite differences in binary64."""
        generator = np.random.default_rng(columns)
        x, upstream, direction, scale = (generator.standard_normal((5, columns)) for _ in range(4))
        scale = scale[:1]

        def output(numbers):
            centred = numbers - numbers.mean(axis=1, keepdims=True)
            deviation = 1 / np.sqrt((centred * centred).mean(axis=1, keepdims=True) + np.float64(EPSILON))
            return centred * deviation, deviation

        normal, deviation = output(x)
        gradient = model.norm_back(*(array.astype(np.float32) for array in (upstream, normal, deviation, scale)),
                                   np.float32(1 / columns))
        step = 1e-6
        slope = ((output(x + step * direction)[0] - output(x - step * direction)[0]) * scale * upstream).sum(axis=1)
        np.testing.assert_allclose((gradient * direction).sum(axis=1), slope / (2 * step), rtol=1e-3, atol=1e-4)

    def test_softmax_by_hand(self):
        """Gradient of a softmax by hand: the sum is 4 · 0.25 + 8 · 0.75 = 7, so the differences are -3 and 1."""
        arrays = [np.array(row, np.float32) for row in ([[4, 8]], [[0.25, 0.75]])]
        gradient = model.softmax_back(*arrays, np.float32(2))
        assert gradient.tolist() == [[-1.5, 1.5]]

    @pytest.mark.parametrize("columns", [3, 16])
    def test_softmax_by_differences(self, columns):
        generator = np.random.default_rng(columns)
        scores, upstream, direction = (generator.standard_normal((5, columns)) for _ in range(3))

        def weights(values):
            powers = np.exp(values * 0.25)
            return powers / powers.sum(axis=1, keepdims=True)

        gradient = model.softmax_back(*(x.astype(np.float32) for x in (upstream, weights(scores))), np.float32(0.25))
        step = 1e-6
        slope = ((weights(scores + step * direction) - weights(scores - step * direction)) * upstream).sum(axis=1)
        np.testing.assert_allclose((gradient * direction).sum(axis=1), slope / (2 * step), rtol=1e-3, atol=1e-5)


class TestTables:
    def test_gather(self):
        """Rows are copied unchanged, including NaN bits; an invalid row number gives a row of +0.0."""
        table = np.array([[1, 2], [3, -0.0]], np.float32)
        table.view(np.uint32)[0, 1] = 0xFFC0_0001
        gathered, right = model.gather(table, np.array([1, 0, 2]))
        assert gathered.view(np.uint32).tolist() == [[0x4040_0000, 0x8000_0000], [0x3F80_0000, 0xFFC0_0001], [0, 0]]
        assert not right
        assert model.gather(table, np.array([1]))[1]

    def test_scatter(self):
        """Rows with the same row number are added in order: (1e8 + 1) - 1e8 = 0."""
        table = np.array([[1e8], [5]], np.float32)
        x = np.array([[1], [7], [-1e8], [2]], np.float32)
        sums, right = model.scatter(table, np.array([0, 1, 0, 2]), x)
        assert sums.tolist() == [[0], [12]]
        assert not right
        assert table.tolist() == [[1e8], [5]]
