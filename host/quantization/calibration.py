"""Scales of activations, from their values on training data, and the integers that stand in for scales on a node."""

import dataclasses
import enum
import math

import numpy as np
import numpy.typing as npt

from hdl.quantization.arithmetic import MULTIPLIER_BITS, SHIFT_MAX

__all__ = ["Activation", "Calibration", "Requantization", "calibrate", "requantization"]


class Calibration(enum.Enum):
    """The range of activations that is represented, by its name on the command line: all, or up to a percentile
    of their magnitudes, beyond which they saturate."""

    MINMAX = "minmax"
    PERCENTILE = "percentile"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Activation:
    """Activations as integers of 8 bits: the value is the scale times the integer.

    Members
    -------
    scale : float
        A binary32 number.
    signed : bool
        Whether the integers are -128 to 127, in place of 0 to 255.
    """

    scale: float
    signed: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale > 0 and float(np.float32(self.scale)) == self.scale):
            raise ValueError(f"Scale must be a binary32 number above zero, not {self.scale!r}")

    @property
    def low(self) -> int:
        return -128 if self.signed else 0

    @property
    def high(self) -> int:
        return 127 if self.signed else 255

    def quantize(self, values: npt.NDArray[np.floating]) -> npt.NDArray[np.int64]:
        """Integers, to nearest even, and saturated."""
        return np.clip(np.rint(np.asarray(values, np.float64) / self.scale), self.low, self.high).astype(np.int64)


def calibrate(values: npt.NDArray[np.floating], *, method: Calibration = Calibration.MINMAX,
              percentile: float = 99.9) -> Activation:
    """The scale for activations of which these are a sample. They are signed if there is any below zero.

    Parameters
    ----------
    values : array
        Finite, and at least one.
    percentile : float
        Percentile of the magnitudes, for that method; above 0 and at most 100.
    """
    values = np.asarray(values, np.float64)
    if not values.size or not np.isfinite(values).all():
        raise ValueError("Activations must be finite, and at least one")
    if not 0 < percentile <= 100:
        raise ValueError(f"Percentile must be above 0 and at most 100, not {percentile!r}")
    magnitudes = np.abs(values)
    most = float(magnitudes.max() if method is Calibration.MINMAX else np.percentile(magnitudes, percentile))
    signed = bool((values < 0).any())
    scale = float(np.float32(most / (127 if signed else 255)))
    return Activation(scale=scale or 1.0, signed=signed)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Requantization:
    """Factors of accumulators as integers, one per output: multiplier / 2^shift.

    Members
    -------
    multipliers : array of int64
        Multipliers of 16 bits, with the highest bit set wherever the shift allows that.
    shifts : array of int64
    error : float
        Largest relative difference to the factors.
    """

    multipliers: npt.NDArray[np.int64]
    shifts: npt.NDArray[np.int64]
    error: float


def requantization(factors: npt.NDArray[np.floating]) -> Requantization:
    """Multipliers and shifts for factors of S · Sx / Sy.

    Of each, the multiplier has 16 bits, so that its relative error is at most 2^-16 (a quarter of that in the mean):
    of an output up to 255, less than 0.004 of a step.

    Raises
    ------
    ValueError
        A factor is too large, or so small that less than 8 bits of its multiplier would be left.
    """
    factors = np.asarray(factors, np.float64)
    low, high = 2.0**(MULTIPLIER_BITS // 2 - SHIFT_MAX), 2.0**(MULTIPLIER_BITS - 1) - 1
    wrong = factors[~((factors >= low) & (factors <= high))]
    if wrong.size:
        raise ValueError(f"Factor of an output must be between {low:g} and {high:g}, not {wrong[0]:g}")
    _, exponents = np.frexp(factors)
    shifts = np.minimum(MULTIPLIER_BITS - exponents, SHIFT_MAX).astype(np.int64)
    multipliers = np.rint(np.ldexp(factors, shifts)).astype(np.int64)
    # Rounded up to a power of two: one bit too many.
    over = multipliers == 1 << MULTIPLIER_BITS
    multipliers, shifts = np.where(over, multipliers >> 1, multipliers), shifts - over
    error = np.abs(np.ldexp(multipliers.astype(np.float64), -shifts) / factors - 1)
    return Requantization(multipliers=multipliers, shifts=shifts, error=float(error.max()))
