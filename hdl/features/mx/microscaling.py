"""Concrete formats of the OCP Microscaling (MX) specification, version 1.0.

A block has 32 elements and an E8M0 scale, which is a power of two. The scale's field is the largest exponent of the
block minus the exponent of the element format's largest number, floor(log2(max |x|)) - emax, and at least 0, for 2 **
-127; or, with ``Scale.UP``, ceil(log2(max |x| / largest)), the lowest without saturation. A field of 255 is NaN.
Points left open by the specification are decided by the scale rule of :mod:`hdl.features.mx.format`: elements
saturate; a block of zeros has the smallest scale, 0; a block with an infinity or a NaN is NaN, with elements of zero;
subnormal binary32 numbers are zeros, while subnormal numbers of the element's format are not; and -2, which the
integers of MXINT8 could hold, is not used.

A decoder also accepts elements that no encoder produces: infinities and NaNs of E5M2, the NaN of E4M3, and -2.
"""

import dataclasses
import enum

from hdl.features.mx.format import BlockCodec

__all__ = ["MXFP4_E2M1", "MXFP4_E2M1_UP", "MXFP6_E2M3", "MXFP6_E3M2", "MXFP8_E4M3", "MXFP8_E4M3_UP", "MXFP8_E5M2",
           "MXINT8", "Element", "Microscaling", "Scale"]


class Element(enum.Enum):
    """Element formats: exponent bits, fraction bits, and largest magnitude."""

    INT8 = 1, 6, 0x7F
    FP8_E4M3 = 4, 3, 0x7E
    FP8_E5M2 = 5, 2, 0x7B
    FP6_E2M3 = 2, 3, 0x1F
    FP6_E3M2 = 3, 2, 0x1F
    FP4_E2M1 = 2, 1, 0x07


class Scale(enum.Enum):
    """Rounding of scales to powers of two."""

    FLOOR = "floor"
    UP = "up"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Microscaling(BlockCodec):
    """One of the OCP MX formats.

    Parameters
    ----------
    element : Element
    scale : Scale
    """

    element: Element
    scale: Scale = Scale.FLOOR

    block = 32
    subset = 32
    exponent_bits = 8
    difference_bits = 0

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.element, Element):
            raise TypeError(f"Element must be an Element, not {self.element!r}")
        if not isinstance(self.scale, Scale):
            raise TypeError(f"Scale must be a Scale, not {self.scale!r}")

    @property
    def rounds_up(self):
        """Whether scales are rounded up."""
        return self.scale is Scale.UP

    @property
    def magnitude_bits(self):
        """Number of bits of a magnitude."""
        return self.element.value[0] + self.fraction_bits

    @property
    def fraction_bits(self):
        """Number of fraction bits of an element's magnitude."""
        return self.element.value[1]

    @property
    def largest(self):
        """The largest magnitude."""
        return self.element.value[2]

    @property
    def top_field(self):
        """Value of the field above the fraction bits in the largest magnitude."""
        return self.largest >> self.fraction_bits

    @property
    def lowest(self):
        """Smallest exponent of a block: the exponent of the largest number with scale 2 ** -127."""
        return 0 if self.complement else self.top_field - ((1 << (self.element.value[0] - 1)) - 1)

    @property
    def complement(self):
        """Whether elements are in two's complement."""
        return self.element is Element.INT8

    @property
    def infinities(self):
        """Whether the highest exponent field encodes infinities and NaNs, as in IEEE 754."""
        return self.element is Element.FP8_E5M2

    @property
    def nan_magnitude(self):
        """Magnitude that encodes NaN; None if the format has no such magnitude."""
        return 0x7F if self.element is Element.FP8_E4M3 else None


MXINT8 = Microscaling(element=Element.INT8)
MXFP8_E4M3 = Microscaling(element=Element.FP8_E4M3)
MXFP8_E5M2 = Microscaling(element=Element.FP8_E5M2)
MXFP6_E2M3 = Microscaling(element=Element.FP6_E2M3)
MXFP6_E3M2 = Microscaling(element=Element.FP6_E3M2)
MXFP4_E2M1 = Microscaling(element=Element.FP4_E2M1)
MXFP8_E4M3_UP = Microscaling(element=Element.FP8_E4M3, scale=Scale.UP)
MXFP4_E2M1_UP = Microscaling(element=Element.FP4_E2M1, scale=Scale.UP)
