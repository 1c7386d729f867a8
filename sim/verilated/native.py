"""Simulation of floating-point units by C++ functions instead of gateware.

Binary32 adders, multipliers, dividers and square roots make up most of the logic of a multiplier array, and each of
them is a single instruction on the simulating processor. In a native simulation, such a unit consists of that
instruction, in ``native.h``, and registers for its latency, in ``native.v``, with the same ports and the same bits in
the same cycles. Its output may differ before its first result, and in a folded unit also in cycles without a result.
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
from sim.verilated.toolchain import without_comments

__all__ = ["FUNCTIONS", "HEADER", "MODULES", "Arithmetic", "NativePlatform", "module_of"]


class Arithmetic(enum.Enum):
    """Methods of simulating floating-point units, by their command-line names."""

    GATEWARE = "gateware"
    NATIVE = "native"
    """With the processor's own arithmetic. Affects only the speed."""


#: Name of the C++ header, its text, and the Verilog that calls its functions.
HEADER = "native.h"
FUNCTIONS = without_comments(Path(__file__).parent / HEADER)
MODULES = without_comments(Path(__file__).parent / "native.v")

#: Modules of ``native.v``, by component. Modules of components that can be folded have a ``load`` input.
_MODULES = {FloatAdder: "native_add", FloatMultiplier: "native_multiply", FloatDivider: "native_divide",
            FloatSquareRoot: "native_square_root"}
_FOLDED = (FloatDivider, FloatSquareRoot)


def module_of(unit: Any) -> str:
    """Name of the module that replaces a unit."""
    return _MODULES[type(unit)]


class NativePlatform:
    """Platform for simulations with floating-point units as functions.

    Its Verilog requires :data:`MODULES`, and the C++ that Verilator generates must be preceded by :data:`FUNCTIONS`.
    """

    def get_floating_unit(self, unit: Any) -> Module | None:
        """Replacement for :func:`hdl.floating.stages.substitute`; None for formats other than binary32."""
        if unit.format != FP32:
            return None
        m = Module()
        operands = {f"i_{name}": getattr(unit, name) for name in ("load", "a", "b") if hasattr(unit, name)}
        if isinstance(unit, _FOLDED):
            operands.setdefault("i_load", C(1, 1))
        m.submodules.function = Instance(module_of(unit), p_LATENCY=unit.latency, i_clk=ClockSignal(), **operands,
                                         o_o=unit.o)
        return m
