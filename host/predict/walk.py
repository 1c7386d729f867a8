"""Walk through a collective, packet by packet, for all ranks at once: when each packet is sent, and when all is done.

Every rank sends the packets of docs/ring/collective/theory.md in one static order. So the times of a packet follow
from those of packets before it by maxima and sums alone, a max-plus walk:

    payload begins = max(its words are there, the link is free + header, a credit is back + header)
    payload ends   = max(begin + words, its last word is there)
    words are there at the next rank = begin + latency + :attr:`Timing.hop`, and what a sum or the optimizer adds

A credit is back when the packet ``credits`` before has left the ingress of the successor. That waits for the units
behind the ingress: the adder, the path of decoded sums, the optimizer, and queues of one or two segments. Each has a
time from which on it is free, and takes as many cycles as :class:`~host.predict.costs.Costs` say.

Times are arrays with an element for each rank. Where all segments between two have the same costs and the times have
only moved on by a constant since an earlier segment, the walk leaves out as many periods as there are: it gives the
same times as a walk through all of them.
"""

import collections
import dataclasses
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from host.predict.costs import Costs
from host.predict.timing import Timing

__all__ = ["Collective", "Packet", "Walked", "walk"]

Times: TypeAlias = npt.NDArray[np.int64]

#: Words of a header, and of a CRC.
_HEADER, _CRC = 3, 1
#: Segments within which the times are looked for a period.
_PERIODS = 6


