"""Golden models of every cycle of encoder and decoder: recurrences over beats and words.

A beat is accepted as soon as it is valid and there is room, and room is made by the loads before it.
"""

import numpy as np

from sim.golden.stream import Feed, Output, Trace
from sim.golden.zero_value import GROUP


class _Input:
    """Input register, which a beat leaves when there is room for it."""

    def __init__(self, count, willing):
        self.feed, self._free = Feed(count, willing), 0

    def accept(self, room):
        """Cycle in which the next beat leaves the register, free to leave from the given cycle on."""
        self._free = max(self.feed.accept(self._free) + 1, room)
        return self._free

    def repeat(self, room):
        """Cycle in which the beat in the register is processed once more."""
        self._free = max(self._free + 1, room)
        return self._free

    def trace(self, room, output):
        """Every cycle, after the last beat."""
        self.accept(room)
        return Trace(self.feed.valid, self.feed.ready, output.offered >= 0, output.offered)


def trace_encoder(elements, keep, last, *, depth, willing, ready):
    """Trace every cycle of an encoder that holds ``depth`` beats in addition to the one being written."""
    present = (np.where(keep, elements, 0).astype(np.uint32) & 0x7FFF_FFFF) != 0
    beats = GROUP // present.shape[1]
    given, output = _Input(len(present), willing), Output(ready)
    fetched = []  # per stored beat, the cycle in which it leaves the memory
    exhausted = 0  # when the beat that is being written has been
    masked = -1  # when the last mask was loaded
    group = []  # the stored beats of this group: when, and their non-zero elements
    beat = 0

    def room():
        """Cycle from which on the next beat finds room."""
        stored = len(fetched) + len(group)
        return max(fetched[stored - depth] + 1 if stored >= depth else 0, masked + 1 if beat == beats - 1 else 0)

    for row, ending in zip(present, last, strict=True):
        accepted = given.accept(room())
        if row.any():
            group.append((accepted, np.count_nonzero(row)))
        beat += 1
        while ending and beat < beats:
            accepted = given.repeat(room())
            beat += 1
        if beat < beats:
            continue
        masked = output.load(accepted + 1)
        for stored, values in group:
            fetched.append(max(stored + 1, exhausted))
            for _ in range(values):
                exhausted = output.load(0)
        group, beat = [], 0
    return given.trace(room(), output)


def trace_decoder(words, *, lanes, depth, willing, ready):
    """Trace every cycle of a decoder of whole groups, which holds ``depth`` beats in addition to the one being
    collected."""
    given, output = _Input(len(words), willing), Output(ready)
    taken = []  # per stored beat, the cycle in which it leaves the memory
    opened = -1  # when the mask of the last group was taken to be written
    closed = 0  # when its last beat was loaded
    start = 0
    while start < len(words):
        counts = (int(words[start]) >> np.arange(GROUP) & 1).reshape(-1, lanes).sum(axis=1).tolist()
        opened = max(given.accept(opened + 1) + 1, closed)
        available, stored = [], len(taken)  # per beat, the cycle from which on it is there
        for count in counts:
            accepted = opened
            for _ in range(count):
                accepted = given.accept(taken[stored - depth] + 1 if stored >= depth else 0)
            available.append(max(accepted, opened) + 1)
            stored += count > 0
        for count, cycle in zip(counts, available, strict=True):
            closed = output.load(cycle)
            if count:
                taken.append(closed)
        start += 1 + sum(counts)
    return given.trace(opened + 1, output)
