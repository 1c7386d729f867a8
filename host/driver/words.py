"""Convert packet fields, memory elements and register values to and from 32-bit words."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hdl.control.registers import Kind, Register, register

__all__ = ["Vector", "Words", "bits_of", "field_values", "fields", "from_bits", "int_of", "pack", "places", "to_bits"]

Words = NDArray[np.uint32]

Vector = NDArray[Any]
"""Elements of a node: float32, or int16 on nodes for 16-bit integers."""


def bits_of(elements: NDArray[Any]) -> Words:
    """Convert elements to memory words. Raises ``TypeError`` unless they are 1-D uint32 or float32."""
    elements = np.asarray(elements)
    if elements.dtype not in (np.uint32, np.float32) or elements.ndim != 1:
        raise TypeError(f"Elements must be one row of uint32 or float32, not {elements.dtype} of shape "
                        f"{elements.shape!r}")
    return np.ascontiguousarray(elements).view(np.uint32)


def int_of(words: Words) -> int:
    """Combine words into one integer, with the first word in the lowest bits."""
    return int.from_bytes(words.astype("<u4").tobytes(), "little")


def places(layout: Any) -> dict[str, tuple[int, int]]:
    """Lowest bit and width of each field, as plain integers, which are faster to pack than the layout."""
    return {name: (field.offset, field.width) for name, field in layout}


def pack(where: dict[str, tuple[int, int]], values: dict[str, int], owner: str) -> Words:
    """Pack fields described by :func:`places` into words; missing fields are 0.

    Raises ``ValueError`` if a value does not fit into its field. The message starts with ``owner``, for example
    "Command's".
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
    """Unpack the value of each field described by :func:`places`."""
    return {name: bits >> offset & (1 << width) - 1 for name, (offset, width) in where.items()}


def field_values(name: str, bits: int) -> dict[str, int]:
    """Unpack the value of each field of a bitfield register."""
    return fields({field.name: (field.bit, field.width) for field in register(name).fields}, bits)


def to_bits(entry: Register, value: float, *, integers: bool) -> int:
    """Encode a register value as bits. ``integers`` states whether the node computes with integers.

    Raises ``TypeError`` or ``ValueError`` if the register cannot hold the value.
    """
    signed = entry.kind is Kind.FLOAT32
    if signed and not integers:
        return int(np.float32(value).view(np.uint32))
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"Value of register {entry.name} must be an integer, not {value!r}")
    least = -(1 << entry.width - 1) if signed else 0
    if not least <= value < least + (1 << entry.width):
        kind = "signed number" if signed else "number"
        raise ValueError(f"Value of register {entry.name} must be a {kind} of {entry.width} bits, not {value!r}")
    bits: int = int(value) & (1 << entry.width) - 1
    return bits


def from_bits(entry: Register, payload: Words, *, integers: bool) -> int | float:
    """Decode the bits of a register; the inverse of :func:`to_bits`."""
    if entry.kind is not Kind.FLOAT32:
        return int(payload[0])
    return int(payload.view(np.int32)[0]) if integers else float(payload.view(np.float32)[0])
