"""Golden model of signs with a shared power of two: conversion between packets of elements and of words."""

import dataclasses

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint32]

_NAN = np.uint32(0x7FC0_0000)
#: Number of bits of a block: an exponent, and one sign per element.
_BITS = 8 + 32


@dataclasses.dataclass(frozen=True)
class Signs:
    """Blocks of 32 signs that share the exponent of the block's largest number.

    Numbers below 2 ** -126 are treated as zeros. A block of zeros keeps its signs; a block that contains an infinity
    or a NaN is entirely NaN. Missing elements of the last block are +0.
    """

    block = 32

    def words(self, count: int) -> int:
        """Return the number of words of a packet of ``count`` elements."""
        return -(-(-(-count // self.block) * _BITS) // 32)

    def encode(self, bits: npt.ArrayLike) -> Bits:
        elements = np.asarray(bits, np.uint32)
        blocks = np.zeros((-(-len(elements) // self.block), self.block), np.uint32)
        blocks.reshape(-1)[:len(elements)] = elements
        exponents = (blocks >> 23 & 0xFF).max(axis=1, initial=0)
        signs = np.where(exponents[:, np.newaxis] == 255, 0, blocks >> 31)
        fields = np.concatenate([exponents[:, np.newaxis] >> np.arange(8) & 1, signs], axis=1).astype(np.uint8)
        packed = np.packbits(fields.reshape(-1), bitorder="little")
        return np.pad(packed, (0, -len(packed) % 4)).view("<u4").astype(np.uint32)

    def decode(self, words: npt.ArrayLike, count: int | None = None) -> Bits:
        """Return the first ``count`` elements of a packet of words; by default all elements of its blocks."""
        fields = np.unpackbits(np.asarray(words, "<u4").view(np.uint8), bitorder="little")
        blocks = fields[:len(fields) // _BITS * _BITS].reshape(-1, _BITS).astype(np.uint32)
        exponents = (blocks[:, :8] << np.arange(8, dtype=np.uint32)).sum(axis=1, dtype=np.uint32)[:, np.newaxis]
        numbers = np.where(exponents == 255, _NAN, blocks[:, 8:] << np.uint32(31) | exponents << np.uint32(23))
        elements: Bits = numbers.astype(np.uint32).reshape(-1)[:count]
        return elements
