"""An integer perceptron, layer by layer.

In each layer, activations X are 8-bit integers with a scale Sx. Their products with the adjusted weights A are summed
in 32 bits, starting from a bias in units of S · Sx; an integer multiplication and a shift then convert the sum to 8
bits for the next layer. The sums of the last layer are the scores. This is not possible with a float offset: each sum
must then be converted to binary32, multiplied, and added to another product.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hdl.features.quantization.arithmetic import ACCUMULATOR_BITS
from host.features.quantization.schemes import (
    BITS,
    Activation,
    Calibration,
    Extrema,
    QuantizedWeights,
    Requantization,
    Rounding,
    Scheme,
    calibrate,
    quantize_weights,
    requantization,
)
from host.models.layers import Model
from sim.arithmetic.functions import product
from sim.golden.features.quantization import quantization as golden

__all__ = ["FloatLayer", "QuantizationConfig", "QuantizedLayer", "QuantizedNetwork", "activations", "assemble",
           "check_sums", "float_layers", "infer", "node_layers", "quantize"]

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, eq=False)
class FloatLayer:
    """A trained layer: weights of shape (outputs, inputs), and biases."""

    weights: npt.NDArray[np.floating]
    biases: npt.NDArray[np.floating]


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizationConfig:
    """Options of the quantisation of a network."""

    scheme: Scheme = Scheme.IAQ_MIN
    bits: int | tuple[int, ...] = 8  # number of bits per weight code, for all layers or for each layer: 4 or 8
    rounding: Rounding = Rounding.NEAREST  # rounding of weights and of their offsets
    per_channel: bool = False  # whether each output has its own scale and offset
    #: Extrema used to compute scales and offsets of weights.
    extrema: Extrema = Extrema.ZERO
    calibration: Calibration = Calibration.MINMAX
    percentile: float = 99.9  # percentile of activation magnitudes, for calibration by percentile

    def __post_init__(self) -> None:
        bits = (self.bits,) if isinstance(self.bits, int) else self.bits
        if not bits or any(width not in BITS for width in bits):
            raise ValueError(f"Bits must be 4 or 8, not {self.bits!r}")
        if not 0 < self.percentile <= 100:
            raise ValueError(f"Percentile must be above 0 and at most 100, not {self.percentile!r}")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class QuantizedLayer:
    """An integer layer."""

    weights: QuantizedWeights  # weights, with scales in binary32
    #: Biases in units of S · Sx.
    bias: Integers
    input: Activation
    #: Activations output by the layer; None for the last layer.
    output: Activation | None = None
    relu: bool = False
    #: Requantization to the output's scale; None for the last layer, or with a float offset.
    requantization: Requantization | None = None

    @property
    def outputs(self) -> int:
        return len(self.weights.codes)

    @property
    def inputs(self) -> int:
        return int(self.weights.codes.shape[1])

    @property
    def last(self) -> bool:
        return self.output is None

    @property
    def units(self) -> Floats:
        """Value of one unit of each output's accumulator: S · Sx."""
        return self.weights.scales * self.input.scale


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class QuantizedNetwork:
    """Integer layers, with a ReLU between consecutive layers."""

    scheme: Scheme
    rounding: Rounding
    layers: tuple[QuantizedLayer, ...]

    @property
    def multiplications(self) -> dict[str, int]:
        """Number of multiplications per inference, keyed by name in reports: weights times activations, accumulators
        times multipliers, and in binary32. A float offset requires two binary32 multiplications per output: one for
        the sum of codes times activations, and one for the sum of activations."""
        outputs = sum(layer.outputs for layer in self.layers)
        integer = self.scheme.integer
        return {"products": sum(layer.weights.codes.size for layer in self.layers),
                "requantizations": outputs - self.layers[-1].outputs if integer else 0,
                "float_multiplications": 0 if integer else 2 * outputs}

    def input_codes(self, x: npt.NDArray[np.floating]) -> Integers:
        """Convert a batch with one example per row to input codes of the first layer."""
        return self.layers[0].input.quantize(x)

    def scores(self, accumulators: npt.NDArray[np.integer]) -> Floats:
        """Convert the last layer's accumulators to scores."""
        return np.asarray(accumulators * self.layers[-1].units, np.float64)

    def float_scores(self, x: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
        """Return scores with a float offset: y = S · (bias + sum of Q · X) + Wmin · sum of X. After the two sums,
        operations are in binary32; integers for the next layer are rounded to nearest even."""
        if self.scheme.integer:
            raise ValueError(f"Scheme must be {Scheme.FLOAT_OFFSET.value} for scores in floats, not "
                             f"{self.scheme.value}")
        codes = self.input_codes(x)
        for layer in self.layers:
            weights, step = layer.weights, 1.0 if layer.output is None else layer.output.scale
            assert weights.minima is not None
            scale, offset = (np.asarray(part * layer.input.scale / step, np.float32)
                             for part in (weights.scales, weights.minima))
            sums = (layer.bias + codes @ weights.codes.T).astype(np.float32)
            values = sums * scale + codes.sum(axis=1)[:, None].astype(np.float32) * offset
            if layer.output is None:
                return np.asarray(values, np.float32)
            codes = np.clip(np.rint(values), layer.output.low, layer.output.high).astype(np.int64)
        raise AssertionError("the last layer has no output scale")


def float_layers(model: Model, parameters: npt.NDArray[np.floating] | None = None) -> list[FloatLayer]:
    """Return the linear layers of a perceptron, optionally with other parameters."""
    views = model.views(model.parameters if parameters is None else parameters)
    return [FloatLayer(view["weight"].copy(), view["bias"].copy()) for view in views if view]


def activations(layers: Sequence[FloatLayer], x: npt.NDArray[np.floating]) -> list[npt.NDArray[np.floating]]:
    """Return the input of each layer in floating point, and the scores of the last layer."""
    values = [x]
    for number, layer in enumerate(layers):
        kind = layer.weights.dtype
        biases = np.broadcast_to(layer.biases.astype(kind), (len(x), len(layer.biases)))
        x = product(x.astype(kind, copy=False), layer.weights.T, biases)
        if number < len(layers) - 1:
            x = np.where(x <= 0, x.dtype.type(0), x)
        values.append(x)
    return values


def quantize(layers: Sequence[FloatLayer], examples: npt.NDArray[np.floating], config: QuantizationConfig, *,
             input_scale: float | None = None) -> QuantizedNetwork:
    """Quantise a perceptron with a ReLU between consecutive layers. Raises ``ValueError`` if an offset, a factor or a
    sum exceeds the range of a node.

    The scales of activations are computed from the examples, one per row. Inputs are calibrated too, unless they are
    already integers from 0 to 255 times ``input_scale``.
    """
    if not layers:
        raise ValueError("Layers must be at least 1, not 0")
    values = activations(layers, examples)
    scales = [calibrate(part, method=config.calibration, percentile=config.percentile) for part in values[:-1]]
    if input_scale is not None:
        scales[0] = Activation(scale=input_scale)
    bits = (config.bits,) * len(layers) if isinstance(config.bits, int) else config.bits
    if len(bits) != len(layers):
        raise ValueError(f"Bits must be of all layers or of each of the {len(layers)}, not {config.bits!r}")
    outputs = [*scales[1:], None]
    made = []
    for number, layer in enumerate(layers):
        try:
            made.append(_layer(layer, config, bits[number], scales[number], outputs[number]))
        except ValueError as error:
            raise ValueError(f"Layer {number + 1} of {len(layers)}: {error}") from None
    return QuantizedNetwork(scheme=config.scheme, rounding=config.rounding, layers=tuple(made))


def _layer(layer: FloatLayer, config: QuantizationConfig, bits: int, scale: Activation,
           output: Activation | None) -> QuantizedLayer:
    weights = quantize_weights(layer.weights, bits=bits, scheme=config.scheme, rounding=config.rounding,
                               per_channel=config.per_channel, extrema=config.extrema)
    # All file formats store scales in binary32, and results must not change after an import.
    weights = dataclasses.replace(weights, scales=weights.scales.astype(np.float32).astype(np.float64))
    if not (weights.scales > 0).all():
        raise ValueError(f"Scales of weights must be binary32 numbers above zero, not {weights.scales.min()!r}")
    if weights.minima is not None:
        weights = dataclasses.replace(weights, minima=weights.minima.astype(np.float32).astype(np.float64))
    bias = np.rint(np.asarray(layer.biases, np.float64) / (weights.scales * scale.scale)).astype(np.int64)
    return assemble(weights, bias, scale, output, relu=output is not None)


def assemble(weights: QuantizedWeights, bias: Integers, scale: Activation, output: Activation | None, *,
             relu: bool) -> QuantizedLayer:
    """Build a layer with multipliers from integers and scales; raise ``ValueError`` if sums may overflow."""
    check_sums(weights, bias, scale)
    factors = None
    if output is not None and weights.minima is None:
        factors = requantization(weights.scales * scale.scale / output.scale)
    return QuantizedLayer(weights=weights, bias=bias, input=scale, output=output, relu=relu, requantization=factors)


def check_sums(weights: QuantizedWeights, bias: Integers, scale: Activation) -> None:
    """Raise ``ValueError`` with the numbers if an output's sum may overflow."""
    products = np.stack([weights.adjusted * scale.low, weights.adjusted * scale.high])
    most = 1 << ACCUMULATOR_BITS - 1
    for sums in (bias + products.min(axis=0).sum(axis=1), bias + products.max(axis=0).sum(axis=1)):
        places = np.flatnonzero((sums < -most) | (sums >= most))
        if places.size:
            output = int(places[0])
            raise ValueError(
                f"Sum of an output must be between {-most} and {most - 1}, not {int(sums[output])}, which output "
                f"{output} can have, with {products.shape[2]} weights and a bias of {int(bias[output])}")


def node_layers(network: QuantizedNetwork) -> list[golden.Layer]:
    """Convert the layers to the form used by nodes."""
    if not network.scheme.integer:
        raise ValueError(f"Scheme must be one with an integer offset for integer layers, not {network.scheme.value}")
    layers = []
    for layer in network.layers:
        weights, factors = layer.weights, layer.requantization
        multipliers, shifts = ([np.zeros(layer.outputs, np.int64)] * 2 if factors is None
                               else (factors.multipliers, factors.shifts))
        layers.append(golden.Layer(
            codes=weights.codes, offsets=weights.offsets, variant=weights.variant, bits=weights.bits, bias=layer.bias,
            multiplier=multipliers, shift=shifts, relu=layer.relu, signed=layer.input.signed, last=layer.last))
    return layers


def infer(network: QuantizedNetwork, x: npt.NDArray[np.floating]) -> Integers:
    """Return the last layer's sums for a batch with one example per row, from the golden model."""
    return np.asarray(golden.infer(node_layers(network), network.input_codes(x)), np.int64)
