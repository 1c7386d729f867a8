"""Layers over sequences: embedding, linear layer, layer norm, and masked attention.

As in :mod:`host.models.layers`, everything is computed in the parameters' ``dtype``, with sums in the stated order.
"""

import math
from typing import Any

import numpy as np

from host.models.layers import Array, Labels, Layer, Linear, Views
from host.models.masks import Mask, mask
from sim.arithmetic.functions import column_sums, gather_sums, mean, normalize, product, row_sums, softmax

__all__ = ["EPSILON", "Attention", "Dense", "Embedding", "LayerNorm"]

#: What a layer norm adds to each variance.
EPSILON = 1e-5


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
        sequences, positions = cache.shape
        gradients["character"][...] = gather_sums(upstream.reshape(-1, self.width), cache.reshape(-1),
                                                  self.characters)
        gradients["position"][:positions] = column_sums(upstream.reshape(sequences, -1)).reshape(positions, -1)
        gradients["position"][positions:] = 0
        return np.zeros_like(upstream)


class Dense(Linear):
    """The same linear layer at every position of every sequence.

    Parameters
    ----------
    gain : float
        Gain of the initial weights: standard deviation of an output if that of the inputs is 1.
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

    def __init__(self, width: int, *, epsilon: float = EPSILON):
        self.width = width
        self._epsilon = epsilon

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"scale": (self.width,), "shift": (self.width,)}

    def initialize(self, parameters: Views, generator: np.random.Generator) -> None:
        parameters["scale"][...] = 1
        parameters["shift"][...] = 0

    def forward(self, x: Array, parameters: Views) -> tuple[Array, Any]:
        normal, deviation = normalize(x, self._epsilon)
        return normal * parameters["scale"] + parameters["shift"], (normal, deviation)

    def backward(self, upstream: Array, cache: Any, parameters: Views, gradients: Views) -> Array:
        normal, deviation = cache
        gradients["scale"][...] = column_sums((upstream * normal).reshape(-1, self.width))
        gradients["shift"][...] = column_sums(upstream.reshape(-1, self.width))
        scaled = upstream * parameters["scale"]
        along = mean(scaled * normal)
        return np.asarray((scaled - mean(scaled) - normal * along) * deviation)


def _dense(x: Array, matrix: Array) -> Array:
    """Product of every position's vector and a matrix."""
    return product(x.reshape(-1, x.shape[-1]), matrix).reshape(*x.shape[:-1], matrix.shape[1])


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
        parts = self._split(_dense(x, parameters["inward"]), 3)
        query, key = parts[:2]
        return product(query, key.swapaxes(-1, -2)) * (1 / math.sqrt(self.width // self.heads)), parts

    def attend(self, x: Array, parameters: Views, scores: Array, parts: Array) -> tuple[Array, Any]:
        """Output and cache, from masked scores."""
        weights = softmax(scores)
        heads = self._join(product(weights, parts[2])[None])
        return _dense(heads, parameters["outward"]), (x, heads, parts, weights)

    def backward(self, upstream: Array, cache: Any, parameters: Views, gradients: Views) -> Array:
        x, heads, (query, key, value), weights = cache
        gradients["outward"][...] = product(heads.reshape(-1, self.width).T, upstream.reshape(-1, self.width))
        upstream = self._split(_dense(upstream, parameters["outward"].T), 1)[0]
        to_weights = product(upstream, value.swapaxes(-1, -2))
        to_value = product(weights.swapaxes(-1, -2), upstream)
        # Zero wherever the weight is, so masked scores need nothing of their own.
        to_scores = weights * (to_weights - row_sums(to_weights * weights))
        to_scores *= 1 / math.sqrt(self.width // self.heads)
        inward = self._join(np.stack([product(to_scores, key), product(to_scores.swapaxes(-1, -2), query), to_value]))
        gradients["inward"][...] = product(x.reshape(-1, self.width).T, inward.reshape(-1, 3 * self.width))
        return _dense(inward, parameters["inward"].T)

    def _split(self, x: Array, parts: int) -> Array:
        """(sequences, positions, parts · width) to (parts, sequences, heads, positions, width of a head)."""
        x = x.reshape(*x.shape[:2], parts, self.heads, self.width // self.heads)
        return np.ascontiguousarray(x.transpose(2, 0, 3, 1, 4))

    def _join(self, x: Array) -> Array:
        """The inverse."""
        parts, sequences, _, positions, _ = x.shape
        return x.transpose(1, 3, 0, 2, 4).reshape(sequences, positions, parts * self.width)
