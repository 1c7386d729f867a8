"""Golden model of a throttle: which cycles it enables."""

import numpy as np
import numpy.typing as npt

__all__ = ["FULL", "enabled"]

#: Cycles that a rate counts in: a rate of n enables n of them.
FULL = 1 << 16


def enabled(rate: int, cycles: int, *, total: int = 0) -> npt.NDArray[np.int64]:
    """How many of the first 0, 1, ... ``cycles`` cycles are enabled.

    Parameters
    ----------
    rate : int
        0 to 65,535; 0 enables every cycle.
    cycles : int
    total : int
        The accumulator's value before the first cycle.
    """
    numbers = np.arange(cycles + 1, dtype=np.int64)
    return numbers if rate == 0 else (total + rate * numbers) // FULL
