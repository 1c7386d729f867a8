"""Encoding of instruction lists as words, and of fields within instructions."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from amaranth.lib import data

from hdl.features.compute.layer_list import INSTRUCTION_WORDS

__all__ = ["pack", "unpack"]

Bits = npt.NDArray[np.uint32]


def pack(layout: data.StructLayout, fields: Mapping[str, Any]) -> Bits:
    """Pack an instruction's fields into words; missing fields become zero."""
    bits = layout.const(fields).as_bits()
    return np.array([bits >> 32 * word & 0xFFFF_FFFF for word in range(INSTRUCTION_WORDS)], np.uint32)


def unpack(layout: data.StructLayout, words: npt.ArrayLike) -> dict[str, Any]:
    """Unpack an instruction's fields from its words."""
    return _fields(layout, sum(int(word) << 32 * number for number, word in enumerate(np.asarray(words))))


def _fields(layout: data.StructLayout, bits: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, field in layout:
        value = bits >> field.offset & (1 << field.width) - 1
        result[name] = _fields(field.shape, value) if isinstance(field.shape, data.StructLayout) else value
    return result
