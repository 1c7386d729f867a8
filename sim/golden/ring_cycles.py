"""Timing model of a fused update on a ring with links of different rates.

Packets are dense, with gradients in ``zero_value`` form and raw weights. A packet enters a link when the previous
packet has left, its first word has arrived at the node, and the successor has room for it (a credit). Its words
follow at the rate of the link, but no faster than they arrive. Every time is therefore the maximum of several earlier
times, plus latencies of the gateware, which are the constants below.

The model shows which partitioning is faster on given links, and by how much. docs/ring/root_reduce.md compares it
with measured cycles.
"""

import dataclasses
from collections.abc import Sequence

from sim.golden import interleaved, root_reduce
from sim.golden.constants import constant
from sim.golden.ring import GROUP, PACKET_OVERHEAD, segment_indices
from sim.golden.root_reduce import GATHER, SCATTER

__all__ = ["best_owner", "update_cycles"]

_UPDATES = "updates of Verilated nodes: docs/ring/root_reduce.md"
HOP = constant("one owner", 15, "latency of a word from one egress to the next, or to its end in a node, without "
               "the wires", _UPDATES)
ADDER = constant("one owner", 45, "delay of a word by the addition of gradients", _UPDATES)
BEGIN = constant("one owner", 60, "from the start of a command to its first word", _UPDATES)
END = constant("one owner", 10, "from the last word of a segment to the end of the command", _UPDATES)
BURST = constant("one owner", 30, "from the last word of a sum at its owner, or the start of a burst, to the first "
                 "word of new weights", _UPDATES)
CREDIT = constant("one owner", 8, "from the last word of a packet at a node to the credit at its predecessor, "
                  "without the wires", _UPDATES)


@dataclasses.dataclass
class _Link:
    """State of a link, which sends its packets in order."""

    rate: float
    free: float = 0.0
    sent: int = 0  # number of packets
    left: dict[int, float] = dataclasses.field(default_factory=dict)  # times when packets have left the ingress

    def send(self, begin: float, end: float, words: int, credits: int, back: float) -> tuple[float, float]:
        """Times when a packet's first and last words are sent. They become available at ``begin`` and ``end``."""
        index = self.sent - credits
        self.sent += 1
        begin = max(begin, self.free, self.left[index] + back if index >= 0 else 0.0)
        self.free = max(begin + words / self.rate, end)
        return begin, self.free


