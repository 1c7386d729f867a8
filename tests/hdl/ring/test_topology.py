"""Neighbours of a node in a ring, computed with Python integers and in gateware: hdl/ring/topology.py."""

import itertools

import pytest
from amaranth.hdl import Module, Shape, Signal

from hdl.control.protocol import command_layout
from hdl.ring import topology
from hdl.ring.header import header_layout
from hdl.ring.topology import MAX_NODES, SMALL_RING, RingTopology, ranks, sizes
from tests.hdl import pysim
from tests.refusals import refuses


@pytest.mark.parametrize("nodes", [*range(1, SMALL_RING + 2), 64, MAX_NODES])
def test_ring(nodes):
    """Links form a single cycle, predecessor and successor are inverses, and each block has one owner."""
    ring = RingTopology(nodes)
    rank, seen = 0, []
    for _ in range(nodes):
        seen.append(rank)
        assert ring.predecessor(ring.successor(rank)) == rank
        assert ring.links[rank] == (rank, ring.successor(rank))
        assert ring.links[ring.incoming[rank]] == (ring.predecessor(rank), rank)
        assert ring.owner(ring.owned_block(rank)) == rank
        rank = ring.successor(rank)
    assert rank == 0
    assert sorted(seen) == list(range(nodes))


@pytest.mark.parametrize("nodes", [0, MAX_NODES + 1, True, 2.0])
def test_impossible_ring(nodes):
    refuses(f"Ring size must be between 1 and 255 nodes, not {nodes!r}", RingTopology, nodes)


def test_widths():
    """Ranks and node counts have a fixed width in small rings, and the smallest sufficient width in larger rings."""
    for most in range(1, MAX_NODES + 1):
        assert Shape.cast(ranks(most)).width == max(most - 1, 15).bit_length()
        assert Shape.cast(sizes(most)).width == max(most, 16).bit_length()
    assert Shape.cast(sizes(MAX_NODES)).width == command_layout()["size"].width == header_layout()["block"].width


@pytest.mark.parametrize(("most", "tried"), [
    (SMALL_RING, range(1, SMALL_RING + 1)), (17, (16, 17)), (32, (31, 32)), (MAX_NODES, (128, MAX_NODES))])
def test_gateware_agrees(most, tried):
    """Gateware and Python compute the same results from rank and size, for every node of every small ring, and for
    ranks of each width in large rings."""
    rank, block, size = Signal(ranks(most)), Signal(ranks(most)), Signal(sizes(most))
    outputs = [function(rank, size) for function in (topology.predecessor, topology.successor)]
    outputs += [function(block, rank, size) for function in (topology.is_predecessor, topology.is_successor)]

    async def compare(context):
        for nodes in tried:
            ring = RingTopology(nodes)
            context.set(size, nodes)
            places = range(nodes) if nodes <= SMALL_RING else {0, 1, 15, 16, 17, 31, nodes // 2, nodes - 2, nodes - 1}
            for here, other in itertools.product([node for node in places if node < nodes], repeat=2):
                context.set(rank, here)
                context.set(block, other)
                before, after = ring.predecessor(here), ring.successor(here)
                assert [context.get(value) for value in outputs] == [before, after, other == before, other == after]

    pysim.simulate(Module(), compare, clock=False)
