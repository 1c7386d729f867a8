"""Perceptron and transformer layers, attention masks, and models with one flat parameter vector.

A :class:`Model` is a sequence of layers. Its parameters are stored in one vector, which can be written to a node's
memory unchanged; layers access named views of it. Everything is computed in the vector's ``dtype``: float32 in
training, float64 when gradients are compared with finite differences. Sums are computed with
:mod:`sim.arithmetic.functions`, in the order given in docs/numbers.md, so that they are bit-identical on every
processor.

Attention is masked by replacement: a masked score becomes :data:`ALTERNATIVE`, far enough below all other scores that
its weight is exactly zero. In the gradient of the loss, rows of padding positions become zero.
"""

import abc
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.arithmetic.functions import (
    column_sums,
    cross_entropy,
    gather_sums,
    mean,
    normalize,
    product,
    row_sums,
    softmax,
)
from sim.golden.operands import FP32, operands_of

__all__ = ["ALTERNATIVE", "EPSILON", "Attention", "Embedding", "Layer", "LayerNorm", "Linear", "Mask", "Model",
           "ReLU", "Views", "bias_gradient", "keep", "mask", "mask_rows", "perceptron", "widths"]

Array = npt.NDArray[np.floating]
Labels = npt.NDArray[np.integer]
Views = dict[str, Array]


class Layer(abc.ABC):
    """Base class of layers: functions of a batch, with one example per row, and of named parameters.

    ``forward`` returns the output and a ``cache`` for ``backward``, which returns the gradient with respect to the
    input and writes the gradient with respect to the parameters to ``gradients``, both summed over the batch.
    """

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the layer's parameters, in the order of the parameter vector."""
        return {}

    def initialize(self, parameters: Views, generator: np.random.Generator) -> None:  # noqa: B027
        """Draw random initial values of the layer's parameters."""

    @abc.abstractmethod
    def forward(self, x: Array, parameters: Views) -> tuple[Array, Array]:
        """Return the layer's output and the cache for :meth:`backward`."""

    @abc.abstractmethod
    def backward(self, upstream: Array, cache: Array, parameters: Views, gradients: Views) -> Array:
        """Write the gradients of the parameters; return the gradient with respect to the input."""


def bias_gradient(upstream: Array, operands: str) -> Array:
    """Sum the columns of an upstream gradient. For operands other than FP32, multiply it by a row of ones."""
    if operands == FP32:
        return column_sums(upstream)
    sums: Array = product(np.ones((1, len(upstream)), upstream.dtype), upstream, operands=operands)[0]
    return sums


class Linear(Layer):
    """Linear layer: ``bias + x @ weight.T`` for each input vector, where each sum starts at its bias.

    Weights have shape (outputs, inputs). They are initialized input by input, scaled for a following ReLU (He et al.,
    2015): for inputs of standard deviation 1, outputs have a standard deviation of ``gain``. The operands of all
    three products, and of the bias gradient, a product with ones, are in the format ``operands``.
    """

    def __init__(self, inputs: int, outputs: int, *, gain: float = math.sqrt(2), operands: str = FP32):
        if inputs < 1 or outputs < 1:
            raise ValueError(f"Inputs and outputs must be at least 1, not {(inputs, outputs)!r}")
        operands_of(operands)
        self.inputs = inputs
        self.outputs = outputs
        self.operands = operands
        self._gain = gain
        self._product = functools.partial(product, operands=operands)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"weight": (self.outputs, self.inputs), "bias": (self.outputs,)}

    def initialize(self, parameters: Views, generator: np.random.Generator) -> None:
        drawn = generator.standard_normal((self.inputs, self.outputs))
        parameters["weight"][...] = drawn.T * np.sqrt(2 / self.inputs)
        parameters["weight"][...] *= self._gain / math.sqrt(2)
        parameters["bias"][...] = 0

    def forward(self, x: Array, parameters: Views) -> tuple[Array, Array]:
        rows = x.reshape(-1, self.inputs)
        bias = np.broadcast_to(parameters["bias"], (len(rows), self.outputs))
        return self._product(rows, parameters["weight"].T, bias).reshape(*x.shape[:-1], self.outputs), x

    def backward(self, upstream: Array, cache: Array, parameters: Views, gradients: Views) -> Array:
        upstream = upstream.reshape(-1, self.outputs)
        gradients["weight"][...] = self._product(upstream.T, cache.reshape(-1, self.inputs))
        gradients["bias"][...] = bias_gradient(upstream, self.operands)
        return self._product(upstream, parameters["weight"]).reshape(cache.shape)


