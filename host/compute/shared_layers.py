"""Layers whose weights are indices of a table of centroids, for nodes that compute.

The parameters of such a layer are its table and its biases. Indices lie in the activation memory, where the host
writes them with the lists: lines for the product, and, but in the first layer, lines of the transposed matrix for
the gradient of its input.
"""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.compute.layer_list import Kind, centroid_layout
from hdl.group import GROUP
from host.program.schedules import Dense
from sim.golden.centroid_product import index_line, pack_indices
from sim.golden.compute import pack

__all__ = ["Shared", "centroid_instruction", "index_words"]

Words = npt.NDArray[np.uint32]


@dataclasses.dataclass(frozen=True, eq=False)
class Shared(Dense):
    """A linear layer with a table, and the place of its parameters in the vector of all.

    Members
    -------
    indices : array
        Indices of the weights, in shape (outputs, inputs).
    centroids : int
        Entries of the table.
    """

    indices: npt.NDArray[np.integer[Any]]
    centroids: int

    @property
    def length(self) -> int:
        """Table and biases, and zeros up to the next group."""
        return int(-(-(self.centroids + self.outputs) // GROUP) * GROUP)

    def multiplications(self, *, backward: bool) -> int:
        """Additions and multiplications for each example, which a node's unit does one by one for each output."""
        return (self.inputs + 2 * self.centroids) * self.outputs * (2 if backward and self.number > 1 else 1)


def index_words(layer: Shared, lanes: int, *, transposed: bool) -> Words:
    """Words of the indices of a layer, or of its transposed ones, up to the next group."""
    words = pack_indices(layer.indices.T if transposed else layer.indices, lanes).ravel()
    return np.concatenate([words, np.zeros(-len(words) % GROUP, np.uint32)])


def centroid_instruction(layer: Shared, lanes: int, *, transposed: bool = False, **fields: Any) -> Words:
    """A product with the weights of a layer, or with the transposed ones, for all examples of a command.

    Parameters
    ----------
    fields
        Operands and strides of :func:`~hdl.compute.layer_list.centroid_layout`, and its flags.
    """
    columns, outputs = (layer.outputs, layer.inputs) if transposed else (layer.inputs, layer.outputs)
    return pack(centroid_layout(), {"kind": Kind.CENTROID, "columns": columns, "outputs": outputs,
                                    "stride_indices": index_line(columns, lanes), **fields})
