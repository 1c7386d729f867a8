"""Words of 32 bits in packets, and the fields in them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Vector", "Words", "fields", "pack", "places"]

Words = NDArray[np.uint32]

Vector = NDArray[Any]
"""Elements as they are in a node: float32, or int16 where those are 16-bit integers."""


def places(layout: Any) -> dict[str, tuple[int, int]]:
    """Lowest bit and width of each field of a layout, as plain numbers, since a driver packs often."""
    return {name: (field.offset, field.width) for name, field in layout}


def pack(where: dict[str, tuple[int, int]], values: dict[str, int], owner: str) -> Words:
    """Words of the fields of :func:`places`, with 0 in those that have no value.

    Raises
    ------
    ValueError
        A value does not fit into its field; the message begins with ``owner``, such as "Command's".
    """
    bits = 0
    for name, (offset, width) in where.items():
        value = values.get(name, 0)
        if not 0 <= value < 1 << width:
            raise ValueError(f"{owner} {name} must be a number of {width} bits, not {value!r}")
        bits |= int(value) << offset
    end = max(offset + width for offset, width in where.values())
    return np.frombuffer(bits.to_bytes(-(-end // 32) * 4, "little"), "<u4").astype(np.uint32)


def fields(where: dict[str, tuple[int, int]], bits: int) -> dict[str, int]:
    """Value of each field of :func:`places`."""
    return {name: bits >> offset & (1 << width) - 1 for name, (offset, width) in where.items()}
