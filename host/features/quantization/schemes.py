"""Quantization of weights and activations to small integers, with integer multipliers as scales.

Weights are symmetric, asymmetric with a float offset, or asymmetric with an integer offset (IAQ). A node multiplies
by the adjusted weight A, which has one bit more than the code Q. With offset Z, A is Z + Q, or Z - Q if codes count
down from the largest weight. The weight is then about S · A, with one scale S per layer or output. Activation scales
are calibrated on training data. See docs/quantization/schemes.md for the equations.
"""

import dataclasses
import enum
import math

import numpy as np
import numpy.typing as npt

from hdl.features.quantization.arithmetic import MULTIPLIER_BITS, SHIFT_MAX, Variant

__all__ = ["BITS", "Activation", "Calibration", "Extrema", "QuantizedWeights", "Requantization", "Rounding", "Scheme",
           "calibrate", "quantize_weights", "requantization"]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

BITS = (4, 8)  # possible numbers of bits of a code

#: Quotients within float64 rounding error of an integer are treated as that integer, even when truncating.
_ALMOST = 1 + 2.0**-48


class Scheme(enum.Enum):
    """Schemes that convert weights to codes; the values are their names on the command line."""

    SYMMETRIC = "symmetric"
    FLOAT_OFFSET = "float-offset"
    IAQ_MIN = "iaq-min"
    IAQ_MAX = "iaq-max"

    @property
    def integer(self) -> bool:
        """Whether adjusted weights are integers, as a node's datapath requires."""
        return self is not Scheme.FLOAT_OFFSET


class Extrema(enum.Enum):
    """Range from which scale and offset are computed: the range of the weights; the same range extended to zero, so
    that adjusted weights always fit; or the next wider range with zero as an exact level, so that the offset is not
    rounded."""

    WEIGHTS = "weights"
    ZERO = "zero"
    ALIGNED = "aligned"


class Rounding(enum.Enum):
    """How quotients for offsets and codes are rounded to integers: to nearest even, or towards zero."""

    NEAREST = "nearest"
    TRUNCATE = "truncate"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class QuantizedWeights:
    """A weight matrix as codes, offsets and scales."""

    #: Number of bits of a code.
    bits: int
    variant: Variant
    codes: Integers  # codes in shape (outputs, inputs), 0 to 2^bits - 1
    #: Offset Z of each output; zero with a float offset.
    offsets: Integers
    scales: Floats  # scale S of each output; all equal with one scale per layer
    minima: Floats | None = None  # the float offset of each output, Wmin

    @property
    def adjusted(self) -> Integers:
        """Adjusted weights A, or the codes themselves with a float offset."""
        sign = -1 if self.variant is Variant.MAX else 1
        return self.offsets[:, None] + sign * self.codes

    @property
    def values(self) -> Floats:
        """The weights that the codes represent."""
        values = self.scales[:, None] * self.adjusted
        return values if self.minima is None else values + self.minima[:, None]

    def error(self, weights: npt.NDArray[np.floating]) -> float:
        """Return the largest deviation from the original weights, in units of the scale."""
        return float((np.abs(self.values - weights) / self.scales[:, None]).max())


def quantize_weights(weights: npt.NDArray[np.floating], *, bits: int, scheme: Scheme,
                     rounding: Rounding = Rounding.NEAREST, per_channel: bool = False,
                     extrema: Extrema = Extrema.WEIGHTS) -> QuantizedWeights:
    """Quantise finite weights of shape (outputs, inputs) to 4-bit or 8-bit codes, with one offset and scale for the
    layer or, if ``per_channel``, for each output. Raises ``ValueError`` if an offset or an adjusted weight does not
    fit in ``bits`` + 1 bits.

    If all weights that share a scale are equal, the scale is their magnitude and the codes are exact. ``extrema``
    applies only to asymmetric schemes.
    """
    exact: Floats = np.asarray(weights, np.float64)
    if bits not in BITS:
        raise ValueError(f"Bits must be 4 or 8, not {bits!r}")
    if exact.ndim != 2 or 0 in exact.shape:
        raise ValueError(f"Weights must be of shape (outputs, inputs), each at least 1, not {exact.shape!r}")
    if not np.isfinite(exact).all():
        raise ValueError(f"Weights must be finite, not {exact[~np.isfinite(exact)][0]!r}")
    outputs = len(exact)
    groups = exact if per_channel else exact.reshape(1, -1)
    low, high = (np.broadcast_to(part, outputs)[:, None] for part in (groups.min(axis=1), groups.max(axis=1)))
    if scheme is Scheme.SYMMETRIC:
        half = 2**(bits - 1)
        scales = np.maximum(np.abs(low), np.abs(high)) / (half - 1)
        scales = np.where(scales == 0, 1.0, scales)
        return QuantizedWeights(bits=bits, variant=Variant.MIN, codes=_integers(exact / scales, rounding) + half,
                                offsets=np.full(outputs, -half), scales=scales[:, 0])
    top, constant = 2**bits - 1, low == high
    if extrema is not Extrema.WEIGHTS:
        low, high = (np.where(constant, end, limit(end, 0)) for end, limit in ((low, np.minimum), (high, np.maximum)))
    if extrema is Extrema.ALIGNED:
        below, above = _aligned(low, high, top)
        low, high = np.where(constant, low, below), np.where(constant, high, above)
    # If all weights are equal, the scale is their magnitude, all codes are 0, and the offset is the weights' sign.
    scales = np.where(constant, np.abs(low), (high - low) / top)
    scales = np.where(scales == 0, 1.0, scales)
    down = scheme is Scheme.IAQ_MAX
    codes = _integers((high - exact if down else exact - low) / scales, rounding)
    if scheme is Scheme.FLOAT_OFFSET:
        return QuantizedWeights(bits=bits, variant=Variant.MIN, codes=codes, offsets=np.zeros(outputs, np.int64),
                                scales=scales[:, 0], minima=low[:, 0].copy())
    offsets = _integers((high if down else low) / scales, rounding)[:, 0]
    result = QuantizedWeights(bits=bits, variant=Variant.MAX if down else Variant.MIN, codes=codes, offsets=offsets,
                              scales=scales[:, 0])
    _check_field(result, low[:, 0], high[:, 0])
    return result


