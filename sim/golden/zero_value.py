"""Golden model of zero-value compression: words, sums of words, and every cycle of the encoder and the decoder.

Streams are arrays of ``uint32`` words; ``last`` is on the last of them. Elements are bit patterns.

The cycle models are recurrences over beats and words. A unit with one output register loads word w when the word is
there and its predecessor has departed, offers it one cycle later, and it departs in the first cycle from there on in
which the sink is ready::

    load(w) = max(available(w), depart(w - 1)),  depart(w) = first ready cycle from load(w) + 1 on

A beat is accepted as soon as it is valid and there is room, and room is made by the loads before it.
"""

import dataclasses

import numpy as np
import numpy.typing as npt

from sim.golden import floating

__all__ = ["GROUP", "Trace", "add", "add_cycles", "code_cycles", "decode", "encode", "group_sizes", "trace_decoder",
           "trace_encoder"]

Bits = npt.NDArray[np.uint32]
Flags = npt.NDArray[np.bool_]

#: Elements that one mask word covers.
GROUP = 32


def encode(elements: npt.ArrayLike) -> Bits:
    """Compress elements. A partial last group is filled with zeros; no elements at all are no words."""
    given = np.asarray(elements, dtype=np.uint32)
    groups = np.zeros((-(-len(given) // GROUP), GROUP), np.uint32)
    groups.reshape(-1)[:len(given)] = given
    present = (groups & 0x7FFF_FFFF) != 0
    masks = np.packbits(present, axis=1, bitorder="little").view("<u4")
    words = np.concatenate([masks, groups], axis=1)
    wanted: Flags = np.concatenate([np.ones_like(masks, np.bool_), present], axis=1)
    compressed: Bits = words[wanted]
    return compressed


def decode(words: npt.ArrayLike, count: int | None = None) -> Bits:
    """Expand words into ``count`` elements, or into whole groups."""
    given = np.asarray(words, dtype=np.uint32)
    groups = []
    start = 0
    while start < len(given):
        present = _present(given[start])
        stop = start + 1 + int(present.sum())
        if stop > len(given):
            raise ValueError(f"Stream must end with a whole group, not inside of the one at word {start!r}")
        group = np.zeros(GROUP, np.uint32)
        group[present] = given[start + 1:stop]
        groups.append(group)
        start = stop
    elements = np.concatenate(groups) if groups else np.zeros(0, np.uint32)
    if count is None:
        return elements
    if not len(elements) - GROUP < count <= len(elements):
        raise ValueError(f"Element count must end in the last group of {len(elements)} elements, not {count!r}")
    return elements[:count]


def add(a: npt.ArrayLike, b: npt.ArrayLike) -> Bits:
    """Compressed sum of two compressed streams with equally many groups. A sum of zero clears its mask bit."""
    left, right = decode(a), decode(b)
    if len(left) != len(right):
        raise ValueError(f"Streams must have equally many groups, not {len(left) // GROUP!r} and "
                         f"{len(right) // GROUP!r}")
    return encode(floating.add(left, right))


def group_sizes(words: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Words of each group of a stream, its mask included."""
    given = np.asarray(words, dtype=np.uint32)
    sizes = []
    start = 0
    while start < len(given):
        sizes.append(1 + int(given[start]).bit_count())
        start += sizes[-1]
    return np.array(sizes, np.int64)


def code_cycles(words: npt.ArrayLike, lanes: int) -> int:
    """Least cycles in which ``lanes`` elements per cycle become, or come out of, a stream of one word per cycle."""
    return int(np.maximum(group_sizes(words), GROUP // lanes).sum())


def add_cycles(a: npt.ArrayLike, b: npt.ArrayLike) -> int:
    """Least cycles in which two streams are added, at one position of the union of their masks per cycle."""
    positions = (decode(a) != 0) | (decode(b) != 0)
    return len(positions) // GROUP + int(positions.sum())


def _present(mask: int) -> Flags:
    return (int(mask) >> np.arange(GROUP) & 1).astype(np.bool_)


@dataclasses.dataclass(frozen=True)
class Trace:
    """Handshakes of a unit, cycle by cycle. Payload is zero where ``o_valid`` is not set."""

    i_valid: Flags
    i_ready: Flags
    o_valid: Flags
    o_payload: Bits
    o_last: Flags


class _Cycles:
    """Cycles of a trace under construction."""

    def __init__(self, willing: npt.ArrayLike, ready: npt.ArrayLike, columns: int) -> None:
        pattern = np.asarray(ready, np.bool_)
        self.end = len(pattern)
        self._ready = self._first(pattern)
        self._willing = self._first(np.asarray(willing, np.bool_))
        self.trace = Trace(
            i_valid=np.zeros(self.end, np.bool_), i_ready=np.zeros(self.end, np.bool_),
            o_valid=np.zeros(self.end, np.bool_), o_payload=np.zeros((self.end, columns), np.uint32),
            o_last=np.zeros(self.end, np.bool_))
        self._accepted = -1
        self._free = 0  # from this cycle on, the input register takes a beat
        self._departed = 0

    @staticmethod
    def _first(pattern: Flags) -> list[int]:
        """First cycle from each cycle on in which the pattern is set, or else the end."""
        end = len(pattern)
        cycles = np.where(pattern, np.arange(end), end)
        return [*np.minimum.accumulate(cycles[::-1])[::-1].tolist(), end]

    def accept(self, room: int, *, offered: bool = True) -> int:
        """Cycle in which the next beat leaves the input register, free to leave from the given cycle on.

        With ``offered`` false there is no next beat, and the unit stays ready.
        """
        valid = self._willing[min(self._accepted + 1, self.end)] if offered else self.end
        self._accepted = max(valid, self._free)
        self.trace.i_valid[valid:self._accepted + 1] = True
        self.trace.i_ready[self._free:self._accepted + 1] = True
        self._free = max(self._accepted + 1, room)
        return self._free

    def repeat(self, room: int) -> int:
        """Cycle in which the beat in the input register is processed once more."""
        self._free = max(self._free + 1, room)
        return self._free

    def load(self, available: int, payload: npt.ArrayLike, last: bool) -> int:
        """Cycle in which the output register takes its next word, present from the given cycle on."""
        loaded = max(available, self._departed)
        self._departed = self._ready[min(loaded + 1, self.end)]
        offered = slice(loaded + 1, self._departed + 1)
        self.trace.o_valid[offered] = True
        self.trace.o_payload[offered] = payload
        self.trace.o_last[offered] = last
        return loaded


def trace_encoder(elements: npt.ArrayLike, keep: npt.ArrayLike, last: npt.ArrayLike, *, depth: int,
                  willing: npt.ArrayLike, ready: npt.ArrayLike) -> Trace:
    """Trace every cycle of an encoder.

    Parameters
    ----------
    elements : array of (beats, lanes)
        Elements of every beat.
    keep : array of (beats, lanes)
        Whether they are kept.
    last : array of beats
        Whether a beat ends its stream.
    depth : int
        Beats that the unit holds besides the one being written.
    willing : array of cycles
        Whether the source may begin to offer its next beat.
    ready : array of cycles
        Whether the sink is ready.
    """
    rows = np.where(keep, elements, 0).astype(np.uint32)
    present = (rows & 0x7FFF_FFFF) != 0
    beats = GROUP // rows.shape[1]
    cycles = _Cycles(willing, ready, 1)
    fetched: list[int] = []  # per stored beat, the cycle in which it leaves the memory
    exhausted = 0  # when the beat that is being written has been
    masked = -1  # when the last mask was loaded
    group: list[tuple[int, Bits]] = []  # the stored beats of this group: when, and their non-zero elements
    bits = np.zeros(GROUP, np.bool_)
    beat = 0

    def room() -> int:
        """Cycle from which on the next beat finds room."""
        stored = len(fetched) + len(group)
        place = fetched[stored - depth] + 1 if stored >= depth else 0
        return max(place, masked + 1 if beat == beats - 1 else 0)

    for index in range(len(rows)):
        accepted = cycles.accept(room())
        ending = bool(last[index])  # type: ignore[index]
        if present[index].any():
            group.append((accepted, rows[index, present[index]]))
        bits[beat * rows.shape[1]:(beat + 1) * rows.shape[1]] = present[index]
        beat += 1
        while ending and beat < beats:
            accepted = cycles.repeat(room())
            beat += 1
        if beat < beats:
            continue
        values = [value for _, row in group for value in row]
        mask = int(np.packbits(bits, bitorder="little").view("<u4")[0])
        masked = cycles.load(accepted + 1, mask, ending and not values)
        left = len(values)
        for stored, row in group:
            fetched.append(max(stored + 1, exhausted))
            for value in row:
                left -= 1
                exhausted = cycles.load(0, value, ending and not left)
        group, beat = [], 0
        bits[:] = False
    cycles.accept(room(), offered=False)
    return cycles.trace


def trace_decoder(words: npt.ArrayLike, last: npt.ArrayLike, *, lanes: int, depth: int, willing: npt.ArrayLike,
                  ready: npt.ArrayLike) -> Trace:
    """Trace every cycle of a decoder whose streams are sound.

    Parameters
    ----------
    words : array
        Words of one or more streams of whole groups.
    last : array
        Whether a word ends its stream.
    lanes : int
        Elements per beat.
    depth : int
        Beats that the unit holds besides the one being collected.
    willing : array of cycles
        Whether the source may begin to offer its next word.
    ready : array of cycles
        Whether the sink is ready.
    """
    given = np.asarray(words, np.uint32)
    ends = np.asarray(last, np.bool_)
    cycles = _Cycles(willing, ready, lanes)
    taken: list[int] = []  # per stored beat, the cycle in which it leaves the memory
    opened = -1  # when the mask of the last group was taken to be written
    closed = 0  # when its last beat was loaded
    start = 0
    while start < len(given):
        present = _present(given[start]).reshape(-1, lanes)
        count = int(present.sum())
        elements = np.zeros((len(present), lanes), np.uint32)
        elements[present] = given[start + 1:start + 1 + count]
        opened = max(cycles.accept(opened + 1) + 1, closed)
        available = []  # per beat, the cycle from which on it is there
        stored = len(taken)
        for row in present:
            accepted = opened
            for _ in range(int(row.sum())):
                accepted = cycles.accept(taken[stored - depth] + 1 if stored >= depth else 0)
            available.append(max(accepted, opened) + 1)
            stored += int(row.any())
        ending = [False] * (len(present) - 1) + [bool(ends[start + count])]
        for row, beat, cycle, final in zip(present, elements, available, ending, strict=True):
            closed = cycles.load(cycle, beat, final)
            if row.any():
                taken.append(closed)
        start += 1 + count
    cycles.accept(opened + 1, offered=False)
    return cycles.trace
