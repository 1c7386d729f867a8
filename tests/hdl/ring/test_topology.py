"""Neighbours in numbers and in gateware: hdl/ring/topology.py."""

import itertools

import pytest
from amaranth.hdl import Module, Signal
from amaranth.sim import Simulator

from hdl.ring import topology
from hdl.ring.topology import MOST_NODES, RANKS, SIZES, RingTopology


@pytest.mark.parametrize("nodes", SIZES[1:])
def test_ring(nodes):
    """Links form one circle; the node before the one behind is the node itself; every block has one owner."""
    ring = RingTopology(nodes)
    place, seen = 0, []
    for _ in range(nodes):
        seen.append(place)
        assert ring.predecessor(ring.successor(place)) == place
        assert ring.links[place] == (place, ring.successor(place))
        assert ring.links[ring.incoming[place]] == (ring.predecessor(place), place)
        assert ring.owner(ring.owned_block(place)) == place
        place = ring.successor(place)
    assert place == 0
    assert sorted(seen) == list(range(nodes))


@pytest.mark.parametrize("nodes", [0, MOST_NODES + 1, True, 2.0])
def test_impossible_ring(nodes):
    with pytest.raises(ValueError, match=rf"^Ring size must be between 1 and 16 nodes, not {nodes!r}$"):
        RingTopology(nodes)


def test_gateware_agrees():
    """Gateware computes from rank and size the same as the class, for every node of every ring."""
    rank, block, size = Signal(RANKS), Signal(RANKS), Signal(SIZES)
    found = [function(rank, size) for function in (topology.predecessor, topology.successor)]
    found += [function(block, rank, size) for function in (topology.is_predecessor, topology.is_successor)]

    async def compare(context):
        for nodes in SIZES[1:]:
            ring = RingTopology(nodes)
            context.set(size, nodes)
            for here, other in itertools.product(range(nodes), repeat=2):
                context.set(rank, here)
                context.set(block, other)
                before, behind = ring.predecessor(here), ring.successor(here)
                assert [context.get(value) for value in found] == [before, behind, other == before, other == behind]

    simulator = Simulator(Module())
    simulator.add_testbench(compare)
    simulator.run()
