"""Plan of layer streaming: how the memories of the workers and their server are used.

A worker has two windows in its weight memory and two accumulators in its gradient memory. Alternatively, it has a
window and an accumulator for every unit, so that the whole model stays on the worker; the sums are the same. A layer
larger than a window is split by outputs into equal parts of whole memory rows, except for the last layer, since the
loss needs all outputs together. The activation memory contains two banks of buffers (one microbatch can be moved
while another is computed), a buffer for recomputed outputs, and the lists. Buffers that are not in use at the same
time share addresses (:mod:`host.features.compute.memory.plan`). The worker's far memory contains the inputs of all
layers, the upstream gradients, and the labels and losses of all microbatches.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Sequence

from hdl.features.compute.engine import COLUMNS
from hdl.features.compute.layer_list import INSTRUCTION_WORDS
from hdl.group import GROUP
from host.features.compute.instructions import up
from host.features.compute.memory.plan import Operation, Plan, Profile, make_plan
from host.features.programs.order import Region
from sim.golden.features.streaming.streaming import Unit, accesses, units_of

__all__ = ["LARGEST", "ListKey", "StreamingPlan", "Worker", "check_server", "cut", "largest_microbatch",
           "make_streaming_plan"]

#: Maximum number of examples in a microbatch.
LARGEST = 4095


@dataclasses.dataclass(frozen=True, kw_only=True)
class Worker:
    """Sizes of a worker's memories in elements, and its number of lanes and windows. A worker with more than two
    windows is *resident*: each unit has its own window."""

    lanes: int = 4
    weight_words: int
    gradient_words: int
    activation_words: int
    far_words: int
    windows: int = 2

    def __post_init__(self) -> None:
        if self.windows < 2:
            raise ValueError(f"Windows of a worker must be 2 or more, not {self.windows!r}")

    @property
    def resident(self) -> bool:
        """Whether all units remain on the worker."""
        return self.windows > 2

    @property
    def window(self) -> int:
        """Number of elements in a window, and in an accumulator."""
        return int(min(self.weight_words, self.gradient_words) // (self.windows * GROUP) * GROUP)


def cut(widths: Sequence[int], *, window: int, lanes: int) -> list[Unit]:
    """Units of a perceptron: layers, or equal parts of layers that do not fit in a window. Raises ``ValueError`` if
    no split fits, or if nodes cannot compute a layer."""
    for width in widths[:-1]:
        if width % lanes:
            raise ValueError(f"Inputs and widths of hidden layers must be multiples of the {lanes} lanes of workers, "
                             f"not {width}")
    layers = units_of(widths)
    if layers[-1].outputs > COLUMNS:
        raise ValueError(f"Outputs of the last layer must be at most {COLUMNS} on workers, not "
                         f"{layers[-1].outputs:,}")
    if layers[-1].length > window:
        raise ValueError(f"Last layer must fit into a window of {window:,} words, since its loss needs all outputs, "
                         f"not take {layers[-1].length:,}")
    units: list[Unit] = []
    for layer in layers:
        smallest = dataclasses.replace(layer, outputs=min(lanes, layer.outputs))
        if smallest.length > window:
            raise ValueError(f"Layer {layer.layer} must be of parts of {smallest.outputs} outputs that fit into a "
                             f"window of {window:,} words, not take {smallest.length:,} for one")
        parts = next(parts for parts in itertools.count(1)
                     if dataclasses.replace(layer, outputs=_part(layer, parts, lanes)).length <= window)
        each = _part(layer, parts, lanes)
        units += [dataclasses.replace(layer, first=first, outputs=min(each, layer.outputs - first))
                  for first in range(0, layer.outputs, each)]
    return units


def _part(layer: Unit, parts: int, lanes: int) -> int:
    """Number of outputs of each part of a layer; the last part may have fewer."""
    return layer.outputs if parts == 1 else up(-(-layer.outputs // parts), lanes)


def check_server(units: Sequence[Unit], *, planes: int, far_words: int) -> None:
    """Raise ValueError if the weights and state of all units do not fit in a server's far memory."""
    needed = (1 + planes) * sum(unit.length for unit in units)
    if far_words < needed:
        raise ValueError(f"Server must have a far memory of {needed:,} words for weights and state, not "
                         f"{far_words:,}")


