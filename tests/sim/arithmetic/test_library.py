"""Library of compiled kernels: results do not depend on compiler flags, and a library from a compiler that fuses or
reorders operations is rejected."""

import numpy as np
import pytest

from sim.arithmetic import functions, library
from sim.golden import summation as golden
from sim.verilated.toolchain import ToolError, compiler, run

#: Option that builds a library without separate versions for wider vectors.
ONE_VERSION = "-DONE_VERSION"
SUM = "low[r] = low[r] + factor * first;"


def test_rules_are_kept():
    assert library.check(library.library()) == []


def test_all_instructions_of_the_processor(monkeypatch):
    """Results have the same bits whether code is compiled for all of the processor's instructions or only for the
    common baseline."""
    generator = np.random.default_rng(1)
    a, b = (generator.standard_normal(shape).astype(np.float32) for shape in ((33, 70), (70, 41)))
    expected, powers = golden.product(a, b), golden.exp(-np.abs(a))
    for option in ("-march=native", ONE_VERSION):
        kernels = library.load(library.build(flags=(*library.FLAGS, option)))
        assert library.check(kernels) == []
        monkeypatch.setattr(functions, "library", lambda kernels=kernels: kernels)
        assert functions.product(a, b).tobytes() == expected.tobytes()
        assert functions.exp(-np.abs(a)).tobytes() == powers.tobytes()


@pytest.mark.parametrize(("before", "after", "broken"), [
    (SUM, "for (int c = 0; c < WIDTH; ++c) low[r][c] = __builtin_fmaf(factor, first[c], low[r][c]);",
     ["rounds products before it adds them"]),
    ("p = p * r + number(EXP[c]);", "p = __builtin_fmaf(p, r, number(EXP[c]));",
     ["has the exponentials of the golden model"]),
    ("p = p * m + number(LOG[c]);", "p = __builtin_fmaf(p, m, number(LOG[c]));",
     ["has the logarithms of the golden model"]),
    ("total[r] = total[r] + x[r * columns + j];",
     "total[r] = total[r] + x[r * columns + (j + 2) % columns];", ["adds in the given order"]),
    (SUM, "low[r] = low[r] + factor * first; "
     "for (int c = 0; c < WIDTH; ++c) if (__builtin_fabsf(low[r][c]) < 1e-38f) low[r][c] = 0;",
     ["keeps subnormal numbers"]),
], ids=["fused product", "fused exponential", "fused logarithm", "order", "flush to zero"])
def test_a_broken_library_is_refused(monkeypatch, before, after, broken):
    """A library is rejected if it fuses or reorders operations, or flushes subnormal numbers."""
    assert library.KERNELS.count(before) == 1
    path = library.build(flags=("-O1", *library.FLAGS[1:], ONE_VERSION), text=library.KERNELS.replace(before, after))
    assert library.check(library.load(path)) == broken
    monkeypatch.setattr(library, "build", lambda: path)
    with pytest.raises(ToolError, match=rf"must make arithmetic that {broken[0]}, and its library does not; CXX must "
                                        rf"name a compiler without options such as -ffast-math$"):
        library.library.__wrapped__()


def test_a_contracted_build_is_found(tmp_path):
    """On a processor with fused multiply-add, a build that allows contraction uses it, and so fails the check."""
    command = [compiler(), "-march=native", "-dM", "-E", "-x", "c++", "/dev/null"]
    fused = "__FP_FAST_FMAF " in run(command, cwd=tmp_path)
    flags = ["-ffp-contract=fast" if flag == "-ffp-contract=off" else flag for flag in library.FLAGS]
    broken = library.check(library.load(library.build(flags=(*flags, "-march=native"))))
    assert ("rounds products before it adds them" in broken) == fused
    assert bool(broken) == fused


def test_fast_math_is_refused():
    with pytest.raises(ToolError, match="sums must be as they are written: compile without -ffast-math"):
        library.build(flags=("-O0", "-fPIC", "-std=c++17", "-ffast-math"))
