"""Golden model of the OCP MX formats; mirrors :mod:`hdl.compression.block.microscaling`."""

from hdl.compression.block import microscaling as gateware
from hdl.compression.block.microscaling import Element
from sim.golden.shared_exponent import Model

__all__ = ["MXFP4_E2M1", "MXFP6_E2M3", "MXFP6_E3M2", "MXFP8_E4M3", "MXFP8_E5M2", "MXINT8", "Microscaling"]


class Microscaling(Model, gateware.Microscaling):
    """The codec of the same name, and what it does to numbers."""


MXINT8 = Microscaling(element=Element.INT8)
MXFP8_E4M3 = Microscaling(element=Element.FP8_E4M3)
MXFP8_E5M2 = Microscaling(element=Element.FP8_E5M2)
MXFP6_E2M3 = Microscaling(element=Element.FP6_E2M3)
MXFP6_E3M2 = Microscaling(element=Element.FP6_E3M2)
MXFP4_E2M1 = Microscaling(element=Element.FP4_E2M1)
