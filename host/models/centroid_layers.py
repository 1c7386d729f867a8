"""Linear layers whose weights are indices of centroids, and whose parameters are the centroids.

Products and gradients are those of :mod:`sim.golden.centroid_product`: the matrix is never expanded, and no gradient
of a single weight is made.
"""

import numpy as np

from host.driver.codebooks import Codebook
from host.models.layers import Array, Layer, Linear, Model, ReLU, Views, bias_gradient
from sim.golden.centroid_product import layer_gradient, pack_indices, product, unpack_indices
from sim.golden.operands import FP32

__all__ = ["LANES", "CentroidLinear", "shared"]

#: Lanes among which outputs are dealt out, on which the order of a gradient's sums depends.
LANES = 4


class CentroidLinear(Layer):
    """``bias + x @ weight.T`` with weights out of a table, which is trained; the assignment of weights stays.

    Parameters
    ----------
    codebook : Codebook
        First centroids, and indices in shape (outputs, inputs).
    bias : array
        First biases.
    lanes : int
        Lanes among which outputs are dealt out.
    operands : str
        Format of the factors of the gradient of the biases. Products with centroids are in binary32.
    """

    def __init__(self, codebook: Codebook, bias: Array, *, lanes: int = LANES, operands: str = FP32):
        if codebook.indices.ndim != 2 or bias.shape != codebook.indices.shape[:1]:
            raise ValueError(f"Biases must be as many as rows of indices, not of shape {bias.shape!r} for indices of "
                             f"{codebook.indices.shape!r}")
        self._codebook = codebook
        self._bias = bias.copy()
        self._lanes = lanes
        self._operands = operands
        # As a node has them: the last group of outputs is filled up.
        self._full = unpack_indices(pack_indices(codebook.indices, lanes), codebook.indices.shape[1], lanes,
                                    len(codebook.centroids))

    @property
    def codebook(self) -> Codebook:
        """First centroids, and indices."""
        return self._codebook

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"centroids": self._codebook.centroids.shape, "bias": self._bias.shape}

    def initialize(self, parameters: Views, generator: np.random.Generator) -> None:
        parameters["centroids"][...] = self._codebook.centroids
        parameters["bias"][...] = self._bias

    def forward(self, x: Array, parameters: Views) -> tuple[Array, Array]:
        return product(self._codebook.indices, parameters["centroids"], x, parameters["bias"]), x

    def backward(self, upstream: Array, cache: Array, parameters: Views, gradients: Views) -> Array:
        indices, table = self._codebook.indices, parameters["centroids"]
        gradients["centroids"][...] = layer_gradient(self._full, cache, upstream, len(table), lanes=self._lanes)
        gradients["bias"][...] = bias_gradient(upstream, self._operands)
        return product(indices.T, table, upstream, np.zeros((), upstream.dtype))


def shared(model: Model, centroids: int, *, lanes: int = LANES, align: int = 1) -> Model:
    """Make a perceptron whose layers have a table each, by clustering the weights of a perceptron.

    Parameters
    ----------
    model : Model
        Perceptron of linear layers with a ReLU between each two.
    centroids : int
        Entries of each table.
    lanes : int
        Lanes among which outputs are dealt out.
    align : int
        Elements of which each layer takes a multiple; see :class:`host.models.layers.Model`.
    """
    layers: list[Layer] = []
    for layer, views in zip(model.layers, model.views(model.parameters), strict=True):
        if isinstance(layer, Linear):
            layers.append(CentroidLinear(Codebook.of(views["weight"], centroids), views["bias"], lanes=lanes,
                                         operands=layer.operands))
        else:
            layers.append(ReLU())
    return Model(layers, align=align)
