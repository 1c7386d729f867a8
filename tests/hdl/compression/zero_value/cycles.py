"""Cycle-accurate golden models of encoder and decoder, as recurrences over beats and words.

A beat is accepted as soon as it is valid and there is space for it.
"""

import numpy as np

from sim.golden.stream import Feed, Output, Trace
from sim.golden.zero_value import GROUP


class _Input:
    """Input register of a unit; a beat leaves it as soon as the unit has space for it."""

    def __init__(self, count, willing):
        self.feed, self._free = Feed(count, willing), 0

    def accept(self, room):
        """Return the cycle in which the next beat leaves the register; ``room`` is the earliest possible cycle."""
        self._free = max(self.feed.accept(self._free) + 1, room)
        return self._free

    def repeat(self, room):
        """Process the beat in the register once more, and return the cycle in which this happens."""
        self._free = max(self._free + 1, room)
        return self._free

    def trace(self, room, output):
        """Return the handshakes of all cycles; call this after the last beat."""
        self.accept(room)
        return Trace(self.feed.valid, self.feed.ready, output.offered >= 0, output.offered)


def trace_encoder(elements, keep, last, *, depth, willing, ready):
    """Trace all cycles of an encoder that holds ``depth`` beats plus one in its output stage."""
    present = (np.where(keep, elements, 0).astype(np.uint32) & 0x7FFF_FFFF) != 0
    beats = GROUP // present.shape[1]
    source, output = _Input(len(present), willing), Output(ready)
    fetched = []  # for each stored beat, the cycle in which it leaves the memory
    exhausted = 0  # cycle in which the beat in the output stage is done
    masked = -1  # cycle in which the last mask was loaded
    group = []  # stored beats of this group, as (cycle, number of nonzero elements)
    beat = 0

    def room():
        """First cycle in which there is space for the next beat."""
        stored = len(fetched) + len(group)
        return max(fetched[stored - depth] + 1 if stored >= depth else 0, masked + 1 if beat == beats - 1 else 0)

    for row, ending in zip(present, last, strict=True):
        accepted = source.accept(room())
        if row.any():
            group.append((accepted, np.count_nonzero(row)))
        beat += 1
        while ending and beat < beats:
            accepted = source.repeat(room())
            beat += 1
        if beat < beats:
            continue
        masked = output.load(accepted + 1)
        for stored, values in group:
            fetched.append(max(stored + 1, exhausted))
            for _ in range(values):
                exhausted = output.load(0)
        group, beat = [], 0
    return source.trace(room(), output)


def trace_decoder(words, *, lanes, depth, willing, ready):
    """Trace all cycles of a decoder of whole groups that holds ``depth`` beats plus one being collected."""
    source, output = _Input(len(words), willing), Output(ready)
    taken = []  # for each stored beat, the cycle in which it leaves the memory
    opened = -1  # cycle in which the last group's mask was consumed to output the group
    closed = 0  # cycle in which the last beat of that group was loaded
    start = 0
    while start < len(words):
        counts = (int(words[start]) >> np.arange(GROUP) & 1).reshape(-1, lanes).sum(axis=1).tolist()
        opened = max(source.accept(opened + 1) + 1, closed)
        available, stored = [], len(taken)  # first cycle in which each beat is available
        for count in counts:
            accepted = opened
            for _ in range(count):
                accepted = source.accept(taken[stored - depth] + 1 if stored >= depth else 0)
            available.append(max(accepted, opened) + 1)
            stored += count > 0
        for count, cycle in zip(counts, available, strict=True):
            closed = output.load(cycle)
            if count:
                taken.append(closed)
        start += 1 + sum(counts)
    return source.trace(opened + 1, output)
