"""Golden model of codes that are packed into bytes as bit planes, and of codes packed into words."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["GROUP", "PLANE", "bytes_to_words", "field_bytes", "fields", "pack", "unpack", "word_count"]

Bits = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]

#: Number of codes that contribute one bit each to a byte of a plane.
PLANE = 8
#: Number of codes in a group: packets consist of whole groups, and a group fills whole words.
GROUP = 32


def pack(codes: npt.ArrayLike, width: int) -> Bits:
    """Pack codes of a given width into words. A partial last group is padded with zeros."""
    values = np.asarray(codes, np.uint32)
    padded = np.zeros(-(-len(values) // GROUP) * GROUP, np.uint32)
    padded[:len(values)] = values
    places = np.arange(width, dtype=np.uint32)
    planes = padded.reshape(-1, 1, PLANE) >> places[:, np.newaxis] & 1
    return bytes_to_words(np.packbits(planes.astype(np.uint8), axis=2, bitorder="little").reshape(-1))


def unpack(words: npt.ArrayLike, width: int) -> Bits:
    """Unpack codes from words, in whole groups."""
    packed = np.asarray(words, np.uint32)
    if width == 0:
        raise ValueError(f"Code width must be a positive integer, not {width!r}")
    if len(packed) % width:
        raise ValueError(f"Words must be a multiple of {width}, not {len(packed)!r}")
    planes = np.unpackbits(packed.astype("<u4").view(np.uint8), bitorder="little").reshape(-1, width, PLANE)
    places = np.arange(width, dtype=np.uint32)
    codes: Bits = (planes.astype(np.uint32) << places[:, np.newaxis]).sum(axis=1, dtype=np.uint32)
    return codes.reshape(-1)


def bytes_to_words(data: npt.ArrayLike) -> Bits:
    """Convert bytes to words, lowest byte first. The last word is padded with zeros."""
    data = np.asarray(data, np.uint8)
    padded = np.zeros(-(-len(data) // 4) * 4, np.uint8)
    padded[:len(data)] = data
    words: Bits = padded.view("<u4").astype(np.uint32)
    return words


def field_bytes(values: Sequence[int] | npt.NDArray[np.integer], width: int) -> Bytes:
    """Pack numbers of ``width`` bits into bytes, without gaps and with the lowest bit first."""
    numbers = np.asarray(values, np.uint64)
    bits = numbers[:, np.newaxis] >> np.arange(width, dtype=np.uint64) & np.uint64(1)
    return np.packbits(bits.astype(np.uint8).reshape(-1), bitorder="little")


def fields(data: npt.ArrayLike, width: int, count: int) -> Bits:
    """Unpack numbers of ``width`` bits from bytes: the inverse of :func:`field_bytes`."""
    bits = np.unpackbits(np.asarray(data, np.uint8), bitorder="little")[:count * width].reshape(count, width)
    values: Bits = (bits.astype(np.uint32) << np.arange(width, dtype=np.uint32)).sum(axis=1, dtype=np.uint32)
    return values


def word_count(lanes: int, width: int) -> int:
    """Number of words per beat of a packed stream: enough for the codes, rounded up to a power of two."""
    return max(1, 1 << (-(-lanes * width // 32) - 1).bit_length())
