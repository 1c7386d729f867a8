"""Compile the instruction lists of a perceptron's layers and assign addresses to its activations.

A layer has a forward list and a backward list. Forward computes Y = bias + X · Wᵀ, where each sum starts from its
bias, followed by a ReLU except after the last layer; the last forward list also computes the cross-entropy. Backward
computes dW = dYᵀ · X, the sums of the columns of dY, and, except in the first layer, dX = dY · W, set to +0.0 where X
is +0.0. Sizes that equal the number of examples are taken from the command, so one list serves batches of all sizes.

The parameters of a layer with a codebook are its table and biases: products with W use the indices, and gradients are
computed for the table instead of W. The host writes the indices together with the lists: lines for the product and,
except in the first layer, lines of the transposed matrix, for the gradient of the layer's input.

In a schedule with overlapping passes, even and odd passes have separate inputs, labels and lists, a fixed distance
apart, so that the host can write the data of the next pass during a pass.

Gradients are stored where the ring expects them. Activations are matrices with one row per example, padded to whole
memory rows: inputs, layer outputs, their gradients, labels and the loss. Lists are first compiled with a separate
address for each buffer. Lifetimes and a plan with shared addresses (:mod:`host.features.compute.memory.plan`) are
derived from their instructions, and the lists are compiled again. Indices and lists are stored after the buffers.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.features.compute.engine import COLUMNS
from hdl.features.compute.layer_list import Initial, Kind, Place, VectorProgram, centroid_layout, vector_layout
from hdl.group import GROUP
from host.features.compute import instructions
from host.features.compute.instructions import ADDRESSES, Array, Factors, Products, Words, at, ended, up
from host.features.compute.memory.plan import ListProgram, Plan, Room, make_plan
from host.features.programs.order import Region
from host.features.programs.schedules import STAGED_FLAG, Copies, Work
from host.models.layer_shapes import Dense
from sim.golden.features.compute.compute import pack

__all__ = ["MAX_SIZE", "Activations", "ListCompiler", "Lists", "Shared", "compile_lists"]

#: Maximum for both the number of examples and the width of a layer.
MAX_SIZE = 4095


@dataclasses.dataclass(frozen=True, eq=False)
class Shared(Dense):
    """A linear layer with a codebook, and the offset of its parameters in the vector of all parameters."""

    indices: npt.NDArray[np.integer[Any]]  # codebook indices of the weights, with shape (outputs, inputs)
    centroids: int  # number of entries in the codebook

    @property
    def length(self) -> int:
        """Number of elements of the codebook and the biases, padded to whole groups."""
        return up(self.centroids + self.outputs, GROUP)

    def multiplications(self, *, backward: bool) -> int:
        """Number of additions and multiplications per example, which the codebook unit executes in order."""
        return (self.inputs + 2 * self.centroids) * self.outputs * (2 if backward and self.number > 1 else 1)


def _packed(layer: Shared, lanes: int, *, transposed: bool) -> Words:
    """Pack a layer's indices, or the transposed indices, into words."""
    from sim.golden.features.codebook_layers.centroid_product import pack_indices

    return pack_indices(layer.indices.T if transposed else layer.indices, lanes).ravel()


