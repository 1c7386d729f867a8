"""Convert quantised networks to ONNX graphs of QuantizeLinear and DequantizeLinear, and back.

A graph stores the same integers as the network. ONNX computes (code - zero point) · scale, so the zero point is -Z if
codes count up; codes that count down are reversed first. Multipliers and shifts are not stored: a runtime multiplies
by the scales in binary32 and rounds to nearest even, so a hidden activation may be one step off. An import recomputes
multipliers and shifts from the scales; they are bit-identical to the original ones.

The packages onnx and onnxruntime are installed by an extra: ``pip install gradring[onnx]``.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.features.quantization.arithmetic import Variant
from host.features.quantization.network import QuantizedLayer, QuantizedNetwork, assemble
from host.features.quantization.schemes import Activation, QuantizedWeights, Rounding, Scheme
from host.output import write_bytes
from host.printable import one_line
from sim.bounded_files import read_bytes

__all__ = ["Agreement", "compare_answers", "export_onnx", "import_onnx", "run_onnx"]

_OPSET, _IR_VERSION = 21, 10  # first ONNX versions with 4-bit integers
#: Maximum size of an input file in bytes, and maximum number of elements of all its tensors together.
LARGEST = 1 << 24


def _reversed(weights: QuantizedWeights) -> QuantizedWeights:
    """Return the same weights with complemented codes: each code c becomes 2**bits - 1 - c."""
    top = 2**weights.bits - 1
    variant, change = (Variant.MIN, -top) if weights.variant is Variant.MAX else (Variant.MAX, top)
    return dataclasses.replace(weights, variant=variant, codes=top - weights.codes, offsets=weights.offsets + change)


class _Writer:
    """Nodes and tensors of a new graph."""

    def __init__(self) -> None:
        from onnx import TensorProto, helper

        self.kinds, self.helper = TensorProto, helper
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []

    def tensor(self, name: str, kind: int, values: npt.ArrayLike) -> str:
        """Add a constant, and return its name."""
        array = np.asarray(values)
        self.tensors.append(self.helper.make_tensor(name, kind, array.shape, array.ravel().tolist()))
        return name

    def node(self, kind: str, inputs: Sequence[str], output: str, **attributes: int) -> str:
        """Add a node with one output and return the name of the output."""
        self.nodes.append(self.helper.make_node(kind, inputs, [output], **attributes))
        return output

    def activation(self, stream: str, name: str, scale: Activation) -> str:
        """Add nodes that convert a stream to codes with the given scale."""
        kind = self.kinds.INT8 if scale.signed else self.kinds.UINT8
        parameters = [self.tensor(f"{name}_scale", self.kinds.FLOAT, scale.scale),
                      self.tensor(f"{name}_zero", kind, 0)]
        codes = self.node("QuantizeLinear", [stream, *parameters], f"{name}_codes")
        return self.node("DequantizeLinear", [codes, *parameters], name)

    def layer(self, stream: str, number: int, layer: QuantizedLayer) -> str:
        """Add a layer that reads codes from ``stream``; raises ``ValueError`` if no code represents zero."""
        weights = layer.weights if layer.weights.variant is Variant.MIN else _reversed(layer.weights)
        top = 2**weights.bits - 1
        if weights.offsets.max() > 0 or weights.offsets.min() < -top:
            raise ValueError(f"Zero points of layer {number} must be between 0 and {top}, not between "
                             f"{-weights.offsets.max()} and {-weights.offsets.min()}: take extrema with zero")
        kind = self.kinds.UINT4 if weights.bits == 4 else self.kinds.UINT8
        name = f"layer{number}"
        alike = (weights.scales == weights.scales[0]).all() and (weights.offsets == weights.offsets[0]).all()
        scales, zeros, units = (part[0] if alike else part for part in (
            weights.scales, -weights.offsets, layer.units.astype(np.float32)))
        axis = {} if alike else {"axis": 0}
        weight = self.node("DequantizeLinear", [
            self.tensor(f"{name}_weight_codes", kind, weights.codes),
            self.tensor(f"{name}_weight_scale", self.kinds.FLOAT, scales),
            self.tensor(f"{name}_weight_zero", kind, zeros)], f"{name}_weight", **axis)
        bias = self.node("DequantizeLinear", [
            self.tensor(f"{name}_bias_codes", self.kinds.INT32, layer.bias),
            self.tensor(f"{name}_bias_scale", self.kinds.FLOAT, units)], f"{name}_bias", **axis)
        stream = self.node("Gemm", [stream, weight, bias], "scores" if layer.last else f"{name}_sum", transB=1)
        if layer.output is None:
            return stream
        if layer.relu:
            stream = self.node("Relu", [stream], f"{name}_relu")
        return self.activation(stream, f"{name}_output", layer.output)


def export_onnx(network: QuantizedNetwork, path: Path) -> None:
    """Write a network with integer offsets as a graph from ``x`` to ``scores``, with one example per row. Raises
    ``ValueError`` for a float offset, or if zero is not a level: a zero point is as wide as a code."""
    import onnx
    from onnx import TensorProto, helper

    if not network.scheme.integer:
        raise ValueError(f"Scheme must be one with an integer offset for ONNX, not {network.scheme.value}")
    made = _Writer()
    stream = made.activation("x", "input", network.layers[0].input)
    for number, layer in enumerate(network.layers):
        stream = made.layer(stream, number, layer)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width])
            for name, width in (("x", network.layers[0].inputs), ("scores", network.layers[-1].outputs))]
    graph = helper.make_graph(made.nodes, "gradring", ends[:1], ends[1:], made.tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION,
                              producer_name="gradring")
    helper.set_model_props(model, {"scheme": network.scheme.value, "rounding": network.rounding.value,
                                   "variants": ",".join(layer.weights.variant for layer in network.layers)})
    onnx.checker.check_model(model, full_check=True)
    write_bytes(path, model.SerializeToString())


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How often a runtime's answers (the outputs with the largest scores) agree with the integer model."""

    equal: int  # number of examples with the same answer
    tied: int  # number of examples where several outputs have the largest integer score
    #: Number of examples with a different answer, whose integer score is at most one adjusted last-layer weight below
    #: the largest score. A hidden activation that is one step off can change scores by this much.
    within: int
    wrong: npt.NDArray[np.int64]  # indices of the examples that are not counted above

    def __str__(self) -> str:
        return (f"{self.equal} equal, {self.tied} of another output with the same integer score, {self.within} "
                f"within one adjusted weight of the largest")


