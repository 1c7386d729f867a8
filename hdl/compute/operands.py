# amaranth: UnusedElaboratable=no
# The latencies of units are needed even if nothing is elaborated.
"""Formats that operands of a matrix product are rounded to, and how each is multiplied in the array."""

import dataclasses
from collections.abc import Callable
from typing import Any

from amaranth.hdl import unsigned

from hdl.compression.block import microscaling, shared_exponent
from hdl.compression.block.format import BlockCodec
from hdl.compression.nvfp4.format import NVFP4
from hdl.compute.bfloat16 import BFloat16Multiplier, BFloat16Rounder, factor_layout
from hdl.floating.format import FP32 as BINARY32
from hdl.floating.multiply import FloatMultiplier

__all__ = ["BF16", "FP32", "MOST_BLOCK_UNITS", "OPERANDS", "BlockOperands", "Operands", "ScalarOperands",
           "operands_of", "scalar_of"]

#: Units that multiply blocks, at most: one adder serves them all.
MOST_BLOCK_UNITS = 16

#: Names of formats.
FP32, BF16 = "fp32", "bf16"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operands:
    """Format of operands.

    Parameters
    ----------
    code : int
        Number of the format in an instruction.
    """

    code: int

    @property
    def terms(self):
        """Terms of a sum that are added as one."""
        return 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScalarOperands(Operands):
    """Format of operands that are multiplied one by one, in a :class:`~hdl.compute.array.MacArray`.

    Parameters
    ----------
    a, b : shape
        Factors on their way through the array. That of a column may be exact as well, for numbers that open a sum.
    rounder : callable, optional
        Makes a unit from elements to factors, with ``exact`` as for the columns; without, elements are factors.
    multiplier : callable
        Makes a unit from factors to their product in binary32, given the number of DSP blocks.
    """

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockOperands(Operands):
    """Format of blocks of operands along k, in a :class:`~hdl.compute.block_array.BlockArray`.

    Parameters
    ----------
    codec : BlockCodec
        A format for which :func:`~hdl.compute.block_form.form_of` finds a form.
    """

    codec: BlockCodec

    @property
    def terms(self):
        """Terms of a sum that are added as one."""
        return self.codec.block


#: Formats by their names.
OPERANDS = {
    FP32: ScalarOperands(code=0, a=unsigned(BINARY32.width), b=unsigned(BINARY32.width), rounder=None,
                         multiplier=lambda dsps: FloatMultiplier(dsps=dsps)),
    BF16: ScalarOperands(code=1, a=factor_layout(exact=False), b=factor_layout(exact=True), rounder=BFloat16Rounder,
                         multiplier=lambda dsps: BFloat16Multiplier()),
    "mx9": BlockOperands(code=2, codec=shared_exponent.MX9),
    "mx6": BlockOperands(code=3, codec=shared_exponent.MX6),
    "mx4": BlockOperands(code=4, codec=shared_exponent.MX4),
    "mxfp4_e2m1": BlockOperands(code=5, codec=microscaling.MXFP4_E2M1),
    "mxfp4_e2m1_up": BlockOperands(code=6, codec=microscaling.MXFP4_E2M1_UP),
    "nvfp4": BlockOperands(code=7, codec=NVFP4()),
}


def operands_of(name):
    """Format of a name; ValueError if there is none."""
    return _found(name, OPERANDS)


def scalar_of(name):
    """Format of operands that are multiplied one by one; ValueError if there is none of this name."""
    return _found(name, {known: one for known, one in OPERANDS.items() if isinstance(one, ScalarOperands)})


def _found(name, formats):
    if name not in formats:
        raise ValueError(f"Operands must be one of {', '.join(formats)}, not {name!r}")
    return formats[name]
