"""Settings of a node's optimizer, as register values."""

import dataclasses
import math

import numpy as np

from hdl.control.registers import register
from hdl.optimizer.rules import Rule

__all__ = ["SCALARS", "FixedSettings", "Rule", "Settings"]

#: Registers that hold numbers.
SCALARS = ("GRADIENT_SCALE", "LEARNING_RATE", "CLIP", "WEIGHT_FACTOR", "FIRST_DECAY", "FIRST_GAIN", "SECOND_DECAY",
           "SECOND_GAIN", "EPSILON")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Optimizer settings of a node; numbers are rounded to binary32.

    docs/registers.md describes the registers of the same names, and :mod:`host.training.optimizers` derives the
    settings from the parameters of well-known optimizers.
    """

    rule: Rule
    gradient_scale: float  # factor applied to the summed gradient
    learning_rate: float  # factor of the optimizer's step
    clip: float = math.inf  # largest magnitude of a scaled gradient
    # AdamW: factor applied to the weight; other rules: fraction of the weight added to the gradient
    weight_factor: float = 0.0
    # factors applied to the first state plane and to the gradient added to it
    first_decay: float = 0.0
    first_gain: float = 1.0
    # factors applied to the second state plane and to the squared gradient added to it
    second_decay: float = 0.0
    second_gain: float = 0.0
    epsilon: float = 0.0  # constant added to the square root of the second state plane
    nesterov: bool = False  # whether momentum is Nesterov momentum
    packed_state: bool = False  # whether the state is stored as bfloat16, two elements per word

    def registers(self) -> dict[str, int | float]:
        """Return the values of all registers, keyed by name."""
        optimizer = sum(int(getattr(self, field.name)) << field.bit for field in register("OPTIMIZER").fields)
        return {"OPTIMIZER": optimizer, **{name: float(np.float32(getattr(self, name.lower()))) for name in SCALARS}}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedSettings:
    """Optimizer settings of an int16 node: the scalars of plain SGD, signed with 16 fraction bits.

    A new weight is w - round(learning_rate * round(gradient_scale * g)); see docs/optimizer/rules.md.
    """

    # 18-bit signed numbers; 65536 represents 1, and 2 is out of range
    gradient_scale: int
    learning_rate: int

    def __post_init__(self) -> None:
        for name in ("gradient_scale", "learning_rate"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 17) <= value < 1 << 17:
                raise ValueError(f"{name} must be an integer of 18 bits, not {value!r}")

    def registers(self) -> dict[str, int | float]:
        """Return the values of all registers, keyed by name."""
        return {"OPTIMIZER": int(Rule.SGD), "GRADIENT_SCALE": self.gradient_scale,
                "LEARNING_RATE": self.learning_rate}
