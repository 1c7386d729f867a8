import dataclasses
import itertools
import math

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from hdl.config import NodeConfig
from host.models.text import Batch, Bigram, batches, collate, topics
from host.models.transformer import (
    ALTERNATIVE,
    Attention,
    Dense,
    Embedding,
    LayerNorm,
    Transformer,
    TransformerConfig,
    Use,
    keep,
    lockstep,
    mask,
    mask_rows,
)

TINY = TransformerConfig(width=6, heads=2, layers=2, hidden=5, context=5, characters=7)


def slope(function, vector, index, step=1e-6):
    """Partial derivative of ``function``, by central difference."""
    above, below = vector.copy(), vector.copy()
    above[index] += step
    below[index] -= step
    return (function(above) - function(below)) / (2 * step)


def sequences(generator, lengths, characters=TINY.characters):
    """Random ones, of so many predicted characters."""
    return [generator.integers(0, characters, length + 1) for length in lengths]


def tiny(seed, dtype=np.float32):
    model = Transformer(TINY, dtype=dtype)
    # No parameter at a special value, as a shift is that is zero.
    model.parameters[...] = np.random.default_rng(seed).standard_normal(model.size) * 0.6
    return model


def same(a, b):
    """Bit for bit."""
    return a.dtype == b.dtype == np.float32 and np.array_equal(a.view(np.uint32), b.view(np.uint32))


def repad(batch, generator, characters=TINY.characters):
    """The same batch with anything in its padding."""
    other = generator.integers(0, characters, (2, *batch.inputs.shape))
    return Batch(np.where(batch.real, batch.inputs, other[0]), np.where(batch.real, batch.targets, other[1]),
                 batch.lengths)


def single(shapes, draw):
    """Parameters of a layer, in float32."""
    return {name: draw(shape).astype(np.float32) for name, shape in shapes.items()}


class Adam:
    """With a learning rate that falls to zero along a straight line."""

    def __init__(self, model, *, learning_rate, steps, betas=(0.9, 0.999)):
        self.model = model
        self.rates = [learning_rate * (1 - step / steps) for step in range(steps)]
        self.decays = betas
        self.moments = np.zeros((2, model.size), dtype=np.float32)

    def step(self, number, batch):
        """Mean loss before the update."""
        loss, gradient = self.model.differentiate(batch)
        count = int(batch.lengths.sum())
        gradient /= count
        for moment, decay, value in zip(self.moments, self.decays, (gradient, gradient * gradient), strict=True):
            moment *= decay
            moment += (1 - decay) * value
        mean, square = (moment / (1 - decay ** number)
                        for moment, decay in zip(self.moments, self.decays, strict=True))
        self.model.parameters -= self.rates[number - 1] * mean / (np.sqrt(square) + 1e-8)
        return loss / count


