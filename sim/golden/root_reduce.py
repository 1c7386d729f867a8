"""Golden model of collectives with one owner of all groups: packet order, sums and words.

The whole vector is one block. Its sum moves along a chain, from the owner's successor to the owner, and the result
continues to the owner's predecessor. The link from the owner therefore carries only gathered segments, the link to
the owner only sums, and any other link both: K elements in each phase, for any number of nodes.

With SR(t) and AG(t) for segment t, all nodes follow the same order, each with its own packets. The gather lags by L
segments::

    SR(0), …, SR(L), AG(0), SR(L+1), AG(1), …, SR(T-1), AG(T-1-L), AG(T-L), …, AG(T-1)

An element is summed in the order owner + 1, owner + 2, …, owner, ``((g_{o+1} + g_{o+2}) + …) + g_o``, like the
owner's block in other collectives. A different owner means a different order, and possibly different bits.
"""

import numpy as np

from sim.golden import floating, moments, optimizer
from sim.golden.ring import GROUP, PACKET_OVERHEAD, Bits, Traffic, Update, canonical

__all__ = ["GATHER", "LAG", "SCATTER", "all_reduce", "fused_update", "order", "packets", "total"]

SCATTER, GATHER = "SR", "AG"

#: Number of segments by which the gather lags the scatter-reduce.
LAG = 3

#: Packet of a collective: phase and segment.
Packet = tuple[str, int]


def order(segments: int, *, lag: int = LAG) -> list[Packet]:
    """Order of the packets of all segments in both phases."""
    if segments < 0:
        raise ValueError(f"Segments must be zero or more, not {segments!r}")
    if lag < 0:
        raise ValueError(f"Lag must be zero or more, not {lag!r}")
    result: list[Packet] = []
    for segment in range(segments + lag):
        result += [(SCATTER, segment)] if segment < segments else []
        result += [(GATHER, segment - lag)] if segment >= lag and segment - lag < segments else []
    return result


def packets(segments: int, nodes: int, owner: int, rank: int, *, lag: int = LAG) -> tuple[list[Packet], list[Packet]]:
    """Packets that a rank sends and receives, each in order."""
    _check(nodes, owner)
    position = (rank - owner - 1) % nodes  # position in the chain, where the owner is last
    sends = {SCATTER: position != nodes - 1, GATHER: position != nodes - 2}
    receives = {SCATTER: position != 0, GATHER: position != nodes - 1}
    every = order(segments, lag=lag)
    return [packet for packet in every if sends[packet[0]]], [packet for packet in every if receives[packet[0]]]


def total(gradients: Bits, owner: int) -> Bits:
    """Sum of all nodes' gradients, given as one row per node."""
    return _hops(gradients, owner)[-1]


def all_reduce(gradients: Bits, owner: int, *, segment: int = 256, lanes: int = 4) -> tuple[Bits, Traffic]:
    """Sum at every rank after a compressed all-gather, with its traffic."""
    hops = _hops(gradients, owner)
    return hops[-1], _traffic(hops, owner, segment=segment, lanes=lanes, gathered=hops[-1])


def fused_update(gradients: Bits, weights: Bits, state: list[Bits], settings: optimizer.Settings, owner: int, *,
                 packed_state: bool = False, segment: int = 256, lanes: int = 4) -> Update:
    """Sum gradients, run the optimizer on the owner, and gather the new weights as raw words.

    ``weights`` and each plane of ``state`` belong to the owner. With ``packed_state``, new state is rounded to
    bfloat16 when it is stored, but new weights are computed from the unrounded state.
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
    """Sum after each node of the chain; the last sum stays at the owner."""
    nodes = len(gradients)
    _check(nodes, owner)
    chain = [canonical(gradients[(owner + 1 + position) % nodes]) for position in range(nodes)]
    hops = [chain[0]]
    for addend in chain[1:]:
        hops.append(floating.add(hops[-1], addend))
    return hops


def _traffic(hops: list[Bits], owner: int, *, segment: int, lanes: int, gathered: Bits | None) -> Traffic:
    """Traffic of a collective; the gather compresses ``gathered``, or is raw if it is None."""
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
        if hop:  # positions processed by the adder: nonzero in the incoming sum or in the addend
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
