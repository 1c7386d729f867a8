"""Timing model of a fused update with packets sent in slots.

With slots (docs/ring/slots.md), a superframe consists of a lap around the ring that collects records, a lap that
grants S slots, and S slots, each as long as the longest packet plus a gap. S is the minimum of 16, the number of
packets that each node can still accept, and the largest number of remaining packets of any node. (With the smallest
number, there would be no slot for the last packets of a node that has missed a slot.) In each slot, a node sends its
next packet if the packet is complete; otherwise the slot is lost. Before its first packet, a node reports remaining
packets only if the first packet will be complete when the slots begin. Constants of a hop come from
:mod:`sim.golden.ring_cycles`, as in the gateware; the constants of laps and slots come from hdl/features/slots/.
"""

import dataclasses
from collections.abc import Sequence

from sim.golden import interleaved
from sim.golden.features.slots.slots import GAP, MAX_SLOTS, MESSAGE_CYCLES
from sim.golden.interleaved import GATHER, SCATTER, Packet
from sim.golden.ring import GROUP, PACKET_OVERHEAD, segment_indices
from sim.golden.ring_cycles import ADDER, BEGIN, BURST, END, HOP

__all__ = ["DENSE", "MX9", "Form", "SlotRun", "slot_cycles"]

#: Cycles that a control word takes through a node, without wires, and cycles from the end of the laps to the first
#: slot.
CONTROL_HOP, MARGIN = 8, 16
#: Number of packet slots between messages.
_MESSAGE_EVERY = 4


