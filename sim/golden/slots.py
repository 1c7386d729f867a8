"""Golden models of slots: the records of nodes, the table that follows from them, and what uses it, cycle by cycle.

Mirrors hdl/ring/slots/; docs/ring/slots.md has the rules.
"""

import collections
import dataclasses
from collections.abc import Sequence

from sim.golden.control_words import Message

__all__ = ["GAP", "MESSAGE_CYCLES", "MOST_SLOTS", "Path", "Record", "RecordLaps", "Slot", "SlotTable", "Table", "plan"]

_COLLECT, _GRANT = 7, 8
#: Slots of a superframe, cycles between packets of two slots, and cycles of a slot for messages.
MOST_SLOTS, GAP, MESSAGE_CYCLES = 16, 4, 72
_GROUP = 4
_MARGIN = 16
_LAPS = 1 << 12


@dataclasses.dataclass(frozen=True)
class Record:
    """What a node tells the others: packets that it has for its successor and room for those of its predecessor, in
    packets, the words of the longest, and whether it has a message."""

    pending: int = 0
    room: int = 0
    longest: int = 0
    wants: int = 0

    @property
    def word(self) -> int:
        return self.pending | self.room << 5 | self.longest << 10 | self.wants << 22

    @classmethod
    def parse(cls, word: int) -> "Record":
        return cls(word & 31, word >> 5 & 31, word >> 10 & 0xFFF, word >> 22 & 1)


@dataclasses.dataclass(frozen=True)
class Table:
    """Slots for packets, words of the longest, the rank beside 0 that has messages, or 0, and whether that one has
    the first slot for them."""

    slots: int = 0
    longest: int = 0
    other: int = 0
    odd: int = 0

    @classmethod
    def of(cls, records: Sequence[Record], number: int) -> "Table":
        """Table that follows from the records of all ranks."""
        wanting = [rank for rank, record in enumerate(records) if record.wants and rank]
        return cls(min(MOST_SLOTS, *(min(record.pending, record.room) for record in records)),
                   max(record.longest for record in records), wanting[0] if wanting else 0, number % 2)

    @property
    def bits(self) -> int:
        return self.slots | self.longest << 5 | self.other << 17 | self.odd << 21


@dataclasses.dataclass(frozen=True)
class Slot:
    """Cycles of a slot, and the rank whose message it is for; every node has a packet in one without."""

    cycles: int
    owner: int | None = None

    def drives(self, rank: int) -> bool:
        """Whether a node sends its own."""
        return self.owner in (None, rank)

    def passes(self, rank: int, size: int) -> bool:
        """Whether a node hands on what comes in: messages do not go through rank 0."""
        return self.owner is not None and self.owner < rank < size - 1


def plan(table: Table) -> list[Slot]:
    """Slots of a superframe: behind every four for packets, and behind the last, comes one for messages."""
    slots, odd = [], table.odd
    for first in range(0, max(table.slots, 1), _GROUP):
        slots += [Slot(table.longest + GAP)] * min(_GROUP, table.slots - first)
        slots.append(Slot(MESSAGE_CYCLES, table.other if odd else 0))
        odd ^= 1
    return slots


class SlotTable:
    """The slots of a node by its TIME: ``slot`` is on from ``begin`` to the next one, and None without."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the table."""
        self.slot: Slot | None = None
        self.begin = 0
        self._left: list[Slot] | None = None
        self._boundary = 0

    @property
    def active(self) -> int:
        """Whether there is a slot, or will be one."""
        return int(self._left is not None)

    def step(self, *, time: int, table: Table = Table(), target: int = 0, granted: int = 0,
             reset_link: int = 0) -> None:
        """One cycle at a time, with a table that counts from another one."""
        self.begin = 0
        if self._left is None:
            if granted:
                self._left, self._boundary = plan(table), target
        elif not (time - self._boundary) & 0x8000:
            if self._left:
                self.slot = self._left.pop(0)
                self.begin = 1
                self._boundary = (self._boundary + self.slot.cycles) & 0xFFFF
            else:
                self.slot = self._left = None
        if reset_link:
            self.reset()


