"""Measure the error and monotonicity of exp and log over at least ten million arguments each.

``python -m sim.bench.exponential`` prints, for the golden model, the largest error against binary64 in units in the
last place, the share of correctly rounded results, the number of adjacent results in the wrong order, and the number
of kernel results that differ from the golden model. It fails if any of these exceeds its bound.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.arithmetic import functions
from sim.golden import exponential

__all__ = ["BOUND", "MOST", "measure"]

#: Maximum error of a result in units in the last place.
BOUND = 1.1
#: Minimum number of arguments per function: every n-th number of its domain, with the largest possible n.
MOST = 10_000_000
_PART = 1 << 20

Numbers = npt.NDArray[np.float32]

#: For each function: golden model, kernel, reference, first and last argument as bits, and whether the result
#: increases with the bits.
_FUNCTIONS: dict[str, tuple[Callable[[Any], Numbers], Callable[[Any], Any], Callable[[Any], Any], int, int, bool]] = {
    "exp": (exponential.exp, functions.exp, np.exp, 0x8000_0000, 0xC2D0_0000, False),
    "log": (exponential.log, functions.log, np.log, 0x3F80_0000, 0x7F80_0000, True),
}


def measure(name: str, *, most: int = MOST) -> dict[str, Any]:
    """Measure a function at ``most`` or more arguments; return the figures that the command prints."""
    golden, kernel, reference, first, end, rises = _FUNCTIONS[name]
    bits = np.arange(first, end, (end - first) // most).astype(np.uint32)
    worst, rounded, wrong, differing = 0.0, 0, 0, 0
    for start in range(0, len(bits), _PART):
        x = bits[max(start - 1, 0):start + _PART].view(np.float32)  # with one argument of the previous part
        results, exact = golden(x), reference(x.astype(np.float64))
        steps = np.diff(results)
        wrong += int(np.count_nonzero(steps < 0 if rises else steps > 0))
        differing += int(np.count_nonzero(results.view(np.uint32) != kernel(x).view(np.uint32)))
        places = np.ldexp(1.0, np.maximum(np.frexp(exact)[1] - 24, -149))
        worst = max(worst, float((np.abs(results - exact) / places).max()))
        rounded += int(np.count_nonzero((results == exact.astype(np.float32))[1 if start else 0:]))
    return {"count": len(bits), "worst": worst, "rounded": rounded / len(bits), "wrong": wrong, "others": differing}


def main() -> int:
    """Print the measurements of both functions; return 1 if either exceeds its bound."""
    failed = False
    for name in _FUNCTIONS:
        figures = measure(name)
        print(f"{name}: {figures['count']:,} arguments, at most {figures['worst']:.3f} ulp from binary64, "
              f"{figures['rounded']:.1%} rounded correctly, {figures['wrong']} pairs in the wrong order, "
              f"{figures['others']} results of kernels that differ")
        failed |= figures["worst"] > BOUND or figures["wrong"] > 0 or figures["others"] > 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
