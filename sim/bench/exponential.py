"""Error and order of the exponential function and of the logarithm, over at least ten million arguments each.

``python -m sim.bench.exponential`` prints, for the golden model, the largest error against binary64 in units of the
last place, the share of results that are rounded correctly, pairs of neighbours in the wrong order, and results in
which the kernels differ from the golden model. It fails where one of these exceeds its bound.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.arithmetic import functions
from sim.golden import exponential

__all__ = ["BOUND", "MOST", "measure"]

#: Units of the last place that a result may be wrong by.
BOUND = 1.1
#: Arguments of each function: every n-th number of its domain, with n as large as it may be for as many.
MOST = 10_000_000
_PART = 1 << 20

Numbers = npt.NDArray[np.float32]

#: Golden model, kernel, reference, first and last argument as bits, and whether results rise with the bits.
_FUNCTIONS: dict[str, tuple[Callable[[Any], Numbers], Callable[[Any], Any], Callable[[Any], Any], int, int, bool]] = {
    "exp": (exponential.exp, functions.exp, np.exp, 0x8000_0000, 0xC2D0_0000, False),
    "log": (exponential.log, functions.log, np.log, 0x3F80_0000, 0x7F80_0000, True),
}


def measure(name: str, *, most: int = MOST) -> dict[str, Any]:
    """Figures of a function, named as its line of the command has them, over at least ``most`` arguments."""
    golden, kernel, reference, first, end, rises = _FUNCTIONS[name]
    bits = np.arange(first, end, (end - first) // most).astype(np.uint32)
    worst, rounded, wrong, others = 0.0, 0, 0, 0
    for start in range(0, len(bits), _PART):
        x = bits[max(start - 1, 0):start + _PART].view(np.float32)  # the last one of the part before comes again
        found, exact = golden(x), reference(x.astype(np.float64))
        steps = np.diff(found)
        wrong += int(np.count_nonzero(steps < 0 if rises else steps > 0))
        others += int(np.count_nonzero(found.view(np.uint32) != kernel(x).view(np.uint32)))
        places = np.ldexp(1.0, np.maximum(np.frexp(exact)[1] - 24, -149))
        worst = max(worst, float((np.abs(found - exact) / places).max()))
        rounded += int(np.count_nonzero((found == exact.astype(np.float32))[1 if start else 0:]))
    return {"count": len(bits), "worst": worst, "rounded": rounded / len(bits), "wrong": wrong, "others": others}


def main() -> int:
    """Print the figures of both functions, and return 1 if one exceeds its bound."""
    failed = False
    for name in _FUNCTIONS:
        found = measure(name)
        print(f"{name}: {found['count']:,} arguments, at most {found['worst']:.3f} ulp from binary64, "
              f"{found['rounded']:.1%} rounded correctly, {found['wrong']} pairs in the wrong order, "
              f"{found['others']} results of kernels that differ")
        failed |= found["worst"] > BOUND or found["wrong"] > 0 or found["others"] > 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
