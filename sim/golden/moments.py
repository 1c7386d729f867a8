"""Golden model of packed optimizer moments in memory.

A packed word holds two bfloat16 moments, with the even element in the low half. Elements are binary32 bit patterns.
"""

import dataclasses

import numpy as np
import numpy.typing as npt

from sim.golden import conversion

__all__ = ["Beats", "pack", "pack_beats", "unpack", "unpack_beats"]

Bits = npt.NDArray[np.uint32]
Flags = npt.NDArray[np.bool_]


def pack(elements: npt.ArrayLike) -> Bits:
    """Pack moments into words, rounded to bfloat16; for an odd count, the last upper half is zero."""
    encodings = np.asarray(elements, np.uint32)
    moments = np.zeros(-(-len(encodings) // 2) * 2, np.uint16)
    moments[:len(encodings)] = conversion.to_bfloat16(encodings)
    return moments.astype("<u2").view("<u4").astype(np.uint32)


def unpack(words: npt.ArrayLike, count: int | None = None) -> Bits:
    """Unpack the first ``count`` moments of the given words, or all of them; NaNs keep their bits."""
    packed = np.asarray(words, np.uint32)
    elements = np.stack([packed << np.uint32(16), packed & np.uint32(0xFFFF0000)], axis=1).reshape(-1)
    if count is None:
        return elements
    if not len(elements) - 2 < count <= len(elements):
        raise ValueError(f"Element count must end in the last of {len(packed)} words, not {count!r}")
    return elements[:count]


@dataclasses.dataclass(frozen=True)
class Beats:
    """Payloads of a stream's beats: ``elements`` and ``keep`` of shape (beats, lanes), and ``last``."""

    elements: Bits
    keep: Flags
    last: Flags

    def __len__(self) -> int:
        return len(self.last)


def unpack_beats(rows: Beats) -> tuple[Beats, npt.NDArray[np.int64]]:
    """Unpack rows into beats; also return the number of beats per row."""
    count, lanes = rows.keep.shape
    halves = Beats(
        elements=unpack(rows.elements.reshape(-1)).reshape(2 * count, lanes),
        keep=np.repeat(rows.keep, 2, axis=1).reshape(2 * count, lanes),
        last=np.zeros(2 * count, np.bool_))
    alone = rows.last & ~rows.keep[:, lanes // 2]
    halves.last[0::2] = alone
    halves.last[1::2] = rows.last
    present = np.ones(2 * count, np.bool_)
    present[1::2] = ~alone
    return Beats(halves.elements[present], halves.keep[present], halves.last[present]), 2 - alone


def pack_beats(beats: Beats) -> tuple[Beats, npt.NDArray[np.int64]]:
    """Pack beats into rows; also return how many rows each beat completes (one or none)."""
    count, lanes = beats.keep.shape
    completes = np.zeros(count, np.int64)
    rows, keep = [], []
    staged = None
    for index in range(count):
        if staged is None and not beats.last[index]:
            staged = index
            continue
        completes[index] = 1
        parts = [index] if staged is None else [staged, index]
        kept = np.zeros(2 * lanes, np.bool_)
        kept[:len(parts) * lanes] = beats.keep[parts].reshape(-1)
        elements = np.zeros(2 * lanes, np.uint32)
        elements[:len(parts) * lanes] = beats.elements[parts].reshape(-1)
        rows.append(pack(np.where(kept, elements, 0)))
        keep.append(kept.reshape(lanes, 2).any(axis=1))
        staged = None
    return Beats(np.array(rows, np.uint32).reshape(-1, lanes), np.array(keep, np.bool_).reshape(-1, lanes),
                 beats.last[completes == 1]), completes