@dataclasses.dataclass(frozen=True)
class Form:
    """Packet sizes and codec delays of a number format."""

    #: Number of payload words in each phase: per element, and per group of 32 (including a partial one).
    scatter: tuple[float, float] = (1, 1)
    gather: tuple[float, float] = (1, 0)
    adds: int = ADDER  # latency from the arrival of an adder's input until its sum leaves the node
    encodes: int = 0  # cycles that encoding adds between the optimizer and the new weights

    def words(self, phase: str, elements: int) -> int:
        """Number of words of a packet, including header and CRC."""
        each, group = self.scatter if phase == SCATTER else self.gather
        return round(each * elements + group * -(-elements // GROUP)) + PACKET_OVERHEAD


#: Two formats: dense zero-value gradients with raw weights; and mx9 gradients and weights with codecs that take about
#: as long as their round trip (docs/ring/collective/figures.md) plus the adder.
DENSE, MX9 = Form(), Form(scatter=(0, 9), gather=(0, 9), adds=35, encodes=20)


@dataclasses.dataclass(frozen=True)
class SlotRun:
    """Cycle count of an update in slots, and numbers of superframes, slots, and slots that a node left unused."""

    cycles: int
    superframes: int
    slots: int
    lost: int


class _Node:
    """Packets that a node sends, and their progress."""

    def __init__(self, words: Sequence[int]) -> None:
        self.words = words
        self.ends = [sum(words[:number + 1]) for number in range(len(words))]  # words up to the end of each packet
        self.whole: list[int] = []  # completion cycle of each packet
        self.begun: list[int] = []  # cycle when the node begins to send each packet
        self.left: list[int] = []  # cycle when each received packet has left the ingress
        self.source: dict[Packet, int] = {}  # cycle when the last word of each packet can arrive
        self.drained = [BEGIN, BEGIN]  # cycles when the last two bursts were drained


def slot_cycles(length: int, nodes: int, *, interleaves: bool = True, latency: int = 16, segment: int = 256,
                room: int = 24, egress_words: int = 1024, update_rate: float = 1.0, messages: bool = False,
                form: Form = DENSE, laps: int = 2) -> SlotRun:
    """Return the timing of a fused update in slots, in a ring of at least 2 nodes.

    ``latency`` is the latency of a link's wires, ``room`` the number of packets that an ingress holds,
    ``egress_words`` the number of words that can wait for a slot, and ``update_rate`` the number of elements that the
    optimizer updates per cycle. The order may be interleaved (:mod:`sim.golden.interleaved`); slots for messages are
    optional. ``laps`` is the number of laps before the slots: 2, 1 if all nodes send their records simultaneously, or
    0 if they send them earlier.
    """
    if nodes < 2:
        raise ValueError(f"Ring must have 2 nodes or more, not {nodes!r}")
    steps = nodes - 1
    blocks = [[len(index) for index in block] for block in segment_indices(length, nodes, segment)]
    segments = len(blocks[0])
    packets = interleaved.order(segments, steps, steps) if interleaves else interleaved.blockwise(segments, steps)

    def elements(rank: int, packet: Packet) -> int:
        phase, number, step = packet
        return blocks[(rank + (phase == GATHER) - step) % nodes][number]

    ring = [_Node([form.words(packet[0], elements(rank, packet)) for packet in packets]) for rank in range(nodes)]
    longest = max((max(node.words) for node in ring if packets), default=0)
    lap = nodes * (latency + CONTROL_HOP) + nodes + 2

    def prepare(node: _Node) -> None:
        """Compute the completion times of packets, in order, until the time of a packet's source is unknown."""
        while len(node.whole) < len(packets):
            number = len(node.whole)
            phase, _, step = packets[number]
            if step or phase == GATHER:
                if packets[number] not in node.source:
                    return
                there = node.source[packets[number]]
            else:
                there = 0
            needed = node.ends[number] - egress_words  # words to send before this packet fits into the egress
            if needed > 0:
                first = next(index for index, end in enumerate(node.ends) if end >= needed)
                if first >= len(node.begun):
                    return
                there = max(there, node.begun[first] + needed - node.ends[first] + node.words[first] + 3)
            before = node.whole[-1] if node.whole else BEGIN
            node.whole.append(max(there, before + node.words[number]))

    def receive(rank: int, packet: Packet, begun: int, words: int) -> int:
        """Receive a packet from the predecessor; return the cycle when it has left the ingress."""
        node, (phase, number, step) = ring[rank], packet
        end = begun + HOP + latency + words
        if step < steps - 1:
            end += form.adds if phase == SCATTER else 0
            node.source[phase, number, step + 1] = end
        elif phase == SCATTER:  # one burst runs at a time, and one more can wait in a bank
            count = elements(rank, (GATHER, number, 0))
            burst = max(end, node.drained[-1])
            end = max(end, node.drained[-2])
            node.drained = [node.drained[-1], burst + round(count / update_rate)]
            node.source[GATHER, number, 0] = node.drained[-1] + BURST + form.encodes
        node.left.append(end)
        return end

    for node in ring:
        prepare(node)
    free, last, superframes, slots, lost = 0, 0, 0, 0, 0  # free is the cycle from which rank 0 may request records
    while any(len(node.begun) < len(packets) for node in ring):
        begin = free + laps * lap + (MARGIN if laps else 0)
        pending, rooms = 0, MAX_SLOTS
        for rank, node in enumerate(ring):
            # With two laps, the second forwards records; with one lap, a node sends its record after its slots.
            sampled = free + rank * (latency + (CONTROL_HOP if laps > 1 else 1))
            held = len(ring[rank - 1].begun) - sum(cycle <= sampled for cycle in node.left)
            starts = node.begun or node.whole[0] < begin + rank * (latency + 1)
            pending = max(pending, len(packets) - len(node.begun) if starts else 0)
            rooms = min(rooms, room - held)
        count = min(pending, rooms)
        superframes += 1
        for slot in range(count):
            slots += 1
            full = True
            for rank, node in enumerate(ring):
                at = begin + rank * (latency + 1)
                number = len(node.begun)
                if number < len(node.whole) and node.whole[number] < at:
                    node.begun.append(at)
                else:
                    full &= number == len(packets)
            lost += not full
            for rank, node in enumerate(ring):
                successor = (rank + 1) % nodes
                for number in range(len(ring[successor].left), len(node.begun)):
                    last = max(last, receive(successor, packets[number], node.begun[number], node.words[number]))
            for node in ring:
                prepare(node)
            begin += longest + GAP
            if messages and (slot % _MESSAGE_EVERY == _MESSAGE_EVERY - 1 or slot == count - 1):
                begin += MESSAGE_CYCLES
        if not count:
            begin = max(begin + messages * MESSAGE_CYCLES, free + lap)
        free = begin
        if superframes > 100 * len(packets) + 100:
            raise RuntimeError("Update in slots must end")
    return SlotRun(last + END, superframes, slots, lost)
