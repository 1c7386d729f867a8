"""Cycle-accurate golden models of hdl/features/slots/job_*.py, based on docs/ring/slots.md."""

import dataclasses

from sim.golden.features.replay.control_words import Message
from sim.golden.features.slots.slots import GAP, Sender, Wires

_COLLECT, _GRANT = 11, 12
_NUMBERS, _ROOMS, _PAIRS = 64, 31, 4
_IDLE = Wires()


@dataclasses.dataclass(frozen=True)
class Frame:
    """Dimensions of superframes for packets of at most ``longest`` words."""

    longest: int

    @property
    def slot(self) -> int:
        return self.longest + GAP

    @property
    def cycles(self) -> int:
        """Length of a superframe: the smallest power of two that fits 256 control cycles and seven slots per job."""
        cycles = 1
        while cycles < 256 + 14 * self.slot:
            cycles *= 2
        return cycles

    @property
    def pairs(self) -> int:
        """Number of slots per job: the maximum that leaves 256 cycles for control words."""
        return (self.cycles - 256) // (2 * self.slot)

    @property
    def window(self) -> int:
        """Number of cycles for control words in front of the first slot."""
        return self.cycles - 2 * self.pairs * self.slot

    @property
    def kept(self) -> int:
        """Number of slot pairs that rank 0 stores: a packet needs at least 240 cycles around the ring."""
        return 2 if 2 * self.slot >= 240 else 4


@dataclasses.dataclass(frozen=True)
class SlotState:
    """State of a node's slots in one cycle."""

    soon: int = 0  # whether a slot begins in the next cycle
    starts: int = 0  # whether a slot begins in this cycle
    of: int | None = None  # job that owns the slot, if there is a slot
    pair: int = 0  # number of the slot's pair

    def bits(self, job: int) -> int:
        """Encode the state like the output of a node that belongs to ``job``."""
        return (self.soon | self.starts << 1 | (self.of == job) << 2 | (self.of == 1 - job) << 3
                | self.pair % _PAIRS << 4)


_NO_SLOT = SlotState()


class JobTable:
    """Slots of a node, computed from the node's TIME."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._time = 0  # TIME minus the shift, delayed by one cycle
        self._known = False
        self._due: list[int] | None = None  # jobs that own the remaining slots of the superframe
        self._boundary = 0
        self._starts = self._pair = 0
        self._of: int | None = None
        self.window = self.opens = self.number = 0
        self.control = 1

    @property
    def _place(self) -> int:
        return self._time % self._frame.cycles

    @property
    def slot(self) -> SlotState:
        soon = self._known and bool(self._due) and self._place >= max(self._frame.window, self._boundary)
        return SlotState(int(soon), self._starts, self._of, self._pair)

    def step(self, *, time: int, valid: int = 1, shift: int = 0) -> None:
        """Advance by one cycle, given its TIME; the slots of this node start ``shift`` cycles after the slots of rank
        0.
        """
        frame, position, known = self._frame, self._place, self._known
        inside = position < frame.window
        self._starts = self.slot.soon
        self.opens = int(known and inside and not self.window)
        self.window = int(known and inside)
        self.control = int(not known or 4 <= position < frame.window - 8)
        self.number = self._time // frame.cycles % _NUMBERS
        if self._starts and self._due:
            count = 2 * frame.pairs - len(self._due)
            self._of = self._due.pop(0)
            self._pair = (count // 2 + self._time // frame.cycles * frame.pairs) % _PAIRS
            self._boundary += frame.slot
        elif inside or not known:
            self._of, self._boundary = None, frame.window
            self._due = [0, 1] * frame.pairs if known else None
        self._time, self._known = (time - shift) % (1 << 32), bool(valid)


class RoomLaps:
    """Model of messages that travel around the ring to find the smallest free space among each job's nodes."""

    def __init__(self) -> None:
        self.allowed = self.granted = 0
        self._kept = 0
        self._due = False
        self.o: Message | None = None

    def ready(self, ready: int) -> int:
        return int((self.o is None or bool(ready)) and not self._due)

    def step(self, *, word: Message | None = None, ready: int = 1, rank: int = 0, size: int = 0, room: int = 0,
             window: int = 0, opens: int = 0, number: int = 0, reset_link: int = 0) -> None:
        """Advance by one cycle, given the received word, whether the output is ready, and the state of the window."""
        job, taken = rank % 2, word if self.ready(ready) else None
        self.granted = 0
        if self.o is None or ready:
            self.o = None
        if self._due and self.o is None:
            self.o, self._due = self._message(_COLLECT, number, [_ROOMS, _ROOMS], job), False
        elif taken is not None:
            type, rooms = taken.data & 15, [taken.data >> 18 & _ROOMS, taken.data >> 23 & _ROOMS]
            self.allowed = rooms[job]
            fits = (taken.first and taken.last and window and size > 1 and not taken.data >> 28
                    and not taken.data >> 4 & 255 and taken.data >> 12 & _NUMBERS - 1 == number)
            if fits and type == _COLLECT:
                self.granted = int(rank == 0)
                self.o = self._message(_COLLECT if rank else _GRANT, number, rooms, job)
            elif fits and type == _GRANT and rank:
                self.granted, self.o = 1, taken
        if opens:
            self._kept, self._due = room, rank == 0 and size > 1
        if reset_link:
            self.granted, self.o, self._due, self._kept = 0, None, False, 0

    def _message(self, type: int, number: int, rooms: list[int], job: int) -> Message:
        """Message with the free space of each job; for ``job``, it is limited to this node's free space."""
        rooms = [min(room, self._kept) if index == job else room for index, room in enumerate(rooms)]
        return Message(type | number << 12 | rooms[0] << 18 | rooms[1] << 23, 1, 1)


