"""Cycle-accurate golden models of the units that receive and send control words.

Mirrors :mod:`hdl.features.replay.signals`, :mod:`hdl.features.replay.keepalive` and
:mod:`hdl.features.replay.control_hub`; docs/ring/link.md specifies the formats. A unit's attributes and ``outputs``
give its outputs in the current cycle; ``step`` applies the inputs of this cycle and advances the model by one cycle.
"""

import collections
import dataclasses
from collections.abc import Sequence

__all__ = ["SOURCES", "ControlHub", "KeepAlive", "Message", "Signal", "SignalRelay", "keepalive_word", "marked",
           "parted"]

#: Maximum number of nodes in a ring.
SOURCES = 16
#: Types of control words.
_RESTART, _SIGNAL, _KEEPALIVE, _READY = 1, 2, 3, 4
#: Type of each tenant's SIGNAL, and positions of the tenant bits in READY and in all other messages.
_SIGNALS = (_SIGNAL, 9, 10)
_READY_PLACE, _PLACE = 9, 28


@dataclasses.dataclass(frozen=True)
class Signal:
    """Fields of a SIGNAL control word."""

    source: int
    queue: int
    run: int
    done: int

    @property
    def word(self) -> int:
        return _SIGNAL | self.source << 4 | self.queue << 8 | self.run << 10 | self.done << 16

    @classmethod
    def parse(cls, word: int) -> "Signal | None":
        """Fields of a SIGNAL word, or None if the word is not a SIGNAL."""
        if word & 15 != _SIGNAL:
            return None
        return cls(word >> 4 & 15, word >> 8 & 3, word >> 10 & 63, word >> 16)


def keepalive_word(hops: int) -> int:
    """KEEPALIVE word to be forwarded to ``hops`` more nodes after its receiver."""
    return _KEEPALIVE | hops << 12


class SignalRelay:
    """Cycle-accurate model of the unit that forwards SIGNALs."""

    def __init__(self, *, queues: int) -> None:
        self.queues = queues
        self.reset()

    def reset(self) -> None:
        """Clear the state of the unit."""
        self.o: int | None = None
        self.count: int | None = None
        self.current = 0
        self._passing: collections.deque[int] = collections.deque()
        self._counts: dict[int, tuple[int, list[int]]] = {}  # number of the run and its command counts, keyed by node
        self._silent = SOURCES  # remaining cycles of clearing the table
        self._away = False
        self._turn = 0
        self._sent: tuple[int, list[int]] = (0, [0] * self.queues)

    @property
    def ready(self) -> int:
        """Whether a word is accepted."""
        return int(not self._silent and len(self._passing) <= SOURCES)

    def step(self, *, word: int | None = None, ready: int = 1, rank: int = 0, size: int = 0, run: int = 0,
             done: Sequence[int] = (), of_node: int = 0, of_queue: int = 0, reset_link: int = 0) -> None:
        """Simulate a cycle, given the offered word and whether the receiver is ready."""
        if reset_link:
            self.reset()
            return
        told, counts = self._counts.get(of_node, (0, [0] * self.queues))
        self.current = int(not self._silent and run != 0 and told == run)
        self.count = (counts[of_queue] if of_queue < self.queues else 0) if self.current else None

        came = Signal.parse(word) if word is not None and self.ready else None
        if came is not None and (came.queue >= self.queues or came.run == 0 or (size and came.source >= size)):
            came = None
        own = came is not None and size > 0 and came.source == rank
        changed = run != self._sent[0] or done[self._turn] != self._sent[1][self._turn]
        sends = not self._away and changed and run != 0 and size > 1 and not self._silent
        away, turn = self._away, self._turn
        if own:
            self._away = False
        if self.o is None or ready:
            self.o = None
            if sends:
                counts = list(self._sent[1]) if self._sent[0] == run else [0] * self.queues
                counts[turn] = done[turn]
                self._sent, self._away = (run, counts), True
                self.o = Signal(rank, turn, run, done[turn]).word
            elif self._passing:
                self.o = self._passing.popleft()
            if not away:
                self._turn = (turn + 1) % self.queues
        if came is not None and word is not None and not own:
            self._passing.append(word)
            told, counts = self._counts.get(came.source, (0, [0] * self.queues))
            counts = list(counts) if told == came.run else [0] * self.queues
            counts[came.queue] = came.done
            self._counts[came.source] = came.run, counts
        self._silent = max(self._silent - 1, 0)


