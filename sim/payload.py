"""Conversion of payloads between the fields of an Amaranth layout and the bits of a port.

A struct payload is a single vector in Verilog; tests pack and unpack it through the layout, never by hand. Fields are
unsigned numbers: signed and floating-point fields are given as bit patterns.

Example
-------
>>> from hdl.streams.stream import beat_layout, word_layout
>>> to_int(word_layout(), {"data": 5, "last": 1}) == 5 | 1 << 32
True
>>> from_int(beat_layout(2), (0b1_11 << 64) | (7 << 32) | 9)
{'elements': [9, 7], 'keep': 3, 'last': 1}
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from amaranth.hdl import Shape
from amaranth.lib import data

__all__ = ["from_int", "leaves", "pack", "row_type", "to_int", "unpack"]


def leaves(layout: data.Layout) -> list[tuple[tuple[str | int, ...], int, int]]:
    """Path, bit offset and width of each leaf field of a layout."""
    result: list[tuple[tuple[str | int, ...], int, int]] = []

    def walk(shape: Any, path: tuple[str | int, ...], offset: int) -> None:
        if isinstance(shape, data.Layout):
            for key, field in shape:
                walk(field.shape, (*path, key), offset + field.offset)
        else:
            result.append((path, offset, Shape.cast(shape).width))

    walk(layout, (), 0)
    return result


def to_int(layout: Any, values: Any) -> int:
    """Pack payload fields into bits, from nested mappings and sequences or a plain number."""
    if not isinstance(layout, data.Layout) or isinstance(values, int):
        return int(values)
    bits = 0
    for path, offset, width in leaves(layout):
        value = values
        for key in path:
            value = value[key]
        value = int(value)
        if not 0 <= value < 1 << width:
            raise ValueError(f"Field {'.'.join(map(str, path))} must be of {width} bits, not {value!r}")
        bits |= value << offset
    return bits


def from_int(layout: Any, bits: int) -> Any:
    """Unpack payload fields from bits; the inverse of :func:`to_int`."""
    if isinstance(layout, data.ArrayLayout):
        return [from_int(field.shape, bits >> field.offset) for _, field in layout]
    if isinstance(layout, data.Layout):
        return {key: from_int(field.shape, bits >> field.offset) for key, field in layout}
    return bits & ((1 << Shape.cast(layout).width) - 1)


def row_type(width: int) -> tuple[np.dtype[Any], int]:
    """Element type and number of elements per row in Verilator's representation of a port.

    A port of up to 64 bits is a number of the smallest unsigned type; a wider port is a sequence of 32-bit words,
    lowest word first.
    """
    for bits in (8, 16, 32, 64):
        if width <= bits:
            return np.dtype(f"uint{bits}"), 1
    return np.dtype("uint32"), -(-width // 32)


def _chunks(offset: int, width: int) -> list[tuple[int, int, int, int]]:
    """Split a field at 32-bit words. For each word: its index, the position of the field in it, the number of field
    bits in earlier words, and the number of field bits in this word."""
    result = []
    done = 0
    while done < width:
        word, shift = divmod(offset + done, 32)
        bits = min(32 - shift, width - done)
        result.append((word, shift, done, bits))
        done += bits
    return result


def pack(layout: data.Layout, values: Mapping[str, Any]) -> np.ndarray:
    """Pack arrays of payload fields into rows of a port.

    Parameters
    ----------
    layout : data.Layout
        Layout of the payload; its fields have at most 64 bits.
    values : mapping
        One array of unsigned numbers per field; the shape is (rows, length) for an array field.
    """
    columns = []
    for path, offset, width in leaves(layout):
        value: Any = values
        for depth, key in enumerate(path):
            if isinstance(key, int):
                value = value[(slice(None), *path[depth:])]
                break
            value = value[key]
        column = np.asarray(value).astype(np.uint64)
        if width < 64 and (column >> np.uint64(width)).any():
            raise ValueError(f"Field {'.'.join(map(str, path))} must be of {width} bits, not {int(column.max())!r}")
        columns.append((offset, width, column))
    words = np.zeros((max(column.size for _, _, column in columns), -(-layout.size // 32)), np.uint32)
    for offset, width, column in columns:
        for word, shift, done, bits in _chunks(offset, width):
            chunk = (column >> np.uint64(done)) & np.uint64((1 << bits) - 1)
            words[:, word] |= (chunk << np.uint64(shift)).astype(np.uint32)
    dtype, per_row = row_type(layout.size)
    if per_row > 1:
        return words
    rows = np.zeros(len(words), np.uint64)
    for word in range(words.shape[1]):
        rows |= words[:, word].astype(np.uint64) << np.uint64(32 * word)
    return rows.astype(dtype)


def unpack(layout: data.Layout, rows: np.ndarray) -> dict[str, Any]:
    """Unpack arrays of payload fields from rows of a port; the inverse of :func:`pack`."""
    if rows.ndim == 1:
        wide = rows.astype(np.uint64)
        words = np.stack([wide & np.uint64(0xffffffff), wide >> np.uint64(32)], axis=1)
    else:
        words = rows.astype(np.uint64)

    def fields(shape: Any, offset: int) -> Any:
        if isinstance(shape, data.ArrayLayout):
            return np.stack([fields(field.shape, offset + field.offset) for _, field in shape], axis=1)
        if isinstance(shape, data.Layout):
            return {key: fields(field.shape, offset + field.offset) for key, field in shape}
        width = Shape.cast(shape).width
        value = np.zeros(len(words), np.uint64)
        for word, shift, done, bits in _chunks(offset, width):
            value |= ((words[:, word] >> np.uint64(shift)) & np.uint64((1 << bits) - 1)) << np.uint64(done)
        return value.astype(row_type(width)[0])

    result: dict[str, Any] = fields(layout, 0)
    return result