class ReLU(Layer):
    """ReLU layer: ``max(x, 0)``, with gradient 0 at 0. Zeros of either sign become +0.0, and NaN stays NaN."""

    def forward(self, x: Array, parameters: Views) -> tuple[Array, Array]:
        return np.where(x <= 0, x.dtype.type(0), x), x

    def backward(self, upstream: Array, cache: Array, parameters: Views, gradients: Views) -> Array:
        return np.where(cache > 0, upstream, upstream.dtype.type(0))


class Model:
    """Sequence of layers followed by a softmax cross-entropy loss.

    Parameters
    ----------
    dtype : dtype
        Data type of parameters, activations and gradients.
    align : int
        Each layer with parameters is padded to a multiple of ``align`` elements; padding and its gradients are zero.
    """

    def __init__(self, layers: Sequence[Layer], *, dtype: npt.DTypeLike = np.float32, align: int = 1):
        if align < 1:
            raise ValueError(f"Alignment must be at least 1, not {align!r}")
        self.layers = list(layers)
        sizes = [sum(map(math.prod, layer.shapes.values())) for layer in self.layers]
        self._bases = [0, *itertools.accumulate(-(-size // align) * align for size in sizes)]
        self.size = self._bases[-1]
        #: Index of each parameter in the vector, which also contains padding.
        self.places = np.concatenate([np.zeros(0, dtype=np.intp), *(
            np.arange(base, base + size) for base, size in zip(self._bases, sizes, strict=False))])
        #: All parameters as one flat vector, initially zero; see :meth:`initialize`.
        self.parameters: Array = np.zeros(self.size, dtype=dtype)

    def views(self, vector: Array) -> list[Views]:
        """Return named views of a vector laid out like :attr:`parameters`, with one dictionary per layer."""
        if vector.shape != (self.size,):
            raise ValueError(f"Vector must be of shape {(self.size,)}, not {vector.shape!r}")
        result = []
        for layer, start in zip(self.layers, self._bases, strict=False):
            views = {}
            for name, shape in layer.shapes.items():
                stop = start + math.prod(shape)
                views[name] = vector[start:stop].reshape(shape)
                start = stop
            result.append(views)
        return result

    def element_at(self, index: int) -> tuple[int, str, tuple[int, ...]] | None:
        """Return an element's layer number, parameter name, and indices in the parameter; None for padding."""
        for number, (layer, start) in enumerate(zip(self.layers, self._bases, strict=False)):
            for name, shape in layer.shapes.items():
                if start <= index < start + math.prod(shape):
                    return number, name, tuple(map(int, np.unravel_index(index - start, shape)))
                start += math.prod(shape)
        return None

    def initialize(self, seed: int) -> None:
        """Initialize all parameters from a seed."""
        generator = np.random.default_rng(seed)
        self.parameters[...] = 0  # a codec may have changed the padding
        for layer, views in zip(self.layers, self.views(self.parameters), strict=True):
            layer.initialize(views, generator)

    def scores(self, x: Array) -> Array:
        """Compute the output of the last layer."""
        for layer, views in zip(self.layers, self.views(self.parameters), strict=True):
            x, _ = layer.forward(x, views)
        return x

    def accuracy(self, x: Array, labels: Labels) -> float:
        """Compute the fraction of examples for which the label has the largest score."""
        return float((self.scores(x).argmax(axis=1) == labels).mean())

    def loss(self, x: Array, labels: Labels) -> float:
        """Compute the loss, summed over the examples."""
        return float(cross_entropy(self.scores(x), labels)[0])

    @np.errstate(over="ignore", invalid="ignore")
    def differentiate(self, x: Array, labels: Labels) -> tuple[float, Array]:
        """Compute the loss, summed over the examples, and its gradient, a new vector laid out like
        :attr:`parameters`. Without examples, both are zero. Overflow gives infinity or NaN without a warning.
        """
        gradient = np.zeros_like(self.parameters)
        if not len(labels):
            return 0.0, gradient
        parameters = self.views(self.parameters)
        caches = []
        for layer, views in zip(self.layers, parameters, strict=True):
            x, cache = layer.forward(x, views)
            caches.append(cache)
        loss, upstream = cross_entropy(x, labels)
        steps = zip(self.layers, caches, parameters, self.views(gradient), strict=True)
        for layer, cache, views, gradients in reversed(list(steps)):
            upstream = layer.backward(upstream, cache, views, gradients)
        return float(loss), gradient


#: Maximum number of parameters: the size in words of the largest possible node memory.
MOST = 1 << 24


def perceptron(inputs: int, hidden: Sequence[int], outputs: int, *, dtype: npt.DTypeLike = np.float32,
               align: int = 1, operands: str = FP32) -> Model:
    """Build a :class:`Model` of :class:`Linear` layers with the given widths and a ReLU between them.

    Raises ``ValueError`` if the model has more parameters than a node's largest memory can hold.
    """
    widths = [inputs, *hidden, outputs]
    size = sum((before + 1) * after for before, after in itertools.pairwise(widths))
    if size > MOST:
        raise ValueError(f"Perceptron must have at most {MOST:,} parameters, not {size:,}: take narrower hidden "
                         f"layers")
    layers: list[Layer] = []
    for before, after in itertools.pairwise(widths):
        layers += [Linear(before, after, operands=operands), ReLU()]
    return Model(layers[:-1], dtype=dtype, align=align)


#: Value of a masked score. exp(x) is 0 in float32 below -104, and in float64 below -746, so a masked weight is
#: exactly zero if the largest score of its row is above -9,000.
ALTERNATIVE = -10000.0

#: Function that masks matrices of shape (sequences, matrices, rows, columns), given each sequence's length.
Mask = Callable[[Array, Labels], Array]


def keep(positions: int, lengths: Labels) -> npt.NDArray[np.bool_]:
    """Return which scores a mask keeps, as one matrix per sequence: row i, column j where j <= i and j < length.

    No row is masked entirely: column 0 is always kept, since lengths are at least 1.
    """
    index = np.arange(positions)
    causal = index <= index[:, None]
    padding = index < lengths[:, None]
    return np.asarray(causal & padding[:, None, :])


def mask(scores: Array, lengths: Labels) -> Array:
    """Replace the attention scores that are masked by :data:`ALTERNATIVE`."""
    return np.where(keep(scores.shape[-1], lengths)[:, None], scores, scores.dtype.type(ALTERNATIVE))


def mask_rows(gradients: Array, lengths: Labels) -> Array:
    """Replace the rows of padding positions by zeros."""
    rows = np.arange(gradients.shape[-2]) < lengths[:, None]
    return np.where(rows[:, None, :, None], gradients, gradients.dtype.type(0))


#: Constant that layer normalization adds to each variance.
EPSILON = 1e-5


class Embedding(Layer):
    """Embedding layer: the sum of token and position embeddings. Its inputs are characters and have no gradient."""

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
        sequences, positions = cache.shape
        gradients["character"][...] = gather_sums(upstream.reshape(-1, self.width), cache.reshape(-1),
                                                  self.characters)
        gradients["position"][:positions] = column_sums(upstream.reshape(sequences, -1)).reshape(positions, -1)
        gradients["position"][positions:] = 0
        return np.zeros_like(upstream)


class LayerNorm(Layer):
    """Layer normalization: each position's vector has mean 0 and variance 1, then ``scale`` and ``shift``."""

    def __init__(self, width: int):
        self.width = width

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"scale": (self.width,), "shift": (self.width,)}

    def initialize(self, parameters: Views, generator: np.random.Generator) -> None:
        parameters["scale"][...] = 1
        parameters["shift"][...] = 0

    def forward(self, x: Array, parameters: Views) -> tuple[Array, Any]:
        normal, deviation = normalize(x, EPSILON)
        return normal * parameters["scale"] + parameters["shift"], (normal, deviation)

    def backward(self, upstream: Array, cache: Any, parameters: Views, gradients: Views) -> Array:
        normal, deviation = cache
        gradients["scale"][...] = column_sums((upstream * normal).reshape(-1, self.width))
        gradients["shift"][...] = column_sums(upstream.reshape(-1, self.width))
        scaled = upstream * parameters["scale"]
        along = mean(scaled * normal)
        return np.asarray((scaled - mean(scaled) - normal * along) * deviation)


def _dense(x: Array, matrix: Array) -> Array:
    """Multiply the vector at each position of each sequence by a matrix."""
    return product(x.reshape(-1, x.shape[-1]), matrix).reshape(*x.shape[:-1], matrix.shape[1])


class Attention(Layer):
    """Masked multi-head attention without biases; each head uses ``width / heads`` elements.

    All attention weights that the :data:`Mask` leaves nonzero contribute to the gradient.
    """

    def __init__(self, width: int, heads: int):
        if heads < 1 or width % heads:
            raise ValueError(f"Width must be a multiple of heads, not {(width, heads)!r}")
        self.width = width
        self.heads = heads

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"inward": (self.width, 3 * self.width), "outward": (self.width, self.width)}

    def initialize(self, parameters: Views, generator: np.random.Generator) -> None:
        for view in parameters.values():
            view[...] = generator.standard_normal(view.shape) / math.sqrt(self.width)

    def forward(self, x: Array, parameters: Views, lengths: Labels | None = None) -> tuple[Array, Any]:
        """Return the layer's output and cache. Without ``lengths``, sequences have no padding."""
        if lengths is None:
            lengths = np.full(x.shape[0], x.shape[1])
        scores, parts = self.scores(x, parameters)
        return self.attend(x, parameters, mask(scores, lengths), parts)

    def scores(self, x: Array, parameters: Views) -> tuple[Array, Array]:
        """Return the attention scores before masking, and the queries, keys and values for :meth:`attend`."""
        parts = self._split(_dense(x, parameters["inward"]), 3)
        query, key = parts[:2]
        return product(query, key.swapaxes(-1, -2)) * (1 / math.sqrt(self.width // self.heads)), parts

    def attend(self, x: Array, parameters: Views, scores: Array, parts: Array) -> tuple[Array, Any]:
        """Compute the layer's output and cache from masked attention scores."""
        weights = softmax(scores)
        heads = self._join(product(weights, parts[2])[None])
        return _dense(heads, parameters["outward"]), (x, heads, parts, weights)

    def backward(self, upstream: Array, cache: Any, parameters: Views, gradients: Views) -> Array:
        x, heads, (query, key, value), weights = cache
        gradients["outward"][...] = product(heads.reshape(-1, self.width).T, upstream.reshape(-1, self.width))
        upstream = self._split(_dense(upstream, parameters["outward"].T), 1)[0]
        to_weights = product(upstream, value.swapaxes(-1, -2))
        to_value = product(weights.swapaxes(-1, -2), upstream)
        # A score with a weight of zero has a gradient of zero, so masked scores need no extra step.
        to_scores = weights * (to_weights - row_sums(to_weights * weights))
        to_scores *= 1 / math.sqrt(self.width // self.heads)
        inward = self._join(np.stack([product(to_scores, key), product(to_scores.swapaxes(-1, -2), query), to_value]))
        gradients["inward"][...] = product(x.reshape(-1, self.width).T, inward.reshape(-1, 3 * self.width))
        return _dense(inward, parameters["inward"].T)

    def _split(self, x: Array, parts: int) -> Array:
        """Reshape (sequences, positions, parts · width) to (parts, sequences, heads, positions, head width)."""
        x = x.reshape(*x.shape[:2], parts, self.heads, self.width // self.heads)
        return np.ascontiguousarray(x.transpose(2, 0, 3, 1, 4))

    def _join(self, x: Array) -> Array:
        """Merge the heads again; the inverse of :meth:`_split`."""
        parts, sequences, _, positions, _ = x.shape
        return x.transpose(1, 3, 0, 2, 4).reshape(sequences, positions, parts * self.width)


_LAYERS = 1000  # maximum number of hidden layers of a perceptron


def widths(text: str) -> tuple[int, ...]:
    """Parse hidden layer widths: ``64,32``, or ``32x9`` for nine layers of 32, or ``none``."""
    result: list[int] = []
    try:
        for part in text.split(",") if text not in ("", "none") else ():
            width, times, count = part.partition("x")
            number = int(count) if times else 1
            if number < 1 or len(result) + number > _LAYERS:
                raise ValueError
            result += [int(width)] * number
    except ValueError:
        raise ValueError(f"Widths of hidden layers must be numbers, or a number x a count as in 32x9, of at most "
                         f"{_LAYERS:,} layers, with commas between them, not {text!r}") from None
    return tuple(result)
