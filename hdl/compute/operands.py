# amaranth: UnusedElaboratable=no
# The latencies of units are needed even if nothing is elaborated.
"""Formats that operands of a matrix product are rounded to, and how each is multiplied in the array."""

import dataclasses
from collections.abc import Callable
from typing import Any

from amaranth.hdl import unsigned

from hdl.compute.bfloat16 import BFloat16Multiplier, BFloat16Rounder, factor_layout
from hdl.floating.format import FP32 as BINARY32
from hdl.floating.multiply import FloatMultiplier

__all__ = ["BF16", "FP32", "OPERANDS", "Operands", "operands_of"]

#: Names of formats.
FP32, BF16 = "fp32", "bf16"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operands:
    """Format of operands.

    Parameters
    ----------
    code : int
        Number of the format in an instruction.
    a, b : shape
        Factors on their way through the array. That of a column may be exact as well, for numbers that open a sum.
    rounder : callable, optional
        Makes a unit from elements to factors, with ``exact`` as for the columns; without, elements are factors.
    multiplier : callable
        Makes a unit from factors to their product in binary32, given the number of DSP blocks.
    """

    code: int
    a: Any
    b: Any
    rounder: Callable[..., Any] | None
    multiplier: Callable[[int], Any]

    @property
    def rounding(self):
        """Cycles from an element to its factor."""
        return 0 if self.rounder is None else self.rounder(exact=False).latency

    def product_latency(self, dsps):
        """Cycles from elements to their product."""
        return self.rounding + self.multiplier(dsps).latency


#: Formats by their names.
OPERANDS = {
    FP32: Operands(code=0, a=unsigned(BINARY32.width), b=unsigned(BINARY32.width), rounder=None,
                   multiplier=lambda dsps: FloatMultiplier(dsps=dsps)),
    BF16: Operands(code=1, a=factor_layout(exact=False), b=factor_layout(exact=True), rounder=BFloat16Rounder,
                   multiplier=lambda dsps: BFloat16Multiplier()),
}


def operands_of(name):
    """Format of a name; ValueError if there is none."""
    if name not in OPERANDS:
        raise ValueError(f"Operands must be one of {', '.join(OPERANDS)}, not {name!r}")
    return OPERANDS[name]
