"""A causal character-level transformer with one flat parameter vector.

Each layer adds the output of attention to its input, and then the output of a feed-forward network. Layer
normalization precedes both (Xiong et al., 2020). As in :mod:`host.models.layers`, parameters are stored in one
vector, and everything is computed in its ``dtype``.

Callers can replace the two masking functions, :func:`~host.models.layers.mask` and
:func:`~host.models.layers.mask_rows`. A pass through the model is suspended whenever it needs values to be masked.
Several passes can therefore run in lockstep (:func:`lockstep`), with one call that masks the values of all passes.
"""

import dataclasses
import enum
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from host.models import layers
from host.models.layers import Array, Labels, Mask, Views, mask, mask_rows
from host.models.text import ALPHABET, Batch, Characters
from sim.arithmetic.functions import cross_entropy

__all__ = ["Pass", "Request", "Transformer", "TransformerConfig", "Use", "lockstep"]

T = TypeVar("T")


class Use(enum.Enum):
    """Kinds of values for which a pass requests masking."""

    SCORES = "scores"  # attention scores; :func:`~host.models.layers.mask` masks future characters and padding
    ROWS = "rows"  # padding rows in the loss's gradient; masked by :func:`~host.models.layers.mask_rows`


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """Request of a pass through the model to mask values."""

    use: Use
    values: Array  # values to mask, of shape (sequences, matrices, rows, columns)
    lengths: Labels  # number of characters in each sequence


#: Type of a pass: a generator that yields mask requests, receives masked values, and returns its result.
Pass = Generator[Request, Array, T]


