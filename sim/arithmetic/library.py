"""The kernel library, built once per compiler and checked before use.

Its sums are correct only if the compiler rounds each product and each sum separately. Compiler flags request this;
:func:`check` detects a compiler that ignores them, such as a ``CXX`` script that adds ``-ffast-math``.
"""

import ctypes
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.golden import exponential
from sim.verilated.toolchain import (
    ToolError,
    cache_folder,
    cached,
    compiler,
    digest,
    run,
    source,
    target,
    without_comments,
)

__all__ = ["COMMON", "FLAGS", "KERNELS", "address", "build", "built", "check", "checked", "library", "load",
           "prototype"]

_FOLDER = Path(__file__).parent

#: C++ source of the kernels, and the header that they share with the kernels of formats.
KERNELS = without_comments(_FOLDER / "kernels.cpp")
COMMON = without_comments(_FOLDER / "common.h")

#: Compiler options that prevent products and sums from being fused, on any processor.
FLAGS = ("-O3", "-ffp-contract=off", "-fPIC", "-fvisibility=default", "-std=c++17", "-Wno-psabi")


def _coefficients() -> str:
    """Constants of exp and log, formatted as a C++ header."""
    lines = ["#include <cstdint>"]
    for name in ("LOG2_E", "MAGIC", "LN2_HIGH", "LN2_LOW", "LEAST", "ROOT_HALF"):
        lines.append(f"constexpr std::uint32_t {name} = {getattr(exponential, name):#010x};")
    for name in ("EXP", "LOG"):
        bits = getattr(exponential, name)
        lines.append(f"constexpr int {name}_COUNT = {len(bits)};")
        lines.append(f"constexpr std::uint32_t {name}[] = {{{', '.join(f'{word:#010x}' for word in bits)}}};")
    return "\n".join([*lines, ""])


def built(name: str, files: Mapping[str, str], *, flags: Sequence[str] = FLAGS) -> Path:
    """Compile ``name``.cpp, one of the given files, if necessary; return the library's path."""
    key = digest(repr(sorted(files.items())), repr(tuple(flags)), target(), source(built))

    def make(folder: Path) -> None:
        for file, text in files.items():
            (folder / file).write_text(text)
        run([compiler(), *flags, "-I.", "-shared", f"{name}.cpp", "-o", "library.so"], cwd=folder)

    return cached(cache_folder("arithmetic") / f"{name}-{key}", make) / "library.so"


def build(*, flags: Sequence[str] = FLAGS, text: str = KERNELS) -> Path:
    """Compile the kernels if necessary; return the library's path."""
    return built("kernels", {"kernels.cpp": text, "common.h": COMMON, "coefficients.h": _coefficients()}, flags=flags)


#: Argument types of each kernel: N is a 64-bit number, A is the address of an array.
_ARGUMENTS = {"product": "NNNNANNNANNNAA", "row_sums": "NNAA", "gather_sums": "NNAANA", "exponentials": "NAA",
              "logarithms": "NAA", "softmax_parts": "NNAAAA"}


def prototype(library: ctypes.CDLL, name: str, arguments: str, result: type[ctypes.c_int64] | None = None) -> None:
    """Set a function's argument types (N for a 64-bit number, A for an address) and its result type."""
    function = getattr(library, name)
    function.restype = result
    function.argtypes = [ctypes.c_int64 if kind == "N" else ctypes.c_void_p for kind in arguments]


def load(path: Path, arguments: Mapping[str, str] = _ARGUMENTS) -> ctypes.CDLL:
    """Load a library of functions without return values, and set their argument types; see :func:`prototype`."""
    loaded = ctypes.CDLL(str(path))
    for name, kinds in arguments.items():
        prototype(loaded, name, kinds)
    return loaded


def address(x: npt.NDArray[Any]) -> int:
    """Address of an array's first element; several times faster than ``x.ctypes``."""
    result: int = x.__array_interface__["data"][0]
    return result


def checked(name: str, x: npt.NDArray[np.uint32], count: int | None = None, *, written: bool = False) -> int:
    """Address of the first element of a one-dimensional, contiguous array of ``uint32``.

    Raises
    ------
    ValueError
        The array has another type or layout, does not have ``count`` elements, or is read-only although ``written``.
    """
    if x.dtype != np.uint32 or x.ndim != 1 or not x.flags.c_contiguous or not x.flags.aligned:
        raise ValueError(f"{name} must be a contiguous array of uint32 in one dimension, not {x.dtype} of shape "
                         f"{x.shape!r} with strides {x.strides!r}")
    if count is not None and len(x) != count:
        raise ValueError(f"{name} must be of {count!r} numbers, not {len(x)!r}")
    if written and not x.flags.writeable:
        raise ValueError(f"{name} must be an array that can be written, not one that is read only")
    return address(x)


def check(library: ctypes.CDLL) -> list[str]:
    """List the arithmetic rules that a library violates, using inputs with known results."""
    def products(pairs: Sequence[tuple[float, float]]) -> npt.NDArray[np.float32]:
        """Compute the same sum of two products in all elements of a 4 x 17 array, to cover all code paths."""
        left, right = (np.array(factors, np.float32) for factors in zip(*pairs, strict=True))
        a, b = np.tile(left, (4, 1)), np.tile(right[:, None], (1, 17))
        output, panel = np.zeros((4, 17), np.float32), np.zeros((2, 16), np.float32)
        library.product(1, 4, 2, 17, address(a), 8, 2, 1, address(b), 34, 17, 1, address(output), address(panel))
        return output

    def values(name: str, x: npt.NDArray[np.float32]) -> bytes:
        output = np.zeros_like(x)
        getattr(library, name)(len(x), address(x), address(output))
        return output.tobytes()

    near = 1 + 2**-12
    below, above = (np.arange(1 << 12, dtype=np.float32) / np.float32(scale) for scale in (-40, 2048))
    row, total = np.array([1e8, 1, -1e8], np.float32), np.zeros(1, np.float32)
    library.row_sums(1, 3, address(row), address(total))
    rules = {
        "rounds products before it adds them": (products([(-1 - 2**-11, 1), (near, near)]) == 0).all(),
        "keeps subnormal numbers": (products([(2**-70, 2**-70), (0, 0)]) == np.float32(2**-140)).all(),
        "adds in the given order": total[0] == 0,
        "has the exponentials of the golden model":
            values("exponentials", below) == exponential.exp(below).tobytes(),
        "has the logarithms of the golden model":
            values("logarithms", 1 + above) == exponential.log(1 + above).tobytes(),
    }
    return [rule for rule, kept in rules.items() if not kept]


@functools.cache
def library() -> ctypes.CDLL:
    """Return the kernel library of this process.

    Raises
    ------
    ToolError
        No compiler is available, or the compiled library violates an arithmetic rule.
    """
    loaded = load(build())
    broken = check(loaded)
    if broken:
        raise ToolError(f"{compiler()} must make arithmetic that {' and '.join(broken)}, and its library does not; "
                        f"CXX must name a compiler without options such as -ffast-math")
    return loaded
