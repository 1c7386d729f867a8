"""Links of a Verilated ring, with their settings, faults and counters."""

import ctypes
import dataclasses
import enum
from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray

from sim.link_faults import RandomFaults, wire_number, wires

__all__ = ["CONTROL", "LAST", "NEVER", "End", "InjectedFaults", "LinkStatus", "RingLink", "Struct", "check_wiring"]

#: Cycle number that no simulation reaches.
NEVER = (1 << 64) - 1

#: End of a link: node and port.
End = tuple[int, int]

#: Bits of ``place`` in a recorded word: LAST for the last word of a message or a word of the link itself, CONTROL for
#: a control word.
LAST, CONTROL = 1, 2
_TAPPED = np.dtype([("cycle", np.uint64), ("data", np.uint32), ("place", np.uint32)])
_TAPPED_AT_ONCE = 4096


class Struct(ctypes.Structure):
    """Base class of C structures that returns their values by name."""

    def values(self) -> dict[str, int]:
        return {field[0]: getattr(self, field[0]) for field in self._fields_}


class _Action(enum.IntEnum):
    FLIP, DROP, DOUBLE, SWAP = range(4)


class _Scope(enum.IntEnum):
    WORD, PACKET, CYCLE = range(3)


@dataclasses.dataclass(frozen=True)
class LinkStatus:
    """Settings of a link, its counters since reset, and the number of words in flight.

    Members
    -------
    data_latency, credit_latency : int
        Latency in cycles from end to end, for words and for the backward wire.
    rate_numerator, rate_denominator : int
        Words per cycle.
    cut_from, cut_until : int
        Range of cycles when all incoming words are lost; the end is exclusive.
    words_sent, packets_sent : int
        Number of words that the sender has put on the link, and of complete packets.
    words_carried, words_dropped, words_corrupted : int
        Number of words that entered and were kept, were lost, or were kept but changed.
    credits_carried, credits_dropped : int
        Number of credits that entered and were kept, or were lost; 0 on a link with replay, which has a line that is
        always driven.
    words_in_flight, credits_in_flight : int
        Number of words and credits that have entered but not yet arrived.
    last_word, last_credit : int
        Cycle when the last word and the last credit entered; 0 if there were none.
    """

    data_latency: int
    credit_latency: int
    rate_numerator: int
    rate_denominator: int
    cut_from: int
    cut_until: int
    words_sent: int
    packets_sent: int
    words_carried: int
    words_dropped: int
    words_corrupted: int
    words_in_flight: int
    credits_carried: int
    credits_dropped: int
    credits_in_flight: int
    last_word: int
    last_credit: int


@dataclasses.dataclass(frozen=True)
class InjectedFaults:
    """Faults of a link since reset, counted at the point of injection.

    Members
    -------
    data, last, valid, kind, check : int
        Number of flips of each wire in cycles with a word, or together with a flip of ``valid`` that creates a word.
    back : int
        Number of flips of the backward wire, which remove or add credits, or change levels of the line.
    words_dropped, words_doubled, words_swapped : int
    packets_dropped, packets_doubled, packets_swapped : int
    """

    data: int
    last: int
    valid: int
    kind: int
    check: int
    back: int
    words_dropped: int
    words_doubled: int
    words_swapped: int
    packets_dropped: int
    packets_doubled: int
    packets_swapped: int

    @property
    def total(self) -> int:
        """Total number of faults of all kinds."""
        return sum(dataclasses.astuple(self))


class _LinkStatus(Struct):
    _fields_ = [(field.name, ctypes.c_uint32 if place < 4 else ctypes.c_uint64)  # the first four fields are settings
                for place, field in enumerate(dataclasses.fields(LinkStatus))]


class _Faults(Struct):
    _fields_ = [(field.name, ctypes.c_uint64) for field in dataclasses.fields(InjectedFaults)]