@dataclasses.dataclass(frozen=True)
class ListKey:
    """Properties that determine an instruction list; units with equal properties share one."""

    backward: bool
    #: Number of the window with the weights, which is also the number of the accumulator for the gradients.
    window: int
    #: The unit's fields of the same names. ``width`` is the number of outputs of the whole layer.
    inputs: int
    outputs: int
    first: int
    width: int
    #: ``bottom``: whether this is the first layer's backward list; ``top``: whether it is a list of the last layer.
    bottom: bool
    top: bool
    #: Whether a backward list adds gradients to the sums of an earlier microbatch.
    follows: bool = False

    @property
    def words(self) -> int:
        """Number of words in the instruction list, including END."""
        products = (3 if self.bottom else 4) if self.backward else 1
        return up((products + int(self.top) + 1) * INSTRUCTION_WORDS, GROUP)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamingPlan:
    """Plan of how a worker uses its memories."""

    units: tuple[Unit, ...]
    #: Number of examples in a microbatch, and number of microbatches in a set.
    microbatch: int
    count: int
    worker: Worker

    # On the chip.

    @functools.cached_property
    def widths(self) -> dict[int, int]:
        """Number of outputs of each layer, keyed by layer; layer 0 is the input."""
        return {0: self.units[0].inputs, **{layer: sum(unit.outputs for unit in units) for layer, units in
                                            itertools.groupby(self.units, lambda unit: unit.layer)}}

    @property
    def last(self) -> int:
        """Number of the last layer."""
        return self.units[-1].layer

    def stride(self, width: int) -> int:
        """Distance in elements from one example to the next."""
        return up(width, self.worker.lanes)

    def size(self, width: int) -> int:
        """Number of elements in a microbatch of vectors, rounded up to a multiple of 32."""
        return up(self.microbatch * self.stride(width), GROUP)

    @functools.cached_property
    def profile(self) -> Profile:
        """Buffers of a bank, and which of them each kind of execution uses."""
        inner = [self.size(self.widths[layer]) for layer in range(1, self.last)] or [GROUP]
        words = {"x": max(self.size(self.widths[layer]) for layer in range(self.last)), "y": max(inner),
                 "upstream": max(inner), "below": max(inner), "gradient": self.size(self.widths[self.last]),
                 "labels": up(self.microbatch, GROUP), "loss": GROUP}
        return Profile(words, [
            Operation("forward", (), ("x", "y")), Operation("backward", ("x",), ("upstream", "below")),
            Operation("loss", ("x",), ("below", "gradient", "labels", "loss"))])

    @functools.cached_property
    def bank(self) -> Plan:
        """Addresses of the buffers in a bank."""
        return make_plan(self.profile)

    @property
    def distance(self) -> int:
        """Distance in elements from the first bank to the second."""
        return up(self.bank.peak, GROUP)

    @property
    def again(self) -> Region:
        """Region of recomputed outputs."""
        return Region("activations", 2 * self.distance, max(self.size(unit.outputs) for unit in self.units))

    @property
    def lists(self) -> int:
        """Address of the first instruction list."""
        return self.again.base + self.again.length

    @property
    def window(self) -> int:
        """Number of elements of the largest unit."""
        return max(unit.length for unit in self.units)

    @functools.cached_property
    def windows(self) -> tuple[list[int], list[int]]:
        """Window of each unit, indexed by unit number, in the forward and the backward pass."""
        sides = list(range(len(self.units))), list(range(len(self.units)))
        if self.worker.resident:
            return sides
        held, window = None, 1
        for side, order in zip(sides, accesses(self.units), strict=True):
            for number in order:
                if held != number:
                    held, window = number, 1 - window
                side[number] = window
        return sides

    def key(self, number: int, *, backward: bool, follows: bool = False) -> ListKey:
        """Return the key of the list that executes a unit forward or backward."""
        unit = self.units[number]
        return ListKey(backward, self.windows[backward][number], unit.inputs, unit.outputs, unit.first,
                       self.widths[unit.layer], backward and unit.layer == 1, unit.layer == self.last, follows)

    @property
    def keys(self) -> list[ListKey]:
        """Keys of all instruction lists, without duplicates."""
        keys = [self.key(number, backward=backward, follows=follows) for number in range(len(self.units))
                for backward in (False, True) for follows in ((False, True) if backward and self.count > 1
                                                              else (False,))]
        return list(dict.fromkeys(keys))

    @property
    def end(self) -> int:
        """Elements of the activation memory in use."""
        return self.lists + sum(key.words for key in self.keys)

    @property
    def peak(self) -> int:
        """Number of on-chip words used, excluding lists: windows, accumulators and activation buffers."""
        return 2 * self.worker.windows * self.window + self.lists

    # In far memory.

    @functools.cached_property
    def _far(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Address of each array in far memory and its number of words per microbatch, keyed by name and layer."""
        words = {("x", layer + 1): self.size(self.widths[layer]) for layer in range(self.last)}
        if self.last > 1:
            most = max(self.size(self.widths[layer]) for layer in range(1, self.last))
            words |= {("upstream", number): most for number in range(self._upstreams)}
        words |= {("labels", 0): up(self.microbatch, GROUP), ("loss", 0): GROUP}
        ends = itertools.accumulate((self.count * size for size in words.values()), initial=0)
        return {name: (base, size) for (name, size), base in zip(words.items(), ends, strict=False)}

    @property
    def _upstreams(self) -> int:
        """Number of upstream gradient arrays in far memory: two if parts of a layer read one and write the other."""
        return 2 if any(unit.first for unit in self.units) else 1

    def far(self, name: str, microbatch: int, layer: int = 0) -> Region:
        """Far memory region of one microbatch: a layer's inputs (``x``) or ``upstream`` gradients, ``labels`` or
        ``loss``."""
        base, words = self._far[name, layer % self._upstreams if name == "upstream" else layer]
        return Region("far", base + microbatch * words, words)

    @property
    def far_words(self) -> int:
        """Elements of far memory in use."""
        base, words = self._far["loss", 0]
        return base + self.count * words

    @property
    def digest(self) -> str:
        """SHA-256 of units, microbatches and buffers; equal for all nodes that have the same program."""
        text = json.dumps([[dataclasses.astuple(unit) for unit in self.units], self.microbatch, self.count,
                           self.profile.digest])
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def line(self) -> str:
        """One-line description of the plan."""
        name = "resident" if self.worker.resident else "streaming"
        return (f"{name}: {len(self.units)} units of at most {self.window:,} words, {self.count} x {self.microbatch} "
                f"examples; per worker {self.peak:,} words on chip and {self.far_words:,} in far memory")

    def check(self) -> None:
        """Raise ``ValueError`` if the plan does not fit on the worker."""
        worker = self.worker
        if worker.resident and len(self.units) > worker.windows:
            raise ValueError(f"Resident units must be at most the {worker.windows} windows of a worker, not "
                             f"{len(self.units)}")
        if self.end > worker.activation_words:
            raise ValueError(f"Microbatches of {self.microbatch} and lists must take at most the "
                             f"{worker.activation_words:,} elements of a worker's activation memory, not "
                             f"{self.end:,}")
        if self.far_words > worker.far_words:
            raise ValueError(f"Activations of {self.count} microbatches of {self.microbatch} must take at "
                             f"most the {worker.far_words:,} words of a worker's far memory, not "
                             f"{self.far_words:,}")


def largest_microbatch(units: Sequence[Unit], *, worker: Worker, count: int = 1, most: int = LARGEST) -> int:
    """Largest microbatch, up to ``most`` examples, for a worker that keeps the layer inputs of ``count`` microbatches
    in far memory. Raises ``ValueError`` if not even one example fits."""
    if most < 1:
        raise ValueError(f"Examples must be 1 or more, not {most!r}")
    # Each example adds at least one memory row to the buffers, so microbatches above ``bound`` cannot fit.
    bound = worker.activation_words // max(1, min(unit.inputs for unit in units)) + 1
    for microbatch in range(min(most, bound, LARGEST), 0, -1):
        try:
            StreamingPlan(units=tuple(units), microbatch=microbatch, count=count, worker=worker).check()
        except ValueError:
            if microbatch == 1:
                raise
        else:
            break
    return microbatch


def make_streaming_plan(widths: Sequence[int], *, worker: Worker, count: int, microbatch: int | None = None,
                    most: int = LARGEST) -> StreamingPlan:
    """Plan a perceptron of given widths, including inputs and outputs, for sets of ``count`` microbatches. The
    default microbatch is the largest that fits, up to ``most``. Raises ``ValueError`` if it does not fit."""
    if count < 1:
        raise ValueError(f"Microbatches must be 1 or more, not {count!r}")
    if microbatch is not None and not 1 <= microbatch <= LARGEST:
        raise ValueError(f"Microbatch must be of 1 to {LARGEST:,} examples, not {microbatch!r}")
    units = cut(widths, window=worker.window, lanes=worker.lanes)
    if microbatch is None:
        microbatch = largest_microbatch(units, worker=worker, count=count, most=most)
    plan = StreamingPlan(units=tuple(units), microbatch=microbatch, count=count, worker=worker)
    plan.check()
    return plan
