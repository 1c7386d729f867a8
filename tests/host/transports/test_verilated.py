import numpy as np
import pytest

from hdl.config import NodeConfig, SingleRing
from host.transports.verilated import VerilatedTransport, open_ring
from sim.verilated.build import build_ring
from sim.verilated.ring import VerilatedRing
from tests.sim.verilated.probe import STAMP, Probe


@pytest.fixture
def ring():
    with VerilatedRing(build_ring(Probe()), nodes=3) as ring:
        yield ring


def test_packets_of_all_nodes_move_while_one_waits(ring):
    transports = [VerilatedTransport(ring, node) for node in range(3)]
    for transport in transports:
        transport.send(np.array([STAMP, 5], np.uint32))
    assert transports[1].receive(1000).tolist() == [17, 1, 18, 5]
    cycle = ring.cycle
    assert transports[0].receive(1000).tolist() == [17, 1, 18, 5]
    assert transports[2].receive(1000).tolist() == [17, 1, 18, 5]
    assert ring.cycle == cycle


def test_timeout_says_who_waits_for_whom(ring):
    transports = [VerilatedTransport(ring, node) for node in range(3)]
    ring.links[1].cut()
    for _ in range(2):
        transports[1].send(np.array([1, 2, 3], np.uint32))
    with pytest.raises(TimeoutError) as caught:
        transports[2].receive(500)
    text = str(caught.value)
    assert text.startswith("no packet from node 2 of the simulated ring within 500 cycles\ncycle 500\n")
    assert "node 1: 3 words of 1 packets wait to go in" in text
    assert "link 1 -> 2 (CUT): 0 words in flight, 0 carried, 3 lost (last in cycle 3)" in text
    assert ring.cycle == 500


@pytest.mark.parametrize("nodes", [0, 5])
def test_ring_size_is_checked_before_anything_is_built(nodes):
    with pytest.raises(ValueError, match=rf"^Ring must have between 1 and 4 nodes, not {nodes}$"):
        open_ring(NodeConfig(topology=SingleRing(max_nodes=4)), nodes=nodes)