class RecordLaps:
    """The laps of records, cycle by cycle: COLLECT goes round and comes back as GRANT."""

    def __init__(self) -> None:
        self.reset()
        self.table, self.target = Table(), 0

    def reset(self) -> None:
        """Forget what is under way."""
        self.o: Message | None = None
        self.granted = 0
        self._number = self._lap = 0
        self._asked = False
        self._mine: list[Message] = []  # words of this node that are to be offered
        self._passing: int | None = None  # type of the message that comes
        self._records: list[Record] = []
        self._tag = 0
        self._checks = False
        self._gives = False

    def ready(self, ready: int) -> int:
        """Whether a word is taken."""
        return int((self.o is None or bool(ready)) and not self._mine and not self._gives
                   and not self._checks)

    def step(self, *, word: Message | None = None, ready: int = 1, rank: int = 0, size: int = 0,
             record: Record = Record(), begin: int = 0, time: int = 0, valid: int = 0, way: int = 0,
             reset_link: int = 0) -> None:
        """One cycle, with the word on offer, the willingness of the one that takes words, and the clock."""
        self.granted = int(self._checks and bool(valid) and (self.target - time) % (1 << 32) < 1 << 15)
        takes, asked = self.ready(ready), begin and rank == 0 and size > 1
        self._checks = False
        idle = self._passing is None and not self._mine and not self._gives
        lap = self._lap
        self._lap = min(lap + 1, _LAPS - 1)
        if self.o is None or ready:
            self.o = None
            if self._mine:
                self.o = self._mine.pop(0)
                if len(self._mine) == size - 1:
                    self.o = dataclasses.replace(self.o, data=record.word)
            elif self._gives:
                self._gives = False
                self._finish((time + lap + _MARGIN) % (1 << 32), 0)
                self.o = Message((time + lap + _MARGIN) % (1 << 32), 0, 1)
            elif word is not None and takes:
                self._take(word, rank, size, record, way)
        if asked and idle and not (word is not None and takes):
            self._number = (self._number + 1) % (1 << 16)
            self._asked, self._lap = True, 0
            self._mine = [Message(_COLLECT | size << 4 | self._number << 12, 1, 0)]
            self._mine += [Message(0, 0, int(n == size - 1)) for n in range(size)]
        if reset_link:
            self.reset()

    def _take(self, word: Message, rank: int, size: int, record: Record, way: int) -> None:
        """A word of the predecessor, and what is handed on of it."""
        if word.first:
            type, words, number = word.data & 15, word.data >> 4 & 255, word.data >> 12 & 0xFFFF
            self._passing = None
            if word.data >> 28 or size < 2:
                return
            if type == _COLLECT and words == size and (rank or (self._asked and number == self._number)):
                self._passing, self._records, self._tag = type, [], number
                self._asked = False
                self.o = word if rank else Message(_GRANT | size + 1 << 4 | number << 12, 1, 0)
            elif type == _GRANT and words == size + 1 and rank:
                self._passing, self._records, self._tag = type, [], number
                self.o = word
            return
        if self._passing is None:
            return
        if len(self._records) == size:
            self._finish(word.data, way)
            self.o = word
            self._passing = None
            return
        self._records.append(Record.parse(word.data))
        mine = self._passing == _COLLECT and len(self._records) - 1 == rank and rank
        self.o = dataclasses.replace(word, data=record.word) if mine else word
        if self._passing == _COLLECT:
            if not rank:
                self.o = dataclasses.replace(word, last=0)
            if len(self._records) == size:
                self._gives, self._passing = not rank, None

    def _finish(self, start: int, way: int) -> None:
        """The table that all records of a message give."""
        self.table, self.target = Table.of(self._records, self._tag), (start + way) % (1 << 32)
        self._checks = True


class Path:
    """The way of slots through a node, cycle by cycle: packets of its own, those that pass, and those that come.

    A word is data, and whether it is the last of its packet; on the wires it is None in cycles without.
    """

    def __init__(self, *, packets: int, words: int) -> None:
        self._depth = packets * words
        self.reset()

    def reset(self) -> None:
        """Forget all packets."""
        self.wires: tuple[int, int] | None = None
        self.harmed = 0
        self._queues: tuple[collections.deque[tuple[int, int]], ...] = (collections.deque(), collections.deque())
        self._stages: list[int | None] = [None]  # queue from which a packet is to start
        self._sending: int | None = None
