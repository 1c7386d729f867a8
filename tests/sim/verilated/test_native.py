# amaranth: UnusedElaboratable=no
"""Native floating-point units match the gateware in bits and latency, for any compiler and any caller."""

import functools

import numpy as np
import pytest

from hdl.floating.add import FloatAdder
from hdl.floating.divide import FloatDivider
from hdl.floating.format import BF16, FP16, FP32
from hdl.floating.multiply import FloatMultiplier
from hdl.floating.square_root import FloatSquareRoot
from sim.golden import floating
from sim.verilated import build, native, verilog
from sim.verilated.native import Arithmetic
from sim.verilated.ring import VerilatedRing
from sim.verilated.toolchain import ToolError, compiler, run
from sim.verilated.vectors import Unit
from tests.hdl.floating import operands, pipeline
from tests.sim.verilated.modes import hostile
from tests.sim.verilated.probe import Probe

#: Floating-point units with each supported latency and number of DSP blocks, and their golden functions.
UNITS = {
    "add": (FloatAdder, floating.add),
    **{f"multiply {dsps}": (functools.partial(FloatMultiplier, dsps=dsps), floating.multiply) for dsps in (4, 2, 1)},
    **{f"divide {interval}": (functools.partial(FloatDivider, interval=interval), floating.divide)
       for interval in (1, 2, 4, 8)},
    **{f"square root {interval}": (functools.partial(FloatSquareRoot, interval=interval), floating.square_root)
       for interval in (1, 2, 4, 8)},
}


def operands_of(name, seed):
    """Operands: pairs of corner cases, uniformly random bits, and bits near the limits of the format."""
    generator = np.random.default_rng(seed)
    corners = operands.corners(FP32)
    drawn = [operands.uniform(FP32, generator), operands.near_exponents(FP32, generator, 1 << 17),
             operands.near_borders(FP32, generator, 1 << 17)]
    if name.startswith("square root"):
        return (np.concatenate([corners, *(values for values, _ in drawn)]),)
    return tuple(map(np.concatenate, zip(operands.pairs(corners), *drawn, strict=True)))


@pytest.mark.parametrize("name", UNITS)
def test_bits(name):
    """Results appear in the right cycles. Folded units get operands only every few cycles, and random bits
    otherwise."""
    make, function = UNITS[name]
    unit, seed = make(), len(name)
    values = operands_of(name, seed)
    assert len(values[0]) > 1 << 20
    inputs = dict(zip("ab", values, strict=False))
    if getattr(unit, "interval", 1) > 1:
        got = pipeline.in_turns(unit, inputs, arithmetic=Arithmetic.NATIVE)
    else:
        got = Unit(unit, arithmetic=Arithmetic.NATIVE).run(inputs, drain=unit.latency)["o"][unit.latency:]
    assert operands.differences(values[0], values[-1], got, function(*values)) == [], f"{seed=}"


@pytest.mark.parametrize("format", [FP16, BF16])
@pytest.mark.parametrize("kind", [FloatAdder, FloatMultiplier, FloatDivider, FloatSquareRoot])
def test_other_formats_stay_gateware(kind, format):
    gateware, other = (verilog.convert(kind(format=format), arithmetic=arithmetic).text
                       for arithmetic in (Arithmetic.GATEWARE, Arithmetic.NATIVE))
    assert other == f"{gateware}\n{native.MODULES}"
    assert f"  {native.module_of(kind())} #(" in verilog.convert(kind(), arithmetic=Arithmetic.NATIVE).text


def test_arithmetic_is_part_of_a_design():
    """A component has different identities with native and with gateware arithmetic."""
    unit = FloatAdder()
    designs = {arithmetic: verilog.convert(unit, name="adder", identity="FloatAdder()", arithmetic=arithmetic)
               for arithmetic in Arithmetic}
    assert designs[Arithmetic.GATEWARE].ports == designs[Arithmetic.NATIVE].ports
    assert "native" not in designs[Arithmetic.GATEWARE].text
    for arithmetic in Arithmetic:
        assert verilog.convert(FloatAdder(), name="adder", identity="FloatAdder()",
                               arithmetic=arithmetic) == designs[arithmetic]