class _Node:
    """Times of the units of all ranks, as a walk has left them."""

    def __init__(self, costs, timing, latency, begin):
        self.costs, self.timing, self.latency = costs, timing, latency
        zero = np.full(costs.nodes, begin, dtype=np.int64)
        self.free = zero            # the link has room for a header
        self.there = zero, zero     # first and last word of the packet that is sent next
        self.taken = zero           # last word that has left the ingress
        self.summing = zero         # the adder, or the path of sums
        self.encoding = zero        # the encoder of addends
        self.bank = zero
        self.updating = zero
        self.landing = zero
        self.decoding = zero
        self.finished = []          # words of the own block for the coming gathers
        self.sent = collections.deque([zero] * 16, maxlen=16)
        self.credits = collections.deque([zero - 10 ** 9] * timing.credits, maxlen=timing.credits)
        self.sums = collections.deque([zero] * 16, maxlen=16)
        self.words = 0

    def send(self, words):
        back = np.roll(self.credits[0], -1) + CREDIT + self.latency
        ready = np.maximum(self.free, back) + _HEADER
        first, last = self.there
        begun = np.where(words > 0, np.maximum(first, ready), ready)
        end = np.where(words > 0, np.maximum(begun + words, last), begun)
        self.free = end + _CRC
        self.sent.append(end)
        self.words = self.words + words + 4
        wire = HOP - BEHIND + self.latency
        return np.roll(begun, 1) + wire, np.roll(end, 1) + wire, np.roll(words, 1)

    def room(self, words):
        most = int(words.max())
        return self.sent[-min(max(1, 2 * self.timing.segment // max(most, 1)), 16)]

    def take(self, arrival, pace=None):
        first, last, words = arrival
        first = np.maximum(first, self.taken + _HEADER + _CRC)
        return first, np.maximum(first + (words if pace is None else np.maximum(words, pace)), last), words

    def left(self, end):
        self.taken = end
        self.credits.append(end)


def _sum(node, arrival, hop, elements, keep):
    """A packet becomes a sum of hop+1 gradients; returns when its words are there."""
    costs, timing = node.costs, node.timing
    words = costs.scatter(hop, elements)
    some = elements > 0
    if timing.grouped:
        groups = -(-elements // 32)
        own = costs.own(elements)
        ahead = min(max(1, 2 * timing.segment // max(int(own.max()), 1)), 16)
        enc = np.maximum(node.encoding, node.sums[-ahead])
        encoded = enc + np.maximum(8 * groups, own)
        node.encoding = np.where(some, encoded, node.encoding)
        first, last, _ = node.take(arrival)
        room = node.room(words)
        begun = np.maximum(np.maximum(first, node.summing), enc)
        work = costs.positions(hop, elements) + groups
        end = np.maximum(np.maximum(begun + work, last), np.maximum(encoded, room))
        out = begun + -(-work // np.maximum(groups, 1)) + timing.summed - 1
        out_end = np.maximum(out + words, end + timing.summed - 1 + words // np.maximum(groups, 1))
        if keep:
            out = np.maximum(out, node.decoding)
            out_end = np.maximum(out + words, out_end)
            node.decoding = np.where(some, out_end, node.decoding)
            node.landing = np.maximum(node.landing, out_end + timing.decoded + timing.stored + -(-elements // timing.lanes))
        node.summing = np.where(some, end, node.summing)
        node.sums.append(np.where(some, begun, node.summing))
        left = np.where(some, end, last)
    else:
        first, last, arrived = node.take(arrival)
        left = np.maximum(last, np.where(some, node.summing, 0))
        begun = np.maximum(np.maximum(first, node.summing), node.decoding)
        beats = np.maximum(-(-elements // timing.lanes), words)
        end = np.maximum(np.maximum(begun + beats, last), node.room(words))
        node.decoding = np.where(some, end, node.decoding)
        if keep:
            node.landing = np.maximum(node.landing, end + timing.summed + timing.decoded + timing.stored + -(-elements // timing.lanes))
        out = begun + timing.summed
        out_end = np.maximum(out + words, end + timing.summed)
        node.summing = np.where(some, end, node.summing)
    node.left(left)
    return out + BEHIND, out_end + BEHIND


def _update(node, arrival, elements):
    timing, costs = node.timing, node.costs
    some = elements > 0
    first, last, words = node.take(arrival, -(-elements // timing.lanes))
    left = np.maximum(last, np.where(some, node.bank, 0))
    node.left(left)
    begun = np.maximum(left + timing.decoded + BEHIND, node.updating)
    count = -(-elements // timing.update_lanes) * timing.interval
    node.bank = np.where(some, node.updating, node.bank)
    node.updating = np.where(some, begun + count, node.updating)
    words = costs.gather(elements)
    out = begun + timing.updated
    return out, np.maximum(out + words, begun + count + timing.updated)


def walk(costs, timing, latency, *, fused, loaded_at=None, trace=None):
    nodes = costs.nodes
    rank = np.arange(nodes)
    planning = (65536 // 32).bit_length() + nodes + 3
    node = _Node(costs, timing, latency, planning)
    kept = {}
    def scatter(t):
        elements = costs.elements(t)
        loaded = np.full(nodes, planning + timing.loaded + BEHIND, dtype=np.int64)
        for hop in range(nodes - 1):
            e = elements[(rank - hop) % nodes]
            w = costs.scatter(hop, e)
            if hop == 0:
                if timing.grouped:
                    node.there = loaded, loaded
                else:
                    some = e > 0
                    begun = node.summing
                    beats = np.maximum(-(-e // timing.lanes), w)
                    end = np.maximum(begun + beats, node.room(w))
                    node.there = begun + timing.loaded + BEHIND, end + timing.loaded + BEHIND
                    node.summing = np.where(some, end, node.summing)
            arrival = node.send(w)
            mine = elements[(rank - hop - 1) % nodes]
            if hop < nodes - 2:
                node.there = _sum(node, arrival, hop + 1, mine, False)
            elif fused:
                kept[t] = _update(node, arrival, mine)
            else:
                there = _sum(node, arrival, hop + 1, mine, True)
                kept[t] = there
    def gather(t):
        elements = costs.elements(t)
        node.there = kept.pop(t)
        for hop in range(nodes - 1):
            e = elements[(rank + 1 - hop) % nodes]
            arrival = node.send(costs.gather(e))
            mine = elements[(rank - hop) % nodes]
            first, last, words = node.take(arrival, -(-mine // timing.lanes))
            last = np.maximum(last, node.room(words)) if hop < nodes - 2 else last
            node.left(last)
            node.there = first + BEHIND, last + BEHIND
            if not fused:
                dec = np.maximum(first, node.decoding)
                end = np.maximum(dec + np.maximum(words, -(-mine // timing.lanes)), last)
                last = np.where(mine > 0, end, last)
                node.decoding = np.where(mine > 0, end, node.decoding)
            node.landing = np.maximum(node.landing, last + (timing.landed if fused else timing.decoded)
                                      + timing.stored + -(-mine // timing.lanes))
    T = costs.segments
    for t in range(T):
        scatter(t)
        if t:
            gather(t - 1)
    gather(T - 1)
    return int(np.maximum(node.landing, node.free).max()) + COMMAND, int(np.max(node.words))

BEHIND = 3
CREDIT = 2
from host.predict.timing import COMMAND, HOP