def compare_answers(network: QuantizedNetwork, sums: npt.NDArray[np.int64],
                    outputs: npt.NDArray[np.floating]) -> Agreement:
    """Compare a runtime's outputs with the integer sums of the last layer, one example per row."""
    last = network.layers[-1]
    scores, rows = network.scores(sums), np.arange(len(sums))
    answers = outputs.argmax(axis=1)
    below = scores.max(axis=1) - scores[rows, answers]
    # Scores are products of integers and scales in float64, so equal scores may differ by rounding.
    step = last.units.min()
    largest = float((np.abs(last.weights.adjusted).max(axis=1) * last.units).max())
    equal = answers == scores.argmax(axis=1)
    tied = ~equal & (below < step / 1024)
    within = ~equal & ~tied & (below < largest + step / 1024)
    return Agreement(int(equal.sum()), int(tied.sum()), int(within.sum()), np.flatnonzero(~(equal | tied | within)))


class _Graph:
    """An ONNX graph that is a chain of nodes; nodes are taken from it in order."""

    def __init__(self, model: Any):
        from onnx import numpy_helper

        graph = model.graph
        self._to_array = numpy_helper.to_array
        self._initializers = {tensor.name: tensor for tensor in graph.initializer}
        self._makers = {name: node for node in graph.node for name in node.output}
        self.users: dict[str, list[Any]] = {}
        for node in graph.node:
            for name in node.input:
                self.users.setdefault(name, []).append(node)
        if len(graph.input) != 1 or len(graph.output) != 1:
            raise ValueError(f"Graph must have one input and one output, not {len(graph.input)} and "
                             f"{len(graph.output)}")
        self.stream: str = graph.input[0].name
        self.end: str = graph.output[0].name

    def take(self, *operations: str) -> Any:
        """Return the only node that reads the stream, one of ``operations``, whose output becomes the stream."""
        users = self.users.get(self.stream, [])
        if len(users) != 1 or users[0].op_type not in operations:
            raise ValueError(f"Behind {self.stream!r} must be one {' or '.join(operations)}, not "
                             f"{', '.join(node.op_type for node in users) or 'nothing'}")
        self.stream = users[0].output[0]
        return users[0]

    def constant(self, name: str, what: str) -> npt.NDArray[Any]:
        if name not in self._initializers:
            raise ValueError(f"{what} must be a constant of the graph, not {name!r}")
        return np.asarray(self._to_array(self._initializers[name]))

    def dequantized(self, name: str, what: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the codes, scale and zero point of a constant."""
        node = self._makers.get(name)
        if node is None or node.op_type != "DequantizeLinear":
            raise ValueError(f"{what} must come from a DequantizeLinear, not {node.op_type if node else name!r}")
        axes = [attribute.i for attribute in node.attribute if attribute.name == "axis"]
        codes, scale, *zero = (self.constant(part, what) for part in node.input)
        if scale.ndim and (axes != [0] or scale.shape != codes.shape[:1]):
            raise ValueError(f"{what} must have one scale or one per output, not of shape {scale.shape!r}")
        return codes, scale, zero[0] if zero else np.zeros(scale.shape, codes.dtype)

    def activation(self) -> Activation:
        parameters = []
        for operation in ("QuantizeLinear", "DequantizeLinear"):
            node = self.take(operation)
            if len(node.input) != 3:
                raise ValueError(f"{operation} of activations must have a zero point, which tells their type")
            parameters.append([self.constant(name, f"{operation} of activations") for name in node.input[1:]])
        (scale, zero), (other, other_zero) = parameters
        if scale.size != 1 or scale != other or zero.dtype != other_zero.dtype:
            raise ValueError("Activations must be dequantised as they were quantised")
        if zero.dtype not in (np.uint8, np.int8) or zero.any() or other_zero.any():
            raise ValueError(f"Zero point of activations must be a 0 of 8 bits, not {zero} of {zero.dtype}")
        return Activation(scale=float(scale.item()), signed=zero.dtype == np.int8)


def import_onnx(path: Path) -> QuantizedNetwork:
    """Read a network from a graph in the form written by :func:`export_onnx`.

    Without metadata properties, codes are assumed to count up, and the zero points determine the scheme. If the graph
    has a different form, ``ValueError`` is raised with the position.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load_model_from_string(read_bytes(path, largest=LARGEST))
        onnx.checker.check_model(model)
        _check_tensors(model.graph.initializer)
    except (DecodeError, onnx.checker.ValidationError, ValueError) as error:
        raise ValueError(f"{path} must be an ONNX model, not a damaged one or another: {one_line(error)}") from None
    try:
        return _network(model)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _check_tensors(tensors: Iterable[Any]) -> None:
    """Raise ``ValueError`` if tensors are in external files or exceed the maximum number of elements."""
    left = LARGEST
    for tensor in tensors:
        if tensor.external_data or tensor.data_location or tensor.HasField("segment"):
            raise ValueError(f"tensor {tensor.name!r} must be in the file")
        if any(size < 0 for size in tensor.dims) or (left := left - math.prod(tensor.dims)) < 0:
            raise ValueError(f"tensors must have at most {LARGEST:,} elements together")


def _network(model: Any) -> QuantizedNetwork:
    graph = _Graph(model)
    properties = {entry.key: entry.value for entry in model.metadata_props}
    variants = properties.get("variants", "").split(",")
    layers: list[QuantizedLayer] = []
    scale: Activation | None = graph.activation()
    while scale is not None:
        number = len(layers)
        down = number < len(variants) and variants[number] == Variant.MAX.value
        layers.append(_layer(graph, number, scale, down=down))
        scale = layers[-1].output
    half = all((layer.weights.offsets == -2**(layer.weights.bits - 1)).all() for layer in layers)
    properties = {"scheme": (Scheme.SYMMETRIC if half else Scheme.IAQ_MIN).value,
                  "rounding": Rounding.NEAREST.value} | properties
    for name, kind in (("scheme", Scheme), ("rounding", Rounding)):
        choices = [choice.value for choice in kind]
        if properties[name] not in choices:
            raise ValueError(f"Property {name} must be one of {', '.join(choices)}, not {properties[name]!r}")
    return QuantizedNetwork(scheme=Scheme(properties["scheme"]), rounding=Rounding(properties["rounding"]),
                            layers=tuple(layers))


def _layer(graph: _Graph, number: int, scale: Activation, *, down: bool) -> QuantizedLayer:
    """Read the next layer of the graph, given its input scale; ``down`` if weight codes count down."""
    node = graph.take("Gemm")
    attributes = {attribute.name: attribute for attribute in node.attribute}
    if set(attributes) - {"transB", "alpha", "beta", "transA"} or "transB" not in attributes \
            or attributes["transB"].i != 1 or ("transA" in attributes and attributes["transA"].i) \
            or any(attributes[name].f != 1 for name in ("alpha", "beta") if name in attributes):
        raise ValueError(f"Gemm of layer {number} must have transB = 1 and nothing else")
    weights = _weights(graph, node.input[1], number)
    if down:
        weights = _reversed(weights)
    bias = _bias(graph, node, weights, scale, number)
    if graph.stream == graph.end:
        return assemble(weights, bias, scale, None, relu=False)
    if relu := any(user.op_type == "Relu" for user in graph.users.get(graph.stream, [])[:1]):
        graph.take("Relu")
    return assemble(weights, bias, scale, graph.activation(), relu=relu)


def _weights(graph: _Graph, name: str, number: int) -> QuantizedWeights:
    codes, scales, zeros = graph.dequantized(name, f"Weight of layer {number}")
    if codes.dtype.name not in ("uint4", "uint8") or codes.ndim != 2:
        raise ValueError(f"Weight of layer {number} must be a matrix of uint4 or uint8, not {codes.dtype.name} of "
                         f"shape {codes.shape!r}")
    if not (np.isfinite(scales).all() and (scales > 0).all()):
        raise ValueError(f"Scales of layer {number} must be finite, and above 0")
    outputs = len(codes)
    return QuantizedWeights(
        bits=4 if codes.dtype.name == "uint4" else 8, variant=Variant.MIN, codes=codes.astype(np.int64),
        offsets=np.broadcast_to(-zeros.astype(np.int64), outputs).copy(),
        scales=np.broadcast_to(scales.astype(np.float64), outputs).copy())


def _bias(graph: _Graph, node: Any, weights: QuantizedWeights, scale: Activation,
          number: int) -> npt.NDArray[np.int64]:
    outputs = len(weights.codes)
    if len(node.input) < 3:
        return np.zeros(outputs, np.int64)
    codes, units, zeros = graph.dequantized(node.input[2], f"Bias of layer {number}")
    if codes.dtype != np.int32 or codes.shape != (outputs,) or zeros.any():
        raise ValueError(f"Bias of layer {number} must be int32 of shape {(outputs,)!r} without a zero point, not "
                         f"{codes.dtype.name} of shape {codes.shape!r}")
    exact = weights.scales * scale.scale
    if not np.allclose(units, exact, rtol=1e-6, atol=0):
        raise ValueError(f"Scale of the bias of layer {number} must be that of its sums, {exact[0]:g}, not "
                         f"{units.flat[0]:g}")
    return codes.astype(np.int64)


def run_onnx(path: Path, x: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """Compute the scores of a batch with onnxruntime, one example per row."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return np.asarray(session.run(None, {name: np.asarray(x, np.float32)})[0], np.float32)
