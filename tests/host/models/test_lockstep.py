"""Passes that run in lockstep have the same bits as passes that run one after another."""

import numpy as np

from host.models.layers import keep, mask, mask_rows
from host.models.text import collate
from host.models.transformer import Use, lockstep
from tests.host.models.tiny import TINY, same, sequences, tiny


class TestLockstep:
    LENGTHS = [[4, 2, 5], [3], [], [5, 5]]

    def batches(self):
        generator = np.random.default_rng(6)
        return [collate(sequences(generator, lengths)) for lengths in self.LENGTHS]

    def test_same_bits_as_one_by_one(self):
        model = tiny(6)
        asked = []

        def answer(requests):
            asked.append([request and (request.use, request.values.shape) for request in requests])
            return [request and {Use.SCORES: mask, Use.ROWS: mask_rows}[request.use](request.values, request.lengths)
                    for request in requests]

        batches = self.batches()
        results = lockstep([model.gradient_pass(batch) for batch in batches], answer)
        for batch, (loss, gradient) in zip(batches, results, strict=True):
            expected_loss, expected = model.differentiate(batch)
            assert loss == expected_loss
            assert same(gradient, expected)
        scores = [(Use.SCORES, (3, 2, 5, 5)), (Use.SCORES, (1, 2, 3, 3)), None, (Use.SCORES, (2, 2, 5, 5))]
        rows = [(Use.ROWS, (3, 1, 5, 7)), (Use.ROWS, (1, 1, 3, 7)), None, (Use.ROWS, (2, 1, 5, 7))]
        assert asked == [*[scores] * TINY.layers, rows]
        assert lockstep([model.loss_pass(batch) for batch in batches], answer) == [loss for loss, _ in results]

    def test_output(self):
        model = tiny(6)
        batch = self.batches()[0]
        (scores, weights), = lockstep([model.output_pass(batch)], lambda requests: [
            mask(request.values, request.lengths) for request in requests])
        assert same(scores, model.scores(batch.inputs, batch.lengths))
        assert [layer_weights.shape for layer_weights in weights] == [(3, 2, 5, 5)] * TINY.layers
        kept = np.broadcast_to(keep(5, batch.lengths)[:, None], weights[0].shape)
        assert all(np.array_equal(layer_weights > 0, kept) for layer_weights in weights)

    def test_nothing_to_do(self):
        assert lockstep([], None) == []
        assert lockstep([tiny(1).loss_pass(collate([]))], None) == [0.0]
