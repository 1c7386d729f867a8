"""Lists of instructions for the layers of a perceptron, and the places of its activations.

A layer has one list forward and one backward. Forward is Y = bias + X · Wᵀ, each sum from its bias on, with a ReLU
but behind the last layer, whose list has the cross-entropy as well. Backward are dW = dYᵀ · X, the sums of the
columns of dY, and, but in the first layer, dX = dY · W, which is +0.0 where X is. Sizes that are the number of
examples are left to the command, so that one list serves batches of all sizes. Of a layer with a table of centroids,
products with W are those of its indices, and the table has gradients in place of W (host/compute/shared_layers.py).

In a schedule whose passes overlap, even and odd passes have inputs, labels and lists of their own, a fixed distance
apart, so that the host can write those of the next pass while this one is under way.

Gradients lie where the ring looks for them. Activations are rows of whole memory rows, one per example: inputs, the
output of each layer, and the gradients of two outputs, which take turns. Behind them are labels, the loss, indices of
centroids and the lists.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.compute.engine import COLUMNS
from hdl.compute.layer_list import (
    INSTRUCTION_WORDS,
    Initial,
    Kind,
    Place,
    VectorProgram,
    gemm_layout,
    vector_layout,
)
from hdl.group import GROUP
from host.compute.factors import Array, best_factors
from host.compute.shared_layers import Shared, centroid_instruction, index_words
from host.program.region import Region
from host.program.schedules import STAGED_FLAG, Copies, Dense, Work
from sim.golden.compute import pack

__all__ = ["MOST_SIZE", "Activations", "Lists", "compile_lists"]

Words = npt.NDArray[np.uint32]

#: Largest number of examples, and widest layer.
MOST_SIZE = 4095


def _up(words: int, multiple: int) -> int:
    return -(-words // multiple) * multiple


@dataclasses.dataclass(frozen=True, kw_only=True)
class Activations:
    """Places in the activation memory, each at a multiple of 32.

    Parameters
    ----------
    layers : sequence of Dense
    examples : int
        Most examples of a command.
    lanes : int
        Elements of a memory row.

    Members
    -------
    outputs : list of int
        First element of the inputs, and of the output of each layer.
    gradients : tuple of int
        First elements of the gradients of two outputs.
    labels, loss, lists : int
        First label, the loss, and what is behind it: indices and lists.
    """

    layers: Sequence[Dense]
    examples: int
    lanes: int
    outputs: list[int] = dataclasses.field(init=False)
    gradients: tuple[int, int] = dataclasses.field(init=False)
    labels: int = dataclasses.field(init=False)
    loss: int = dataclasses.field(init=False)
    lists: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        widths = [self.layers[0].inputs, *(layer.outputs for layer in self.layers)]
        sizes = [*map(self.size, widths)]
        # Gradients of the last output are in the first of the two, those of the one before it in the second, …
        backward = sizes[:0:-1]
        sizes += [max(backward[0::2]), max(backward[1::2], default=0), _up(self.examples, GROUP), GROUP]
        bases = np.cumsum([0, *sizes]).tolist()
        for name, value in (("outputs", bases[:len(widths)]), ("gradients", tuple(bases[-5:-3])),
                            ("labels", bases[-3]), ("loss", bases[-2]), ("lists", bases[-1])):
            object.__setattr__(self, name, value)

    def stride(self, width: int) -> int:
        """Elements from one example to the next."""
        return _up(width, self.lanes)

    def size(self, width: int) -> int:
        """Elements of a matrix with a row for each example, up to the next multiple of 32."""
        return _up(self.examples * self.stride(width), GROUP)

    def output(self, number: int) -> Region:
        """Output of a layer; of layer 0, the inputs."""
        width = self.layers[number - 1].outputs if number else self.layers[0].inputs
        return Region("activations", self.outputs[number], self.size(width))

    def gradient(self, number: int) -> Region:
        """Gradients of a layer's output."""
        return Region("activations", self.gradients[(len(self.layers) - number) % 2],
                      self.size(self.layers[number - 1].outputs))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Lists:
    """Lists of a network.

    Members
    -------
    places : Activations
    words : array of uint32
        Words of all indices and lists, which are written from ``places.lists`` on.
    commands : list of Work
        Commands of a pass: all layers forward, and backward from the last to the first.
    odd : array of uint32
        Words of the lists of odd passes, ``distance`` further on; none where passes do not overlap.
    distance : int
        Elements by which inputs, labels and lists of odd passes lie further on.
    """

    places: Activations
    words: Words
    commands: list[Work]
    odd: Words
    distance: int

    @property
    def end(self) -> int:
        """Words of the activation memory that are used."""
        return self.places.lists + len(self.words) + self.distance