def lockstep(passes: Sequence[Pass[T]], answer: Callable[[list[Request | None]], Sequence[Array | None]]) -> list[T]:
    """Run several passes in lockstep and return their results.

    ``answer`` takes the requests of all passes and returns the masked values of each. The entry of a pass that has
    ended is None in both.
    """
    results: dict[int, T] = {}
    answers: Sequence[Any] = [None] * len(passes)
    while len(results) < len(passes):
        requests: list[Request | None] = [None] * len(passes)
        for number, member in enumerate(passes):
            if number not in results:
                try:
                    requests[number] = member.send(answers[number])
                except StopIteration as end:
                    results[number] = end.value
        if any(requests):
            answers = answer(requests)
    return [results[number] for number in range(len(passes))]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Sizes that define a transformer."""

    width: int = 32  # length of the vector at each position; a multiple of ``heads``
    #: Number of attention heads of each layer.
    heads: int = 2
    layers: int = 1
    hidden: int = 96  # width of the hidden layer in each feed-forward network
    context: int = 16  # maximum length of a sequence
    characters: int = len(ALPHABET)  # number of characters in the alphabet

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            if size < 1:
                raise ValueError(f"{name.capitalize()} must be at least 1, not {size!r}")
        if self.width % self.heads:
            raise ValueError(f"Width must be a multiple of heads, not {(self.width, self.heads)!r}")


class Transformer:
    """A causal transformer, followed by a softmax cross-entropy.

    For each batch, ``mask`` is called once per layer and ``mask_rows`` once for the gradient. Parameters, activations
    and gradients are of type ``dtype``.
    """

    def __init__(self, config: TransformerConfig, *, mask: Mask = mask, mask_rows: Mask = mask_rows,
                 dtype: npt.DTypeLike = np.float32):
        width = config.width
        self.config = config
        self._masks = {Use.SCORES: mask, Use.ROWS: mask_rows}
        self._layers: dict[str, layers.Layer] = {
            "embedding": layers.Embedding(config.characters, config.context, width)}
        for n in range(config.layers):
            self._layers |= {
                f"norm_{n}": layers.LayerNorm(width), f"attention_{n}": layers.Attention(width, config.heads),
                f"feed_norm_{n}": layers.LayerNorm(width), f"rise_{n}": layers.Linear(width, config.hidden),
                f"relu_{n}": layers.ReLU(), f"fall_{n}": layers.Linear(config.hidden, width, gain=0.5)}
        self._layers |= {"norm": layers.LayerNorm(width), "output": layers.Linear(width, config.characters, gain=0.1)}
        self._model = layers.Model(list(self._layers.values()), dtype=dtype)
        self.size = self._model.size
        #: All parameters as a flat vector; initially zero, see :meth:`initialize`.
        self.parameters = self._model.parameters

    def views(self, vector: Array) -> dict[str, Views]:
        """Return named views of a vector laid out like :attr:`parameters`, keyed by layer and then by parameter."""
        return dict(zip(self._layers, self._model.views(vector), strict=True))

    def element_at(self, index: int) -> tuple[str, str, tuple[int, ...]] | None:
        """Return an element's layer name, parameter name, and indices in the parameter; None for padding."""
        element = self._model.element_at(index)
        return element and (list(self._layers)[element[0]], *element[1:])

    def initialize(self, seed: int) -> None:
        """Initialize all parameters from a seed."""
        self._model.initialize(seed)

    def scores(self, inputs: Characters, lengths: Labels) -> Array:
        """Compute the scores of all possible next characters, of shape (sequences, positions, characters)."""
        return self._run(self._forward(inputs, lengths))[0]

    def loss(self, batch: Batch) -> float:
        """Compute the loss, summed over the predicted characters."""
        return self._run(self.loss_pass(batch))

    @np.errstate(over="ignore", invalid="ignore")
    def differentiate(self, batch: Batch) -> tuple[float, Array]:
        """Compute the loss, summed over the predicted characters, and its gradient, laid out like :attr:`parameters`.

        If there are no sequences, loss and gradient are zero. Overflow gives infinity or NaN without a warning.
        """
        return self._run(self.gradient_pass(batch))

    def loss_pass(self, batch: Batch) -> Pass[float]:
        """Generator form of :meth:`loss`, for use with :func:`lockstep`."""
        if not len(batch.lengths):
            return 0.0
        scores, _ = yield from self._forward(batch.inputs, batch.lengths)
        return self._total(scores, batch)

    def output_pass(self, batch: Batch) -> Pass[tuple[Array, list[Array]]]:
        """Generator that computes the scores and each layer's attention weights, for use with :func:`lockstep`."""
        scores, caches = yield from self._forward(batch.inputs, batch.lengths)
        return scores, [caches[f"attention_{n}"][3] for n in range(self.config.layers)]

    def gradient_pass(self, batch: Batch) -> Pass[tuple[float, Array]]:
        """Generator form of :meth:`differentiate`, for use with :func:`lockstep`."""
        gradient = np.zeros_like(self.parameters)
        if not len(batch.lengths):
            return 0.0, gradient
        views, gradients = self.views(self.parameters), self.views(gradient)
        scores, caches = yield from self._forward(batch.inputs, batch.lengths)
        loss = self._total(scores, batch)
        _, upstream = cross_entropy(scores.reshape(-1, self.config.characters), batch.targets.reshape(-1))
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

    def _total(self, scores: Array, batch: Batch) -> float:
        """Add up the losses of all sequences in order. A sequence's loss is the sum over its characters."""
        total = scores.dtype.type(0)
        for sequence, targets, length in zip(scores, batch.targets, batch.lengths, strict=True):
            total += scores.dtype.type(cross_entropy(sequence[:length], targets[:length])[0])
        return float(total)

    def _run(self, own: Pass[T]) -> T:
        """Run a single pass and return its result."""
        def answer(requests: list[Request | None]) -> list[Array]:
            return [self._masks[request.use](request.values, request.lengths)
                    for request in requests if request is not None]

        return lockstep([own], answer)[0]

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
            assert isinstance(attention, layers.Attention)
            normal = apply(f"norm_{n}", x)
            scores, parts = attention.scores(normal, views[name])
            masked = yield Request(use=Use.SCORES, values=scores, lengths=lengths)
            output, caches[name] = attention.attend(normal, views[name], masked, parts)
            x = x + output
            x = x + apply(f"fall_{n}", apply(f"relu_{n}", apply(f"rise_{n}", apply(f"feed_norm_{n}", x))))
        return apply("output", apply("norm", x)), caches
