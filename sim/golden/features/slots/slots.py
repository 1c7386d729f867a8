"""Cycle-accurate golden models of slots: nodes' records, the table built from them, and the units that use the table.

Mirrors hdl/features/slots/; docs/ring/slots.md specifies the rules.
"""

import collections
import dataclasses
from collections.abc import Sequence

from sim.golden.features.replay.control_words import Message
from sim.golden.features.slots.messages import check_after

__all__ = [
    "GAP",
    "MAX_SLOTS",
    "MESSAGE_CYCLES",
    "Path",
    "Record",
    "RecordLaps",
    "Sender",
    "Slot",
    "SlotTable",
    "Table",
    "Wires",
    "plan",
]

_LAP, _RECORD = 7, 8
#: Maximum number of slots in a superframe; cycles between packets of successive slots; cycles in a message slot.
MAX_SLOTS, GAP, MESSAGE_CYCLES = 16, 4, 72
_GROUP = 4
_HOP, _MARGIN = 8, 2


@dataclasses.dataclass(frozen=True)
class Record:
    """Record that a node sends to all other nodes: its number of pending packets, the number of packets that it can
    still accept from its predecessor, the longest packet's length in words, and whether it has a message to send."""

    pending: int = 0
    room: int = 0
    longest: int = 0
    wants: int = 0

    @property
    def bits(self) -> int:
        return self.pending | self.room << 5 | self.longest << 10 | self.wants << 22

    def word(self, rank: int, odd: int) -> int:
        """Control word with this record, sent by node ``rank``. ``odd`` is 1 in every other superframe."""
        return _RECORD | rank << 4 | odd << 8 | self.bits << 9

    @classmethod
    def parse(cls, word: int) -> "Record":
        """Parse a record from its word."""
        return cls(word >> 9 & 31, word >> 14 & 31, word >> 19 & 0xFFF, word >> 31)


@dataclasses.dataclass(frozen=True)
class Table:
    """Table computed from the records: the number of packet slots, the longest packet's length in words, the lowest
    rank above 0 that has a message (or 0), and whether the first message slot belongs to this rank, not to rank 0."""

    slots: int = 0
    longest: int = 0
    other: int = 0
    odd: int = 0

    @classmethod
    def of(cls, records: Sequence[Record], number: int, *, ranks: Sequence[int] | None = None) -> "Table":
        """Build the table from the records of all ranks, in the order of ``ranks`` if given."""
        wanting = sorted(rank for rank, record in zip(ranks or range(len(records)), records, strict=True)
                         if record.wants and rank)
        most = max(record.pending for record in records)
        return cls(min(MAX_SLOTS, most, *(record.room for record in records)),
                   max(record.longest for record in records), wanting[0] if wanting else 0, number % 2)

    @property
    def bits(self) -> int:
        return self.slots | self.longest << 5 | self.other << 17 | self.odd << 21


@dataclasses.dataclass(frozen=True)
class Slot:
    """Slot of a superframe: its length in cycles, and the rank that may send a message in it. If this rank is None,
    the slot is for packets, and every node may send one."""

    cycles: int
    owner: int | None = None

    def drives(self, rank: int) -> bool:
        """Whether a node sends its own packet or message."""
        return self.owner in (None, rank)

    def passes(self, rank: int) -> bool:
        """Whether a node forwards incoming words; messages end at rank 0."""
        return self.owner is not None and self.owner < rank


def plan(table: Table, *, messages: bool = True) -> list[Slot]:
    """List the slots of a superframe; message slots follow every fourth packet slot and the last packet slot."""
    if not messages:
        return [Slot(table.longest + GAP)] * table.slots
    slots, odd = [], table.odd
    for first in range(0, max(table.slots, 1), _GROUP):
        slots += [Slot(table.longest + GAP)] * min(_GROUP, table.slots - first)
        slots.append(Slot(MESSAGE_CYCLES, table.other if odd else 0))
        odd ^= 1
    return slots


class SlotTable:
    """Slots of a node, which begin at values of its TIME. ``slot`` is the slot in progress, or None."""

    def __init__(self, *, messages: bool = True) -> None:
        self._messages = messages
        self._boundary = 0
        self.reset()

    def reset(self) -> None:
        """Clear the table of slots."""
        self.slot: Slot | None = None
        self.begin = self.over = 0
        self._left: list[Slot] | None = None

    @property
    def active(self) -> int:
        """Whether a slot is running or scheduled."""
        return int(self._left is not None)

    def left(self, time: int) -> int:
        """One less than the number of cycles until the next slot begins."""
        return self._boundary - time - 1 & 0xFFFF

    def step(self, *, time: int, table: Table = Table(), granted: int = 0, target: int = 0, sets: int = 0,
             gap: int = 0, reset_link: int = 0) -> None:
        """Simulate a cycle. ``granted`` loads the slots of ``table``. ``sets`` makes ``target`` the time when slots
        end."""
        self.begin = self.over = 0
        if self._left is None:
            if granted:
                self._left = plan(table, messages=self._messages)
            if sets:
                self._left, self._boundary = [], target
        elif not (time - self._boundary) & 0x8000:
            if self._left:
                self.slot = self._left.pop(0)
                self.begin = 1
                self._boundary = (self._boundary + self.slot.cycles) & 0xFFFF
            else:
                self.slot = self._left = None
                self.over, self._boundary = 1, self._boundary + gap & 0xFFFF
        if reset_link:
            self.reset()


