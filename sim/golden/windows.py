"""Golden model of the windows of tenants: what they are set to, and what is in them.

Numbers are elements. A window is its base in the memory and its size; a tenant's addresses begin with 0 at its base.
"""

import numpy as np
import numpy.typing as npt

__all__ = ["fits", "read", "window"]

Words = npt.NDArray[np.uint32]

_WORD = 1 << 32


def window(base: int, bound: int, capacity: int) -> tuple[int, int]:
    """Return base and size of the window from ``base`` to ``bound``: an empty one if it is not in the memory."""
    return (base, bound - base) if base <= bound <= capacity else (0, 0)


def fits(base: int, length: int, size: int) -> bool:
    """Whether ``length`` elements from the tenant's address ``base`` on are in a window of ``size`` elements; both
    are any numbers of 32 bits."""
    if not (0 <= base < _WORD and 0 <= length < _WORD):
        raise ValueError(f"Base and length must be numbers of 32 bits, not {base!r} and {length!r}")
    return base <= size and length <= size - base


def read(memory: Words, base: int, size: int) -> Words:
    """Return all that a tenant can see of a memory: its window, and zeros behind it."""
    found = np.zeros_like(memory)
    found[:size] = memory[base:base + size]
    return found