class KeepAlive:
    """Cycle-accurate model of the unit that sends KEEPALIVEs."""

    #: Number of cycles of work between two KEEPALIVEs.
    PERIOD = 1024

    def __init__(self) -> None:
        self.o: int | None = None
        self._due: int | None = None  # number of hops in the KEEPALIVE to be sent next, or None
        self._count = 0

    @staticmethod
    def hops(word: int | None) -> int | None:
        """Number of hops in a KEEPALIVE word; None for any other word."""
        if word is None or word & 15 != _KEEPALIVE or word >> 4 & 0xFF or word >> 16:
            return None
        return word >> 12 & 15

    def step(self, *, word: int | None = None, ready: int = 1, at_work: int = 0, size: int = 0) -> None:
        """Simulate a cycle, given the offered word and whether the receiver is ready."""
        if self.o is None or ready:
            self.o = None if self._due is None else keepalive_word(self._due)
            self._due = None
        hops = self.hops(word)
        if at_work and self._count == self.PERIOD - 1 and size > 1:
            self._due = (size - 1) % SOURCES
        elif hops:
            self._due = max(hops - 1, -1 if self._due is None else self._due)
        self._count = (self._count + 1) % self.PERIOD if at_work else 0


def marked(word: int, tenant: int) -> int:
    """First word of a tenant's message as it appears on links."""
    if word & 15 == _SIGNAL:
        return word & ~15 | _SIGNALS[tenant]
    shift = _READY_PLACE if word & 15 == _READY else _PLACE
    return word & ~(3 << shift) | tenant << shift


def parted(word: int) -> tuple[int | None, int]:
    """Tenant of the first word of a link message (or None), and the word without the tenant mark."""
    if word & 15 in _SIGNALS:
        return _SIGNALS.index(word & 15), word & ~15 | _SIGNAL
    shift, zeros = (_READY_PLACE, word >> _READY_PLACE & 0x7F) if word & 15 == _READY else (_PLACE, word >> _PLACE)
    return (zeros if zeros < len(_SIGNALS) else None), word & ~(3 << shift)


@dataclasses.dataclass(frozen=True)
class Message:
    """Word of a message, with flags for the first and the last word."""

    data: int
    first: int
    last: int


class ControlHub:
    """Cycle-accurate model of the hub that dispatches control words; ``takes`` lists the types that each unit
    accepts. With a tenant, only its messages are passed to units and sent; without one, messages have no tenant
    marks."""

    def __init__(self, *, takes: Sequence[Sequence[int]], tenant: int | None = None) -> None:
        self.tenant = tenant
        self._owners = {int(type): unit for unit, types in enumerate(takes) for type in types}
        self._units = len(takes)
        self.o: int | None = None
        self._left = 0  # number of remaining words in the message
        self._unit: int | None = None
        self._sender: int | None = None  # unit that is sending a message

    def handed(self, word: int) -> tuple[int | None, Message]:
        """Unit to which a word is offered, or None, and the word as offered to this unit."""
        if self._left:
            return self._unit, Message(word, 0, int(self._left == 1))
        foreign = False
        if self.tenant is not None:
            tenant, word = parted(word)
            foreign = tenant != self.tenant
        type = word & 15
        single = type in (_RESTART, _SIGNAL, _READY)
        damaged = not single and word >> 28
        follow = 0 if single or damaged else word >> 4 & 0xFF
        return (None if damaged or foreign else self._owners.get(type)), Message(word, 1, int(follow == 0))

    def ready(self, word: int, takes: Sequence[int]) -> int:
        """Whether a word from the link is accepted."""
        unit, _ = self.handed(word)
        return 1 if unit is None else takes[unit]

    def granted(self, offers: Sequence[Message | None], ready: int) -> int | None:
        """Unit that may send a control word in this cycle, or None."""
        if self.o is not None and not ready:
            return None
        if self._sender is not None:
            return self._sender
        return next((unit for unit, offer in enumerate(offers) if offer is not None), None)

    def step(self, *, word: int | None = None, takes: Sequence[int], offers: Sequence[Message | None],
             ready: int = 1, reset_link: int = 0) -> None:
        """Simulate a cycle, given the link's word, whether units and link are ready, and the units' words."""
        if word is not None and self.ready(word, takes):
            unit, seen = self.handed(word)
            if seen.first:
                self._left = 0 if seen.last else word >> 4 & 0xFF
            else:
                self._left -= 1
            self._unit = unit
        unit = self.granted(offers, ready)
        if self.o is None or ready:
            self.o = None
        if unit is not None and (offer := offers[unit]) is not None:
            self.o = offer.data if self.tenant is None or not offer.first else marked(offer.data, self.tenant)
            self._sender = None if offer.last else unit
        if reset_link:
            self._left, self._sender, self.o = 0, None, None
