"""Golden model of the concrete formats in the OCP Microscaling (MX) specification, version 1.0.

A block consists of 32 elements and an E8M0 scale. Section 5.3 of the specification tabulates the element formats.
"""

import dataclasses
import enum

from sim.golden.features.mx.block_format import BlockFormat, Rounding

__all__ = ["MXFP4_E2M1", "MXFP4_E2M1_UP", "MXFP6_E2M3", "MXFP6_E3M2", "MXFP8_E4M3", "MXFP8_E4M3_UP", "MXFP8_E5M2",
           "MXINT8", "Element", "Microscaling", "Scale"]


class Element(enum.Enum):
    """Element formats: number of exponent and fraction bits, and largest magnitude."""

    INT8 = (1, 6, 0b1_111111)
    FP8_E4M3 = (4, 3, 0b1111_110)
    FP8_E5M2 = (5, 2, 0b11110_11)
    FP6_E2M3 = (2, 3, 0b11_111)
    FP6_E3M2 = (3, 2, 0b111_11)
    FP4_E2M1 = (2, 1, 0b11_1)


class Scale(enum.Enum):
    """Rounding of a block's scale: down to floor(log2(max)) - emax, or up to ceil(log2(max / largest))."""

    FLOOR = "floor"
    UP = "up"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Microscaling(BlockFormat):
    """Parameters of one of the OCP MX formats."""

    element: Element
    scale: Scale = Scale.FLOOR
    rounding: Rounding = Rounding.NEAREST_EVEN
    seed: int = 1

    block = 32
    subset = 32
    exponent_bits = 8
    difference_bits = 0

    def __post_init__(self) -> None:
        self.check()
        if not isinstance(self.element, Element):
            raise TypeError(f"Element must be an Element, not {self.element!r}")
        if not isinstance(self.scale, Scale):
            raise TypeError(f"Scale must be a Scale, not {self.scale!r}")

    @property
    def above(self) -> int | None:
        """Binary32 fraction above which a number increases the scale of its block."""
        if self.scale is Scale.FLOOR:
            return None
        return (self.largest & (1 << self.fraction_bits) - 1) << 23 - self.fraction_bits

    @property
    def fraction_bits(self) -> int:  # type: ignore[override]
        """Number of fraction bits in the magnitude of an element, below its exponent field."""
        return self.element.value[1]

    @property
    def magnitude_bits(self) -> int:  # type: ignore[override]
        """Number of bits in the magnitude of an element."""
        return sum(self.element.value[:2])

    @property
    def largest(self) -> int:  # type: ignore[override]
        """Largest finite magnitude of an element."""
        return self.element.value[2]

    @property
    def top_field(self) -> int:  # type: ignore[override]
        """Exponent field of the largest finite magnitude."""
        return self.largest >> self.fraction_bits

    @property
    def lowest(self) -> int:  # type: ignore[override]
        """Smallest exponent of a block: the exponent of the largest element at a scale of 2 ** -127."""
        if self.complement:
            return 0
        bias = (1 << self.element.value[0] - 1) - 1
        return self.top_field - bias

    @property
    def complement(self) -> bool:  # type: ignore[override]
        """Whether elements are stored in two's complement."""
        return self.element is Element.INT8

    @property
    def infinities(self) -> bool:  # type: ignore[override]
        """Whether the highest exponent field encodes infinities and NaNs, as in IEEE 754."""
        return self.element is Element.FP8_E5M2

    @property
    def nan_magnitude(self) -> int | None:  # type: ignore[override]
        """Magnitude that encodes a NaN, or None."""
        return 0b1111_111 if self.element is Element.FP8_E4M3 else None


MXINT8 = Microscaling(element=Element.INT8)
MXFP8_E4M3 = Microscaling(element=Element.FP8_E4M3)
MXFP8_E5M2 = Microscaling(element=Element.FP8_E5M2)
MXFP6_E2M3 = Microscaling(element=Element.FP6_E2M3)
MXFP6_E3M2 = Microscaling(element=Element.FP6_E3M2)
MXFP4_E2M1 = Microscaling(element=Element.FP4_E2M1)
MXFP8_E4M3_UP = Microscaling(element=Element.FP8_E4M3, scale=Scale.UP)
MXFP4_E2M1_UP = Microscaling(element=Element.FP4_E2M1, scale=Scale.UP)
