"""Integer layers in a node's memories: codes and a list of layers with the weights, all else with the gradients.

A node infers layer after layer, each for all samples of a command, and reads and writes two regions of its gradient
memory in turn. An output's codes, a sample and a layer's parameters each begin in a memory row of their own.
docs/protocol.md has the formats.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hdl.features.quantization.arithmetic import Variant
from hdl.features.quantization.engine import peak_cycles
from hdl.features.quantization.layer_list import LAYER_WORDS, OUTPUT_WORDS, layer_layout, output_parameter_layout
from hdl.features.quantization.layer_reader import INPUT_ROWS
from hdl.memory_map import BASE_ALIGNMENT
from host.driver.words import Words, places

__all__ = ["IntegerLayer", "Integers", "Program", "pack_inputs", "program", "unpack_outputs"]

Integers = npt.NDArray[np.int64]

_LAYER, _OUTPUT = places(layer_layout()), places(output_parameter_layout())
_MOST = (1 << 16) - 1  # outputs, or samples of a command


class IntegerLayer(Protocol):
    """Layer of integers: its members are those of :class:`sim.golden.features.quantization.quantization.Layer`, which
    checks them."""

    @property
    def codes(self) -> npt.NDArray[Any]: ...
    @property
    def offsets(self) -> npt.NDArray[Any]: ...
    @property
    def variant(self) -> Variant | str: ...
    @property
    def bits(self) -> int: ...
    @property
    def bias(self) -> npt.NDArray[Any]: ...
    @property
    def multiplier(self) -> npt.NDArray[Any]: ...
    @property
    def shift(self) -> npt.NDArray[Any]: ...
    @property
    def relu(self) -> bool: ...
    @property
    def signed(self) -> bool: ...
    @property
    def last(self) -> bool: ...


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """Layers in the form of a node's memories."""

    # words for the weight memory, from the base on: the list of layers, and their codes
    weights: Words
    # words for the gradient memory, from the base on: the parameters of all outputs
    parameters: Words
    # addresses in the gradient memory: inputs of the first layer, and results of the last one
    source: int
    target: int
    samples: int  # most samples in a command
    # inputs and outputs of the network
    inputs: int
    outputs: int
    signed: bool  # inputs are int8
    lanes: int
    beats: int  # cycles in which all lanes multiply, for each sample