@dataclasses.dataclass(frozen=True)
class _Owned(Region):
    """Region of a buffer, with the buffer tag of its rows."""

    owner: int = dataclasses.field(default=0, kw_only=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Activations:
    """Addresses in activation memory, all multiples of 32."""

    layers: Sequence[Dense]
    examples: int  # maximum number of examples of a command
    lanes: int  # elements of a memory row
    bases: Mapping[str, int] | None = None  # planned buffer addresses; by default all buffers are disjoint
    #: Address and size in words of each buffer: ``inputs``, ``output`` and ``gradient`` followed by a layer number,
    #: ``labels``, and ``loss``.
    rooms: Mapping[str, Room] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        words = {"inputs": self.size(self.layers[0].inputs),
                 **{f"{name} {layer.number}": self.size(layer.outputs)
                    for name in ("output", "gradient") for layer in self.layers},
                 "labels": up(self.examples, GROUP), "loss": GROUP}
        bases = self.bases or dict(zip(words, itertools.accumulate(words.values(), initial=0), strict=False))
        object.__setattr__(self, "rooms", {name: Room(bases[name], size) for name, size in words.items()})

    @property
    def outputs(self) -> list[int]:
        """Addresses of the inputs and of each layer's output."""
        return [self.output(number).base for number in range(len(self.layers) + 1)]

    @property
    def labels(self) -> int:
        """Address of the first label."""
        return self.rooms["labels"].base

    @property
    def loss(self) -> int:
        return self.rooms["loss"].base

    @property
    def lists(self) -> int:
        """Address of the first word after all buffers, where indices and instruction lists start."""
        return max(room.base + room.words for room in self.rooms.values())

    def stride(self, width: int) -> int:
        """Distance in elements from one example to the next."""
        return up(width, self.lanes)

    def size(self, width: int) -> int:
        """Number of elements of a matrix with one row per example, rounded up to a multiple of 32."""
        return up(self.examples * self.stride(width), GROUP)

    def owner(self, name: str) -> int:
        """Number of a buffer, counted from 1; instruction lists and codebook indices share the last number."""
        return instructions.numbered([*self.rooms, "lists"].index(name))

    def region(self, name: str) -> Region:
        """Return the region of a buffer."""
        room = self.rooms[name]
        return _Owned("activations", room.base, room.words, owner=self.owner(name))

    def output(self, number: int) -> Region:
        """Return the region of a layer's output, or of the inputs for layer 0."""
        return self.region(f"output {number}" if number else "inputs")

    def gradient(self, number: int) -> Region:
        """Return the region of the gradients of a layer's output."""
        return self.region(f"gradient {number}")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Lists:
    """Compiled instruction lists of a network."""

    places: Activations
    words: Words  # all indices and lists, to be written starting at address ``places.lists``
    commands: list[Work]  # commands of a pass: forward through all layers, then backward from last to first
    odd: Words  # instruction lists of odd passes; empty if passes do not overlap
    #: Distance in elements between the inputs, labels and instruction lists of even passes and of odd passes.
    distance: int
    plan: Plan

    @property
    def end(self) -> int:
        """Number of words of activation memory in use."""
        return self.places.lists + len(self.words) + self.distance

    @property
    def programs(self) -> list[ListProgram]:
        """The instruction lists of all passes, or separately the lists of even and of odd passes."""
        return [_program(words, self.places, self.commands, distance)
                for words, distance in ((self.words, 0), (self.odd, self.distance)) if len(words)]


def _program(words: Words, places: Activations, commands: Sequence[Work], further: int = 0) -> ListProgram:
    """Describe instruction lists by their words and addresses, and by the buffers that the host writes and reads."""
    return ListProgram(words=words, base=places.lists + further, further=further, examples=places.examples,
                       starts=[command.fields["weight_base"] + further for command in commands],
                       given=("inputs", "labels"), taken=("loss",))


def compile_lists(layers: Sequence[Dense], *, array: Array, examples: int, words: int,
                  copies: Copies | None = None, factors: Factors = instructions.best_factors,
                  plan: Plan | None = None) -> Lists:
    """Compile a perceptron's lists, with ReLUs between layers, for a given memory plan or a new one.

    A layer's weights and gradients are stored at its ``base`` in their respective memories. A node has at most
    ``examples`` examples per step and ``words`` elements of activation memory. In a schedule with overlapping passes,
    some layers have two copies of their weights. Raises ``PlanError`` if the plan is for different lists, and
    ``ValueError`` if nodes cannot compute these layers or lack memory for the examples.
    """
    _check_layers(layers, examples=examples, lanes=array.lanes)
    factors = functools.cache(factors)
    apart = Activations(layers=layers, examples=examples, lanes=array.lanes)
    if apart.lists > ADDRESSES:
        raise _no_room(apart, words, apart.lists)
    profiled = _compiled(array, apart, Copies(), 0, factors)
    profile = _program(np.concatenate(profiled.words), apart, profiled.commands).profile(
        apart.rooms, array.engine(centroids=max((layer.centroids for layer in layers if isinstance(layer, Shared)),
                                                default=0)))
    if plan is None:
        plan = make_plan(profile)
    plan.check(profile)
    places = dataclasses.replace(apart, bases=plan.places)
    copies = copies or Copies()
    even, *rest = (_compiled(array, places, copies, odd, factors) for odd in ((0, 1) if copies.distance else (0,)))
    used = places.lists + sum(map(len, even.words))
    if copies.distance and copies.distance < used:
        raise ValueError(f"Inputs, labels and lists of odd passes must lie at least {used:,} elements further on, "
                         f"not {copies.distance!r}")
    lists = Lists(places=places, words=np.concatenate(even.words), commands=even.commands, distance=copies.distance,
                  plan=plan, odd=np.concatenate([word for other in rest for word in other.words]
                                                or [np.zeros(0, np.uint32)]))
    if lists.end > words:
        raise _no_room(places, words, lists.end)
    return lists


def _check_layers(layers: Sequence[Dense], *, examples: int, lanes: int) -> None:
    """Raise ``ValueError`` unless the compute engine supports these layers."""
    for layer in layers:
        if layer.inputs % lanes:
            raise ValueError(f"Inputs and widths of hidden layers must be multiples of the {lanes} lanes of nodes "
                             f"that compute, not {layer.inputs}")
    widest = max(examples, *(max(layer.inputs, layer.outputs) for layer in layers))
    if widest > MAX_SIZE:
        raise ValueError(f"Layers and examples of nodes that compute must be at most {MAX_SIZE:,}, not {widest:,}")
    for layer in layers:
        if isinstance(layer, Shared) and layer.centroids % lanes:
            raise ValueError(f"Centroids of a table must be a multiple of the {lanes} lanes of nodes that compute, "
                             f"not {layer.centroids}")
    if layers[-1].outputs > COLUMNS:
        raise ValueError(f"Outputs of the last layer must be at most {COLUMNS} on nodes that compute, not "
                         f"{layers[-1].outputs:,}")


def _no_room(places: Activations, words: int, end: int) -> ValueError:
    layers = places.layers
    each = sum(places.stride(width) for width in (layers[0].inputs, *(layer.outputs for layer in layers)))
    return ValueError(
        f"Activations of {places.examples:,} examples and lists must take at most the {words:,} elements of a node's "
        f"activation memory, not {end:,}: take smaller batches or narrower layers, an example has {each:,} elements "
        f"and its gradients")


def _compiled(array: Array, places: Activations, copies: Copies, odd: int, factors: Factors) -> "ListCompiler":
    """Compile all instruction lists of even (0) or odd (1) passes."""
    compiler = ListCompiler(array=array, places=places, copies=copies, odd=odd, factors=factors)
    for layer in places.layers:
        compiler.forward(layer)
    for layer in reversed(places.layers):
        compiler.backward(layer)
    return compiler


class ListCompiler:
    """Compiler for the instruction lists of even (0) or odd (1) passes, which are stored after the buffers."""

    def __init__(self, *, array: Array, places: Activations, copies: Copies, odd: int, factors: Factors):
        self._array = array
        self._product = Products(array=array, factors=factors, length=places.examples)
        self.places = places  # addresses; may be changed before a list is added
        self._base = places.lists
        self._copies = copies
        self._odd = odd
        self._count = len(places.layers)
        self.words: list[Words] = []
        self.commands: list[Work] = []
        self._indices = {
            (layer.number, transposed): self._add(_packed(layer, array.lanes, transposed=transposed))
            for layer in places.layers if isinstance(layer, Shared)
            for transposed in (False, True) if layer.number > 1 or not transposed}

    def _in(self, region: Region, offset: int = 0) -> dict[str, int]:
        """Return an operand in a region of activations or weights, for the passes of these instruction lists."""
        memory = Place.WEIGHTS if region.space == "weights" else Place.ACTIVATIONS
        return at(memory, region.base + self._odd * region.alternate + offset, owner=getattr(region, "owner", 0))

    def _given(self, region: Region) -> Region:
        """Return a region that the host writes before each pass."""
        return dataclasses.replace(region, alternate=self._copies.distance)

    def _output(self, number: int) -> Region:
        """Return the region of a layer's output, or of the inputs for layer 0."""
        region = self.places.output(number)
        return region if number else self._given(region)

    def _add(self, words: Words) -> Region:
        """Append words, padded to whole groups; return their region."""
        base = self._base + sum(map(len, self.words))
        self.words.append(np.concatenate([words, np.zeros(-len(words) % GROUP, np.uint32)]))
        return self._given(_Owned("activations", base, len(self.words[-1]), owner=self.places.owner("lists")))

    def forward(self, layer: Dense) -> None:
        """Add the instruction list that computes a layer's output and, after the last layer, the loss."""
        places, last = self.places, layer.number == self._count
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
            labels = self._given(places.region("labels"))
            operands = {"source": (self._in(y), stride), "target": (self._in(gradient), stride),
                        "labels": (self._in(labels), 1)}
            listed.append(pack(vector_layout(), {
                "kind": Kind.VECTOR, "function": VectorProgram.CROSS_ENTROPY, "columns": layer.outputs,
                "loss": self._in(places.region("loss")), **instructions.with_strides(operands)}))
            reads.append(labels)
            writes += [gradient, places.region("loss")]
        self._command("forward", layer, listed, reads, writes)

    def backward(self, layer: Dense) -> None:
        """Add the instruction list that computes a layer's gradients and the gradient of its input."""
        places = self.places
        x, upstream = self._output(layer.number - 1), places.gradient(layer.number)
        stride, inward = places.stride(layer.outputs), places.stride(layer.inputs)
        dy = self._in(upstream), stride
        reads, writes = [x, upstream], [Region("gradients", layer.base, layer.length)]
        below, weights = places.gradient(max(1, layer.number - 1)), self._copies.weights(layer)
        if isinstance(layer, Shared):
            biases = layer.centroids
            listed = [self._centroids(layer, reads, gradient=1, x=(self._in(x), inward), start=dy,
                                      target=(at(Place.GRADIENTS, layer.base), 0))]
        else:
            biases = layer.inputs * layer.outputs
            listed = [self._product((layer.outputs, 0, layer.inputs), transpose_a=1, a=dy, b=(self._in(x), inward),
                                    c=(at(Place.GRADIENTS, layer.base), layer.inputs))]
        listed.append(self._product((1, 0, layer.outputs), a=(at(Place.ONES, 0), 0), b=dy,
                                    c=(at(Place.GRADIENTS, layer.base + biases), stride)))
        if layer.number > 1:
            if isinstance(layer, Shared):
                listed.append(self._centroids(
                    layer, reads, transposed=True, x=dy, table=self._in(weights), target=(self._in(below), inward),
                    gate=(self._in(x), inward), gated=1))
            else:
                listed.append(self._product(
                    (0, layer.outputs, layer.inputs), a=dy, b=(self._in(weights), layer.inputs),
                    c=(self._in(below), inward), gate=(self._in(x), inward)))
            reads.append(weights)
            writes.append(below)
        self._command("backward", layer, listed, reads, writes)

    def _centroids(self, layer: Shared, reads: list[Region], *, transposed: bool = False, **fields: Any) -> Words:
        """Encode a product with a layer's indices or transposed indices, for all examples of a command.

        The region of the indices is added to ``reads``. ``fields`` contains the flags and the table from
        :func:`~hdl.features.compute.layer_list.centroid_layout`, and the operands with their strides.
        """
        from sim.golden.features.codebook_layers.centroid_product import index_line

        indices = self._indices[layer.number, transposed]
        if indices not in reads:
            reads.append(indices)
        columns, outputs = (layer.outputs, layer.inputs) if transposed else (layer.inputs, layer.outputs)
        operands = {name: value for name, value in fields.items() if isinstance(value, tuple)}
        operands["indices"] = self._in(indices), index_line(columns, self._array.lanes)
        return pack(centroid_layout(), {"kind": Kind.CENTROID, "columns": columns, "outputs": outputs, **fields,
                                        **instructions.with_strides(operands)})

    def _command(self, name: str, layer: Dense, listed: list[Words], reads: list[Region],
                 writes: list[Region]) -> None:
        region = self._add(ended(listed))
        fields = {"weight_base": region.base, **self._copies.fields(layer)}
        if self._copies.distance:
            fields["alternate"] = 1
            if name == "forward" and layer.number == 1:  # wait until the host has written the inputs
                fields["wait"] = STAGED_FLAG
        self.commands.append(Work(
            name=f"{name} {layer.number}", operation="LAYERS", reads=[*reads, region], writes=writes, fields=fields,
            multiplications=layer.multiplications(backward=name == "backward")))
