"""Floating-point units of a simulation as C++ functions, in place of gateware.

Adders, multipliers, dividers and square roots of binary32 are most of the logic of an array of multipliers, and each
is one instruction of the simulating processor. In a native simulation such a unit is that instruction, in
``native.h``, and registers for its latency, in ``native.v``: the same ports, the same bits in the same cycles. Its
output may differ until its first result, and in cycles without a result of a folded unit.
"""

import enum
from pathlib import Path
from typing import Any

from amaranth.hdl import C, ClockSignal, Instance, Module

from hdl.floating.add import FloatAdder
from hdl.floating.divide import FloatDivider
from hdl.floating.format import FP32
from hdl.floating.multiply import FloatMultiplier
from hdl.floating.square_root import FloatSquareRoot

__all__ = ["FUNCTIONS", "HEADER", "MODULES", "Arithmetic", "NativePlatform", "module_of"]


class Arithmetic(enum.Enum):
    """Ways to simulate floating-point units, by their names on the command line."""

    GATEWARE = "gateware"
    NATIVE = "native"
    """By the processor's own arithmetic. Only the speed differs."""


#: Name of the C++ header, its text, and the Verilog that calls its functions.
HEADER = "native.h"
FUNCTIONS = (Path(__file__).parent / HEADER).read_text()
MODULES = (Path(__file__).parent / "native.v").read_text()

#: Modules of ``native.v``. Modules that can be folded have an input ``load``.
_MODULES = {FloatAdder: "native_add", FloatMultiplier: "native_multiply", FloatDivider: "native_divide",
            FloatSquareRoot: "native_square_root"}
_FOLDED = (FloatDivider, FloatSquareRoot)


def module_of(unit: Any) -> str:
    """Name of the module that replaces a unit."""
    return _MODULES[type(unit)]


class NativePlatform:
    """Platform of a simulation with floating-point units as functions.

    Its Verilog needs :data:`MODULES`, and the C++ that Verilator makes of it needs :data:`FUNCTIONS` before it.
    """

    def get_floating_unit(self, unit: Any) -> Module | None:
        """Make the module for :func:`hdl.floating.stages.substitute`: none for formats other than binary32."""
        if unit.format != FP32:
            return None
        m = Module()
        operands = {f"i_{name}": getattr(unit, name) for name in ("load", "a", "b") if hasattr(unit, name)}
        if isinstance(unit, _FOLDED):
            operands.setdefault("i_load", C(1, 1))
        m.submodules.function = Instance(module_of(unit), p_LATENCY=unit.latency, i_clk=ClockSignal(), **operands,
                                         o_o=unit.o)
        return m