def _rows(count: int, per_row: int) -> int:
    return -(-count // per_row)


def _fields(layout: dict[str, tuple[int, int]], words: int, values: dict[str, npt.ArrayLike], count: int) -> Words:
    """Structs of one or more words, as words of a memory."""
    bits = np.zeros((count, words), np.uint32)
    for name, given in values.items():
        offset, width = layout[name]
        field = np.broadcast_to(np.asarray(given, np.int64), count) & (1 << width) - 1
        bits[:, offset // 32] |= (field << offset % 32).astype(np.uint32)
    return bits.reshape(-1)


def _codes(layer: IntegerLayer, lanes: int) -> Words:
    """Codes of a layer, as words of the weight memory."""
    codes = np.asarray(layer.codes)
    per_row = 32 * lanes // layer.bits
    padded = np.zeros((len(codes), _rows(codes.shape[1], per_row) * per_row), np.uint8)
    padded[:, :codes.shape[1]] = codes
    packed = padded if layer.bits == 8 else padded[:, 0::2] | padded[:, 1::2] * np.uint8(16)
    return np.ascontiguousarray(packed).reshape(-1).view("<u4").astype(np.uint32)


def _parameters(layer: IntegerLayer, outputs: int, lanes: int) -> Words:
    """Parameters of a layer's outputs, as words of the gradient memory."""
    scale = {} if layer.last else {"multiplier": layer.multiplier, "shift": layer.shift}
    words = _fields(_OUTPUT, OUTPUT_WORDS, {"bias": layer.bias, "offset": layer.offsets, **scale}, outputs)
    return np.concatenate([words, np.zeros(-len(words) % lanes, np.uint32)])


def program(layers: Sequence[IntegerLayer], *, lanes: int, gradient_words: int, weight_words: int,
            gradient_base: int = 0, weight_base: int = 0) -> Program:
    """Lay layers out in buffers of given sizes.

    Raises ``ValueError``: layers do not follow each other, or there is no room for them and one sample.

    Parameters
    ----------
    layers : sequence of IntegerLayer
        Each has as many inputs as the one before has outputs, and the last of them is the only one that is ``last``.
    lanes : int
        Elements in a memory row.
    gradient_words, weight_words : int
        Elements of the buffers in both memories.
    gradient_base, weight_base : int
        Addresses of the buffers, multiples of 32.
    """
    shapes = [np.asarray(layer.codes).shape for layer in layers]
    _check(layers, shapes, lanes)
    listed = _rows(LAYER_WORDS * len(layers), BASE_ALIGNMENT) * BASE_ALIGNMENT
    codes = [_codes(layer, lanes) for layer in layers]
    code_bases = listed + np.cumsum([0, *map(len, codes)])
    if code_bases[-1] > weight_words:
        raise ValueError(f"Layers and their codes must take at most the {weight_words:,} words of a node's weight "
                         f"memory, not {code_bases[-1]:,}")

    parameters = [_parameters(layer, outputs, lanes) for layer, (outputs, _) in zip(layers, shapes, strict=True)]
    parameter_bases = np.cumsum([0, *map(len, parameters)])

    # Vectors between layers, in two regions in turn; the last one is of sums.
    sizes = [_rows(inputs, 4 * lanes) * lanes for _, inputs in shapes]
    sizes.append(_rows(shapes[-1][0], lanes if layers[-1].last else 4 * lanes) * lanes)
    regions = max(sizes[0::2]), max(sizes[1::2])
    start = int(_rows(int(parameter_bases[-1]), BASE_ALIGNMENT)) * BASE_ALIGNMENT
    samples = min((gradient_words - start) // sum(regions), _MOST)
    if samples < 1:
        raise ValueError(f"Parameters and vectors of a sample must take at most the {gradient_words:,} elements of a "
                         f"node's gradient memory, not {start + sum(regions):,}")
    bases = [gradient_base + start, gradient_base + start + samples * regions[0]]

    entries = []
    for number, (layer, (outputs, inputs)) in enumerate(zip(layers, shapes, strict=True)):
        entries.append(_fields(_LAYER, LAYER_WORDS, {
            "wide": layer.bits == 8, "subtract": Variant(layer.variant) is Variant.MAX, "signed": layer.signed,
            "relu": layer.relu, "raw": layer.last, "final": number == len(layers) - 1, "outputs": outputs,
            "inputs": inputs, "codes": weight_base + code_bases[number],
            "source": bases[number % 2], "parameters": gradient_base + parameter_bases[number],
            "target": bases[(number + 1) % 2]}, 1))
    entries.append(np.zeros(listed - LAYER_WORDS * len(layers), np.uint32))
    return Program(
        weights=np.concatenate([*entries, *codes]), parameters=np.concatenate(parameters), source=bases[0],
        target=bases[len(layers) % 2], samples=samples, inputs=shapes[0][1], outputs=shapes[-1][0],
        signed=layers[0].signed, lanes=lanes,
        beats=peak_cycles(shapes, 1, lanes=lanes))


def _check(layers: Sequence[IntegerLayer], shapes: list[tuple[int, ...]], lanes: int) -> None:
    if not layers:
        raise ValueError("Network must have at least one layer")
    most = 4 * lanes * INPUT_ROWS
    for number, (layer, (outputs, inputs)) in enumerate(zip(layers, shapes, strict=True)):
        if inputs > most:
            raise ValueError(f"Layer {number} must have at most {most:,} inputs, not {inputs:,}")
        if outputs > _MOST:
            raise ValueError(f"Layer {number} must have at most {_MOST:,} outputs, not {outputs:,}")
        if layer.last != (number == len(layers) - 1):
            raise ValueError(f"The last layer, and no other, must give sums, not layer {number} of {len(layers)}"
                             if layer.last else "The last layer must give sums, not requantised outputs")
        if not number:
            continue
        before = layers[number - 1]
        if inputs != shapes[number - 1][0]:
            raise ValueError(f"Layer {number} must have as many inputs as there are outputs before it, "
                             f"{shapes[number - 1][0]:,}, not {inputs:,}")
        if layer.signed == before.relu:
            raise ValueError(f"Inputs of layer {number} must be signed exactly if the layer before has no ReLU, not "
                             f"{layer.signed!r} after {before.relu!r}")


def pack_inputs(given: Program, x: npt.ArrayLike) -> Words:
    """Pack inputs, one sample in each row, to words for the gradient memory."""
    values = np.asarray(x)
    low, high = (-128, 127) if given.signed else (0, 255)
    if values.ndim != 2 or values.shape[1] != given.inputs:
        raise ValueError(f"Inputs must be rows of {given.inputs:,} numbers, not of shape {values.shape!r}")
    if not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"Inputs must be integers, not {values.dtype}")
    if values.size and (values.min() < low or values.max() > high):
        raise ValueError(f"Inputs must be {low} to {high}, not {values.min()} to {values.max()}")
    per_row = 4 * given.lanes
    padded = np.zeros((len(values), _rows(given.inputs, per_row) * per_row), np.uint8)
    padded[:, :given.inputs] = values & 0xFF
    return padded.reshape(-1).view("<u4").astype(np.uint32)


def unpack_outputs(given: Program, words: Words) -> Integers:
    """Unpack words of the gradient memory to sums, one sample in each row."""
    rows = words.astype(np.uint32).view(np.int32).reshape(-1, _rows(given.outputs, given.lanes) * given.lanes)
    return rows[:, :given.outputs].astype(np.int64)