def check_wiring(wiring: Sequence[tuple[End, End]], *, nodes: int, ports: int) -> None:
    """Raise ``ValueError`` if a port does not exist or has several links in one direction.

    Parameters
    ----------
    wiring : sequence
        Links as pairs (source, target), each a node and its port.
    nodes, ports : int
        Number of nodes, and number of ports per node.
    """
    for name, ends in (("send", [source for source, _ in wiring]), ("receive", [target for _, target in wiring])):
        for node, port in ends:
            if not (0 <= node < nodes and 0 <= port < ports):
                raise ValueError(f"Ends of links must be ports 0 to {ports - 1} of nodes 0 to {nodes - 1}, not port "
                                 f"{port!r} of node {node!r}")
        if len(set(ends)) != len(ends):
            node, port = next(end for end in ends if ends.count(end) > 1)
            raise ValueError(f"A port must {name} on one link, not port {port} of node {node} on two")


class RingLink:
    """A link that carries words forward, and credits or a line level backward.

    The state of the wires at one end in cycle t appears at the other end in cycle t + latency. Settings can be
    changed between runs and apply to words that enter afterwards; words never overtake each other.

    Members
    -------
    index : int
    source, target : tuple of int
        Node and port that send words; node and port that receive them.
    wires : tuple of str
        Names of the wires, ordered by number.
    """

    def __init__(self, library: ctypes.CDLL, ring: ctypes.c_void_p, index: int, source: End, target: End) -> None:
        self._library = library
        self._ring = ring
        self._replay = bool(library.ring_replay())
        self.index = index
        self.source, self.target = source, target
        self.wires = wires(replay=self._replay)

    def set_latency(self, *, data: int | None = None, credit: int | None = None) -> None:
        """Set the latency in cycles of words, and of credits or the line; at least 1, initially 16.

        Reducing the latency of a line loses levels; increasing it inserts zeros.
        """
        status = self.status()
        data = status.data_latency if data is None else data
        credit = status.credit_latency if credit is None else credit
        for kind, latency in (("Data", data), ("Credit", credit)):
            if not 1 <= latency < 1 << 32:
                raise ValueError(f"{kind} latency must be between 1 and 4294967295 cycles, not {latency!r}")
        self._library.ring_link_latency(self._ring, self.index, data, credit)

    def set_rate(self, numerator: int, denominator: int) -> None:
        """Set the rate in words per cycle, a fraction up to 1. Words that arrive faster are delayed, in order."""
        if not 1 <= numerator <= denominator < 1 << 16:
            raise ValueError(f"Rate must be a fraction above 0 and at most 1, not {numerator!r}/{denominator!r}")
        self._library.ring_link_rate(self._ring, self.index, numerator, denominator)

    def cut(self, start: int | None = None, stop: int = NEVER) -> None:
        """Cut the link from cycle ``start`` (default: now) until just before cycle ``stop``.

        Words that enter during the cut are lost, and a line stays low. Words that entered earlier still arrive. A
        link can have only one cut at a time.
        """
        start = self._library.ring_cycle(self._ring) if start is None else start
        if not 0 <= start <= stop <= NEVER:
            raise ValueError(f"A cut must be of cycles in ascending order, not from {start!r} to {stop!r}")
        self._library.ring_link_cut(self._ring, self.index, start, stop)

    def mend(self) -> None:
        """End the cut of the link."""
        self._library.ring_link_cut(self._ring, self.index, NEVER, NEVER)

    def corrupt(self, *, word: int, bit: int) -> None:
        """Flip a bit of a future word, given by its index since reset: 0 to 31 for data, 32 for ``last``."""
        if not self.status().words_sent <= word <= NEVER:
            raise ValueError(f"Word to corrupt must be one of those to come, from {self.status().words_sent}, not "
                             f"{word!r}")
        if not 0 <= bit <= 32:
            raise ValueError(f"Bit to corrupt must be between 0 and 32, not {bit!r}")
        self._add(_Scope.WORD, word, _Action.FLIP, bit)

    def flip(self, wire: str | SupportsIndex, *, word: int | None = None, cycle: int | None = None) -> None:
        """Flip a wire during a future word, given by its index since reset, or in a future cycle.

        Flipping ``valid`` during a word loses the word; in any other cycle, the state of the wires becomes a word.
        The backward wire accepts only a cycle.

        Parameters
        ----------
        wire : str or int
            Name in :attr:`wires`, or its index there.
        word, cycle : int, optional
            Index of the word, or cycle; exactly one of the two must be given.
        """
        number = wire_number(wire, replay=self._replay)
        if (word is None) == (cycle is None):
            raise ValueError(f"A flip must be in a word or in a cycle, not in word {word!r} and cycle {cycle!r}")
        if cycle is not None:
            self._add(_Scope.CYCLE, self._to_come(cycle, "Cycle", self._library.ring_cycle(self._ring)),
                      _Action.FLIP, number)
        elif word is not None:
            if number == len(self.wires) - 1:
                raise ValueError(f"A flip of {self.wires[-1]} must be in a cycle, not in word {word!r}")
            self._add(_Scope.WORD, self._to_come(word, "Word", self.status().words_sent), _Action.FLIP, number)

    def drop(self, *, word: int | None = None, packet: int | None = None) -> None:
        """Lose a future word or packet, given by its index since reset."""
        self._disturb(_Action.DROP, word, packet)

    def double(self, *, word: int | None = None, packet: int | None = None) -> None:
        """Transmit a future word or packet twice; later words are delayed."""
        self._disturb(_Action.DOUBLE, word, packet)

    def swap(self, *, word: int | None = None, packet: int | None = None) -> None:
        """Swap a future word or packet with the next one."""
        self._disturb(_Action.SWAP, word, packet)

    def set_faults(self, faults: RandomFaults | None) -> None:
        """Set the random faults from now on, in place of earlier ones; resetting the ring does not change them."""
        faults = RandomFaults(rate=0) if faults is None else faults
        self._library.ring_link_random(self._ring, self.index, faults.threshold, faults.seed)

    def faults(self) -> InjectedFaults:
        """Numbers of faults injected into the link since reset."""
        result = _Faults()
        self._library.ring_link_faults(self._ring, self.index, ctypes.byref(result))
        return InjectedFaults(**result.values())

    def status(self) -> LinkStatus:
        """Return the link's settings and counters, and the number of words in flight."""
        result = _LinkStatus()
        self._library.ring_link_status(self._ring, self.index, ctypes.byref(result))
        return LinkStatus(**result.values())

    def tap(self, *, on: bool = True) -> NDArray[np.void]:
        """Return the words sent since the last call; with ``on``, continue recording. Only control words and the
        first and last words of messages between slots are recorded; ``place`` has the bits :data:`LAST` and
        :data:`CONTROL`.
        """
        parts: list[NDArray[np.void]] = []
        while not parts or parts[-1].size == _TAPPED_AT_ONCE:
            part = np.empty(_TAPPED_AT_ONCE, _TAPPED)
            parts.append(part[:self._library.ring_link_tap(self._ring, self.index, on, part.ctypes.data, part.size)])
        return np.concatenate(parts)

    def describe(self, cycle: int) -> str:
        """Describe the link's traffic and the words in flight in one line."""
        k = self.status()
        (source, port), (target, other) = self.source, self.target
        ends = f"{source} -> {target}" if port == other == 0 else f"{source} port {port} -> {target} port {other}"
        back = (f"; {k.credits_in_flight} credits in flight, {k.credits_carried} carried, {k.credits_dropped} lost "
                f"(last in cycle {k.last_credit})" if not self._replay else "")
        return (f"link {ends}{' (CUT)' if k.cut_from <= cycle < k.cut_until else ''}: "
                f"{k.words_in_flight} words in flight, {k.words_carried} carried, {k.words_dropped} lost "
                f"(last in cycle {k.last_word}){back}")

    def _disturb(self, action: _Action, word: int | None, packet: int | None) -> None:
        if (word is None) == (packet is None):
            raise ValueError(f"To {action.name.lower()}, there must be a word or a packet, not word {word!r} and "
                             f"packet {packet!r}")
        status = self.status()
        if word is not None:
            self._add(_Scope.WORD, self._to_come(word, "Word", status.words_sent), action)
        elif packet is not None:
            self._add(_Scope.PACKET, self._to_come(packet, "Packet", status.packets_sent), action)

    @staticmethod
    def _to_come(value: int, name: str, first: int) -> int:
        if not first <= value < NEVER:
            raise ValueError(f"{name} of a fault must be one of those to come, from {first}, not {value!r}")
        return value

    def _add(self, scope: _Scope, at: int, action: _Action, wire: int = 0) -> None:
        self._library.ring_link_fault(self._ring, self.index, scope, at, action, wire)
