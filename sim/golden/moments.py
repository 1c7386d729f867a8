"""Golden model of moments in memory: the words that hold them, and every cycle of the unpacker and the packer.

A packed word holds two bfloat16 moments, the even element in its low half. Elements are binary32 bit patterns.
"""

import dataclasses

import numpy as np
import numpy.typing as npt

from sim.golden import conversion, stream

__all__ = ["Beats", "Trace", "pack", "pack_beats", "trace_packer", "trace_unpacker", "unpack", "unpack_beats"]

Bits = npt.NDArray[np.uint32]
Flags = npt.NDArray[np.bool_]


def pack(elements: npt.ArrayLike) -> Bits:
    """Words of moments, rounded to bfloat16. The last word's upper half is zero where the count is odd."""
    given = np.asarray(elements, np.uint32)
    moments = np.zeros(-(-len(given) // 2) * 2, np.uint16)
    moments[:len(given)] = conversion.to_bfloat16(given)
    return moments.astype("<u2").view("<u4").astype(np.uint32)


def unpack(words: npt.ArrayLike, count: int | None = None) -> Bits:
    """The first ``count`` moments of packed words, or all of them. NaNs keep their bits."""
    given = np.asarray(words, np.uint32)
    elements = np.stack([given << np.uint32(16), given & np.uint32(0xFFFF0000)], axis=1).reshape(-1)
    if count is None:
        return elements
    if not len(elements) - 2 < count <= len(elements):
        raise ValueError(f"Element count must end in the last of {len(given)} words, not {count!r}")
    return elements[:count]


@dataclasses.dataclass(frozen=True)
class Beats:
    """Payloads of a stream: elements and keep of (beats, lanes), and last."""

    elements: Bits
    keep: Flags
    last: Flags

    def __len__(self) -> int:
        return len(self.last)


def unpack_beats(rows: Beats) -> tuple[Beats, npt.NDArray[np.int64]]:
    """Beats of packed rows, and how many of them each row makes."""
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
    """Packed rows of beats, and how many rows each beat completes: one or none."""
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


@dataclasses.dataclass(frozen=True)
class Trace:
    """Handshakes of a unit, cycle by cycle.

    Members
    -------
    i_valid, i_ready, o_valid : array of bool
    offered : array of int
        Per cycle with ``o_valid``, the index of the beat on offer; elsewhere -1.
    """

    i_valid: Flags
    i_ready: Flags
    o_valid: Flags
    offered: npt.NDArray[np.int64]


def _trace(counts: npt.ArrayLike, stages: int, willing: npt.ArrayLike, ready: npt.ArrayLike) -> Trace:
    """Every cycle of a unit which takes beats through some stages into an output register and a spare one.

    It is ready unless the spare register is occupied, and the stages move on then, too. That register is occupied
    from the cycle after the one in which a beat, past the stages, found the output register without room for all that
    it gives, until the last of this is taken there.
    """
    source = np.asarray(willing, np.bool_)
    output = stream.Output(np.asarray(ready, np.bool_))
    end = len(source)
    first_willing = stream.first_from(source)
    i_valid = np.zeros(end, np.bool_)
    occupied = np.zeros(end + 1, np.bool_)

    def free_from(cycle: int) -> int:
        while occupied[min(cycle, end)]:
            cycle += 1
        return min(cycle, end)

    accepted = -1
    for count in np.asarray(counts).tolist():
        valid = first_willing[min(accepted + 1, end)]
        accepted = free_from(valid)
        i_valid[valid:accepted + 1] = True
        past = accepted
        for _ in range(stages):
            past = free_from(past + 1)
        loaded = past
        for _ in range(count):
            loaded = output.load(loaded)
        occupied[past + 1:min(loaded, end - 1) + 1] = True
    return Trace(i_valid=i_valid, i_ready=~occupied[:end], o_valid=output.offered >= 0, offered=output.offered)


def trace_unpacker(counts: npt.ArrayLike, *, willing: npt.ArrayLike, ready: npt.ArrayLike) -> Trace:
    """Every cycle of an unpacker.

    Parameters
    ----------
    counts : array
        Beats that each row makes, as from :func:`unpack_beats`; ones where it is not packed.
    willing : array of cycles
        Whether the source may begin to offer its next row.
    ready : array of cycles
        Whether the sink is ready.
    """
    return _trace(counts, 0, willing, ready)


def trace_packer(counts: npt.ArrayLike, *, willing: npt.ArrayLike, ready: npt.ArrayLike) -> Trace:
    """Every cycle of a packer.

    Parameters
    ----------
    counts : array
        Rows that each beat completes, as from :func:`pack_beats`; ones where it is not packed.
    willing : array of cycles
        Whether the source may begin to offer its next beat.
    ready : array of cycles
        Whether the sink is ready.
    """
    return _trace(counts, 1, willing, ready)