class RecordLaps:
    """Cycle-accurate model of record laps, in which every node sends its record around the ring. A LAP sets the time
    of the first record lap; each later one follows the last slot of a superframe."""

    def __init__(self) -> None:
        self.gap = self._odd = 0
        self._said = 0  # last word offered
        self.reset()
        self.table = Table()

    def reset(self) -> None:
        """Abort the current trip of records around the ring."""
        self.o: Message | None = None
        self.granted = self.home = self.sets = 0
        self.gathers = False
        self._calls = False  # whether rank 0 must offer a LAP
        self._sent = False  # whether this node's own record has been sent
        self._due = False  # whether rank 0 may send its own record
        self._folded: list[tuple[int, Record]] = []  # records that have arrived, with their ranks
        self._turn: list[int] = []  # ranks of the records still to arrive
        self._final = self._checks = False  # whether all records have arrived; and the same, delayed by one cycle

    def target(self, rank: int, way: int) -> int:
        """Low bits of the time at which the slots end. Only valid while ``sets`` is high."""
        return (self._said >> 17 << 3) + (way if rank else 0) & 0xFFFF

    @property
    def _busy(self) -> bool:
        return bool(self.sets) or self._final or self._checks

    def ready(self, ready: int) -> int:
        """Whether a word is accepted."""
        return int((self.o is None or bool(ready)) and not self._calls and not self._busy
                   and (self._sent or not self.gathers))

    def step(self, *, word: Message | None = None, ready: int = 1, rank: int = 0, size: int = 0,
             record: Record = Record(), ask: int = 0, over: int = 0, left: int = 0, time: int = 0, valid: int = 0,
             way: int = 0, error: int = 0, reset_link: int = 0) -> None:
        """Simulate a cycle, given the offered word, the receiver's readiness, the slots and the clock."""
        taken = word.data if word is not None and self.ready(ready) else None
        gathers, odd, sets, checks = self.gathers, self._odd, self.sets, self._checks
        opens = bool(over) and not gathers and not self._busy
        self.granted = int(checks and bool(valid) and 2 <= left < 1 << 15)
        self.home = int(rank == 0 and taken is not None and taken & 15 == _LAP)
        if checks:
            self.table = Table.of([entry for _, entry in self._folded], odd, ranks=[of for of, _ in self._folded])
        if sets:
            self.gap, self._odd = self._said >> 5 & 0xFFF, self._said >> 4 & 1
        if sets or checks or left >> 15:
            self.gathers = False
        self._checks, self._final, self.sets = self._final, False, 0
        if self.o is None or ready:
            offers = None
            if self._calls:
                gap = way - error + size * _HOP + _MARGIN & 0xFFF
                begin = (time >> 3) + size + 2 & 0x1FFF
                offers = _LAP | odd << 4 | gap << 5 | begin << 17
                self._calls, self.sets = False, valid
            elif gathers and not self._sent and (rank or self._due):
                offers, self._sent = record.word(rank, odd), True
                self._fold(offers)
            elif taken is not None and taken & 15 == _LAP and rank:
                offers, self.sets = taken, valid
            elif (taken is not None and taken & 15 == _RECORD and gathers and taken >> 4 & 15 == self._turn[0]
                    and taken >> 8 & 1 == odd):
                self._fold(taken)
                self._final = not self._turn
                offers = taken if self._turn else None
            self.o = None if offers is None else Message(offers, 1, 1)
            self._said = self._said if offers is None else offers
        self._due = left >> 1 == size * 4 or word is not None
        self._calls |= bool(ask) and rank == 0
        if opens:
            self.gathers, self._sent, self._folded = True, False, []
            self._odd ^= 1
            self._turn = [(rank - n) % size for n in range(size)]
        if reset_link:
            self.reset()

    def _fold(self, word: int) -> None:
        """Add a node's record to the table."""
        self._turn = self._turn[1:]
        self._folded.append((word >> 4 & 15, Record.parse(word)))


