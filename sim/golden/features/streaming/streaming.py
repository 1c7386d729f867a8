"""Golden model of layer streaming: workers compute layer by layer, while a server stores all layers.

A model is a list of units. A unit is a linear layer or a share of a layer's outputs, followed by a ReLU except in the
last layer, which is always one unit. The server holds the binary32 master weights and the optimizer state of all
units.

FETCH sends a unit's weights through the unit's codec, so that all workers use the decoded weights. PUSH adds the
gradients of a unit as ((g_1 + g_2) + g_3) + …, in rank order starting after the server, rounding each addition to
nearest even. Reading a gradient turns -0.0 into +0.0 and any NaN into the canonical NaN. The server, last in the
chain, computes new master weights and state from the sum. With more than two workers the sums differ from those of a
fused update, where blocks start at different ranks.

In a set, each worker processes its examples in microbatches, in ascending order. Products are computed as in LAYERS
lists, and a unit's gradients are accumulated over microbatches, so they do not depend on the microbatch size. In the
forward pass, a worker stores each unit's inputs in far memory. In the backward pass, it recomputes the unit's outputs
and derives the gradients of weights, biases and inputs from the output gradients. Input gradients are zero where the
preceding ReLU returned zero, and are summed over the parts of a layer in ascending order. The loss of a set is summed
from +0.0 over microbatches in ascending order, then over workers.

:func:`resident_set` keeps all units on each worker; :func:`streaming_set`, with two windows of weights and two
accumulators of gradients, must produce the same bits.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hdl.group import GROUP
from sim.golden import floating, optimizer, ring, summation
from sim.golden.codecs import RAW, WEIGHT_CODECS
from sim.golden.features.compute.gemm import ScaleMask, epilogue
from sim.golden.features.mx.block_format import BlockFormat

__all__ = [
    "Counts",
    "Moved",
    "Server",
    "Share",
    "Unit",
    "accesses",
    "counts",
    "push_sum",
    "resident_set",
    "streaming_set",
    "units_of",
]

Bits = npt.NDArray[np.uint32]
Array = npt.NDArray[np.floating]
#: A worker's examples, one per row, and their labels.
Share = tuple[Array, npt.NDArray[np.integer]]


class Functions(Protocol):
    """Ordered sums: :mod:`sim.golden.summation`, or the faster :mod:`sim.arithmetic.functions`."""

    def product(self, a: Array, b: Array, initial: Array | None = None) -> Array: ...
    def cross_entropy(self, scores: Array, labels: npt.NDArray[np.integer]) -> tuple[Any, Array]: ...


@dataclasses.dataclass(frozen=True)
class Unit:
    """Unit of transfer: a layer, or a share of a layer's outputs with their weights."""

    layer: int  # number of the layer, from 1
    #: Number of inputs of the layer, and number of outputs in this share.
    inputs: int
    outputs: int
    first: int = 0  # first output of this share
    format: str = RAW  # codec for its weights in FETCH

    @property
    def words(self) -> int:
        """Number of weights and biases: the elements of a FETCH or PUSH."""
        return (self.inputs + 1) * self.outputs

    @property
    def length(self) -> int:
        """Number of weights and biases, rounded up to whole groups."""
        return int(-(-self.words // GROUP) * GROUP)


def units_of(widths: Sequence[int]) -> list[Unit]:
    """Create one unit per layer of a perceptron; ``widths`` includes inputs and outputs."""
    if len(widths) < 2:
        raise ValueError(f"Widths must be two or more, not {list(widths)!r}")
    return [Unit(number, *pair) for number, pair in enumerate(itertools.pairwise(widths), start=1)]


def accesses(units: Sequence[Unit]) -> tuple[list[int], list[int]]:
    """Unit numbers in forward and in backward order. The backward order reverses the layers but not the parts within
    a layer, because input gradients are summed over outputs in ascending order."""
    forward = list(range(len(units)))
    return forward, sorted(forward, key=lambda number: (-units[number].layer, units[number].first))


@dataclasses.dataclass(frozen=True)
class Counts:
    """Element counts of a FETCH or PUSH: all elements, zeros, and elements at the format's largest magnitude.

    For binary32, infinities and NaNs count as saturated.
    """

    elements: int
    zeros: int
    saturations: int

    @property
    def zero_part(self) -> float:
        """Fraction of elements that are zero."""
        return self.zeros / self.elements


def counts(elements: Bits, codec: str = RAW) -> Counts:
    """Count elements, decoded zeros and codes of the largest magnitude after encoding with a codec."""
    through = WEIGHT_CODECS[codec]
    magnitudes = through.decode(through.encode(elements), len(elements)) & np.uint32(0x7FFF_FFFF)
    saturated = magnitudes >= np.uint32(0x7F80_0000)
    form = getattr(through, "format", None)
    if isinstance(form, BlockFormat):
        codes = form.quantise(elements).codes.ravel()[:len(elements)]
        saturated = saturated | ((codes & (1 << form.magnitude_bits) - 1) == form.largest)
    return Counts(len(elements), int(np.count_nonzero(magnitudes == 0)), int(np.count_nonzero(saturated)))


def push_sum(gradients: Bits) -> Bits:
    """Sum gradients given as one row per worker, in rank order starting after the server."""
    addends = ring.canonical(gradients)
    total: Bits = addends[0]
    for addend in addends[1:]:
        total = floating.add(total, addend)
    return total


class Server:
    """Master weights and state of all units. Each unit's array holds its weights and biases, zero-padded to a whole
    group. State planes are initially zero."""

    def __init__(self, units: Sequence[Unit], masters: Sequence[Bits], *, planes: int):
        for unit, master in zip(units, masters, strict=True):
            if master.shape != (unit.length,):
                raise ValueError(f"Masters of layer {unit.layer} must be {unit.length:,} words, not "
                                 f"{master.shape!r}")
        self.units = list(units)
        self.masters = [master.copy() for master in masters]
        self.state = [[np.zeros_like(master) for _ in range(planes)] for master in masters]  # state planes by unit
        #: Counts of the latest FETCH and the latest PUSH of each unit.
        self.fetched: dict[int, Counts] = {}
        self.pushed: dict[int, Counts] = {}

    def decoded(self, number: int) -> Bits:
        """Return a unit's weights as workers receive them."""
        codec = WEIGHT_CODECS[self.units[number].format]
        master = self.masters[number]
        weights: Bits = codec.decode(codec.encode(master), len(master))
        return weights

    def fetch(self, number: int) -> Bits:
        """Model the FETCH of a unit; return the weights that all workers receive."""
        self.fetched[number] = counts(self.masters[number][:self.units[number].words],
                                      self.units[number].format)
        return self.decoded(number)

    def push(self, number: int, gradients: Sequence[Bits], settings: optimizer.Settings) -> None:
        """Push a unit's gradients, given in worker order, and update the unit."""
        total = push_sum(np.stack(gradients))
        self.pushed[number] = counts(total[:self.units[number].words])
        self.masters[number], self.state[number] = optimizer.update(total, self.masters[number],
                                                                    self.state[number], settings)


class _Products:
    """Compute the products of a unit with a worker's weights."""

    def __init__(self, unit: Unit, weights: Bits, functions: Functions, *, last: bool):
        count = unit.inputs * unit.outputs
        numbers = ring.floats(weights)
        self._weights = numbers[:count].reshape(unit.outputs, unit.inputs)
        self._biases = numbers[count:count + unit.outputs]
        self._unit, self._functions, self._last = unit, functions, last

    def forward(self, x: Array) -> Array:
        start = np.broadcast_to(self._biases, (len(x), len(self._biases)))
        outputs = self._functions.product(x, self._weights.T, start).astype(np.float32)
        return epilogue(outputs, ScaleMask(), relu=not self._last, gate=None)

    def loss(self, scores: Array, labels: npt.NDArray[np.integer]) -> tuple[Bits, Array]:
        loss, gradient = self._functions.cross_entropy(scores, labels)
        return ring.bits([loss]), gradient

    def backward(self, x: Array, upstream: Array, gradient: Bits, below: Array | None) -> Array:
        """Accumulate a unit's gradient; return its input gradient added to ``below``, the sum over earlier units."""
        unit, product = self._unit, self._functions.product
        count = unit.inputs * unit.outputs
        local = np.ascontiguousarray(upstream[:, unit.first:unit.first + unit.outputs])
        numbers = gradient.view(np.float32)
        weights = numbers[:count].reshape(unit.outputs, unit.inputs)
        biases = numbers[None, count:count + unit.outputs]
        weights[...] = product(np.ascontiguousarray(local.T), x, weights)
        biases[...] = product(np.ones((1, len(x)), np.float32), local, biases)
        if unit.layer == 1:
            return local
        return epilogue(product(local, self._weights, below).astype(np.float32), ScaleMask(), relu=False, gate=x)


def _cut(share: Share, microbatch: int) -> Iterator[Share]:
    """Split a worker's examples into microbatches."""
    for first in range(0, len(share[1]), microbatch):
        yield share[0][first:first + microbatch], share[1][first:first + microbatch]


def total_loss(losses: Sequence[Sequence[Bits]]) -> Bits:
    """Sum the losses of all workers' microbatches."""
    total = np.zeros(1, np.uint32)
    for worker_losses in losses:
        worker = np.zeros(1, np.uint32)
        for loss in worker_losses:
            worker = floating.add(worker, loss)
        total = floating.add(total, worker)
    return total


def resident_set(server: Server, shares: Sequence[Share], settings: optimizer.Settings, *, microbatch: int,
                 functions: Functions = summation) -> int:
    """Run a set and its update on workers that each hold all units; return the loss as a bit pattern."""
    units, last = server.units, len(server.units) - 1
    forward, backward = accesses(units)
    with np.errstate(all="ignore"):
        products = [_Products(unit, server.fetch(number), functions, last=number == last)
                    for number, unit in enumerate(units)]
        gradients = [[np.zeros(unit.length, np.uint32) for unit in units] for _ in shares]
        losses: list[list[Bits]] = []
        for share, own in zip(shares, gradients, strict=True):
            losses.append([])
            for x, labels in _cut(share, microbatch):
                inputs = {1: x}
                for number in forward:
                    made = products[number].forward(inputs[units[number].layer])
                    above = units[number].layer + 1
                    inputs[above] = np.concatenate([inputs[above], made], axis=1) if above in inputs else made
                loss, upstream = products[last].loss(inputs[units[last].layer + 1], labels)
                losses[-1].append(loss)
                ups: dict[int, Array] = {units[last].layer: upstream}
                for number in backward:
                    layer = units[number].layer
                    ups[layer - 1] = products[number].backward(inputs[layer], ups[layer], own[number],
                                                               ups.get(layer - 1))
    for number in backward:
        server.push(number, [own[number] for own in gradients], settings)
    return int(total_loss(losses)[0])


@dataclasses.dataclass
class Moved:
    """Number of activation words a worker has moved to and from far memory, keyed by unit."""

    forward: dict[int, int] = dataclasses.field(default_factory=dict)
    backward: dict[int, int] = dataclasses.field(default_factory=dict)


class _Worker:
    """A worker with two weight windows, two gradient accumulators, and far memory."""

    def __init__(self, share: Share, microbatch: int, functions: Functions):
        self._parts = list(_cut(share, microbatch))
        self._functions = functions
        self._windows: list[tuple[int, _Products]] = []
        self._accumulators: dict[int, Bits] = {}
        self._inputs: dict[int, list[Array]] = {1: [x for x, _ in self._parts]}
        self._ups: dict[int, list[Array]] = {}
        self.losses: list[Bits] = []
        self.moved = Moved()

    def has(self, number: int) -> bool:
        return any(held == number for held, _ in self._windows)

    def fetch(self, number: int, unit: Unit, weights: Bits, *, last: bool) -> None:
        """Load a unit's weights into the least recently used window."""
        self._windows = [*self._windows[-1:], (number, _Products(unit, weights, self._functions, last=last))]

    def _window(self, number: int) -> _Products:
        window = next(entry for entry in self._windows if entry[0] == number)
        self._windows.remove(window)
        self._windows.append(window)  # the most recently used window is last
        return window[1]

    def forward(self, number: int, unit: Unit) -> None:
        products, made, moved = self._window(number), [], 0
        for x in self._inputs[unit.layer]:
            made.append(products.forward(x))
            moved += x.size + made[-1].size
        before = self._inputs.get(unit.layer + 1)
        self._inputs[unit.layer + 1] = made if before is None else [
            np.concatenate(pair, axis=1) for pair in zip(before, made, strict=True)]
        self.moved.forward[number] = moved

    def backward(self, number: int, unit: Unit, *, last: bool) -> None:
        if len(self._accumulators) == 2:
            raise ValueError(f"Accumulators must be empty before backward of layer {unit.layer}, not two in use")
        products, moved = self._window(number), 0
        gradient = self._accumulators[number] = np.zeros(unit.length, np.uint32)
        below = self._ups.setdefault(unit.layer - 1, [])
        begun = bool(below)
        for index, ((_, labels), x) in enumerate(zip(self._parts, self._inputs[unit.layer], strict=True)):
            again = products.forward(x)
            if last:
                loss, upstream = products.loss(again, labels)
                self.losses.append(loss)
            else:
                upstream = self._ups[unit.layer][index]
            result = products.backward(x, upstream, gradient, below[index] if begun else None)
            moved += x.size + (0 if last else upstream[:, :unit.outputs].size)
            if unit.layer > 1:
                moved += result.size * (2 if begun else 1)
                below[index:index + 1] = [result]
        self.moved.backward[number] = moved

    def push(self, number: int) -> Bits:
        return self._accumulators.pop(number)


def streaming_set(server: Server, shares: Sequence[Share], settings: optimizer.Settings, *, microbatch: int,
              functions: Functions = summation) -> tuple[int, list[Moved]]:
    """Run a set and its update layer by layer. Return the loss as a bit pattern, and each worker's transfers."""
    units, last = server.units, len(server.units) - 1
    workers = [_Worker(share, microbatch, functions) for share in shares]
    forward, backward = accesses(units)
    waiting: list[int] = []

    def push() -> None:
        number = waiting.pop(0)
        server.push(number, [worker.push(number) for worker in workers], settings)

    with np.errstate(all="ignore"):
        for position, number in enumerate([*forward, *backward]):
            if len(waiting) > 1:
                push()
            if not workers[0].has(number):
                weights = server.fetch(number)
                for worker in workers:
                    worker.fetch(number, units[number], weights, last=number == last)
            for worker in workers:
                if position < len(units):
                    worker.forward(number, units[number])
                else:
                    worker.backward(number, units[number], last=number == last)
            if position >= len(units):
                waiting.append(number)
        while waiting:
            push()
    return int(total_loss([worker.losses for worker in workers])[0]), [worker.moved for worker in workers]
