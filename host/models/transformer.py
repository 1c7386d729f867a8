"""A causal transformer over characters, with one flat vector of parameters.

Each of its layers is the sum of its input and what attention makes of it, and then of that and what a feed-forward
network makes of it, with a layer norm before each of the two (Xiong et al., 2020). As in :mod:`host.models.layers`,
parameters live in one vector, and everything is computed in its ``dtype``.

Attention is masked by replacement: a score whose place is masked becomes :data:`ALTERNATIVE`, so far below the others
that its weight is exactly zero. And so is the gradient of the loss, whose rows of padding become zeros. Those are two
functions, :func:`mask` and :func:`mask_rows`, for which others may stand in.

Where something is to be masked, a pass through the model waits (see :class:`Request`), and :func:`lockstep` runs
several passes side by side, so that one call masks what all of them wait for.
"""

import dataclasses
import enum
import math
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from host.models.layers import Array, Labels, Layer, Linear, ReLU, SoftmaxCrossEntropy, Views
from host.models.text import ALPHABET, Batch, Characters, collate

__all__ = ["ALTERNATIVE", "Attention", "Dense", "Embedding", "LayerNorm", "Mask", "Pass", "Request", "Transformer",
           "TransformerConfig", "Use", "keep", "lockstep", "mask", "mask_rows"]

T = TypeVar("T")

#: What a masked score becomes. exp(x) is 0 in float32 below -104 and in float64 below -746, so a masked weight is
#: exactly zero as long as the largest score of its row is above -9,000.
ALTERNATIVE = -10000.0

#: Of matrices in shape (sequences, matrices, rows, columns) and the length of each sequence, makes masked ones.
Mask = Callable[[Array, Labels], Array]


class Use(enum.Enum):
    """What is to be masked."""

    SCORES = "scores"
    """Scores of attention, as by :func:`mask`: what is to come, and padding."""
    ROWS = "rows"
    """The loss's gradient with respect to the model's output, as by :func:`mask_rows`: rows of padding."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """What a pass waits for.

    Members
    -------
    use : Use
    values : array
        Of shape (sequences, matrices, rows, columns).
    lengths : array of int64
        Of the sequences.
    """

    use: Use
    values: Array
    lengths: Labels


#: Requests what is to be masked, is sent the masked values, and returns its result.
Pass = Generator[Request, Array, T]


def lockstep(passes: Sequence[Pass[T]], answer: Callable[[list[Request | None]], Sequence[Array | None]]) -> list[T]:
    """Results of passes that go on side by side: where they wait, all are answered at once.

    Parameters
    ----------
    passes : sequence of Pass
    answer : callable
        Of the request of each pass, None from one that has ended, makes the masked values of each.
    """
    results: dict[int, T] = {}
    answers: Sequence[Any] = [None] * len(passes)
    while len(results) < len(passes):
        requests: list[Request | None] = [None] * len(passes)
        for number, one in enumerate(passes):
            if number not in results:
                try:
                    requests[number] = one.send(answers[number])
                except StopIteration as end:
                    results[number] = end.value
        if any(requests):
            answers = answer(requests)
    return [results[number] for number in range(len(passes))]


def keep(positions: int, lengths: Labels) -> npt.NDArray[np.bool_]:
    """Which scores stay, a matrix for each sequence: row i, column j where j <= i and j < length.

    No row is masked wholly: column 0 stays in all of them.
    """
    index = np.arange(positions)
    causal = index <= index[:, None]
    padding = index < lengths[:, None]
    return np.asarray(causal & padding[:, None, :])


def mask(scores: Array, lengths: Labels) -> Array:
    """Scores where they stay, :data:`ALTERNATIVE` where they are masked."""
    return np.where(keep(scores.shape[-1], lengths)[:, None], scores, scores.dtype.type(ALTERNATIVE))


def mask_rows(gradients: Array, lengths: Labels) -> Array:
    """Rows where they are not padding, zeros where they are."""
    rows = np.arange(gradients.shape[-2]) < lengths[:, None]
    return np.where(rows[:, None, :, None], gradients, gradients.dtype.type(0))


class Embedding(Layer):
    """A vector for each character, plus one for its position. Its input is characters, which have no gradient."""

    def __init__(self, characters: int, positions: int, width: int):
        self.characters = characters
        self.positions = positions
        self.width = width

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"character": (self.characters, self.width), "position": (self.positions, self.width)}

    def initialize(self, parameters: Views, generator: np.random.Generator) -> None:
        for view in parameters.values():
            view[...] = generator.standard_normal(view.shape)

    def forward(self, x: Any, parameters: Views) -> tuple[Array, Any]:
        if x.shape[1] > self.positions:
            raise ValueError(f"Sequence must be of at most {self.positions} positions, not {x.shape[1]!r}")
        return parameters["character"][x] + parameters["position"][:x.shape[1]], x

    def backward(self, upstream: Array, cache: Any, parameters: Views, gradients: Views) -> Array:
        for view in gradients.values():
            view[...] = 0
        np.add.at(gradients["character"], cache, upstream)
        gradients["position"][:cache.shape[1]] = upstream.sum(axis=0)
        return np.zeros_like(upstream)


class Dense(Linear):
    """The same linear layer at every position of every sequence.

    Parameters
    ----------
    inputs, outputs : int
    gain : float
        Of the initial weights: standard deviation of an output where the inputs' is 1.
    """

    def __init__(self, inputs: int, outputs: int, *, gain: float = math.sqrt(2)):
        super().__init__(inputs, outputs)
        self._gain = gain

    def initialize(self, parameters: Views, generator: np.random.Generator) -> None:
        super().initialize(parameters, generator)
        parameters["weight"][...] *= self._gain / math.sqrt(2)

    def forward(self, x: Array, parameters: Views) -> tuple[Array, Array]:
        output, _ = super().forward(x.reshape(-1, self.inputs), parameters)
        return output.reshape(*x.shape[:-1], self.outputs), x

    def backward(self, upstream: Array, cache: Array, parameters: Views, gradients: Views) -> Array:
        inward = super().backward(
            upstream.reshape(-1, self.outputs), cache.reshape(-1, self.inputs), parameters, gradients)
        return inward.reshape(cache.shape)


class LayerNorm(Layer):
    """Each position's vector with mean 0 and variance 1, times ``scale``, plus ``shift``."""

    def __init__(self, width: int, *, epsilon: float = 1e-5):
        self.width = width
        self._epsilon = epsilon

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"scale": (self.width,), "shift": (self.width,)}

    def initialize(self, parameters: Views, generator: np.random.Generator) -> None:
        parameters["scale"][...] = 1
        parameters["shift"][...] = 0

    def forward(self, x: Array, parameters: Views) -> tuple[Array, Any]:
        centred = x - x.mean(axis=-1, keepdims=True)
        deviation = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + self._epsilon)
        normal = centred / deviation
        return normal * parameters["scale"] + parameters["shift"], (normal, deviation)

    def backward(self, upstream: Array, cache: Any, parameters: Views, gradients: Views) -> Array:
        normal, deviation = cache
        rows = tuple(range(upstream.ndim - 1))
        gradients["scale"][...] = (upstream * normal).sum(axis=rows)
        gradients["shift"][...] = upstream.sum(axis=rows)
        scaled = upstream * parameters["scale"]
        along = (scaled * normal).mean(axis=-1, keepdims=True)
        return np.asarray((scaled - scaled.mean(axis=-1, keepdims=True) - normal * along) / deviation)


