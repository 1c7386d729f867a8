"""Cycle model of collectives, packet by packet on all ranks; returns cycles and transmitted words.

Every rank sends the packets of docs/ring/collective/theory.md in a fixed order, so packet times are maxima and sums
of earlier packet times. This max-plus recurrence is called the walk:

    payload begins = max(its words are there, the link is free + header, a credit is back + header)
    payload ends   = max(begin + words, its last word is there)
    words are there at the next rank = begin + wire + HOP, and the cycles that a sum or the optimizer adds

With n credits, a credit is back when the packet sent n packets earlier has left the successor's ingress. In the
ingress, a packet waits for later units: the adder, decoders, the optimizer, and queues of one or two segments. The
model keeps the time at which each unit becomes free (:class:`Units`) and the cycles that packets take
(:class:`~host.cycles.costs.Costs`). Times are arrays over ranks. A packet is passed between units as the times of its
first and last word, so the next unit can start before the packet is complete.

If all blocks consist of whole segments and all times have grown by the same constant since one of the last few
segments, the remaining segments are periodic, and the walk skips them.
"""

import collections
import dataclasses
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from hdl.compression.feedback import PacketAdder
from host.cycles.costs import Costs, Format
from host.cycles.estimate import Collective
from host.cycles.timing import BEHIND, COMMAND, COMPARED, HOP, Timing
from sim.golden.constants import constant
from sim.golden.ring import GROUP

__all__ = ["Arrival", "CollectiveCycles", "Numbers", "There", "Units", "collective_cycles", "cycles_of_costs"]

Numbers: TypeAlias = npt.NDArray[np.int64]
#: Times of the first and last word, or first and last element, of a packet.
There: TypeAlias = tuple[Numbers, Numbers]

#: Number of words in a header and in a CRC.
_HEADER, _CRC = 3, 1
_CREDIT = constant("collectives", 2, "from the last word that leaves an ingress to the header that its credit "
                   "permits, without the wires", COMPARED)
#: Number of past packets for which the model keeps times.
_BACK = 16
#: Capacity in segments of the write-back buffer and of the optimizer's gradient banks.
_ROOM = 2
#: Initial value for a time that does not delay any packet.
_NEVER = -(10 ** 9)


class Arrival(NamedTuple):
    """A packet that has left the ingress: the times of its first and last payload word, and its word count."""

    first: Numbers
    last: Numbers
    words: Numbers


