"""Golden model of the fixed-point optimizer: results and latencies.

Elements are signed integers of 8 to 18 bits; scalars are signed with 18 bits, including 16 fraction bits. Here s is
the exact sum of the gradients, round(x) = floor(x + 1/2), and sat() gives the nearest value of an element:

- SGD: d = sat(round(gradient_scale * s));
- MOMENTUM: v' = sat(round(momentum * v + gradient_scale * s)), d = v';
- w' = sat(w - round(learning_rate * d)).

Products and sums within round() and sat() are exact. The functions accept and return numbers as ``int64``;
:class:`Fixed` provides the same functions on bit patterns, as they appear at ports.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sim.golden.optimizer import Rule

__all__ = ["FRACTION_BITS", "SCALAR_WIDTH", "Fixed", "FixedSettings", "dequantise", "from_bits", "quantise", "reduce",
           "saturate", "to_bits", "update"]

Bits = npt.NDArray[np.uint32]
Numbers = npt.NDArray[np.int64]

SCALAR_WIDTH = 18
FRACTION_BITS = 16


@dataclasses.dataclass(frozen=True)
class FixedSettings:
    """Scalars of an update, as integers or bit patterns. :func:`update` also accepts arrays of scalars.

    The number 1 is represented by ``1 << FRACTION_BITS``, as in ``quantise(1.0, SCALAR_WIDTH, FRACTION_BITS)``.
    """

    rule: Rule
    gradient_scale: int | npt.NDArray[np.integer]
    learning_rate: int | npt.NDArray[np.integer]
    momentum: int | npt.NDArray[np.integer] = 0

    @property
    def planes(self) -> int:
        """Number of state planes read and written by the rule."""
        return self.rule.planes


def saturate(numbers: npt.ArrayLike, width: int) -> Numbers:
    """Saturate numbers to signed integers of ``width`` bits."""
    end = 1 << width - 1
    nearest: Numbers = np.clip(np.asarray(numbers, dtype=np.int64), -end, end - 1)
    return nearest


def quantise(values: npt.ArrayLike, width: int, fraction_bits: int) -> Numbers:
    """Quantize to the nearest numbers of ``width`` bits, rounding halves up. Raises ValueError for NaNs."""
    values = np.asarray(values, dtype=np.float64)
    if np.isnan(values).any():
        raise ValueError(f"Values must be numbers, not {values!r}")
    end = 2.0 ** (width - 1)
    below = np.floor(scaled := np.clip(np.ldexp(values, fraction_bits), -end, end - 1))
    nearest: Numbers = (below + (scaled - below >= 0.5)).astype(np.int64)
    return nearest


def dequantise(numbers: npt.ArrayLike, fraction_bits: int) -> npt.NDArray[np.float64]:
    """Convert fixed-point numbers with ``fraction_bits`` fraction bits to float values."""
    return np.ldexp(np.asarray(numbers, dtype=np.float64), -fraction_bits)


def to_bits(numbers: npt.ArrayLike, width: int) -> Bits:
    """Convert numbers to two's complement in ``width`` bits."""
    return (np.asarray(numbers, dtype=np.int64) & (1 << width) - 1).astype(np.uint32)


def from_bits(bits: npt.ArrayLike, width: int) -> Numbers:
    """Convert from two's complement in ``width`` bits; upper bits are ignored."""
    sign = 1 << width - 1
    numbers: Numbers = (np.asarray(bits, dtype=np.int64) + sign & 2 * sign - 1) - sign
    return numbers


def reduce(gradients: npt.ArrayLike) -> Numbers:
    """Exact sum over the first axis."""
    total: Numbers = np.asarray(gradients, dtype=np.int64).sum(axis=0)
    return total


def update(total: npt.ArrayLike, weights: npt.ArrayLike, state: Sequence[npt.ArrayLike], settings: FixedSettings, *,
           width: int) -> tuple[Numbers, list[Numbers]]:
    """Return new weights and state for elements of ``width`` bits; planes not used by the rule stay the same."""
    scale, rate, momentum = (from_bits(scalar, SCALAR_WIDTH) for scalar in (
        settings.gradient_scale, settings.learning_rate, settings.momentum))
    new_state = [np.asarray(plane, dtype=np.int64) for plane in state]
    step = scale * np.asarray(total, dtype=np.int64)
    if settings.rule == Rule.MOMENTUM:
        step = momentum * new_state[0] + step
    step = saturate(_round(step), width)
    if settings.rule == Rule.MOMENTUM:
        new_state[0] = step
    return saturate(np.asarray(weights, dtype=np.int64) - _round(rate * step), width), new_state


def _round(products: Numbers) -> Numbers:
    """Round the products of a number and a scalar to the nearest numbers, with halves rounded up."""
    rounded: Numbers = products + (1 << FRACTION_BITS - 1) >> FRACTION_BITS
    return rounded


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fixed:
    """Fixed-point arithmetic on bit patterns, and its latencies, for one format and one set of rules.

    Parameters
    ----------
    width : int
        Width of an element in bits.
    workers : int
    rules : tuple of Rule
    adder, multiplier, saturation : int
        Latencies in cycles.
    """

    width: int = 18
    workers: int = 1
    rules: tuple[Rule, ...] = (Rule.SGD, Rule.MOMENTUM)
    adder: int = 1
    multiplier: int = 3
    saturation: int = 2

    @property
    def planes(self) -> int:
        return max(rule.planes for rule in self.rules)

    @property
    def total_width(self) -> int:
        """Width in bits of the sum of all workers' gradients."""
        return self.width + (self.workers - 1).bit_length()

    @property
    def step(self) -> int:
        """Latency in cycles from the sum to the step: product, state (if there is any), rounding, saturation."""
        return self.multiplier + (self.planes + 1) * self.adder + self.saturation

    @property
    def weight(self) -> int:
        return self.step + self.multiplier

    @property
    def state(self) -> tuple[int, ...]:
        return (0,) * self.planes

    @property
    def new_state(self) -> tuple[int, ...]:
        return (self.step,) * self.planes

    @property
    def latency(self) -> int:
        return self.weight + self.adder + self.saturation

    def summing(self, workers: int) -> int:
        return self.adder * (workers - 1).bit_length()

    def reduce(self, gradients: Bits) -> Bits:
        return to_bits(reduce(from_bits(gradients, self.width)), self.total_width)

    def finite(self, total: Bits) -> npt.NDArray[np.bool_]:
        return np.ones(total.shape, np.bool_)

    def update(self, total: Bits, weights: Bits, state: Sequence[Bits],
               settings: FixedSettings) -> tuple[Bits, list[Bits]]:
        new_weights, new_state = update(
            from_bits(total, self.total_width), from_bits(weights, self.width),
            [from_bits(plane, self.width) for plane in state], settings, width=self.width)
        return to_bits(new_weights, self.width), [to_bits(plane, self.width) for plane in new_state]