def _integers(quotients: Floats, rounding: Rounding) -> Integers:
    rounded = np.rint(quotients) if rounding is Rounding.NEAREST else np.trunc(quotients * _ALMOST)
    return rounded.astype(np.int64)


def _aligned(low: Floats, high: Floats, top: int) -> tuple[Floats, Floats]:
    """Return the closest range around ``low`` … ``high`` that has zero as one of its ``top`` + 1 levels."""
    near = np.rint(-low * top / np.where(high > low, high - low, 1))
    below = np.clip(np.stack([near, near - 1, near + 1]), 0, top)
    # On a side without levels, the quotient is infinite if it has weights, and 0 / 0 if it has none.
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.fmax(-low / below, high / (top - below))
    best = np.where(np.isnan(steps), np.inf, steps).argmin(axis=0)[None]
    levels, step = (np.take_along_axis(part, best, axis=0)[0] for part in (below, steps))
    return -levels * step, (top - levels) * step


def _check_field(quantized: QuantizedWeights, low: Floats, high: Floats) -> None:
    bits, limit = quantized.bits, 2**quantized.bits
    adjusted = quantized.adjusted
    for name, least, most in (("Offset", quantized.offsets, quantized.offsets),
                              ("Adjusted weight", adjusted.min(axis=1), adjusted.max(axis=1))):
        wrong = np.flatnonzero((least < -limit) | (most >= limit))
        if wrong.size:
            output = int(wrong[0])
            value = int(least[output] if least[output] < -limit else most[output])
            raise ValueError(
                f"{name} must be between {-limit} and {limit - 1}, which {bits + 1} bits hold, not {value}, for "
                f"weights between {low[output]:g} and {high[output]:g} in steps of {quantized.scales[output]:g}: "
                f"take extrema with zero")


class Calibration(enum.Enum):
    """How to choose the represented range of activations, named as on the command line: all values, or values up to a
    percentile of the magnitudes. Larger values saturate."""

    MINMAX = "minmax"
    PERCENTILE = "percentile"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Activation:
    """An 8-bit integer representation of activations: integers times a scale."""

    scale: float  # number in binary32
    signed: bool = False  # whether integers range from -128 to 127 instead of 0 to 255

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
        """Convert values to integers, rounding to nearest even and saturating."""
        return np.clip(np.rint(np.asarray(values, np.float64) / self.scale), self.low, self.high).astype(np.int64)


def calibrate(values: npt.NDArray[np.floating], *, method: Calibration = Calibration.MINMAX,
              percentile: float = 99.9) -> Activation:
    """Choose the activation scale from a nonempty sample of finite ``values``. Activations are signed if any value is
    negative. With ``PERCENTILE``, the range is limited to a percentile (above 0, up to 100) of the magnitudes."""
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
    """Integer form multiplier / 2^shift of the accumulator scale factors, one per output."""

    #: 16-bit multipliers; the highest bit is set if the shift permits it.
    multipliers: npt.NDArray[np.int64]
    shifts: npt.NDArray[np.int64]
    error: float  # largest relative difference from the exact factors


def requantization(factors: npt.NDArray[np.floating]) -> Requantization:
    """Compute multipliers and shifts for factors S · Sx / Sy.

    Multipliers have 16 bits, so their relative error is at most 2^-16 and on average a quarter of that; for outputs
    up to 255, this is less than 0.004 of a step. Raises ``ValueError`` if a factor is too large, or so small that its
    multiplier would have fewer than 8 significant bits.
    """
    factors = np.asarray(factors, np.float64)
    low, high = 2.0**(MULTIPLIER_BITS // 2 - SHIFT_MAX), 2.0**(MULTIPLIER_BITS - 1) - 1
    wrong = factors[~((factors >= low) & (factors <= high))]
    if wrong.size:
        raise ValueError(f"Factor of an output must be between {low:g} and {high:g}, not {wrong[0]:g}")
    _, exponents = np.frexp(factors)
    shifts = np.minimum(MULTIPLIER_BITS - exponents, SHIFT_MAX).astype(np.int64)
    multipliers = np.rint(np.ldexp(factors, shifts)).astype(np.int64)
    # A multiplier that was rounded up to the next power of two has one bit too many.
    over = multipliers == 1 << MULTIPLIER_BITS
    multipliers, shifts = np.where(over, multipliers >> 1, multipliers), shifts - over
    error = np.abs(np.ldexp(multipliers.astype(np.float64), -shifts) / factors - 1)
    return Requantization(multipliers=multipliers, shifts=shifts, error=float(error.max()))
