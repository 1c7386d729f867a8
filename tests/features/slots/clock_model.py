"""Cycle-accurate golden model of :mod:`hdl.features.slots.clock` and the messages of docs/ring/slots.md.

The attributes of :class:`Clock` are the unit's outputs in the current cycle; ``step`` applies inputs and advances.
"""

import dataclasses

from sim.golden.features.replay.control_words import Message

_SYNC = 6
_SINGLE = (1, 2, 4, 7, 8)
_TIMES = 1 << 32
_NUMBERS, _FOLLOWS = 16, 1 << 15
_FRACTION = 1 << 20
_PATIENCE = 255


def sync_word(number: int) -> int:
    return _SYNC | number << 12


def follow_words(number: int, time: int, rounds: int) -> list[int]:
    """Words of the FOLLOW message with the departure time of SYNC ``number``."""
    return [_SYNC | 2 << 4 | (number | _FOLLOWS) << 12, time % _TIMES, rounds]


@dataclasses.dataclass(frozen=True)
class Link:
    """State of the link to the successor in one cycle."""

    departed: int = 0  # a SYNC first appears on the wires
    repaired: int = 0  # a word is repeated, or a RESTART is sent
    settled: int = 1  # whether all words have been acknowledged
    round: int = 0  # round-trip time of the wires


class Departures:
    """Detector for SYNC messages on the wires."""

    def __init__(self) -> None:
        self._left = 0

    def step(self, *, fresh: int, kind: int, data: int, reset_link: int = 0) -> int:
        """Advance one cycle; return whether a SYNC leaves on the wires."""
        departs = 0
        if fresh and kind:
            if self._left:
                self._left -= 1
            else:
                self._left = 0 if data & 15 in _SINGLE else data >> 4 & 3
                departs = int(data & 15 == _SYNC and self._left == 0)
        if reset_link:
            self._left = 0
        return departs


class Clock:
    """Model of a node's TIME, and of how the node passes SYNC messages around the ring."""

    def __init__(self, *, period: int, arrival: int) -> None:
        self._period, self._arrival = period, arrival
        # TIME is the cycle count, plus an offset from the latest FOLLOW and later shifts, delayed by two cycles.
        self.time, self._both = 0, 1
        self._cycles, self._offset, self._moved = -arrival, 0, arrival + 2
        self._drifted = self._step = 0
        self._came = self._left = self._base = self._rounds = 0
        self._restart()

    def _restart(self) -> None:
        self.o: Message | None = None
        self.valid = self.way = self.error = self.looped = 0
        self._count = self._number = 0
        # State of the node's own SYNC: to be offered, offered but not sent, sent, or disturbed by a repetition;
        # followed by the number of cycles since the SYNC left.
        self._pending = self._handed = self._gone = self._spoiled = False
        self._waited, self._patient = 0, False
        # Whether a FOLLOW is expected, whether a period has passed since then, whether the FOLLOW has arrived, and
        # whether the node has offered a FOLLOW of its own.
        self._awaited = self._old = self._heard = False
        self._followed = True
        self._capture: int | None = None  # cycles until the departure time is captured
        self._leaving = 0  # number of FOLLOW words still to be offered
        self._due = 0  # number of FOLLOW words still to be received
        self._sets = self._loads = self._valids = False

    def step(self, *, word: Message | None = None, ready: int = 1, rank: int = 0, size: int = 0,
             link: Link = Link(), drift: int = 0, shift: int | None = None, reset_link: int = 0) -> None:
        """Advance one cycle, given the received word, whether the output is ready, and the link state."""
        master, busy = rank == 0, self._pending or self._handed
        taking, followed, heard = self._leaving == 0, self._followed, self._heard
        departs, cycles = bool(link.departed) and self._handed, self._cycles
        set_to = self._base + (self._rounds >> 1)
        self._count_time(master, set_to, drift, shift)
        self.looped = int(self._sets and master)
        if self.looped:
            self.error, self.way = set_to % (1 << 16), self._rounds >> 1
        if self._loads:
            self.way, self._heard = self._rounds >> 1, True
        if self._valids:
            self.valid = 1
        self._sets, self._loads, self._valids = False, self._sets and not master, self._loads

        overdue = self._patient or self._waited == link.round + _PATIENCE
        if self.o is None or ready:
            self._send(master or heard, overdue, link)
        due = self._count == self._period - 1
        self._count = (self._count + 1) % self._period
        if due:
            self._old, self._awaited = self._awaited, self._awaited and not self._old
        if word is not None:
            self._hear(word, master, busy, taking and followed == master)
        if self._capture == 0:
            self._left = cycles
        self._capture = self._capture - 1 if self._capture else None
        self._waited, self._patient = (self._waited + 1) % 4096, overdue
        if departs:
            self._handed, self._gone, self._spoiled = False, True, False
            self._waited, self._patient, self._capture = 0, False, self._arrival - 1
            if master:
                self._base = self._rounds = 0
                self.valid = 1
        else:
            self._spoiled |= bool(link.repaired)
        if due and master and size > 1 and not busy and taking:
            self._number = (self._number + 1) % _NUMBERS
            self._pending, self._gone, self._awaited, self._followed = True, False, False, False
            self._due = 0
        self._cycles += 1
        if reset_link:
            self._restart()

    def _count_time(self, master: bool, set_to: int, drift: int, shift: int | None) -> None:
        """Compute TIME for the next cycle; on rank 0, TIME is the cycle count."""
        self.time = (self._both + self._offset) % _TIMES
        self._both = self._cycles + self._moved
        self._moved = self._arrival + 2 if master or self._sets else self._moved + self._step
        self._offset = 0 if master else set_to if self._loads else self._offset
        self._step = (self._drifted + drift) // _FRACTION if shift is None else shift
        self._drifted = (self._drifted + drift) % _FRACTION

    def _send(self, heard: bool, overdue: bool, link: Link) -> None:
        """Offer the next message, if any, in the next cycle."""
        sure = self._gone and not self._spoiled and self._capture is None and (link.settled or overdue)
        words = follow_words(self._number, self._base + self._left, (self._rounds + link.round) % (1 << 16))
        self.o = None
        if self._leaving:
            self.o = Message(words[-self._leaving], 0, int(self._leaving == 1))
            self._leaving -= 1
        elif self._pending:
            self.o = Message(sync_word(self._number), 1, 1)
            self._pending, self._handed = False, True
        elif sure and not self._followed and heard:
            self.o = Message(words[0], 1, 0)
            self._leaving, self._followed = 2, True

    def _hear(self, word: Message, master: bool, busy: bool, takes: bool) -> None:
        """Accept a word from the predecessor."""
        if not word.first:
            if self._due == 2:
                self._base = word.data - self._came
            elif self._due == 1:
                self._rounds, self._sets = word.data & 0xFFFF, True
            self._due = max(self._due - 1, 0)
            return
        self._due = 0
        words, tag = word.data >> 4 & 255, word.data >> 12 & 0xFFFF
        same = tag % _NUMBERS == self._number
        if word.data & 15 != _SYNC or word.data >> 28:
            return
        if words == 0 and not tag & _FOLLOWS:
            self._awaited, self._old = same if master else not busy, False
            if self._awaited:
                self._came = self._cycles
            if self._awaited and not master:
                self._number, self._pending, self._gone = tag % _NUMBERS, True, False
                self._heard = self._followed = False
        elif words == 2 and tag & _FOLLOWS and same:
            if self._awaited and takes:
                self._due = 2
            self._awaited = False