class Units:
    """Times at which the units of all nodes become free, from the start of the planned command."""

    def __init__(self, timing: Timing, *, nodes: int, latency: int, begin: int):
        self.timing, self.nodes, self.latency, self.begin = timing, nodes, latency, begin
        zero = np.full(nodes, begin, dtype=np.int64)
        #: Times when the link can accept a header, and when the last word has left the ingress.
        self.link = self.taken = zero
        #: Times when the adder for sums, the addend encoder, the optimizer, and its second-to-last bank become free.
        self.adder = self.encoder = self.optimizer = self.bank = zero
        #: Time when the last sum of the node's own block was written back; used only with a gradient codec.
        self.rested = zero
        self.sent = collections.deque([zero] * _BACK, maxlen=_BACK)
        self.left = collections.deque([zero + _NEVER] * timing.credits, maxlen=timing.credits)
        self.sums = collections.deque([zero] * _BACK, maxlen=_BACK)
        self.decodes = collections.deque([zero] * _BACK, maxlen=_BACK)
        self.weights = collections.deque([zero] * _BACK, maxlen=_BACK)
        self.stores = collections.deque([zero] * _ROOM, maxlen=_ROOM)
        #: Backlogs of the gradient memory's other readers: for each, the number of rows it has yet to prefetch.
        self.behind: list[Numbers] = []
        self.words = np.zeros(nodes, dtype=np.int64)

    def rows(self, elements: Numbers) -> Numbers:
        """Number of memory rows that contain a number of elements."""
        return np.asarray(-(-elements // self.timing.lanes))

    def beats(self, elements: Numbers) -> Numbers:
        """Number of beats in which a gradient codec processes ``elements``; zero-value form pads partial groups."""
        if self.timing.grouped:
            return np.asarray(-(-elements // GROUP) * (GROUP // self.timing.lanes))
        return self.rows(elements)

    def send(self, there: There, words: Numbers) -> Arrival:
        """Send a packet on every link and return its arrivals at the next nodes."""
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
        """Time when the output queue has room for a packet."""
        return self.sent[-_ahead(2 * self.timing.segment, words)]

    def take(self, arrival: Arrival) -> There:
        """Times of a packet's first and last word if it leaves the ingress without waiting."""
        first = np.maximum(arrival.first, self.taken + _HEADER + _CRC)
        return first, np.maximum(first + arrival.words, arrival.last)

    def leave(self, end: Numbers) -> None:
        """Return a packet's credit when its last word leaves the ingress, at cycle ``end``."""
        self.taken = end
        self.left.append(end)

    def read(self, rows: Numbers) -> Numbers:
        """Cycles to read rows of the gradient memory, which is shared equally with readers that have a backlog."""
        shares = [np.minimum(rows, backlog) for backlog in self.behind]
        self.behind = [backlog - share for backlog, share in zip(self.behind, shares, strict=True)]
        return rows + sum(shares, start=np.zeros_like(rows))

    def idle(self, cycles: Numbers) -> None:
        """Let the other readers of the gradient memory reduce their backlogs for a number of cycles."""
        self.behind = [np.maximum(backlog - cycles, 0) for backlog in self.behind]

    def add(self, there: There, some: npt.NDArray[np.bool_]) -> None:
        """Occupy the adder until the last word of a packet has been added."""
        self.adder = np.where(some, there[1], self.adder)
        self.sums.append(np.where(some, there[0], self.adder))

    def decode(self, arrival: Arrival, elements: Numbers, *, room: int, weights: bool = False,
               lands: bool = True) -> There:
        """Decode a packet through a queue of ``room`` words; return the times of its first and last element."""
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
        """Write back a segment once it is complete, which is when its last element is decoded, at ``end``."""
        stored = np.maximum(self.stores[-1], end + self.timing.stored) + self.rows(elements)
        self.stores.append(np.where(elements > 0, stored, self.stores[-1]))

    def update(self, filled: Numbers, elements: Numbers) -> There:
        """Run the optimizer on a segment's complete gradients; return times of its first and last input beat."""
        some = elements > 0
        begun = np.maximum(filled, self.optimizer)
        end = begun + -(-elements // self.timing.update_lanes) * self.timing.interval
        self.bank = np.where(some, self.optimizer, self.bank)
        self.optimizer = np.where(some, end, self.optimizer)
        return begun, end

    # State that is compared to detect when the packet times become periodic.

    _TIMES = ("link", "taken", "adder", "encoder", "optimizer", "bank", "rested")
    _HISTORIES = ("sent", "left", "sums", "decodes", "weights", "stores")

    def times(self) -> Numbers:
        """All times of the units as one array, to compare states."""
        return np.stack([*(getattr(self, name) for name in self._TIMES),
                         *(history for name in self._HISTORIES for history in getattr(self, name))])

    def move(self, cycles: int) -> None:
        """Advance all times by ``cycles`` to skip periods."""
        for name in self._TIMES:
            setattr(self, name, getattr(self, name) + cycles)
        for name in self._HISTORIES:
            history = getattr(self, name)
            for index in range(len(history)):
                history[index] = history[index] + cycles


def _ahead(room: int, words: Numbers) -> int:
    """Number of packets of ``words`` words that a queue of ``room`` words holds, at least one."""
    return min(max(1, room // max(int(words.max(initial=0)), 1)), _BACK)


#: Maximum number of segments in a period, and number of segments that readers may prefetch.
_PERIODS, _AHEAD = 6, 5
#: Number of segments that the optimizer's banks hold.
_BANKS = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectiveCycles:
    """Result of the model of a collective."""

    #: Cycles from start to end of the command on the slowest rank.
    cycles: int
    #: Number of words sent by the busiest rank, including headers and CRCs.
    words: int
    #: Number of words sent by the busiest rank during scatter-reduce; included in ``words``.
    scatter: int


class _Collective:
    """One collective, modelled segment by segment."""

    def __init__(self, costs: Costs, timing: Timing, *, kind: Collective, latency: int):
        self._costs, self._timing = costs, timing
        begin = timing.planning(length=costs.length, nodes=costs.nodes)
        self.units = Units(timing, nodes=costs.nodes, latency=latency, begin=begin)
        self._waiting: tuple[Numbers, Numbers, Numbers] | None = None
        self._none = np.full(costs.nodes, begin, dtype=np.int64)
        self.kept: dict[int, There] = {}
        self.scatter_words = np.zeros(costs.nodes, dtype=np.int64)
        self._fused = kind is Collective.FUSED_UPDATE
        self._gathers = kind is not Collective.REDUCE_SCATTER
        #: Whether reading the initial gradients competes with the separate addend reader.
        self._shares = timing.grouped and (costs.nodes > 2 or not self._fused)

    def _rows(self, segment: int, distance: int) -> Numbers:
        return self.units.rows(self._costs.elements(segment, distance))

    # Scatter-reduce.

    def scatter(self, segment: int) -> None:
        """Model the scatter-reduce of one segment of every block."""
        costs, timing, units = self._costs, self._timing, self.units
        before = units.words
        there = self._first_grouped(segment) if timing.grouped else self._first_coded(segment)
        for hop in range(1, costs.nodes):
            arrival = units.send(there, costs.scatter(hop - 1, segment, 1 - hop))
            last = hop == costs.nodes - 1
            if last and self._fused:
                there = self._update(arrival, segment)
            elif timing.grouped:
                there = self._sum_grouped(arrival, hop, segment, last=last)
            elif last and not self._gathers:
                self.rest()
                first, end = units.decode(arrival, costs.elements(segment, 1), room=timing.segment, lands=False)
                self._waiting = first, end, costs.elements(segment, 1)
            else:
                there = self._sum_coded(arrival, hop, segment, last=last)
        self.kept[segment] = there
        self.scatter_words = self.scatter_words + units.words - before

    def _read_ahead(self, segment: int) -> None:
        """Add the rows that may now be prefetched to the backlog of each reader except the addend reader."""
        ahead = [*([(_AHEAD, 0)] if self._shares else []), *([(_BANKS, 1)] if self._fused else [])]
        more = [sum((self._rows(n, distance) for n in (range(count) if segment == 0 else [segment + count - 1])),
                    start=np.zeros_like(self._none)) for count, distance in ahead]
        units = self.units
        units.behind = more if segment == 0 else [n + new for n, new in zip(units.behind, more, strict=True)]

    def _first_grouped(self, segment: int) -> There:
        """Times of a block's first gradients if a separate encoder prefetches them."""
        timing, units = self._timing, self.units
        rows, words = self._rows(segment, 0), self._costs.scatter(0, segment, 0)
        addends = [self._rows(segment, -1)] if self._shares else []
        if segment == 0:
            if self._fused:
                addends.append(self._rows(0, 1))
            shared = sum((np.minimum(rows, number) for number in addends), start=np.zeros_like(rows))
            first = self._none + timing.loaded + BEHIND + np.minimum(np.minimum(rows, shared), GROUP // timing.lanes)
            last = self._none + timing.loaded + BEHIND + np.maximum(rows + shared, words)
            self._read_ahead(segment)
            return first, last
        if not self._shares:  # these rows have been prefetched well in advance
            return self._none, self._none
        ahead = sum((self._rows(segment + number, 0) for number in range(1, _AHEAD - 1)), start=np.zeros_like(rows))
        left = np.maximum(units.behind[0] - ahead, 0)
        whole = left >= rows
        begun = units.encoder + timing.loaded
        shared = sum((np.minimum(left, number) for number in addends), start=np.zeros_like(rows))
        last = np.where(left > 0, begun + np.maximum(left + shared, np.where(whole, words, 0)), 0)
        first = np.where(whole & (left > 0), begun + left - rows, 0)
        self._read_ahead(segment)
        return first, last

    def _first_coded(self, segment: int) -> There:
        """Times of a block's first gradients if they pass through the adder like the sums."""
        timing, units = self._timing, self.units
        rows, words = self._rows(segment, 0), self._costs.scatter(0, segment, 0)
        self._read_ahead(segment)
        begun = units.adder
        end = np.maximum(begun + np.maximum(units.read(rows), words), units.room(words))
        units.add((begun, end), rows > 0)
        return begun + timing.loaded + BEHIND, end + timing.loaded + BEHIND

    def _sum_grouped(self, arrival: Arrival, hop: int, segment: int, *, last: bool) -> There:
        """Output times of a sum of ``hop`` + 1 gradients that is computed group by group."""
        costs, timing, units = self._costs, self._timing, self.units
        elements = costs.elements(segment, -hop)
        some, words, own = elements > 0, costs.scatter(hop, segment, -hop), costs.own(hop, segment, -hop)
        groups = np.maximum(-(-elements // GROUP), 1)
        queued = min(max(1, 2 * timing.segment // max(int(own.max()), 1)), len(units.sums))
        encoder = np.maximum(units.encoder, units.sums[-queued])
        units.idle(encoder - units.encoder)
        encoded = encoder + np.maximum(np.maximum(units.read(units.rows(elements)), units.beats(elements)), own)
        units.encoder = np.where(some, encoded, units.encoder)
        first, end = units.take(arrival)
        begun = np.maximum(np.maximum(first, units.adder), encoder)
        work = np.where(some, costs.positions(hop, segment, -hop) + groups, 0)
        added = np.maximum(np.maximum(begun + work, arrival.last), np.maximum(encoded, units.room(words)))
        out = begun - (-work // groups) + timing.summed - 1
        out_end = np.maximum(out + words, added + timing.summed - 1 + words // groups)
        if last:  # the last sum is kept for the all-gather, and decoded while it is being encoded
            out = np.maximum(out, units.decodes[-1])
            decoded = np.maximum(out + np.maximum(words, units.beats(elements)), units.stores[-_BANKS])
            out_end = np.maximum(out_end, decoded)
            units.decodes.append(np.where(some, out_end, units.decodes[-1]))
            units.land(out_end + timing.decoded, elements)
        units.add((begun, added), some)
        units.leave(np.where(some, added, end))
        return out + BEHIND, out_end + BEHIND

    def _sum_coded(self, arrival: Arrival, hop: int, segment: int, *, last: bool) -> There:
        """Output times of a sum of ``hop`` + 1 gradients: the packet is decoded, the local gradient is added, and the
        sum is encoded again."""
        costs, timing, units = self._costs, self._timing, self.units
        elements = costs.elements(segment, -hop)
        some, words = elements > 0, costs.scatter(hop, segment, -hop)
        first, end = units.take(arrival)
        units.leave(np.maximum(end, np.where(some, units.adder, 0)))
        begun = np.maximum(np.maximum(first, units.adder), units.decodes[-1])
        added = np.maximum(begun + np.maximum(units.read(units.rows(elements)), words), end)
        added = np.maximum(added, units.room(words))
        units.decodes.append(np.where(some, added, units.decodes[-1]))
        if last:  # the last sum is encoded and decoded once more
            rested = added + timing.decoded + timing.summed
            units.rested = np.where(some, rested, units.rested)
            units.land(rested, elements)
        units.add((begun, added), some)
        out = begun + timing.summed
        return out + BEHIND, np.maximum(out + words, added + timing.summed) + BEHIND

    def rest(self) -> None:
        """Write back the previous segment's last sum, which a reduce-scatter with a codec delays by one segment."""
        if self._waiting is not None:
            units, (first, last, elements) = self.units, self._waiting
            begun = np.maximum(first, units.adder)
            added = np.maximum(begun + units.read(units.rows(elements)), last)
            units.add((begun, added), elements > 0)
            units.land(added + self._timing.decoded + PacketAdder.latency + 2 * BEHIND, elements)
            self._waiting = None

    def _update(self, arrival: Arrival, segment: int) -> There:
        """Times at which the optimizer delivers the new weights of the rank's own block."""
        timing, units = self._timing, self.units
        elements = self._costs.elements(segment, 1)
        units.decodes.append(np.maximum(units.decodes[-1], np.where(elements > 0, units.bank, 0)))
        _, filled = units.decode(arrival, elements, room=timing.segment, lands=False)
        begun, end = units.update(filled + timing.decoded + BEHIND, elements)
        first = begun + timing.updated + timing.first + BEHIND
        last = end + timing.updated + timing.kept + BEHIND
        return first, np.maximum(first + self._costs.gather(segment, 1), last)

    # All-gather.

    def gather(self, segment: int) -> None:
        """Model the all-gather of one segment of every block."""
        costs, units = self._costs, self.units
        there = self.kept.pop(segment) if segment in self.kept else self._stored(segment)
        if not costs.sums and not self._timing.raw:
            self._restore(there, segment)
        for hop in range(costs.nodes - 1):
            arrival = units.send(there, costs.gather(segment, 1 - hop))
            there = self._land(arrival, costs.elements(segment, -hop), passed=hop < costs.nodes - 2)

    def _stored(self, segment: int) -> There:
        """Times at which a standalone all-gather reads the weights of each rank's own block."""
        words = self._costs.gather(segment, 1)
        begun = self.units.encoder
        self.units.encoder = begun + np.maximum(words, self._rows(segment, 1))
        return begun + self._timing.given, self.units.encoder + self._timing.given

    def _restore(self, there: There, segment: int) -> None:
        """Decode and write back the weights of each rank's own block, before all other blocks."""
        units, elements = self.units, self._costs.elements(segment, 1)
        begun = np.maximum(there[0], units.weights[-1])
        end = np.maximum(begun + np.maximum(self._costs.gather(segment, 1), units.rows(elements)), there[1])
        units.weights.append(np.where(elements > 0, end, units.weights[-1]))
        units.land(end + self._timing.landed, elements)

    def _land(self, arrival: Arrival, elements: Numbers, *, passed: bool) -> There:
        """Write back the elements of a packet, and return the times at which its words can be forwarded."""
        costs, timing, units = self._costs, self._timing, self.units
        if passed:
            arrival = arrival._replace(last=np.maximum(arrival.last, units.room(arrival.words)))
        if not costs.sums and timing.raw:
            first, end = units.take(arrival)
            units.leave(end)
            units.land(end + timing.landed, elements)
            return first + BEHIND, end + BEHIND
        longest = int(arrival.words.max())
        if costs.sums:
            if not timing.grouped:
                units.decodes.append(np.maximum(units.decodes[-1], np.where(elements > 0, units.rested, 0)))
            first, end = units.decode(arrival, elements, room=timing.segment if timing.grouped else longest)
            units.land(end + timing.decoded, elements)
        else:
            first, end = units.decode(arrival, elements, room=longest, weights=True)
            units.land(end + timing.landed, elements)
        return np.maximum(arrival.first, units.taken - arrival.words) + BEHIND, units.taken + BEHIND

    # The whole collective.

    def times(self) -> Numbers:
        """All times of the model as one array, to compare states."""
        waiting = [] if self._waiting is None else [np.stack(self._waiting[:2])]
        return np.concatenate([self.units.times(), *(np.stack(pair) for pair in self.kept.values()), *waiting])

    def skip(self, cycles: int, periods: int, segments: int, words: tuple[Numbers, Numbers]) -> None:
        """Skip ``periods`` periods, each with the given numbers of cycles, segments, words and gradient words."""
        units = self.units
        units.move(periods * cycles)
        units.words = units.words + periods * words[0]
        self.scatter_words = self.scatter_words + periods * words[1]
        if self._waiting is not None:
            first, last, elements = self._waiting
            self._waiting = first + periods * cycles, last + periods * cycles, elements
        self.kept = {segment + periods * segments: (first + periods * cycles, last + periods * cycles)
                     for segment, (first, last) in self.kept.items()}


class _Periods:
    """Detects when the packet times of a collective become periodic."""

    def __init__(self, latency: int):
        # Times further in the past than this cannot delay a packet.
        self._past = 4096 + 4 * latency
        self._found: list[tuple[int, int, Numbers, list[Numbers], tuple[Numbers, Numbers]]] = []

    def look(self, number: int, walk: _Collective) -> tuple[int, int, tuple[Numbers, Numbers]] | None:
        """Return the segments, cycles and words of the period that ends with this segment, or None."""
        times = walk.times()
        now = int(times.max())
        since = np.maximum(times - now, -self._past)
        words = walk.units.words, walk.scatter_words
        period = None
        for before, then, past, behind, sent in self._found:
            if since.shape == past.shape and (since == past).all() and all(
                    (old == new).all() for old, new in zip(behind, walk.units.behind, strict=True)):
                period = number - before, now - then, (words[0] - sent[0], words[1] - sent[1])
        self._found = [*self._found, (number, now, since, walk.units.behind, words)][-_PERIODS:]
        return period


def collective_cycles(kind: Collective, form: Format, timing: Timing, *, length: int, nodes: int,
                      latency: int) -> CollectiveCycles:
    """Model a collective on two or more nodes with the given format and node timing. Links delay words and credits by
    ``latency`` cycles."""
    sums = kind is Collective.ALL_REDUCE
    return cycles_of_costs(kind, Costs(form, length=length, nodes=nodes, segment=timing.segment, sums=sums), timing,
                      latency=latency)


def cycles_of_costs(kind: Collective, costs: Costs, timing: Timing, *, latency: int) -> CollectiveCycles:
    """Model a collective with the given packet costs."""
    if latency < 1:
        raise ValueError(f"Link latency must be at least 1 cycle, not {latency!r}")
    walk = _Collective(costs, timing, kind=kind, latency=latency)
    scatters, gathers = kind is not Collective.ALL_GATHER, kind is not Collective.REDUCE_SCATTER
    periods, number, skipped = _Periods(latency), 0, False
    while number < costs.segments:
        if scatters:
            walk.scatter(number)
        if not gathers:
            walk.kept.clear()
        elif not scatters:
            walk.gather(number)
        elif number:
            walk.gather(number - 1)
        period = None if skipped or number >= costs.full - _AHEAD - _PERIODS else periods.look(number, walk)
        if period is not None:
            segments, cycles, words = period
            count = max(0, (costs.full - _AHEAD - number) // segments)
            walk.skip(cycles, count, segments, words)
            number += count * segments
            skipped = True
        number += 1
    walk.rest()
    if scatters and gathers:
        walk.gather(costs.segments - 1)
    end = np.maximum(walk.units.stores[-1], walk.units.link)
    busiest = int(walk.units.words.argmax())
    return CollectiveCycles(cycles=int(end.max()) + COMMAND, words=int(walk.units.words[busiest]),
                  scatter=int(walk.scatter_words[busiest]))
