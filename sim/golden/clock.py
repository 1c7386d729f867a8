"""Golden model of the clock of a node and of the SYNCs that set it, cycle by cycle.

Mirrors :mod:`hdl.ring.slots.clock`; docs/ring/time.md has the messages. What the unit shows in a cycle are the
attributes of :class:`Clock`; ``step`` takes the inputs of the cycle and goes on to the next one.
"""

import dataclasses

from sim.golden.control_words import Message

__all__ = ["Clock", "Departures", "Link", "follow_words", "sync_word"]

_SYNC = 6
_SINGLE = (1, 2, 4, 7, 8)
_TIMES = 1 << 32
_NUMBERS = 1 << 15
_FRACTION = 1 << 20
_STALE = 1 << 15
_PATIENCE = 255


def sync_word(number: int) -> int:
    """SYNC of this number."""
    return _SYNC | number << 12


def follow_words(number: int, time: int, rounds: int) -> list[int]:
    """Words of the FOLLOW that says when the SYNC of this number left."""
    return [_SYNC | 2 << 4 | (number | _NUMBERS) << 12, time % _TIMES, rounds]


@dataclasses.dataclass(frozen=True)
class Link:
    """State of the link to the successor in a cycle: a SYNC is on its wires for the first time; a word is repeated,
    or a RESTART is there; all words have arrived; the round trip of its wires."""

    departed: int = 0
    repaired: int = 0
    settled: int = 1
    round: int = 0


class Departures:
    """The watch for SYNCs on the wires."""

    def __init__(self) -> None:
        self._left = 0

    def step(self, *, fresh: int, kind: int, data: int, reset_link: int = 0) -> int:
        """Whether a SYNC is on the wires in this cycle."""
        found = 0
        if fresh and kind:
            if self._left:
                self._left -= 1
            else:
                self._left = 0 if data & 15 in _SINGLE else data >> 4 & 255
                found = int(data & 15 == _SYNC and self._left == 0)
        if reset_link:
            self._left = 0
        return found


class Clock:
    """TIME of a node, and its part in the laps of SYNCs.

    Parameters
    ----------
    period : int
        Cycles from one SYNC of rank 0 to the next.
    arrival : int
        Cycles from a word on the wires to its offer at the unit.
    """

    def __init__(self, *, period: int, arrival: int) -> None:
        self._period, self._arrival = period, arrival
        self.time = self._drifted = 0
        self._restart()

    def _restart(self) -> None:
        self.o: Message | None = None
        self.valid = self.way = self.error = self.looped = 0
        self._count = self._number = 0
        # Of the own SYNC: it is to be offered; it was, and has not left; it has; a word was repeated since.
        self._pending = self._handed = self._gone = self._spoiled = False
        # Of FOLLOW: one is to come; it has; the own one was offered.
        self._awaited = self._heard = False
        self._followed = True
        self._age = self._residence = self._wait = 0
        self._base = self._rounds = 0
        self._leaving = 0  # words of a FOLLOW that have not been offered
        self._due = 0  # words of a FOLLOW that are to come
        self._sets: int | None = None  # what is added to the base to set the time

    def step(self, *, word: Message | None = None, ready: int = 1, rank: int = 0, size: int = 0,
             link: Link = Link(), drift: int = 0, shift: int | None = None, reset_link: int = 0) -> None:
        """One cycle, with the word on offer, the willingness of the one that takes words, and the link."""
        following = self.time + (1 + (self._drifted + drift) // _FRACTION if shift is None else shift)
        self._drifted = (self._drifted + drift) % _FRACTION
        master, busy, age = rank == 0, self._pending or self._handed, self._age
        taking, followed = self._leaving == 0, self._followed
        departs = bool(link.departed) and self._handed
        self.looped = 0
        sets, self._sets = self._sets, None
        if sets is not None:
            target = self._base + sets
            self.way = self._rounds >> 1
            if master:
                self.looped, self.error = 1, (target - following) % (1 << 16)
            else:
                following, self.valid, self._heard = target, 1, True

        if self.o is None or ready:
            self._send(master, self._heard and sets is None, link)
        self._age = age if age >= _STALE else age + 1
        if word is not None:
            self._hear(word, master, busy, age, taking and followed == master)
        if departs:
            self._handed, self._gone, self._spoiled = False, True, False
            self._residence, self._wait = 0 if master else age, link.round + _PATIENCE
            if master:
                self._base, self._rounds, self.valid = self.time, 0, 1
        else:
            self._spoiled |= bool(link.repaired)
            self._wait = max(self._wait - 1, 0)

        due = self._count == self._period - 1
        self._count = (self._count + 1) % self._period
        if due and master and size > 1 and not busy and taking:
            self._number = (self._number + 1) % _NUMBERS
            self._pending, self._gone, self._awaited, self._followed = True, False, False, False
        self.time = following % _TIMES
        if reset_link:
            self._restart()

    def _send(self, master: bool, heard: bool, link: Link) -> None:
        """Offer a message in the next cycle, if there is one."""
        sure = self._gone and not self._spoiled and (link.settled or self._wait == 0)
        words = follow_words(self._number, self._base + self._residence, self._rounds + link.round)
        self.o = None
        if self._leaving:
            self.o = Message(words[-self._leaving], 0, int(self._leaving == 1))
            self._leaving -= 1
        elif self._pending:
            self.o = Message(sync_word(self._number), 1, 1)
            self._pending, self._handed = False, True
        elif sure and not self._followed and (master or heard):
            self.o = Message(words[0], 1, 0)
            self._leaving, self._followed = 2, True

    def _hear(self, word: Message, master: bool, busy: bool, age: int, takes: bool) -> None:
        """Take what comes from the predecessor."""
        if not word.first:
            if self._due == 2:
                self._base = (word.data + self._arrival) % _TIMES
            elif self._due == 1:
                self._rounds = word.data & 0xFFFF
                self._sets = (self._rounds >> 1) + age + 2
            self._due = max(self._due - 1, 0)
            return
        self._due = 0
        words, number = word.data >> 4 & 255, word.data >> 12 & 0xFFFF
        if word.data & 15 != _SYNC or word.data >> 28:
            return
        if words == 0 and number < _NUMBERS:
            if master:
                self._awaited = number == self._number
            else:
                self._awaited = not busy
                if not busy:
                    self._number, self._pending, self._gone = number, True, False
                    self._heard = self._followed = False
            if self._awaited:
                self._age = 1
        elif words == 2 and number == self._number | _NUMBERS:
            if self._awaited and takes and age < _STALE:
                self._due = 2
            self._awaited = False
