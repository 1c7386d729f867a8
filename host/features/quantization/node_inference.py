"""Inference with integer layers on nodes, and the memory layout of the layers.

The weight memory contains a list of layers and their codes; the gradient memory contains the rest. A node infers one
layer after another, each for all samples of a command, and alternates between two regions of its gradient memory. An
output's codes, a sample, and a layer's parameters each start in a new memory row. Formats are in docs/protocol.md.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.control.protocol import Operation
from hdl.features.quantization.arithmetic import Variant
from hdl.features.quantization.engine import peak_cycles
from hdl.features.quantization.layer_list import LAYER_WORDS, OUTPUT_WORDS, layer_layout, output_parameter_layout
from hdl.features.quantization.layer_reader import INPUT_ROWS
from hdl.memory_map import BASE_ALIGNMENT
from host.driver.command import Command, Event
from host.driver.command_queueing import CommandQueueing
from host.driver.devices import Devices
from host.driver.memory import Buffer, place
from host.driver.results import Cycles, slowest, total
from host.driver.ring_memory import RingMemory
from host.driver.words import Words, places
from sim.golden.features.quantization.quantization import Layer

__all__ = ["InferOutcome", "NodeInference", "Program", "pack_inputs", "program", "unpack_outputs"]

Integers = npt.NDArray[np.int64]

_LAYER, _OUTPUT = places(layer_layout()), places(output_parameter_layout())
_MAX_COUNT = (1 << 16) - 1  # maximum number of outputs of a layer, and of samples of a command


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """Layers as stored in a node's memories."""

    # contents of the weight memory from the base on: the list of layers, followed by their codes
    weights: Words
    # contents of the gradient memory from the base on: the parameters of all outputs
    parameters: Words
    # addresses in the gradient memory of the first layer's inputs and the last layer's results
    source: int
    target: int
    samples: int  # maximum number of samples in a command
    # numbers of network inputs and outputs
    inputs: int
    outputs: int
    signed: bool  # whether inputs are int8
    lanes: int
    beats: int  # number of cycles per sample in which all lanes multiply


