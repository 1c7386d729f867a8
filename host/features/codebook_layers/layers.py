"""Linear layers with weights stored as centroid indices; the centroids are the parameters.

Products and gradients are computed by :mod:`sim.golden.features.codebook_layers.centroid_product`, which never
expands the matrix.
"""

import numpy as np

from host.features.codebook.codebooks import Codebook
from host.models.layers import Array, Layer, Linear, Model, ReLU, Views, bias_gradient
from sim.golden.features.codebook_layers import centroid_product
from sim.golden.features.codebook_layers.centroid_product import layer_gradient, pack_indices, unpack_indices
from sim.golden.operands import FP32

__all__ = ["LANES", "CentroidLinear", "shared"]

#: Number of lanes among which outputs are partitioned; it affects the order in which gradients are summed.
LANES = 4


class CentroidLinear(Layer):
    """``bias + x @ weight.T`` with weights from a table of trained centroids; the indices are fixed.

    The codebook provides the initial centroids, and indices of shape (outputs, inputs). Outputs are partitioned among
    lanes. Products with centroids are in binary32; ``operands`` is the format of the factors in the bias gradient.
    """

    def __init__(self, codebook: Codebook, bias: Array, *, lanes: int = LANES, operands: str = FP32):
        if codebook.indices.ndim != 2 or bias.shape != codebook.indices.shape[:1]:
            raise ValueError(f"Biases must be as many as rows of indices, not of shape {bias.shape!r} for indices of "
                             f"{codebook.indices.shape!r}")
        self.codebook = codebook
        self._bias = bias.copy()
        self._lanes = lanes
        self._operands = operands
        # Pad the last group of outputs, as a node does.
        self._full = unpack_indices(pack_indices(codebook.indices, lanes), codebook.indices.shape[1], lanes,
                                    len(codebook.centroids))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"centroids": self.codebook.centroids.shape, "bias": self._bias.shape}

    def initialize(self, parameters: Views, generator: np.random.Generator) -> None:
        parameters["centroids"][...] = self.codebook.centroids
        parameters["bias"][...] = self._bias

    def forward(self, x: Array, parameters: Views) -> tuple[Array, Array]:
        return centroid_product.product(self.codebook.indices, parameters["centroids"], x, parameters["bias"]), x

    def backward(self, upstream: Array, cache: Array, parameters: Views, gradients: Views) -> Array:
        indices, table = self.codebook.indices, parameters["centroids"]
        gradients["centroids"][...] = layer_gradient(self._full, cache, upstream, len(table), lanes=self._lanes)
        gradients["bias"][...] = bias_gradient(upstream, self._operands)
        return centroid_product.product(indices.T, table, upstream, np.zeros((), upstream.dtype))


def shared(model: Model, centroids: int, *, lanes: int = LANES, align: int = 1) -> Model:
    """Replace the weights of each layer of a perceptron (linear layers separated by ReLUs) by a table of centroids,
    obtained by clustering. ``lanes`` is as for :class:`CentroidLinear`, ``align`` as for :class:`Model`."""
    return Model([CentroidLinear(Codebook.of(views["weight"], centroids), views["bias"], lanes=lanes,
                                 operands=layer.operands)
                  if isinstance(layer, Linear) else ReLU()
                  for layer, views in zip(model.layers, model.views(model.parameters), strict=True)], align=align)