class JobPath:
    """Model of the packet path through a node, which sends, receives and forwards packets."""

    def __init__(self, *, depth: int, frame: Frame) -> None:
        self._depth, self._frame = depth, frame
        self.wires, self.line, self.lost = Wires(), 0, 0
        self._sender = Sender(depth)
        self._due = False
        # Packet memory of rank 0: latest word of each slot pair and cycle, stored slot pairs, and the cycles of the
        # current write and read.
        self._kept: dict[tuple[int, int], tuple[int, int] | None] = {}
        self._there: set[int] = set()
        self._into = self._from = 0

    @property
    def ready(self) -> int:
        return self._sender.ready

    @property
    def whole(self) -> int:
        return self._sender.whole

    @property
    def left(self) -> int:
        """Whether this node starts to send one of its own packets in this cycle."""
        return int(self._sender.goes(self._due))

    def step(self, *, came: Wires = _IDLE, own: Wires = _IDLE, line: int = 0, slot: SlotState = _NO_SLOT,
             coming: SlotState = _NO_SLOT, job: int = 0, wraps: int = 0, goes: int = 1, flush: int = 0,
             clear: int = 0, entering: tuple[int, int] | None = None) -> None:
        """Advance by one cycle, given the wires, the line, both slots, and a word of the node's packet to store."""
        packet = (came.data, came.last) if came.valid and not came.kind else None
        self._into = 0 if coming.starts else self._into + 1
        self._from = 0 if slot.starts else self._from + 1
        passing = None
        if slot.of == 1 - job:
            passing, pair = packet, (slot.pair + 1) % self._frame.kept
            if wraps:
                passing = self._kept.get((pair, self._from)) if pair in self._there else None
        sent = self._sender.word
        self.lost, self.line = int(sent is not None and passing is not None), line
        if sent is not None or passing is not None:
            data, last = sent or passing or (0, 0)
            self.wires = dataclasses.replace(self.wires, valid=1, data=data, last=last, kind=0)
        else:
            self.wires = own if own.valid else dataclasses.replace(self.wires, valid=0)

        # Passing packets are stored until the slot in which they are sent on.
        if coming.of == 1 - job:
            pair = coming.pair % self._frame.kept
            self._kept[pair, self._into] = packet
            self._there |= {pair} if coming.starts else set()
        if slot.starts and slot.of == job:
            self._there.discard(slot.pair % self._frame.kept)
        if clear:
            self._there.clear()

        self._sender.step(entering, self._due)
        self._due = bool(slot.starts and slot.of == job and goes)
        if flush:
            self._sender = Sender(self._depth)