@dataclasses.dataclass(frozen=True)
class Wires:
    """Forward wires of a link with replay: word and flags."""

    valid: int = 0
    data: int = 0
    last: int = 0
    kind: int = 0
    check: int = 0


class Sender:
    """Packet queue that sends only complete packets; ``least`` is the minimum packet length in words."""

    def __init__(self, depth: int, *, least: int = 2) -> None:
        self._depth, self._least = depth, least
        self._words: collections.deque[tuple[int, int]] = collections.deque()
        self.whole = 0
        self._ended = 0
        self.word: tuple[int, int] | None = None  # word sent in this cycle: data, and whether it is the last

    @property
    def ready(self) -> int:
        return int(len(self._words) < self._depth)

    def goes(self, start: bool) -> bool:
        """Whether the queue begins to send a packet."""
        return start and self.whole > 0 and self.word is None

    def follows(self, start: bool) -> bool:
        """Whether a word is sent in the next cycle."""
        return self.goes(start) or (self.word is not None and not self.word[1])

    def step(self, entering: tuple[int, int] | None, start: bool) -> None:
        ready, goes = self.ready, self.goes(start)
        self.word = self._words.popleft() if self.follows(start) else None
        ended = 0
        if entering is not None and ready:
            self._words.append(entering)
            ended = entering[1]
        if self._least == 1:  # a queue for messages counts its packets one cycle later
            ended, self._ended = self._ended, ended
        self.whole += ended - goes


class Path:
    """Cycle-accurate path of packets through a node with slots: own, passing and arriving packets.

    A packet word is a pair of its data and whether it is the last word.
    """

    MESSAGE_TYPE = 3

    def __init__(self, *, depth: int, message_depth: int = 128) -> None:
        self.wires, self.line, self.lost = Wires(), 0, 0
        self.senders = Sender(depth), Sender(message_depth, least=1)
        self._due: int | None = None
        self._inside: tuple[bool, bool, bool] | None = None  # whether a word is forwarded, of a message, for here
        self._check = self._checked = 0  # check of the words on the wires, and check to send
        # Whether this node's message word is on the wires, whether it is the last, and whether its check follows.
        self._counts = self._ends = self._checks = False

    @property
    def left(self) -> int:
        """Whether this node starts sending its own packet in this cycle."""
        return int(self.senders[0].goes(self._due == 0))

    @property
    def hush(self) -> int:
        """Whether the transmitter must stay silent in the next cycle."""
        follows = any(sender.follows(self._due == n) for n, sender in enumerate(self.senders))
        return int(follows or self.senders[1].word is not None or self._ends)

    def comes(self, came: Wires, *, passes: int, rank: int) -> tuple[bool, bool, bool]:
        """Whether a packet word on the wires passes through, arrives, or belongs to a message for this node."""
        if not came.valid or came.kind:
            return False, False, False
        on, message, addressed = self._inside or (bool(passes), came.data & 15 == self.MESSAGE_TYPE,
                                                  came.data >> 4 & 15 == rank)
        return on, not message and not on, message and addressed

    def step(self, *, came: Wires = Wires(), own: Wires = Wires(), line: int = 0, starts: int = 0, drives: int = 0,
             passes: int = 0, message: int = 0, rank: int = 0,
             entering: Sequence[tuple[int, int] | None] = (None, None)) -> None:
        """Simulate a cycle, given the wires, the slot, and the packet and message words to store. The wires are the
        incoming wires, the transmitter's wires, and the receiver's line."""
        on, _, _ = self.comes(came, passes=passes, rank=rank)
        packet, said = (sender.word for sender in self.senders)
        sends = packet is not None or said is not None or self._checks
        after, checked, checks = check_after(self._check, self.wires.data), self._checked, self._checks
        self._check = after if self._counts else 0
        self._checked, self._checks = after if self._ends else 0, self._ends
        self._counts, self._ends = said is not None, said is not None and bool(said[1])

        self.lost, self.line = int(sends and on), line
        if sends:  # at most one of packet word, message word and check is sent per cycle
            data = (packet[0] if packet else 0) | (said[0] if said else 0) | checked
            self.wires = Wires(1, data, int(checks or bool(packet and packet[1])), 0, own.check)
        elif on:
            self.wires = Wires(1, came.data, came.last, 0, own.check)
        else:
            self.wires = own if own.valid else Wires(check=own.check)
        if came.valid and not came.kind:
            first = on, came.data & 15 == self.MESSAGE_TYPE, came.data >> 4 & 15 == rank
            self._inside = None if came.last else self._inside or first
        for number, (sender, word) in enumerate(zip(self.senders, entering, strict=True)):
            sender.step(word, self._due == number)
        self._due = message if starts and drives else None
