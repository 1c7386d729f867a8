"""Units of all ranks, and the times from which on they are free.

A time is an array with an element for each rank. Packets are handed from unit to unit as pairs of times, of their
first and of their last word, so that a unit begins with a packet before it has come to its end.
"""

import collections
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from host.cycles.timing import BEHIND, HOP, Timing
from sim.golden.ring import GROUP

__all__ = ["Arrival", "Numbers", "There", "Units"]

Numbers: TypeAlias = npt.NDArray[np.int64]
#: First and last word of a packet, or of what it becomes.
There: TypeAlias = tuple[Numbers, Numbers]

#: Words of a header, and of a CRC.
_HEADER, _CRC = 3, 1
#: Cycles from the last word that leaves an ingress to the header for which its credit comes back, without the wire.
_CREDIT = 2
#: Packets that the walk looks back at the most, and segments that readers of gradients are ahead.
_BACK, _AHEAD = 16, 5
#: Segments that the landing buffer, and the optimizer's banks of gradients, have room for.
_ROOM = 2
#: Time of what has not been waited for yet.
_NEVER = -(10 ** 9)


class Arrival(NamedTuple):
    """A packet behind the ingress: first and last word of its payload, and their number."""

    first: Numbers
    last: Numbers
    words: Numbers


class Units:
    """The units of a ring.

    Parameters
    ----------
    nodes, latency, begin : int
        Ranks; cycles of a link; and the cycle in which a planned command begins.
    """

    def __init__(self, timing: Timing, *, nodes: int, latency: int, begin: int):
        self.timing, self.nodes, self.latency, self.begin = timing, nodes, latency, begin
        zero = np.full(nodes, begin, dtype=np.int64)
        #: The link has room for a header; the last word has left the ingress.
        self.link = self.taken = zero
        #: The adder of sums, the encoder of addends, the optimizer and the bank before its last.
        self.adder = self.encoder = self.optimizer = self.bank = zero
        #: The last own sum has come to rest, with a codec of gradients.
        self.rested = zero
        self.sent = collections.deque([zero] * _BACK, maxlen=_BACK)
        self.left = collections.deque([zero + _NEVER] * timing.credits, maxlen=timing.credits)
        self.sums = collections.deque([zero] * _BACK, maxlen=_BACK)
        self.decodes = collections.deque([zero] * _BACK, maxlen=_BACK)
        self.weights = collections.deque([zero] * _BACK, maxlen=_BACK)
        self.stores = collections.deque([zero] * _ROOM, maxlen=_ROOM)
        #: Rows that other readers of the gradient memory have still to read, of what they may read ahead.
        self.behind: list[Numbers] = []
        self.words = np.zeros(nodes, dtype=np.int64)

    def rows(self, elements: Numbers) -> Numbers:
        """Rows of memory of so many elements."""
        return np.asarray(-(-elements // self.timing.lanes))

    def beats(self, elements: Numbers) -> Numbers:
        """Beats of an encoder or decoder of gradients; in zero-value form groups are whole."""
        if self.timing.grouped:
            return np.asarray(-(-elements // GROUP) * (GROUP // self.timing.lanes))
        return self.rows(elements)

    def send(self, there: There, words: Numbers) -> Arrival:
        """Send a packet on every link, and return those that arrive."""
        credit = np.roll(self.left[0], -1) + _CREDIT + self.latency
        ready = np.maximum(self.link, credit) + _HEADER
        first = np.where(words > 0, np.maximum(there[0], ready), ready)
        last = np.where(words > 0, np.maximum(first + words, there[1]), first)
        self.link = last + _CRC
        self.sent.append(last)
        self.words = self.words + words + _HEADER + _CRC
        wire = HOP - BEHIND + self.latency
        return Arrival(np.roll(first, 1) + wire, np.roll(last, 1) + wire, np.roll(words, 1))

    def room(self, words: Numbers) -> Numbers:
        """Time from which on there is room for a packet in the queue of what is sent next."""
        return self.sent[-_ahead(2 * self.timing.segment, words)]

    def take(self, arrival: Arrival) -> There:
        """First and last word of a packet that leaves the ingress as fast as it can."""
        first = np.maximum(arrival.first, self.taken + _HEADER + _CRC)
        return first, np.maximum(first + arrival.words, arrival.last)

    def leave(self, end: Numbers) -> None:
        """Give the credit of the packet whose last word has left the ingress."""
        self.taken = end
        self.left.append(end)

    def read(self, rows: Numbers) -> Numbers:
        """Cycles for so many rows of the gradient memory, whose readers take turns."""
        shares = [np.minimum(rows, one) for one in self.behind]
        self.behind = [one - share for one, share in zip(self.behind, shares, strict=True)]
        return rows + sum(shares, start=np.zeros_like(rows))

    def idle(self, cycles: Numbers) -> None:
        """Let the other readers have the gradient memory for a while."""
        self.behind = [np.maximum(one - cycles, 0) for one in self.behind]

    def add(self, there: There, some: npt.NDArray[np.bool_]) -> None:
        """Note that the adder has been busy with a packet."""
        self.adder = np.where(some, there[1], self.adder)
        self.sums.append(np.where(some, there[0], self.adder))

    def decode(self, arrival: Arrival, elements: Numbers, *, room: int, weights: bool = False,
               lands: bool = True) -> There:
        """Let a packet leave the ingress for a queue of ``room`` words before a decoder; first and last element."""
        history = self.weights if weights else self.decodes
        first, last = self.take(arrival)
        some = elements > 0
        begun = np.maximum(first, history[-1])
        beats = self.rows(elements) if weights else self.beats(elements)
        end = np.maximum(begun + np.maximum(arrival.words, beats), last)
        if lands:
            end = np.maximum(end, self.stores[-_ROOM])
        self.leave(np.where(some, np.maximum(last, history[-_ahead(room, arrival.words)]), last))
        history.append(np.where(some, end, history[-1]))
        return begun, end

    def land(self, end: Numbers, elements: Numbers) -> None:
        """Store a segment whose last element is decoded at ``end``; a segment is stored when it is whole."""
        stored = np.maximum(self.stores[-1], end + self.timing.stored) + self.rows(elements)
        self.stores.append(np.where(elements > 0, stored, self.stores[-1]))

    def update(self, filled: Numbers, elements: Numbers) -> There:
        """Update a segment whose gradients are there; first and last beat that enters the optimizer."""
        some = elements > 0
        begun = np.maximum(filled, self.optimizer)
        end = begun + -(-elements // self.timing.update_lanes) * self.timing.interval
        self.bank = np.where(some, self.optimizer, self.bank)
        self.optimizer = np.where(some, end, self.optimizer)
        return begun, end

    # What a walk needs to see whether it repeats itself.

    _TIMES = ("link", "taken", "adder", "encoder", "optimizer", "bank", "rested")
    _HISTORIES = ("sent", "left", "sums", "decodes", "weights", "stores")

    def times(self) -> Numbers:
        """All times, one behind the other."""
        return np.stack([*(getattr(self, name) for name in self._TIMES),
                         *(one for name in self._HISTORIES for one in getattr(self, name))])

    def move(self, cycles: int) -> None:
        """Let so many cycles pass, in which the units do what they did before."""
        for name in self._TIMES:
            setattr(self, name, getattr(self, name) + cycles)
        for name in self._HISTORIES:
            history = getattr(self, name)
            for place in range(len(history)):
                history[place] = history[place] + cycles


def _ahead(room: int, words: Numbers) -> int:
    """Packets that a queue of so many words has room for, at least one."""
    return min(max(1, room // max(int(words.max(initial=0)), 1)), _BACK)