def update_cycles(length: int, nodes: int, *, rates: Sequence[float] | None = None, owner: int | None = None,
                  latency: int = 16, segment: int = 256, credits: int = 4, update_rate: float = 1.0,
                  lag: int = root_reduce.LAG, interleaves: bool = False) -> float:
    """Number of cycles that a fused update takes.

    Parameters
    ----------
    length, nodes : int
        Number of elements; number of nodes in the ring, 2 or more.
    rates : sequence of float, optional
        Rate of each rank's outgoing link in words per cycle; 1 by default.
    owner : int, optional
        Rank that owns all groups; by default they are partitioned among all ranks.
    latency, segment, credits : int
        Latency of link wires in cycles; number of elements in a segment; number of segments that an ingress holds.
    update_rate : float
        Rate of the optimizer in elements per cycle.
    lag : int
        Number of segments by which the gather lags if there is an owner.
    interleaves : bool
        Whether segments are interleaved; ``credits`` must then be at least 3. Has no effect with an owner.
    """
    rates = [1.0] * nodes if rates is None else list(rates)
    if nodes < 2 or len(rates) != nodes or not all(0 < rate <= 1 for rate in rates):
        raise ValueError(f"Rates must be one above 0 and up to 1 for each of 2 nodes or more, not {rates!r}")
    links = [_Link(rate) for rate in rates]
    ready: dict[tuple[int, int], tuple[float, float]] = {}  # first and last word at the owner, by (block, segment)
    drained = [BEGIN * 1.0] * nodes  # time when each node's optimizer is free
    last = 0.0
    back = latency + CREDIT

    def cross(rank: int, phase: str, begin: float, end: float, elements: int, *, ends: bool) -> tuple[float, float]:
        """Send a packet over a link; return the times when its first and last words reach the next node's egress, or
        the node itself if the packet ends there."""
        way = HOP + latency + (0 if ends or phase == GATHER else ADDER)
        words = elements + PACKET_OVERHEAD + (-(-elements // GROUP) if phase == SCATTER else 0)
        first, final = links[rank].send(begin, end, words, credits, back)
        return first + way, final + way

    def leave(rank: int, time: float, number: int | None = None) -> None:
        """Record when a packet (by default the next one) has left the ingress of the link from ``rank``."""
        nonlocal last
        left = links[rank].left
        left[len(left) if number is None else number] = time
        last = max(last, time)

    def update(rank: int, block: int, number: int, end: float, elements: int) -> None:
        """Start the optimizer on a segment; its last word arrives at time ``end``."""
        begin = max(end, drained[rank])
        drained[rank] = begin + elements / update_rate
        ready[block, number] = begin + BURST, drained[rank] + BURST

    if owner is not None:
        sizes = [len(index) for index in segment_indices(length, 1, segment)[0]]
        for phase, number in root_reduce.order(len(sizes), lag=lag):
            start = owner + 1 if phase == SCATTER else owner
            begin, end = ready[0, number] if phase == GATHER else (BEGIN, BEGIN)
            for hop in range(nodes - 1):
                rank = (start + hop) % nodes
                begin, end = cross(rank, phase, begin, end, sizes[number], ends=hop == nodes - 2)
                if hop:
                    leave((rank - 1) % nodes, links[rank].free)
            leave((start + nodes - 2) % nodes, end)
            if phase == SCATTER:
                update(owner, 0, number, end, sizes[number])
        return last + END

    blocks = [[len(index) for index in segments] for segments in segment_indices(length, nodes, segment)]
    steps = nodes - 1
    packets = interleaved.order(len(blocks[0]), steps, steps) if interleaves else (
        interleaved.blockwise(len(blocks[0]), steps))
    coming: dict[tuple[str, int], list[tuple[float, float]]] = {}  # first and last word of a segment at each rank
    positions = {packet: position for position, packet in enumerate(packets)}
    for position, (phase, number, hop) in enumerate(packets):
        shift = 0 if phase == SCATTER else 1
        arrived = []
        for rank in range(nodes):
            block = (rank + shift - hop) % nodes
            begin, end = coming[phase, number][rank] if hop else ready[block, number] if shift else (BEGIN, BEGIN)
            arrived.append(cross(rank, phase, begin, end, blocks[block][number], ends=hop == nodes - 2))
        coming[phase, number] = arrived[-1:] + arrived[:-1]
        for rank in range(nodes):
            if hop:
                leave((rank - 1) % nodes, links[rank].free, positions[phase, number, hop - 1])
            if hop < nodes - 2:
                continue
            end = coming[phase, number][rank][1]
            leave((rank - 1) % nodes, end, position)
            if phase == SCATTER:
                block = (rank + 1) % nodes
                update(rank, block, number, end, blocks[block][number])
    return last + END


def best_owner(length: int, nodes: int, *, rates: Sequence[float], min_gain: float = 0.05,
               **shape: float) -> tuple[int | None, dict[int | None, float]]:
    """Return the rank that should own all groups, and the cycles of an update keyed by owner.

    None stands for groups that are partitioned among all ranks. It is returned if no owner gains ``min_gain``.
    """
    cycles: dict[int | None, float] = {
        owner: update_cycles(length, nodes, rates=rates, owner=owner, **shape)  # type: ignore[arg-type]
        for owner in (None, *range(nodes))}
    best = min(range(nodes), key=lambda owner: cycles[owner])
    return (best if cycles[best] <= (1 - min_gain) * cycles[None] else None), cycles