class TestMask:
    @pytest.mark.parametrize("positions", [1, 2, 5, 17])
    def test_keep(self, positions):
        lengths = np.arange(1, positions + 1)
        found = keep(positions, lengths)
        for n, i, j in np.ndindex(found.shape):
            assert found[n, i, j] == (j <= i and j < lengths[n])

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

    @pytest.mark.parametrize("heads", [1, 2, 4])
    def test_attention(self, heads):
        generator = np.random.default_rng(heads)
        layer = Attention(8, heads)
        parameters = single(layer.shapes, generator.standard_normal)
        lengths = np.array([6, 1, 3])
        weights = layer.weights(generator.standard_normal((3, 6, 8)).astype(np.float32), parameters, lengths)
        assert weights.dtype == np.float32
        assert weights.shape == (3, heads, 6, 6)
        kept = np.broadcast_to(keep(6, lengths)[:, None], weights.shape)
        assert not weights[~kept].any()
        assert (weights[kept] > 0).all()
        assert weights.sum(axis=-1) == pytest.approx(1, abs=1e-6)

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
        """The causal mask and that of rows decide the gradient. The padding of columns decides what padding sees, of
        which the mask of rows has made nothing; in its place it would not do, as padding has a loss of its own.
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
        found = lockstep([model.gradient_pass(batch) for batch in batches], answer)
        for batch, (loss, gradient) in zip(batches, found, strict=True):
            expected_loss, expected = model.differentiate(batch)
            assert loss == expected_loss
            assert same(gradient, expected)
        scores = [(Use.SCORES, (3, 2, 5, 5)), (Use.SCORES, (1, 2, 3, 3)), None, (Use.SCORES, (2, 2, 5, 5))]
        rows = [(Use.ROWS, (3, 1, 5, 7)), (Use.ROWS, (1, 1, 3, 7)), None, (Use.ROWS, (2, 1, 5, 7))]
        assert asked == [*[scores] * TINY.layers, rows]
        assert lockstep([model.loss_pass(batch) for batch in batches], answer) == [loss for loss, _ in found]

    def test_output(self):
        model = tiny(6)
        batch = self.batches()[0]
        (scores, weights), = lockstep([model.output_pass(batch)], lambda requests: [
            mask(request.values, request.lengths) for request in requests])
        assert same(scores, model.scores(batch.inputs, batch.lengths))
        assert [one.shape for one in weights] == [(3, 2, 5, 5)] * TINY.layers
        kept = np.broadcast_to(keep(5, batch.lengths)[:, None], weights[0].shape)
        assert all(np.array_equal(one > 0, kept) for one in weights)

    def test_nothing_to_do(self):
        assert lockstep([], None) == []
        assert lockstep([tiny(1).loss_pass(collate([]))], None) == [0.0]


class TestGradients:
    @pytest.mark.parametrize(("layer", "shape"), [
        (Dense(5, 3), (2, 4, 5)), (LayerNorm(5), (2, 3, 5)),
        (Attention(6, 2), (2, 4, 6)), (Attention(3, 1), (1, 1, 3)),
    ], ids=["dense", "layer_norm", "attention", "attention_1"])
    def test_layer(self, layer, shape):
        generator = np.random.default_rng(1)
        x = generator.standard_normal(shape)
        parameters = {name: generator.standard_normal(shape) for name, shape in layer.shapes.items()}
        lengths = {"lengths": np.array([3, 4][:shape[0]])} if shape == (2, 4, 6) else {}
        output, cache = layer.forward(x, parameters, **lengths)
        upstream = generator.standard_normal(output.shape)
        gradients = {name: np.full(shape, np.nan) for name, shape in layer.shapes.items()}
        inward = layer.backward(upstream, cache, parameters, gradients)
        for index in np.ndindex(x.shape):
            expected = slope(lambda x: (layer.forward(x, parameters, **lengths)[0] * upstream).sum(), x, index)
            assert inward[index] == pytest.approx(expected, rel=1e-6, abs=1e-7)
        for name, view in parameters.items():
            def value(parameter, name=name):
                return (layer.forward(x, {**parameters, name: parameter}, **lengths)[0] * upstream).sum()

            for index in np.ndindex(view.shape):
                assert gradients[name][index] == pytest.approx(slope(value, view, index), rel=1e-6, abs=1e-7)

    def test_embedding(self):
        generator = np.random.default_rng(2)
        layer = Embedding(4, 6, 3)
        x = np.array([[1, 2, 1, 0], [2, 2, 2, 2]])
        parameters = {name: generator.standard_normal(shape) for name, shape in layer.shapes.items()}
        output, cache = layer.forward(x, parameters)
        upstream = generator.standard_normal(output.shape)
        gradients = {name: np.full(shape, np.nan) for name, shape in layer.shapes.items()}
        layer.backward(upstream, cache, parameters, gradients)
        for name, view in parameters.items():
            def value(parameter, name=name):
                return (layer.forward(x, {**parameters, name: parameter})[0] * upstream).sum()

            for index in np.ndindex(view.shape):
                assert gradients[name][index] == pytest.approx(slope(value, view, index), rel=1e-6, abs=1e-7)
        assert not gradients["character"][3].any()
        assert not gradients["position"][4:].any()

    @pytest.mark.parametrize("lengths", [[5, 2, 4], [1], [3, 3]], ids=str)
    def test_model(self, lengths):
        generator = np.random.default_rng((3, *lengths))
        model = tiny(3, dtype=np.float64)
        batch = collate(sequences(generator, lengths))
        start = model.parameters.copy()
        loss, gradient = model.differentiate(batch)
        assert loss == model.loss(batch)
        assert gradient.dtype == np.float64

        def value(parameters):
            model.parameters[...] = parameters
            return model.loss(batch)

        for n in range(model.size):
            assert gradient[n] == pytest.approx(slope(value, start, n), rel=1e-5, abs=1e-6), n

    def test_sum_over_shares(self):
        generator = np.random.default_rng(4)
        model = tiny(4, dtype=np.float64)
        given = sequences(generator, [5, 1, 3, 2, 4])
        loss, gradient = model.differentiate(collate(given))
        shares = [collate(part) for part in (given[:2], given[2:], [])]
        losses, gradients = zip(*map(model.differentiate, shares), strict=True)
        assert sum(losses) == pytest.approx(loss)
        assert sum(gradients) == pytest.approx(gradient)


class TestCausality:
    @pytest.mark.parametrize("seed", range(3))
    def test_no_output_before_a_change(self, seed):
        generator = np.random.default_rng(seed)
        model = tiny(seed)
        inputs = generator.integers(0, TINY.characters, (4, 5))
        lengths = np.array([5, 5, 3, 1])
        before = model.scores(inputs, lengths)
        for t in range(5):
            changed = inputs.copy()
            changed[:, t] = (changed[:, t] + generator.integers(1, TINY.characters, 4)) % TINY.characters
            after = model.scores(changed, lengths)
            assert same(before[:, :t], after[:, :t])
            for n in np.flatnonzero(t < lengths):
                assert (before[n, t:lengths[n]] != after[n, t:lengths[n]]).any(axis=-1).all(), (n, t)

    def test_default_size(self):
        model = Transformer(TransformerConfig())
        model.initialize(0)
        generator = np.random.default_rng(0)
        positions = model.config.context
        inputs = generator.integers(0, 64, (3, positions))
        lengths = np.full(3, positions)
        before = model.scores(inputs, lengths)
        for t in range(positions):
            changed = inputs.copy()
            changed[:, t] = (changed[:, t] + 1) % 64
            after = model.scores(changed, lengths)
            assert same(before[:, :t], after[:, :t])
            assert not same(before[:, t], after[:, t])


class TestPadding:
    @pytest.mark.parametrize("seed", range(3))
    def test_contents(self, seed):
        generator = np.random.default_rng(seed)
        model = tiny(seed)
        batch = collate(sequences(generator, [2, 5, 1, 3]))
        loss, gradient = model.differentiate(batch)
        scores = model.scores(batch.inputs, batch.lengths)[batch.real]
        for _ in range(5):
            other = repad(batch, generator)
            assert not np.array_equal(other.inputs, batch.inputs)
            other_loss, other_gradient = model.differentiate(other)
            assert other_loss == loss
            assert np.array_equal(other_gradient, gradient)
            assert same(model.scores(other.inputs, other.lengths)[other.real], scores)

    def test_neighbours_change_little(self):
        """Alone, or padded beside a longer one: the same to rounding, as shapes decide the order of sums."""
        generator = np.random.default_rng(5)
        model = tiny(5, dtype=np.float64)
        given = sequences(generator, [1, 5, 2])
        losses = [model.loss(collate([sequence])) for sequence in given]
        assert model.loss(collate(given)) == pytest.approx(sum(losses), rel=1e-12)
        assert model.mean_loss(given, batch=2) == pytest.approx(sum(losses) / 8, rel=1e-12)


class TestModel:
    def test_fits_into_a_node(self):
        assert Transformer(TransformerConfig()).size <= NodeConfig().weight_words

    def test_size(self):
        embedding = 7 * 6 + 5 * 6
        layer = 2 * (6 + 6) + 6 * 18 + 6 * 6 + (6 * 5 + 5) + (5 * 6 + 6)
        assert Transformer(TINY).size == embedding + 2 * layer + (6 + 6) + (6 * 7 + 7)

    def test_views_share_the_vector(self):
        model = Transformer(TINY)
        views = model.views(model.parameters)
        assert [*views][:3] == ["embedding", "norm_0", "attention_0"]
        assert views["attention_1"]["inward"].shape == (6, 18)
        for number, view in enumerate(view for layer in views.values() for view in layer.values()):
            view[...] = number + 1
        assert (np.diff(model.parameters) >= 0).all()
        assert model.parameters[0] == 1
        assert (model.parameters[-7:] == views["output"]["bias"]).all()

    def test_views_of_wrong_shape(self):
        model = Transformer(TINY)
        with pytest.raises(ValueError, match=rf"^Vector must be of shape \({model.size},\), not \(3,\)$"):
            model.views(np.zeros(3))

    def test_single_precision_throughout(self):
        model = tiny(0)
        batch = collate(sequences(np.random.default_rng(0), [3, 2]))
        assert model.scores(batch.inputs, batch.lengths).dtype == np.float32
        assert model.differentiate(batch)[1].dtype == np.float32
        for layer in model._layers.values():
            views = single(layer.shapes, np.ones)
            inputs = batch.inputs if isinstance(layer, Embedding) else np.ones(
                (2, 3, getattr(layer, "inputs", TINY.width)), dtype=np.float32)
            output, cache = layer.forward(inputs, views)
            assert output.dtype == layer.backward(output, cache, views, views).dtype == np.float32

    def test_one_character(self):
        model = tiny(1)
        batch = collate([np.array([3, 4])])
        scores = model.scores(batch.inputs, batch.lengths)
        assert scores.shape == (1, 1, 7)
        expected = np.log(np.exp(scores[0, 0] - scores[0, 0, 4]).sum())
        assert model.loss(batch) == pytest.approx(expected, rel=1e-6)
        assert model.differentiate(batch)[1].any()

    def test_no_sequences(self):
        model = tiny(1)
        loss, gradient = model.differentiate(collate([]))
        assert loss == model.loss(collate([])) == 0
        assert gradient.shape == (model.size,)
        assert not gradient.any()

    def test_first_loss_is_that_of_guessing(self):
        model = Transformer(TransformerConfig())
        model.initialize(0)
        batch = collate(sequences(np.random.default_rng(0), [16] * 20, 64))
        assert model.loss(batch) / 320 == pytest.approx(math.log(64), abs=0.05)

    def test_overflow_is_silent(self):
        model = tiny(1)
        model.parameters *= 1e30
        batch = collate(sequences(np.random.default_rng(1), [3, 2]))
        loss, gradient = model.differentiate(batch)
        assert not np.isfinite(loss) or not np.isfinite(gradient).all()

    def test_seed(self):
        models = [Transformer(TINY) for _ in range(3)]
        for model, seed in zip(models, (5, 5, 6), strict=True):
            model.initialize(seed)
        assert same(models[0].parameters, models[1].parameters)
        assert not np.array_equal(models[0].parameters, models[2].parameters)

    @pytest.mark.parametrize(("changes", "message"), [
        *(({name: 0}, f"{name.capitalize()} must be at least 1, not 0")
          for name in ("width", "heads", "layers", "hidden", "context", "characters")),
        ({"width": 6, "heads": 4}, r"Width must be a multiple of heads, not \(6, 4\)"),
    ])
    def test_arguments(self, changes, message):
        with pytest.raises(ValueError, match=f"^{message}$"):
            dataclasses.replace(TINY, **changes)

    def test_heads(self):
        with pytest.raises(ValueError, match=r"^Width must be a multiple of heads, not \(6, 4\)$"):
            Attention(6, 4)

    def test_too_long(self):
        model = tiny(1)
        with pytest.raises(ValueError, match=r"^Sequence must be of at most 5 positions, not 6$"):
            model.loss(collate(sequences(np.random.default_rng(1), [6])))


class TestTraining:
    def run(self, seed, *, steps=200, stop=None):
        """Text, model and the loss of each step; the learning rate falls to zero over ``steps``."""
        text = topics(context=TransformerConfig().context)
        model = Transformer(TransformerConfig())
        model.initialize(seed)
        adam = Adam(model, learning_rate=0.03, steps=steps)
        stream = itertools.islice(batches(text.train, 64, np.random.default_rng((seed, 1))), stop or steps)
        # Several threads only get into each other's way on matrices as small as these.
        with threadpool_limits(1):
            losses = [adam.step(number, collate(given)) for number, given in enumerate(stream, 1)]
        return text, model, losses

    def test_same_every_time(self):
        first, second = (self.run(7, stop=3) for _ in range(2))
        assert first[2] == second[2]
        assert same(first[1].parameters, second[1].parameters)

    def test_beats_the_bigram_model(self):
        text, model, losses = self.run(0)
        assert losses[0] == pytest.approx(math.log(64), abs=0.05)
        assert model.mean_loss(text.test) < Bigram(text.train).loss(text.test) - 0.1
