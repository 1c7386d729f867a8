"""Transformer: gradients, causality, padding, sizes, and training."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from hdl.config import NodeConfig
from host.models.layers import Embedding
from host.models.text import Bigram, collate, topics
from host.models.transformer import Transformer, TransformerConfig
from tests.host.models.tiny import TINY, mean_loss, real, repad, same, sequences, single, slope, tiny
from tests.refusals import refuses


class Adam:
    """Adam optimizer with a learning rate that decays linearly to zero."""

    def __init__(self, model, *, learning_rate, steps, betas=(0.9, 0.999)):
        self.model = model
        self.rates = [learning_rate * (1 - step / steps) for step in range(steps)]
        self.decays = betas
        self.moments = np.zeros((2, model.size), dtype=np.float32)

    def step(self, number, batch):
        """Update the model's parameters; return the mean loss before the update."""
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


class TestGradients:
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
        examples = sequences(generator, [5, 1, 3, 2, 4])
        loss, gradient = model.differentiate(collate(examples))
        shares = [collate(part) for part in (examples[:2], examples[2:], [])]
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
        scores = model.scores(batch.inputs, batch.lengths)[real(batch)]
        for _ in range(5):
            other = repad(batch, generator)
            assert not np.array_equal(other.inputs, batch.inputs)
            other_loss, other_gradient = model.differentiate(other)
            assert other_loss == loss
            assert np.array_equal(other_gradient, gradient)
            assert same(model.scores(other.inputs, other.lengths)[real(other)], scores)

    def test_neighbours_change_little(self):
        """Apart from rounding, a sequence has the same loss by itself as padded in a batch, and losses add up."""
        generator = np.random.default_rng(5)
        model = tiny(5, dtype=np.float64)
        examples = sequences(generator, [1, 5, 2])
        losses = [model.loss(collate([sequence])) for sequence in examples]
        assert model.loss(collate(examples)) == pytest.approx(sum(losses), rel=1e-12)
        assert mean_loss(model, examples, batch=2) == pytest.approx(sum(losses) / 8, rel=1e-12)


class TestModel:
    def test_fits_into_a_node(self):
        assert Transformer(TransformerConfig()).size <= NodeConfig().memories.weight

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
        refuses(f"Vector must be of shape ({model.size},), not (3,)", model.views, np.zeros(3))

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
        ({"width": 6, "heads": 4}, "Width must be a multiple of heads, not (6, 4)"),
    ])
    def test_arguments(self, changes, message):
        refuses(message, dataclasses.replace, TINY, **changes)

    def test_too_long(self):
        model = tiny(1)
        with pytest.raises(ValueError, match=r"^Sequence must be of at most 5 positions, not 6$"):
            model.loss(collate(sequences(np.random.default_rng(1), [6])))


def batches(sequences, batch, generator):
    """Endless sequence of batches; each epoch is shuffled and divided into batches of nearly equal size."""
    while True:
        order = generator.permutation(len(sequences))
        for part in np.array_split(order, -(-len(sequences) // batch)):
            yield [sequences[n] for n in part]


class TestTraining:
    def run(self, seed, *, steps=200, stop=None):
        """Train a model; return the text, the model and the loss of each step. The learning rate decays over
        ``steps``."""
        text = topics(context=TransformerConfig().context)
        model = Transformer(TransformerConfig())
        model.initialize(seed)
        adam = Adam(model, learning_rate=0.03, steps=steps)
        stream = itertools.islice(batches(text.train, 64, np.random.default_rng((seed, 1))), stop or steps)
        losses = [adam.step(number, collate(batch)) for number, batch in enumerate(stream, 1)]
        return text, model, losses

    def test_same_every_time(self):
        first, second = (self.run(7, stop=3) for _ in range(2))
        assert first[2] == second[2]
        assert same(first[1].parameters, second[1].parameters)

    def test_beats_the_bigram_model(self):
        text, model, losses = self.run(0)
        assert losses[0] == pytest.approx(math.log(64), abs=0.05)
        assert mean_loss(model, text.test) < Bigram(text.train).loss(text.test) - 0.1


def test_order_of_losses():
    """The loss of a batch is the sum of the losses of its sequences, added in order and rounded after each
    addition."""
    model, generator = Transformer(TransformerConfig()), np.random.default_rng(4)
    model.initialize(4)
    sequences = [generator.integers(0, 64, length + 1) for length in (16, 3, 9, 16, 1)]
    total = np.float32(0)
    for sequence in sequences:
        total = total + np.float32(model.loss(collate([sequence])))
    assert model.loss(collate(sequences)) == model.differentiate(collate(sequences))[0] == float(total)
