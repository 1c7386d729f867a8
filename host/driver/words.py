"""Words of 32 bits in packets, and the fields in them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Words", "fields", "places"]

Words = NDArray[np.uint32]


def places(layout: Any) -> dict[str, tuple[int, int]]:
    """Lowest bit and width of each field of a layout, as plain numbers, since a driver packs often."""
    return {name: (field.offset, field.width) for name, field in layout}


def fields(where: dict[str, tuple[int, int]], bits: int) -> dict[str, int]:
    """Value of each field of :func:`places`."""
    return {name: bits >> offset & (1 << width) - 1 for name, (offset, width) in where.items()}