def _rows(count: int, per_row: int) -> int:
    return -(-count // per_row)


def _fields(layout: dict[str, tuple[int, int]], words: int, values: dict[str, npt.ArrayLike], count: int) -> Words:
    """Encode ``count`` structures as memory words; ``values`` has one value for all, or one for each."""
    bits = np.zeros((count, words), np.uint32)
    for name, value in values.items():
        offset, width = layout[name]
        field = np.broadcast_to(np.asarray(value, np.int64), count) & (1 << width) - 1
        bits[:, offset // 32] |= (field << offset % 32).astype(np.uint32)
    return bits.reshape(-1)


def _packed(values: Integers, per_row: int) -> npt.NDArray[np.uint8]:
    """Return the lowest 8 bits of all values; each row is padded with zeros to whole memory rows."""
    rows, columns = values.shape
    padded = np.zeros((rows, _rows(columns, per_row) * per_row), np.uint8)
    padded[:, :columns] = values & 0xFF
    return padded


def _codes(layer: Layer, lanes: int) -> Words:
    """Encode a layer's codes as words of the weight memory."""
    codes = _packed(layer.codes, 32 * lanes // layer.bits)
    if layer.bits == 4:
        codes = codes[:, 0::2] | codes[:, 1::2] * np.uint8(16)
    return np.ascontiguousarray(codes).reshape(-1).view("<u4").astype(np.uint32)


def _parameters(layer: Layer, lanes: int) -> Words:
    """Encode the output parameters of a layer as words of the gradient memory."""
    scale = {} if layer.last else {"multiplier": layer.multiplier, "shift": layer.shift}
    words = _fields(_OUTPUT, OUTPUT_WORDS, {"bias": layer.bias, "offset": layer.offsets, **scale}, layer.outputs)
    return np.concatenate([words, np.zeros(-len(words) % lanes, np.uint32)])


def program(layers: Sequence[Layer], *, lanes: int, gradient_words: int, weight_words: int,
            gradient_base: int = 0, weight_base: int = 0) -> Program:
    """Lay out layers in buffers of both memories; sizes in elements, addresses multiples of 32.

    Each layer's inputs are the previous layer's outputs, only the final layer is ``last``, and ``lanes`` is the
    number of elements in a memory row. Raises ``ValueError`` if a layer does not match its predecessor, or if the
    layers and one sample do not fit.
    """
    _check(layers, lanes)
    listed = _rows(LAYER_WORDS * len(layers), BASE_ALIGNMENT) * BASE_ALIGNMENT
    codes = [_codes(layer, lanes) for layer in layers]
    code_bases = listed + np.cumsum([0, *map(len, codes)])
    if code_bases[-1] > weight_words:
        raise ValueError(f"Layers and their codes must take at most the {weight_words:,} words of a node's weight "
                         f"memory, not {code_bases[-1]:,}")

    parameters = [_parameters(layer, lanes) for layer in layers]
    parameter_bases = np.cumsum([0, *map(len, parameters)])

    # Vectors between layers alternate between two regions; the last vector holds the sums.
    sizes = [_rows(layer.inputs, 4 * lanes) * lanes for layer in layers]
    sizes.append(_rows(layers[-1].outputs, lanes) * lanes)
    regions = max(sizes[0::2]), max(sizes[1::2])
    start = int(_rows(int(parameter_bases[-1]), BASE_ALIGNMENT)) * BASE_ALIGNMENT
    samples = min((gradient_words - start) // sum(regions), _MAX_COUNT)
    if samples < 1:
        raise ValueError(f"Parameters and vectors of a sample must take at most the {gradient_words:,} elements of a "
                         f"node's gradient memory, not {start + sum(regions):,}")
    bases = [gradient_base + start, gradient_base + start + samples * regions[0]]

    entries = [_fields(_LAYER, LAYER_WORDS, {
        "wide": layer.bits == 8, "subtract": layer.variant is Variant.MAX, "signed": layer.signed,
        "relu": layer.relu, "raw": layer.last, "final": layer.last, "outputs": layer.outputs,
        "inputs": layer.inputs, "codes": weight_base + code_bases[number], "source": bases[number % 2],
        "parameters": gradient_base + parameter_bases[number], "target": bases[(number + 1) % 2]}, 1)
        for number, layer in enumerate(layers)]
    entries.append(np.zeros(listed - LAYER_WORDS * len(layers), np.uint32))
    return Program(
        weights=np.concatenate([*entries, *codes]), parameters=np.concatenate(parameters), source=bases[0],
        target=bases[len(layers) % 2], samples=samples, inputs=layers[0].inputs, outputs=layers[-1].outputs,
        signed=layers[0].signed, lanes=lanes,
        beats=peak_cycles([layer.codes.shape for layer in layers], 1, lanes=lanes))


def _check(layers: Sequence[Layer], lanes: int) -> None:
    """Raise ``ValueError`` unless nodes support every layer and each layer matches the previous one."""
    if not layers:
        raise ValueError("Network must have at least one layer")
    max_inputs = 4 * lanes * INPUT_ROWS
    for number, layer in enumerate(layers):
        if layer.inputs > max_inputs:
            raise ValueError(f"Layer {number} must have at most {max_inputs:,} inputs, not {layer.inputs:,}")
        if layer.outputs > _MAX_COUNT:
            raise ValueError(f"Layer {number} must have at most {_MAX_COUNT:,} outputs, not {layer.outputs:,}")
        if layer.last != (number == len(layers) - 1):
            raise ValueError(f"The last layer, and no other, must give sums, not layer {number} of {len(layers)}"
                             if layer.last else "The last layer must give sums, not requantised outputs")
        if not number:
            continue
        before = layers[number - 1]
        if layer.inputs != before.outputs:
            raise ValueError(f"Layer {number} must have as many inputs as there are outputs before it, "
                             f"{before.outputs:,}, not {layer.inputs:,}")
        if layer.signed == before.relu:
            raise ValueError(f"Inputs of layer {number} must be signed exactly if the layer before has no ReLU, not "
                             f"{layer.signed!r} after {before.relu!r}")


def pack_inputs(layout: Program, x: npt.ArrayLike) -> Words:
    """Pack inputs, one sample per row, into words of the gradient memory."""
    values = np.asarray(x)
    low, high = (-128, 127) if layout.signed else (0, 255)
    if values.ndim != 2 or values.shape[1] != layout.inputs:
        raise ValueError(f"Inputs must be rows of {layout.inputs:,} numbers, not of shape {values.shape!r}")
    if not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"Inputs must be integers, not {values.dtype}")
    if values.size and (values.min() < low or values.max() > high):
        raise ValueError(f"Inputs must be {low} to {high}, not {values.min()} to {values.max()}")
    return _packed(values, 4 * layout.lanes).reshape(-1).view("<u4").astype(np.uint32)


def unpack_outputs(layout: Program, words: Words) -> Integers:
    """Unpack sums from words of the gradient memory into one row of outputs per sample."""
    rows = words.astype(np.uint32).view(np.int32).reshape(-1, _rows(layout.outputs, layout.lanes) * layout.lanes)
    return rows[:, :layout.outputs].astype(np.int64)


@dataclasses.dataclass(frozen=True, kw_only=True)
class InferOutcome:
    """Result of an inference."""

    outputs: Integers  # sums of the last layer, one row per sample
    cycles: Cycles  # sum over all commands of the cycles on the slowest node
    multiplied: int  # number of cycles in which all lanes multiply, summed over all nodes
    commands: int  # number of commands; they run one after another


class NodeInference:
    """Inference with integer layers on the nodes of a ring, which divide the samples among them. Raises
    ``ValueError`` if the nodes do not support quantization."""

    def __init__(self, devices: Devices, memory: RingMemory, commands: CommandQueueing):
        if not all(config.has("quantization") for config in devices.configs):
            raise ValueError("Nodes must have quantization in their configuration, to infer")
        self._devices = devices
        self._memory = memory
        self._commands = commands

    def infer(self, layers: Sequence[Layer], x: npt.ArrayLike, *, data: Buffer | None = None,
              lists: Buffer | None = None) -> InferOutcome:
        """Run integer layers on samples that are divided equally among the nodes.

        Layers are written to buffer ``lists`` in each node's weight memory and all other data to buffer ``data`` in
        its gradient memory. The buffers default to the whole memories, and their previous contents are lost. If a
        node's samples do not all fit, several commands are run. ``x`` has one row of inputs per sample, uint8 or (if
        the first layer is ``signed``) int8.

        Raises ``RingError`` if a command fails on any node, and ``ValueError`` if the layers and one sample do not
        fit, or if a layer does not match the previous one.
        """
        data = self._memory.whole("gradients") if data is None else place(data, "gradients")
        lists = self._memory.whole("weights") if lists is None else place(lists, "weights")
        layout = program(layers, lanes=self._devices.formats.lanes, gradient_words=data.length,
                         weight_words=lists.length, gradient_base=data.base, weight_base=lists.base)
        values = np.asarray(x)
        pack_inputs(layout, values)  # check the values before anything is written
        outputs = np.empty((len(values), layout.outputs), np.int64)
        share = -(-len(values) // len(self._devices))
        inputs, results = ([array[rank * share:(rank + 1) * share] for rank in range(len(self._devices))]
                           for array in (values, outputs))
        ranks = [rank for rank, own in enumerate(inputs) if len(own)]
        self._devices.write_space("weights", lists.base, dict.fromkeys(ranks, layout.weights))
        self._devices.write_space("gradients", data.base, dict.fromkeys(ranks, layout.parameters))
        cycles: list[Cycles] = []
        multiplied = 0
        for first in range(0, share, layout.samples):
            part = slice(first, first + layout.samples)
            events, sums = self._infer(layout, lists.base, {
                rank: inputs[rank][part] for rank in ranks if len(inputs[rank]) > first})
            for rank, own in sums.items():
                results[rank][part] = own
            cycles.append(slowest(event.cycles for event in events.values()))
            multiplied += sum(event.detail for event in events.values())
        return InferOutcome(outputs=outputs, cycles=total(cycles), multiplied=multiplied, commands=len(cycles))

    def _infer(self, layout: Program, base: int,
               x: dict[int, npt.NDArray[Any]]) -> tuple[dict[int, Event], dict[int, Integers]]:
        """Run one command on every node that has samples; return the events and sums."""
        self._devices.write_space("gradients", layout.source, {
            rank: pack_inputs(layout, samples) for rank, samples in x.items()})
        events = self._commands.run_apart({
            rank: Command(operation=Operation.INFER, weight_base=base, length=len(samples))
            for rank, samples in x.items()}, patience=2 * layout.samples * layout.beats)
        words = -(-layout.outputs // layout.lanes) * layout.lanes
        sums = self._devices.read_space("gradients", layout.target, {
            rank: len(samples) * words for rank, samples in x.items()})
        return events, {rank: unpack_outputs(layout, own) for rank, own in sums.items()}
