"""Golden model of collectives in which one node owns all groups: order of the packets, sums, and words on the wire.

The vector is one block. Its sum goes along a chain, from the node behind the owner to the owner, and what the owner
makes of it goes on from the owner to the node before it. So the link from the owner carries gathered segments alone,
the link to it sums alone, and all others one of each for a segment: K elements in either phase, whatever the number
of nodes.

With SR(t) and AG(t) for segment t, all nodes follow one order, each with the packets in which it takes part. The
gather lags L segments behind::

    SR(0), …, SR(L), AG(0), SR(L+1), AG(1), …, SR(T-1), AG(T-1-L), AG(T-L), …, AG(T-1)

An element is summed in the order owner + 1, owner + 2, …, owner, ``((g_{o+1} + g_{o+2}) + …) + g_o``, as the block of
that owner is in other collectives; another owner is another order, and so may be other bits.
"""

import numpy as np

from sim.golden import floating, moments, optimizer
from sim.golden.ring import GROUP, PACKET_OVERHEAD, Bits, Traffic, Update, canonical

__all__ = ["GATHER", "LAG", "SCATTER", "all_reduce", "fused_update", "order", "packets", "total"]

SCATTER, GATHER = "SR", "AG"

#: Segments by which the gather lags behind.
LAG = 3

#: A phase and a segment.
Packet = tuple[str, int]


def order(segments: int, *, lag: int = LAG) -> list[Packet]:
    """Order of the packets of all segments."""
    if segments < 0:
        raise ValueError(f"Segments must be zero or more, not {segments!r}")
    if lag < 0:
        raise ValueError(f"Lag must be zero or more, not {lag!r}")
    found: list[Packet] = []
    for segment in range(segments + lag):
        found += [(SCATTER, segment)] if segment < segments else []
        found += [(GATHER, segment - lag)] if segment >= lag and segment - lag < segments else []
    return found


def packets(segments: int, nodes: int, owner: int, rank: int, *, lag: int = LAG) -> tuple[list[Packet], list[Packet]]:
    """Packets that a rank sends, and those that it receives, in their order."""
    _check(nodes, owner)
    place = (rank - owner - 1) % nodes  # in the chain, at whose end the owner is
    sends = {SCATTER: place != nodes - 1, GATHER: place != nodes - 2}
    receives = {SCATTER: place != 0, GATHER: place != nodes - 1}
    every = order(segments, lag=lag)
    return [one for one in every if sends[one[0]]], [one for one in every if receives[one[0]]]


def total(gradients: Bits, owner: int) -> Bits:
    """Sum of the gradients of all nodes, a row for each."""
    return _hops(gradients, owner)[-1]


def all_reduce(gradients: Bits, owner: int, *, segment: int = 256, lanes: int = 4) -> tuple[Bits, Traffic]:
    """Sum that every rank ends with, after a gather that is compressed."""
    hops = _hops(gradients, owner)
    return hops[-1], _traffic(hops, owner, segment=segment, lanes=lanes, gathered=hops[-1])


def fused_update(gradients: Bits, weights: Bits, state: list[Bits], settings: optimizer.Settings, owner: int, *,
                 packed_state: bool = False, segment: int = 256, lanes: int = 4) -> Update:
    """The sum, the optimizer at the owner, and a gather of the new weights as they are.

    ``weights`` and each plane of ``state`` are the owner's. With ``packed_state``, new state is rounded to bfloat16
    when it is stored: the new weights come of what it was before.
    """
    hops = _hops(gradients, owner)
    new, planes = optimizer.update(hops[-1], weights, state, settings)
    if packed_state:
        planes[:settings.planes] = [moments.unpack(moments.pack(plane), len(plane))
                                    for plane in planes[:settings.planes]]
    traffic = _traffic(hops, owner, segment=segment, lanes=lanes, gathered=None)
    return Update(weights=new, master=new, state=planes, total=hops[-1], traffic=traffic)


def _check(nodes: int, owner: int) -> None:
    if nodes < 2:
        raise ValueError(f"Ring must have at least 2 nodes for one of them to be the owner, not {nodes!r}")
    if not 0 <= owner < nodes:
        raise ValueError(f"Owner must be a rank below {nodes}, not {owner!r}")


def _hops(gradients: Bits, owner: int) -> list[Bits]:
    """The sums that leave each node of the chain; the last one stays at the owner."""
    nodes = len(gradients)
    _check(nodes, owner)
    chain = [canonical(gradients[(owner + 1 + place) % nodes]) for place in range(nodes)]
    hops = [chain[0]]
    for addend in chain[1:]:
        hops.append(floating.add(hops[-1], addend))
    return hops


def _traffic(hops: list[Bits], owner: int, *, segment: int, lanes: int, gathered: Bits | None) -> Traffic:
    """Words and bounds; a gather is compressed, or without ``gathered`` raw."""
    nodes, length = len(hops), hops[0].size
    bounds = [(start, min(start + segment, length)) for start in range(0, length, segment)]
    elements = np.array([stop - start for start, stop in bounds], dtype=np.int64)

    def payloads(values: Bits | None) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        if values is None:
            return elements
        return np.array([np.count_nonzero(values[start:stop]) - (start - stop) // GROUP for start, stop in bounds],
                        dtype=np.int64)

    words = np.zeros((2, nodes - 1, nodes), dtype=np.int64)
    cost = np.zeros((2, nodes), dtype=np.int64)
    rows = -(-elements // lanes)
    gather = payloads(gathered)
    for hop in range(nodes - 1):
        sender = (owner + 1 + hop) % nodes
        payload = payloads(hops[hop])
        positions = np.zeros_like(elements)
        if hop:  # positions that the adder takes, non-zero in the sum before or in what is added
            either = (hops[hop - 1] != 0) | (hops[hop] != 0)
            positions = np.array([np.count_nonzero(either[start:stop]) for start, stop in bounds], dtype=np.int64)
        words[0, hop, sender] = (payload + PACKET_OVERHEAD).sum()
        cost[0, sender] += np.maximum(np.maximum(payload, rows), positions).sum()
        sender = (owner + hop) % nodes
        words[1, hop, sender] = (gather + PACKET_OVERHEAD).sum()
        cost[1, sender] += np.maximum(gather, rows).sum()
    return Traffic(
        scatter_words=words[0], gather_words=words[1],
        dense_words=2 * (nodes - 1) * int((elements + PACKET_OVERHEAD).sum()),
        density=np.array([np.count_nonzero(hop) / max(length, 1) for hop in hops[:-1]]),
        scatter_bound=int(cost[0].max()), bound=int(cost.sum(axis=0).max()),
        gather_elements=(nodes - 1) * int(elements.sum()), gather_payload=(nodes - 1) * int(gather.sum()))
