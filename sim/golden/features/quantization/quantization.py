"""Golden model of integer inference: exact integers with the widths of the hardware."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hdl.features.quantization import arithmetic
from hdl.features.quantization.arithmetic import Variant

__all__ = ["Layer", "adjusted", "infer", "matrix_vector", "requantize"]

Integers = npt.NDArray[np.int64]


def _wrapped(values: npt.ArrayLike) -> Integers:
    """Wrap integers to the accumulator's width."""
    half = 1 << arithmetic.ACCUMULATOR_BITS - 1
    integers = np.asarray(values, np.int64)
    wrapped: Integers = (integers + half) % (2 * half) - half
    return wrapped


def adjusted(codes: npt.ArrayLike, offset: npt.ArrayLike, variant: Variant | str) -> Integers:
    """Compute adjusted weights from codes (outputs are rows) and either one offset or one per output."""
    code, offsets = np.asarray(codes, np.int64), np.asarray(offset, np.int64)
    if offsets.ndim:
        offsets = offsets.reshape(-1, *[1] * (code.ndim - 1))
    weights: Integers = offsets + code if Variant(variant) is Variant.MIN else offsets - code
    return weights


def matrix_vector(codes: npt.ArrayLike, offsets: npt.ArrayLike, variant: Variant | str, x: npt.ArrayLike,
                  bias: npt.ArrayLike) -> Integers:
    """Return the sums, modulo 2 ** 32, for one input vector or for each row of a batch."""
    weights = adjusted(codes, offsets, variant)
    return _wrapped(np.asarray(bias, np.int64) + np.asarray(x, np.int64) @ weights.T)


def requantize(acc: npt.ArrayLike, multiplier: npt.ArrayLike, shift: npt.ArrayLike, low: int, high: int) -> Integers:
    """Requantize sums: multiply, shift with round half up, and clamp. A shift of zero does not round."""
    product = np.asarray(acc, np.int64) * np.asarray(multiplier, np.int64)
    # Add one half using the bit below the result, since the rounding constant itself may overflow these integers.
    scaled: Integers = (2 * product >> np.asarray(shift, np.int64)) + 1 >> 1
    return np.clip(scaled, low, high)


@dataclasses.dataclass(frozen=True, eq=False)
class Layer:
    """Quantized layer: matrix of codes, and parameters per output. A scalar parameter applies to all outputs."""

    codes: Integers  # shape (outputs, inputs)
    offsets: Integers  # offset Z of each output
    variant: Variant
    bits: int  # bits of a code: 4 or 8
    bias: Integers
    #: Scale of each output. Ignored in the last layer.
    multiplier: Integers
    shift: Integers
    relu: bool  # whether outputs are clamped to 0 … 255 instead of -128 … 127
    signed: bool  # whether inputs are int8 instead of uint8
    last: bool  # whether outputs are the sums, without requantization

    def __post_init__(self) -> None:
        object.__setattr__(self, "codes", np.asarray(self.codes, np.int64))
        object.__setattr__(self, "variant", Variant(self.variant))
        if self.codes.ndim != 2 or not self.codes.size:
            raise ValueError(f"Codes must be a matrix with rows and columns, not {self.codes.shape!r}")
        for name in ("offsets", "bias", "multiplier", "shift"):
            values = np.asarray(getattr(self, name), np.int64)
            if values.ndim > 1 or (values.ndim == 1 and len(values) != self.outputs):
                raise ValueError(f"{name} must be one number or one for each of {self.outputs} outputs, "
                                 f"not {values.shape!r}")
            object.__setattr__(self, name, np.broadcast_to(values, self.outputs))
        if self.bits not in (4, 8):
            raise ValueError(f"Bits must be 4 or 8, not {self.bits!r}")
        offset, weight = 1 << arithmetic.OFFSET_BITS - 1, 1 << arithmetic.ADJUSTED_BITS - 1
        limits = [("Codes", self.codes, 0, (1 << self.bits) - 1), ("Offsets", self.offsets, -offset, offset - 1),
                  ("Adjusted weights", self.weights, -weight, weight - 1)]
        if not self.last:
            limits += [("Multipliers", self.multiplier, 0, (1 << arithmetic.MULTIPLIER_BITS) - 1),
                       ("Shifts", self.shift, 1, arithmetic.SHIFT_MAX)]
        for name, values, low, high in limits:
            if values.min() < low or values.max() > high:
                raise ValueError(f"{name} must be {low} to {high}, not {values.min()} to {values.max()}")
        low, high = self.extremes
        most = 1 << arithmetic.ACCUMULATOR_BITS - 1
        if low.min() < -most or high.max() >= most:
            raise ValueError(f"Sums must be {-most} to {most - 1}, not {low.min()} to {high.max()}")

    @property
    def outputs(self) -> int:
        """Number of outputs: rows of the matrix."""
        return len(self.codes)

    @property
    def inputs(self) -> int:
        """Number of inputs: columns of the matrix."""
        return int(self.codes.shape[1])

    @property
    def weights(self) -> Integers:
        """Adjusted weights of the layer."""
        return adjusted(self.codes, self.offsets, self.variant)

    @property
    def extremes(self) -> tuple[Integers, Integers]:
        """Lowest and highest possible sum of each output."""
        weights, (least, most) = self.weights, self.input_limits
        products = np.stack([weights * least, weights * most])
        return self.bias + products.min(axis=0).sum(axis=1), self.bias + products.max(axis=0).sum(axis=1)

    @property
    def input_limits(self) -> tuple[int, int]:
        """Lowest and highest possible input."""
        return (-128, 127) if self.signed else (0, 255)

    @property
    def output_limits(self) -> tuple[int, int]:
        """Lowest and highest output of a hidden layer."""
        return (0, 255) if self.relu else (-128, 127)

    def outputs_of(self, x: npt.ArrayLike) -> Integers:
        """Return the outputs for one input vector or for each row of a batch."""
        inputs = np.asarray(x, np.int64)
        low, high = self.input_limits
        if inputs.size and (inputs.min() < low or inputs.max() > high):
            raise ValueError(f"Inputs must be {low} to {high}, not {inputs.min()} to {inputs.max()}")
        sums = matrix_vector(self.codes, self.offsets, self.variant, inputs, self.bias)
        return sums if self.last else requantize(sums, self.multiplier, self.shift, *self.output_limits)


def infer(layers: Sequence[Layer], x: npt.ArrayLike) -> Integers:
    """Run all layers; return the last layer's outputs for one input vector or for each row of a batch."""
    values = np.asarray(x, np.int64)
    for layer in layers:
        values = layer.outputs_of(values)
    return values
