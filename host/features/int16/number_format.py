"""Binary points of the weights and gradients of nodes with 16-bit integers.

These nodes have no exponents, so the host chooses the binary points of weights and of gradients. Both are fixed for a
whole run, so that gradients kept on a node (:meth:`host.driver.node_operations.NodeOperations.sparsify`) remain
valid.

- Weights have :data:`WEIGHT_FRACTION` fraction bits: they range from -8 to 8, in steps of 1/4096.
- Gradients are sums over a batch. Their number of fraction bits is chosen so that the first step's learning rate, in
  last places of a weight per last place of a gradient, is at least 1/8 and less than 1/4. A gradient thus has two or
  three bits more than can affect a weight, and is clipped if it would move the weight by 1 to 2 or more.

The gradient scale is 1: LEARNING_RATE includes the binary points and the division by the number of examples. It has
16 fraction bits, and a gradient has 15 bits of magnitude, so that rounding the rate to nearest changes no step by
more than a quarter of a weight's last place.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from host.driver.optimizer_settings import FixedSettings
from host.driver.words import Vector
from host.models.layers import Array
from host.training.number_format import Elements
from host.training.optimizers import SGD, Optimizer

__all__ = ["WEIGHT_FRACTION", "FixedPoint", "check_optimizer"]

WEIGHT_FRACTION = 12  # fraction bits of a weight of 16 bits
_FINER = 3  # minus log2 of the first step's minimum rate, in last places of a weight per last place of a gradient
_LEAST, _MOST = -(1 << 15), (1 << 15) - 1
_ONE = 1 << 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedPoint(Elements):
    """16-bit integers, rounded to nearest even and clipped. If the number of fraction bits is negative, values are
    multiples of a power of two."""

    exact = False

    gradient_fraction: int
    weight_fraction: int = WEIGHT_FRACTION

    @classmethod
    def of(cls, learning_rate: float, count: int) -> "FixedPoint":
        """Choose the format for a run from its first learning rate and its maximum batch size ``count``."""
        if count < 1:
            raise ValueError(f"Example count must be at least 1, not {count!r}")
        exponent = math.frexp(learning_rate / count)[1] - 1 if learning_rate > 0 else 0
        return cls(gradient_fraction=WEIGHT_FRACTION + _FINER + exponent)

    def weights(self, parameters: Array) -> Vector:
        return _nearest(parameters, self.weight_fraction)

    def parameters(self, weights: Vector) -> Array:
        return np.ldexp(weights.astype(np.float32), -self.weight_fraction)

    def gradients(self, gradients: Sequence[Array]) -> list[Vector]:
        if not all(np.isfinite(gradient).all() for gradient in gradients):
            raise ValueError("Gradients of int16 nodes must be finite")
        return [_nearest(gradient, self.gradient_fraction) for gradient in gradients]

    def settings(self, optimizer: Optimizer, step: int, *, count: int, learning_rate: float,
                 packed_state: bool) -> FixedSettings:
        check_optimizer(optimizer)
        rate = math.ldexp(learning_rate / count, self.weight_fraction - self.gradient_fraction)
        return FixedSettings(gradient_scale=_ONE, learning_rate=round(rate * _ONE))

    def threshold(self, threshold: float) -> tuple[float, float]:
        whole = min(math.ceil(threshold), (1 << 16) - 1)  # rounding up changes nothing for integers
        return whole, math.ldexp(whole, -self.gradient_fraction)


def _nearest(values: Array, fraction: int) -> npt.NDArray[np.int16]:
    scaled = np.rint(np.ldexp(values.astype(np.float64), fraction))
    return np.clip(scaled, _LEAST, _MOST).astype(np.int16)


def check_optimizer(optimizer: Optimizer) -> None:
    """Raise ``ValueError`` unless int16 nodes support the optimizer."""
    if not isinstance(optimizer, SGD) or optimizer.momentum:
        raise ValueError(f"Optimizer of int16 nodes must be sgd, not {optimizer.name}")
    if optimizer.weight_decay or optimizer.clip is not None:
        raise ValueError(f"Optimizer of int16 nodes must have no weight decay and no clipping, not "
                         f"{optimizer.weight_decay!r} and {optimizer.clip!r}")
