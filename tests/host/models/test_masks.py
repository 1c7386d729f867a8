"""Masks for attention scores, and row masks."""

import numpy as np
import pytest

from host.models.layers import ALTERNATIVE, keep, mask, mask_rows
from host.models.text import collate
from host.models.transformer import Transformer
from tests.host.models.tiny import TINY, same, sequences, tiny


class TestMask:
    @pytest.mark.parametrize("positions", [1, 2, 5, 17])
    def test_keep(self, positions):
        lengths = np.arange(1, positions + 1)
        kept = keep(positions, lengths)
        for n, i, j in np.ndindex(kept.shape):
            assert kept[n, i, j] == (j <= i and j < lengths[n])

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_replaces(self, dtype):
        scores = np.random.default_rng(1).standard_normal((3, 2, 5, 5)).astype(dtype)
        lengths = np.array([5, 1, 3])
        scores[0, 0, 0, 1] = np.nan
        scores[1, 1, 4, 2] = np.inf
        masked = mask(scores, lengths)
        kept = np.broadcast_to(keep(5, lengths)[:, None], scores.shape)
        assert masked.dtype == dtype
        assert np.array_equal(masked[kept], scores[kept])
        assert (masked[~kept] == ALTERNATIVE).all()

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("largest", [-9000, -1, 0, 1, 1e4, 1e30])
    def test_weights_of_masked_places_are_zero(self, dtype, largest):
        scores = np.full((1, 1, 4, 4), largest, dtype=dtype)
        masked = mask(scores, np.array([3]))
        exponentials = np.exp(masked - masked.max(axis=-1, keepdims=True))
        assert (exponentials[0, 0] == keep(4, np.array([3]))[0]).all()

    def test_another_in_its_place(self):
        calls = []

        def stand_in(scores, lengths):
            calls.append((scores.shape, scores.dtype, lengths.tolist()))
            return mask(scores, lengths)

        generator = np.random.default_rng(2)
        batch = collate(sequences(generator, [4, 2, 5]))
        expected, model = Transformer(TINY), Transformer(TINY, mask=stand_in)
        expected.initialize(2)
        model.initialize(2)
        loss, gradient = model.differentiate(batch)
        assert calls == TINY.layers * [((3, TINY.heads, 5, 5), np.float32, [4, 2, 5])]
        assert loss == expected.differentiate(batch)[0]
        assert same(gradient, expected.differentiate(batch)[1])


    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_rows(self, dtype):
        gradients = np.random.default_rng(1).standard_normal((3, 2, 4, 5)).astype(dtype)
        gradients[1, 1, 3, 2] = np.nan
        lengths = np.array([4, 1, 3])
        masked = mask_rows(gradients, lengths)
        assert masked.dtype == dtype
        for n, _, row, _ in np.ndindex(gradients.shape):
            expected = gradients[n, :, row] if row < lengths[n] else np.zeros((2, 5))
            assert np.array_equal(masked[n, :, row], expected)

    def test_left_out(self):
        """The gradient depends only on the causal mask and the row mask. Masking padded columns affects only the
        scores of padding, which already have zero gradient due to the row mask. The column mask cannot replace the
        row mask, because padding has a loss of its own.
        """
        def causal(scores, lengths):
            return mask(scores, np.full(len(scores), scores.shape[-1]))

        def padding(scores, lengths):
            kept = np.arange(scores.shape[-1]) < lengths[:, None]
            return np.where(kept[:, None, None], scores, np.float32(ALTERNATIVE))

        def nothing(values, lengths):
            return values

        batch = collate(sequences(np.random.default_rng(3), [4, 2, 5]))
        parameters = tiny(3).parameters

        def gradient(**masks):
            model = Transformer(TINY, **masks)
            model.parameters[...] = parameters
            return model.differentiate(batch)[1]

        whole = gradient()
        assert same(gradient(mask=causal), whole)
        for masks in ({"mask": padding}, {"mask_rows": nothing}, {"mask": causal, "mask_rows": nothing}):
            assert np.abs(gradient(**masks) - whole).max() > 1e-3