def compile_lists(layers: Sequence[Dense], *, array: Array, examples: int, words: int,
                  copies: Copies | None = None, factors: Callable[..., Mapping[str, int]] = best_factors) -> Lists:
    """Make the lists of a perceptron, with a ReLU between each two of its layers.

    Parameters
    ----------
    layers : sequence of Dense
        Layers, whose weights and gradients begin at their ``base`` in both memories.
    array : Array
    examples : int
        Most examples of a node in a step.
    words : int
        Elements of the activation memory.
    copies : Copies, optional
        Layers with two copies of their weights, in a schedule whose passes overlap.
    factors : callable
        Gives the factors of a product; by default :func:`~host.compute.factors.best_factors`.

    Raises
    ------
    ValueError
        Nodes cannot compute such layers, or have no room for so many examples.
    """
    lanes = array.lanes
    for width in [layer.inputs for layer in layers]:
        if width % lanes:
            raise ValueError(f"Inputs and widths of hidden layers must be multiples of the {lanes} lanes of nodes "
                             f"that compute, not {width}")
    widest = max(examples, *(max(layer.inputs, layer.outputs) for layer in layers))
    if widest > MOST_SIZE:
        raise ValueError(f"Layers and examples of nodes that compute must be at most {MOST_SIZE:,}, not {widest:,}")
    for centroids in [layer.centroids for layer in layers if isinstance(layer, Shared)]:
        if centroids % lanes:
            raise ValueError(f"Centroids of a table must be a multiple of the {lanes} lanes of nodes that compute, "
                             f"not {centroids}")
    if layers[-1].outputs > COLUMNS:
        raise ValueError(f"Outputs of the last layer must be at most {COLUMNS} on nodes that compute, not "
                         f"{layers[-1].outputs:,}")
    places = Activations(layers=layers, examples=examples, lanes=lanes)
    copies = copies or Copies()
    even, *others = (_compiled(array, places, copies, odd, factors) for odd in ((0, 1) if copies.distance else (0,)))
    used = places.lists + sum(map(len, even.words))
    if copies.distance and copies.distance < used:
        raise ValueError(f"Inputs, labels and lists of odd passes must lie at least {used:,} elements further on, "
                         f"not {copies.distance!r}")
    lists = Lists(places=places, words=np.concatenate(even.words), commands=even.commands, distance=copies.distance,
                  odd=np.concatenate([word for other in others for word in other.words] or [np.zeros(0, np.uint32)]))
    if lists.end > words:
        each = sum(places.stride(width) for width in (layers[0].inputs, *(layer.outputs for layer in layers)))
        raise ValueError(f"Activations of {examples:,} examples and lists must take at most the {words:,} elements "
                         f"of a node's activation memory, not {lists.end:,}: take smaller batches or narrower "
                         f"layers, an example has {each:,} elements and its gradients")
    return lists


def _at(place: Place, base: int) -> dict[str, int]:
    return {"place": place, "base": base}


