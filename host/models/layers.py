"""Layers of a multi-layer perceptron, with one flat vector of parameters.

A :class:`Model` is a sequence of layers. Its parameters live in one vector, so that they can be written to a node's
memory as they are; each layer sees named views of it. Everything is computed in the ``dtype`` of that vector: float32
in training, float64 where gradients are compared with finite differences. Sums are those of
:mod:`sim.arithmetic.functions`, in the order that docs/numbers.md states, so that they have the same bits on every
processor.
"""

import abc
import functools
import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sim.arithmetic.functions import column_sums, cross_entropy, product
from sim.golden.operands import FP32, operands_of

__all__ = ["Layer", "Linear", "Model", "ReLU", "SoftmaxCrossEntropy", "bias_gradient", "perceptron"]

Array = npt.NDArray[np.floating]
Labels = npt.NDArray[np.integer]
Views = dict[str, Array]


class Layer(abc.ABC):
    """A function of a batch (one example per row) and of named parameters.

    ``backward`` returns the gradient with respect to the input and writes that with respect to the parameters into
    ``gradients``; both are of the sum over the batch. ``cache`` is the value that ``forward`` returned beside its
    output.
    """

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of each parameter, in the order in which they lie in the vector."""
        return {}

    def initialize(self, parameters: Views, generator: np.random.Generator) -> None:  # noqa: B027
        """Draw the first values of the parameters."""

    @abc.abstractmethod
    def forward(self, x: Array, parameters: Views) -> tuple[Array, Array]:
        """Output and cache."""

    @abc.abstractmethod
    def backward(self, upstream: Array, cache: Array, parameters: Views, gradients: Views) -> Array:
        """Gradient with respect to the input."""


def bias_gradient(upstream: Array, operands: str) -> Array:
    """Sums of the columns of an upstream gradient, as a product with ones whose factors are in a format."""
    if operands == FP32:
        return column_sums(upstream)
    sums: Array = product(np.ones((1, len(upstream)), upstream.dtype), upstream, operands=operands)[0]
    return sums


class Linear(Layer):
    """``bias + x @ weight.T``: each sum begins with its bias.

    Weights are of shape (outputs, inputs). They are drawn input by input, as is right for a ReLU behind them (He et
    al., 2015). All three products have their factors in the format ``operands``, and so has the gradient of the bias,
    a product with ones.
    """

    def __init__(self, inputs: int, outputs: int, *, operands: str = FP32):
        if inputs < 1 or outputs < 1:
            raise ValueError(f"Inputs and outputs must be at least 1, not {(inputs, outputs)!r}")
        operands_of(operands)
        self.inputs = inputs
        self.outputs = outputs
        self.operands = operands
        self._product = functools.partial(product, operands=operands)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"weight": (self.outputs, self.inputs), "bias": (self.outputs,)}

    def initialize(self, parameters: Views, generator: np.random.Generator) -> None:
        drawn = generator.standard_normal((self.inputs, self.outputs))
        parameters["weight"][...] = drawn.T * np.sqrt(2 / self.inputs)
        parameters["bias"][...] = 0

    def forward(self, x: Array, parameters: Views) -> tuple[Array, Array]:
        bias = np.broadcast_to(parameters["bias"], (len(x), self.outputs))
        return self._product(x, parameters["weight"].T, bias), x

    def backward(self, upstream: Array, cache: Array, parameters: Views, gradients: Views) -> Array:
        gradients["weight"][...] = self._product(upstream.T, cache)
        gradients["bias"][...] = bias_gradient(upstream, self.operands)
        return self._product(upstream, parameters["weight"])


class ReLU(Layer):
    """``max(x, 0)``, with gradient 0 at 0. A zero of either sign gives +0.0, and a NaN stays one."""

    def forward(self, x: Array, parameters: Views) -> tuple[Array, Array]:
        return np.where(x <= 0, x.dtype.type(0), x), x

    def backward(self, upstream: Array, cache: Array, parameters: Views, gradients: Views) -> Array:
        return np.where(cache > 0, upstream, upstream.dtype.type(0))


class SoftmaxCrossEntropy:
    """``-log(softmax(scores)[label])``, summed over the batch."""

    def __call__(self, scores: Array, labels: Labels) -> tuple[float, Array]:
        """Loss, and its gradient with respect to the scores."""
        loss, gradient = cross_entropy(scores, labels)
        return float(loss), gradient


class Model:
    """Layers one after the other, and a softmax cross-entropy behind them.

    Parameters
    ----------
    dtype : dtype
        Type of parameters, activations and gradients.
    align : int
        Elements of which each layer with parameters takes a multiple: behind its parameters are zeros, whose
        gradients are zeros.

    Members
    -------
    parameters : array
        All parameters, flat. Initially zero, see :meth:`initialize`.
    places : array of int
        Places of the parameters among them, without zeros that only fill up.
    """

    def __init__(self, layers: Sequence[Layer], *, dtype: npt.DTypeLike = np.float32, align: int = 1):
        if align < 1:
            raise ValueError(f"Alignment must be at least 1, not {align!r}")
        self._layers = list(layers)
        self._loss = SoftmaxCrossEntropy()
        sizes = [sum(int(np.prod(shape)) for shape in layer.shapes.values()) for layer in self._layers]
        self._bases = [0, *itertools.accumulate(-(-size // align) * align for size in sizes)]
        self.size = self._bases[-1]
        self.places = np.concatenate([np.zeros(0, dtype=np.intp), *(
            np.arange(base, base + size) for base, size in zip(self._bases, sizes, strict=False))])
        self.parameters: Array = np.zeros(self.size, dtype=dtype)

    @property
    def layers(self) -> list[Layer]:
        """Layers in order."""
        return list(self._layers)

    def views(self, vector: Array) -> list[Views]:
        """Named views of a vector with the layout of :attr:`parameters`, one dictionary per layer."""
        if vector.shape != (self.size,):
            raise ValueError(f"Vector must be of shape {(self.size,)}, not {vector.shape!r}")
        result = []
        for layer, start in zip(self._layers, self._bases, strict=False):
            views = {}
            for name, shape in layer.shapes.items():
                stop = start + int(np.prod(shape))
                views[name] = vector[start:stop].reshape(shape)
                start = stop
            result.append(views)
        return result

    def initialize(self, seed: int) -> None:
        """Draw all parameters anew."""
        generator = np.random.default_rng(seed)
        self.parameters[...] = 0  # what only fills up may have become something else on the way through a codec
        for layer, views in zip(self._layers, self.views(self.parameters), strict=True):
            layer.initialize(views, generator)

    def scores(self, x: Array) -> Array:
        """Output of the last layer."""
        for layer, views in zip(self._layers, self.views(self.parameters), strict=True):
            x, _ = layer.forward(x, views)
        return x

    def accuracy(self, x: Array, labels: Labels) -> float:
        """Fraction of examples whose label has the largest score."""
        return float((self.scores(x).argmax(axis=1) == labels).mean())

    def loss(self, x: Array, labels: Labels) -> float:
        """Loss summed over the examples."""
        return self._loss(self.scores(x), labels)[0]

    def differentiate(self, x: Array, labels: Labels) -> tuple[float, Array]:
        """Loss summed over the examples, and its gradient: a new vector with the layout of :attr:`parameters`.

        Without examples, both are zero. Numbers that overflow become infinite or NaN, in silence.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            return self._differentiate(x, labels)

    def _differentiate(self, x: Array, labels: Labels) -> tuple[float, Array]:
        gradient = np.zeros_like(self.parameters)
        if not len(labels):
            return 0.0, gradient
        parameters = self.views(self.parameters)
        caches = []
        for layer, views in zip(self._layers, parameters, strict=True):
            x, cache = layer.forward(x, views)
            caches.append(cache)
        loss, upstream = self._loss(x, labels)
        steps = zip(self._layers, caches, parameters, self.views(gradient), strict=True)
        for layer, cache, views, gradients in reversed(list(steps)):
            upstream = layer.backward(upstream, cache, views, gradients)
        return loss, gradient


#: Parameters at most: words of the largest memory that a node can have.
MOST = 1 << 24


def perceptron(inputs: int, hidden: Sequence[int], outputs: int, *, dtype: npt.DTypeLike = np.float32,
               align: int = 1, operands: str = FP32) -> Model:
    """A model of linear layers of the given widths, with a ReLU between each two of them; see :class:`Model` and
    :class:`Linear`.

    Raises
    ------
    ValueError
        The model has more parameters than the largest memory of a node can hold.
    """
    widths = [inputs, *hidden, outputs]
    size = sum((before + 1) * after for before, after in itertools.pairwise(widths))
    if size > MOST:
        raise ValueError(f"Perceptron must have at most {MOST:,} parameters, not {size:,}: take narrower hidden "
                         f"layers")
    layers: list[Layer] = []
    for n, (before, after) in enumerate(itertools.pairwise(widths)):
        if n:
            layers.append(ReLU())
        layers.append(Linear(before, after, operands=operands))
    return Model(layers, dtype=dtype, align=align)