def test_modes_of_the_caller():
    """Results do not depend on the floating-point modes of the caller, which are restored afterwards."""
    for name in ("add", "multiply 4", "divide 1", "square root 1"):
        make, function = UNITS[name]
        unit = make()
        corners = operands.corners(FP32)
        values = (corners,) if name.startswith("square root") else operands.pairs(corners[::7])
        simulated = Unit(unit, arithmetic=Arithmetic.NATIVE)
        want = function(*values)
        with hostile():
            got = simulated.run(dict(zip("ab", values, strict=False)), drain=unit.latency)["o"][unit.latency:]
        assert operands.differences(values[0], values[-1], got, want) == [], name


#: Program that enables all traps, rounds down and sets a flag, and then prints the rule that the functions break.
PROGRAM = """
#include "native.h"
#include <cstdio>
int main() {
    std::fesetround(FE_DOWNWARD);
    std::feraiseexcept(FE_UNDERFLOW);
#ifdef __GLIBC__
    feenableexcept(FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW);
#endif
    const char* rule = native::broken();
    const bool kept = std::fegetround() == FE_DOWNWARD && std::fetestexcept(FE_ALL_EXCEPT) == FE_UNDERFLOW;
    std::puts(rule ? rule : kept ? "none" : "the caller's modes");
}
"""
SUM = "number(a) + number(b)"


def rule_of(folder, *, flags=(), before="", after=""):
    """Return the rule that the native functions break when ``before`` is replaced with ``after`` in their source."""
    assert before in native.FUNCTIONS
    (folder / "native.h").write_text(native.FUNCTIONS.replace(before, after) if before else native.FUNCTIONS)
    (folder / "main.cpp").write_text(PROGRAM)
    run([compiler(), "-O1", "-std=gnu++17", *flags, "main.cpp", "-o", "main"], cwd=folder)
    return run([str(folder / "main")], cwd=folder).strip()


@pytest.mark.parametrize(("before", "after", "rule"), [
    ("", "", "none"),
    ("fesetenv(FE_DFL_ENV)", "fesetround(FE_TOWARDZERO)", "round to nearest even"),
    (SUM, "(float)((double)number(a) + number(b) * 1.0000001)", "round to nearest even"),
    ("bits : 0x7fc00000", "(bits & 0x7f800000 ? bits : bits & 0x80000000) : 0x7fc00000", "keep subnormal numbers"),
    ("value == value ? bits : 0x7fc00000", "bits", "have one NaN"),
    (SUM, f"{SUM} + 0.0f", "keep the sign of zero"),
    ("number(a) / number(b)", "number(a) * (1 / number(b))", "divide exactly"),
    ("__builtin_sqrtf(number(a))", "number(a) == 0 ? number(a) : number(a) * (1 / __builtin_sqrtf(number(a)))",
     "have exact roots"),
], ids=["as it is", "mode", "rounding", "flush", "NaN", "sign", "inverse", "root"])
def test_broken_functions_are_found(tmp_path, before, after, rule):
    """If functions are broken in the way that unsafe compiler optimizations break them, the error names the rule."""
    assert rule_of(tmp_path, before=before, after=after) == rule


def test_every_optimization(tmp_path):
    """Results are bit-identical with all optimizations, even on a processor with fused multiply-add."""
    assert rule_of(tmp_path, flags=("-O3", "-march=native", "-ffp-contract=off", "-frounding-math")) == "none"


@pytest.mark.parametrize("flag", ["-ffast-math", "-ffinite-math-only"])
def test_fast_math_is_refused(tmp_path, flag):
    with pytest.raises(ToolError, match="native arithmetic must be that of IEEE 754: compile without -ffast-math"):
        rule_of(tmp_path, flags=(flag,))


def test_a_ring_with_broken_functions_does_not_begin(monkeypatch):
    monkeypatch.setattr(build, "FUNCTIONS", native.FUNCTIONS.replace(SUM, f"{SUM} + 0.0f"))
    library = build.build_ring(Probe(), arithmetic=Arithmetic.NATIVE)
    assert library.arithmetic is Arithmetic.NATIVE
    with pytest.raises(RuntimeError, match=r"^The ring could not be created: native arithmetic must keep the sign of "
                                           r"zero, and as it was compiled it does not; CXX must name a compiler "
                                           r"without options such as -ffast-math$"):
        VerilatedRing(library)