def _compiled(array: Array, places: Activations, copies: Copies, odd: int,
              factors: Callable[..., Mapping[str, int]]) -> "_Compiler":
    """All lists of even passes (0) or of odd ones (1)."""
    compiler = _Compiler(array=array, places=places, copies=copies, odd=odd, factors=factors)
    for layer in places.layers:
        compiler.forward(layer)
    for layer in reversed(places.layers):
        compiler.backward(layer)
    return compiler


class _Compiler:
    """Lists, one behind the other."""

    def __init__(self, *, array: Array, places: Activations, copies: Copies, odd: int,
                 factors: Callable[..., Mapping[str, int]]):
        self._factors = factors
        self._array = array
        self._places = places
        self._copies = copies
        self._odd = odd
        self._count = len(places.layers)
        self.words: list[Words] = []
        self.commands: list[Work] = []
        shared = [layer for layer in places.layers if isinstance(layer, Shared)]
        self._indices = {(layer.number, transposed): self._add(index_words(layer, array.lanes, transposed=transposed))
                         for layer in shared for transposed in (False, True) if layer.number > 1 or not transposed}

    def _in(self, region: Region, offset: int = 0) -> dict[str, int]:
        """Operand that lies in a region of activations or weights, in the passes of these lists."""
        place = Place.WEIGHTS if region.space == "weights" else Place.ACTIVATIONS
        return _at(place, region.base + self._odd * region.alternate + offset)

    def _given(self, region: Region) -> Region:
        """Region that the host writes for each pass."""
        return dataclasses.replace(region, alternate=self._copies.distance)

    def _output(self, number: int) -> Region:
        """Output of a layer; of layer 0, the inputs."""
        return self._places.output(number) if number else self._given(self._places.output(0))

    def _add(self, words: Words) -> Region:
        """Add words behind those that there are; return their region."""
        base = self._places.lists + sum(map(len, self.words))
        self.words.append(words)
        return self._given(Region("activations", base, len(words)))

    def forward(self, layer: Dense) -> None:
        """Add the list of a layer's output, and of the loss behind the last layer."""
        places, last = self._places, layer.number == self._count
        x, y, weights = self._output(layer.number - 1), places.output(layer.number), self._copies.weights(layer)
        stride = places.stride(layer.outputs)
        reads, writes = [x, weights], [y]
        if isinstance(layer, Shared):
            listed = [self._centroids(
                layer, reads, x=(self._in(x), places.stride(layer.inputs)), table=self._in(weights), initial=1,
                start=(self._in(weights, layer.centroids), 0), relu=int(not last), target=(self._in(y), stride))]
        else:
            listed = [self._product(
                (0, layer.inputs, layer.outputs), transpose_b=1, initial=Initial.MATRIX, relu=int(not last),
                a=(self._in(x), places.stride(layer.inputs)), b=(self._in(weights), layer.inputs),
                c=(self._in(y), stride), start=(self._in(weights, layer.inputs * layer.outputs), 0))]
        if last:
            gradient = places.gradient(layer.number)
            labels = self._given(Region("activations", places.labels, _up(places.examples, GROUP)))
            listed.append(pack(vector_layout(), {
                "kind": Kind.VECTOR, "function": VectorProgram.CROSS_ENTROPY, "columns": layer.outputs,
                "source": self._in(y), "stride_source": stride, "labels": self._in(labels), "stride_labels": 1,
                "target": self._in(gradient), "stride_target": stride,
                "loss": _at(Place.ACTIVATIONS, places.loss)}))
            reads.append(labels)
            writes += [gradient, Region("activations", places.loss, GROUP)]
        self._command("forward", layer, listed, reads, writes)

    def backward(self, layer: Dense) -> None:
        """Add the list of a layer's gradients, and of those of its input."""
        places = self._places
        x, upstream = self._output(layer.number - 1), places.gradient(layer.number)
        stride, inward = places.stride(layer.outputs), places.stride(layer.inputs)
        given = self._in(upstream), stride
        reads, writes = [x, upstream], [Region("gradients", layer.base, layer.length)]
        below, weights = places.gradient(max(1, layer.number - 1)), self._copies.weights(layer)
        if isinstance(layer, Shared):
            biases = layer.centroids
            listed = [self._centroids(layer, reads, gradient=1, x=(self._in(x), inward), start=given,
                                      target=(_at(Place.GRADIENTS, layer.base), 0))]
        else:
            biases = layer.inputs * layer.outputs
            listed = [self._product((layer.outputs, 0, layer.inputs), transpose_a=1, a=given, b=(self._in(x), inward),
                                    c=(_at(Place.GRADIENTS, layer.base), layer.inputs))]
        listed.append(self._product((1, 0, layer.outputs), a=(_at(Place.ONES, 0), 0), b=given,
                                    c=(_at(Place.GRADIENTS, layer.base + biases), stride)))
        if layer.number > 1:
            if isinstance(layer, Shared):
                listed.append(self._centroids(
                    layer, reads, transposed=True, x=given, table=self._in(weights), target=(self._in(below), inward),
                    gate=(self._in(x), inward), gated=1))
            else:
                listed.append(self._product(
                    (0, layer.outputs, layer.inputs), a=given, b=(self._in(weights), layer.inputs),
                    c=(self._in(below), inward), gate=(self._in(x), inward)))
            reads.append(weights)
            writes.append(below)
        self._command("backward", layer, listed, reads, writes)

    def _centroids(self, layer: Shared, reads: list[Region], *, transposed: bool = False, **given: Any) -> Words:
        """A product with the indices of a layer, which are read; operands come with their strides."""
        indices = self._indices[layer.number, transposed]
        if indices not in reads:
            reads.append(indices)
        fields: dict[str, Any] = {"indices": self._in(indices)}
        for name, value in given.items():
            fields |= ({name: value[0], f"stride_{name}": value[1]} if isinstance(value, tuple) else {name: value})
        return centroid_instruction(layer, self._array.lanes, transposed=transposed, **fields)

    def _product(self, sizes: tuple[int, int, int], *, a: Any, b: Any, c: Any, start: Any = None, gate: Any = None,
                 **options: int) -> Words:
        """A product of m by k and k by n; a size of 0 is the number of examples."""
        m, k, n = sizes
        most = self._places.examples
        factors = self._factors(
            self._array, (m or most, k or most, n), transpose_a="transpose_a" in options,
            transpose_b="transpose_b" in options, ones=a[0]["place"] is Place.ONES, starts=start is not None,
            gated=gate is not None)
        operands = {"a": a, "b": b, "c": c, "start": start, "gate": gate}
        given = {name: operand for name, operand in operands.items() if operand is not None}
        return pack(gemm_layout(), {
            "kind": Kind.GEMM, "m": m, "k": k, "n": n, "gated": int(gate is not None), **options,
            **factors, **{name: place for name, (place, _) in given.items()},
            **{f"stride_{name}": stride for name, (_, stride) in given.items()}})

    def _command(self, name: str, layer: Dense, listed: list[Words], reads: list[Region],
                 writes: list[Region]) -> None:
        words = np.concatenate([*listed, np.zeros(INSTRUCTION_WORDS, np.uint32)])  # with an END
        region = self._add(np.concatenate([words, np.zeros(-len(words) % GROUP, np.uint32)]))
        reads = [*reads, region]
        fields = {"weight_base": region.base, **self._copies.fields(layer), **self._passes(name, layer)}
        self.commands.append(Work(name=f"{name} {layer.number}", operation="LAYERS", reads=reads, writes=writes,
                                  multiplications=layer.multiplications(backward=name == "backward"), fields=fields))

    def _passes(self, name: str, layer: Dense) -> dict[str, int]:
        """Fields of commands in a schedule whose passes overlap."""
        if not self._copies.distance:
            return {}
        first = name == "forward" and layer.number == 1  # waits for its inputs
        return {"alternate": 1, **({"wait": STAGED_FLAG} if first else {})}