class Attention(Layer):
    """Masked attention of several heads, without biases.

    Parameters
    ----------
    width, heads : int
        Each head has ``width`` / ``heads`` of the elements.
    mask : callable
        See :data:`Mask`. A weight that it does not make zero takes part in the gradient.
    """

    def __init__(self, width: int, heads: int, *, mask: Mask = mask):
        if heads < 1 or width % heads:
            raise ValueError(f"Width must be a multiple of heads, not {(width, heads)!r}")
        self.width = width
        self.heads = heads
        self._mask = mask

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"inward": (self.width, 3 * self.width), "outward": (self.width, self.width)}

    def initialize(self, parameters: Views, generator: np.random.Generator) -> None:
        for view in parameters.values():
            view[...] = generator.standard_normal(view.shape) / math.sqrt(self.width)

    def weights(self, x: Array, parameters: Views, lengths: Labels) -> Array:
        """Attention weights: row is the position that attends, column the one attended to."""
        return np.asarray(self.forward(x, parameters, lengths)[1][3])

    def forward(self, x: Array, parameters: Views, lengths: Labels | None = None) -> tuple[Array, Any]:
        """Output and cache. Without lengths, there is no padding."""
        if lengths is None:
            lengths = np.full(x.shape[0], x.shape[1])
        scores, parts = self.scores(x, parameters)
        return self.attend(x, parameters, self._mask(scores, lengths), parts)

    def scores(self, x: Array, parameters: Views) -> tuple[Array, Array]:
        """Scores yet to be masked; and queries, keys and values, which :meth:`attend` needs."""
        parts = self._split(x @ parameters["inward"], 3)
        query, key = parts[:2]
        return query @ key.swapaxes(-1, -2) * (1 / math.sqrt(self.width // self.heads)), parts

    def attend(self, x: Array, parameters: Views, scores: Array, parts: Array) -> tuple[Array, Any]:
        """Output and cache, from masked scores."""
        exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = exponentials / exponentials.sum(axis=-1, keepdims=True)
        heads = self._join((weights @ parts[2])[None])
        return heads @ parameters["outward"], (x, heads, parts, weights)

    def backward(self, upstream: Array, cache: Any, parameters: Views, gradients: Views) -> Array:
        x, heads, (query, key, value), weights = cache
        gradients["outward"][...] = heads.reshape(-1, self.width).T @ upstream.reshape(-1, self.width)
        upstream = self._split(upstream @ parameters["outward"].T, 1)[0]
        to_weights = upstream @ value.swapaxes(-1, -2)
        to_value = weights.swapaxes(-1, -2) @ upstream
        # Zero wherever the weight is, so masked scores need nothing of their own.
        to_scores = weights * (to_weights - (to_weights * weights).sum(axis=-1, keepdims=True))
        to_scores *= 1 / math.sqrt(self.width // self.heads)
        inward = self._join(np.stack([to_scores @ key, to_scores.swapaxes(-1, -2) @ query, to_value]))
        gradients["inward"][...] = x.reshape(-1, self.width).T @ inward.reshape(-1, 3 * self.width)
        return inward @ parameters["inward"].T

    def _split(self, x: Array, parts: int) -> Array:
        """(sequences, positions, parts · width) to (parts, sequences, heads, positions, width of a head)."""
        x = x.reshape(*x.shape[:2], parts, self.heads, self.width // self.heads)
        return np.ascontiguousarray(x.transpose(2, 0, 3, 1, 4))

    def _join(self, x: Array) -> Array:
        """The inverse."""
        parts, sequences, _, positions, _ = x.shape
        return x.transpose(1, 3, 0, 2, 4).reshape(sequences, positions, parts * self.width)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Sizes of a transformer.

    Parameters
    ----------
    width : int
        Elements of the vector at each position; a multiple of ``heads``.
    heads : int
        Of each layer's attention.
    layers : int
    hidden : int
        Width inside of each feed-forward network.
    context : int
        Most positions.
    characters : int
        Size of the alphabet.
    """

    width: int = 32
    heads: int = 2
    layers: int = 1
    hidden: int = 96
    context: int = 16
    characters: int = len(ALPHABET)

    def __post_init__(self) -> None:
        for name in ("width", "heads", "layers", "hidden", "context", "characters"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name.capitalize()} must be at least 1, not {getattr(self, name)!r}")
        if self.width % self.heads:
            raise ValueError(f"Width must be a multiple of heads, not {(self.width, self.heads)!r}")


class Transformer:
    """A causal transformer, and a softmax cross-entropy behind it.

    Parameters
    ----------
    config : TransformerConfig
    mask, mask_rows : callable
        See :data:`Mask`. Of a batch, the one is called once for each layer, the other once for its gradient.
    dtype : dtype
        Of parameters, activations and gradients.

    Members
    -------
    size : int
    parameters : array
        All parameters, flat. Initially zero, see :meth:`initialize`.
    """

    def __init__(self, config: TransformerConfig, *, mask: Mask = mask, mask_rows: Mask = mask_rows,
                 dtype: npt.DTypeLike = np.float32):
        width = config.width
        self.config = config
        self._masks = {Use.SCORES: mask, Use.ROWS: mask_rows}
        self._layers: dict[str, Layer] = {"embedding": Embedding(config.characters, config.context, width)}
        for n in range(config.layers):
            self._layers |= {
                f"norm_{n}": LayerNorm(width), f"attention_{n}": Attention(width, config.heads),
                f"feed_norm_{n}": LayerNorm(width), f"rise_{n}": Dense(width, config.hidden), f"relu_{n}": ReLU(),
                f"fall_{n}": Dense(config.hidden, width, gain=0.5)}
        self._layers |= {"norm": LayerNorm(width), "output": Dense(width, config.characters, gain=0.1)}
        self._loss = SoftmaxCrossEntropy()
        self.size = sum(math.prod(shape) for layer in self._layers.values() for shape in layer.shapes.values())
        self.parameters: Array = np.zeros(self.size, dtype=dtype)

    def views(self, vector: Array) -> dict[str, Views]:
        """Named views of a vector with the layout of :attr:`parameters`: by layer, then by parameter."""
        if vector.shape != (self.size,):
            raise ValueError(f"Vector must be of shape {(self.size,)}, not {vector.shape!r}")
        result: dict[str, Views] = {}
        start = 0
        for name, layer in self._layers.items():
            result[name] = {}
            for parameter, shape in layer.shapes.items():
                stop = start + math.prod(shape)
                result[name][parameter] = vector[start:stop].reshape(shape)
                start = stop
        return result

    def initialize(self, seed: int) -> None:
        """Draw all parameters anew."""
        generator = np.random.default_rng(seed)
        views = self.views(self.parameters)
        for name, layer in self._layers.items():
            layer.initialize(views[name], generator)

    def scores(self, inputs: Characters, lengths: Labels) -> Array:
        """Of each character to follow at each position; of shape (sequences, positions, characters)."""
        return self._run(self._forward(inputs, lengths))[0]

    def loss(self, batch: Batch) -> float:
        """Loss summed over the predicted characters."""
        return self._run(self.loss_pass(batch))

    def mean_loss(self, sequences: Sequence[Characters], *, batch: int = 64) -> float:
        """Loss per predicted character, in nats; so many sequences at a time, those of like lengths together."""
        ordered = sorted(sequences, key=len)
        total = sum(self.loss(collate(ordered[n:n + batch])) for n in range(0, len(ordered), batch))
        return total / sum(len(sequence) - 1 for sequence in sequences)

    def differentiate(self, batch: Batch) -> tuple[float, Array]:
        """Loss summed over the predicted characters, and its gradient: a new vector, laid out as :attr:`parameters`.

        Without sequences, both are zero. Numbers that overflow become infinite or NaN, in silence.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            return self._run(self.gradient_pass(batch))

    def loss_pass(self, batch: Batch) -> Pass[float]:
        """What :meth:`loss` returns, for :func:`lockstep`."""
        if not len(batch.lengths):
            return 0.0
        scores, _ = yield from self._forward(batch.inputs, batch.lengths)
        return self._loss(scores[batch.real], batch.targets[batch.real])[0]

    def output_pass(self, batch: Batch) -> Pass[tuple[Array, list[Array]]]:
        """What :meth:`scores` returns, and the attention weights of each layer, for :func:`lockstep`."""
        scores, caches = yield from self._forward(batch.inputs, batch.lengths)
        return scores, [caches[f"attention_{n}"][3] for n in range(self.config.layers)]

    def gradient_pass(self, batch: Batch) -> Pass[tuple[float, Array]]:
        """What :meth:`differentiate` returns, for :func:`lockstep`."""
        gradient = np.zeros_like(self.parameters)
        if not len(batch.lengths):
            return 0.0, gradient
        views, gradients = self.views(self.parameters), self.views(gradient)
        scores, caches = yield from self._forward(batch.inputs, batch.lengths)
        loss = self._loss(scores[batch.real], batch.targets[batch.real])[0]
        _, upstream = self._loss(scores.reshape(-1, self.config.characters), batch.targets.reshape(-1))
        upstream = (yield Request(use=Use.ROWS, values=upstream.reshape(scores.shape)[:, None],
                                  lengths=batch.lengths))[:, 0]

        def back(name: str, upstream: Array) -> Array:
            return self._layers[name].backward(upstream, caches[name], views[name], gradients[name])

        upstream = back("norm", back("output", upstream))
        for n in reversed(range(self.config.layers)):
            feed = back(f"rise_{n}", back(f"relu_{n}", back(f"fall_{n}", upstream)))
            upstream = upstream + back(f"feed_norm_{n}", feed)
            upstream = upstream + back(f"norm_{n}", back(f"attention_{n}", upstream))
        back("embedding", upstream)
        return loss, gradient

    def _run(self, one: Pass[T]) -> T:
        """A pass on its own."""
        def answer(requests: list[Request | None]) -> list[Array]:
            return [self._masks[request.use](request.values, request.lengths)
                    for request in requests if request is not None]

        return lockstep([one], answer)[0]

    def _forward(self, inputs: Characters, lengths: Labels) -> Pass[tuple[Array, dict[str, Any]]]:
        views = self.views(self.parameters)
        caches: dict[str, Any] = {}

        def apply(name: str, x: Any) -> Array:
            output, caches[name] = self._layers[name].forward(x, views[name])
            return output

        x = apply("embedding", inputs)
        for n in range(self.config.layers):
            name = f"attention_{n}"
            attention = self._layers[name]
            assert isinstance(attention, Attention)
            normal = apply(f"norm_{n}", x)
            scores, parts = attention.scores(normal, views[name])
            masked = yield Request(use=Use.SCORES, values=scores, lengths=lengths)
            output, caches[name] = attention.attend(normal, views[name], masked, parts)
            x = x + output
            x = x + apply(f"fall_{n}", apply(f"relu_{n}", apply(f"rise_{n}", apply(f"feed_norm_{n}", x))))
        return apply("output", apply("norm", x)), caches
