# amaranth: UnusedElaboratable=no
"""Test the wires between the nodes of a board: hdl/board.py."""

import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl import board
from hdl.config import NodeConfig
from hdl.features.grid.feature import Grid
from hdl.ring.ports import port_members, ports_of
from hdl.ring.topology import GridTopology, RingTopology
from hdl.streams.stream import word_layout
from tests.hdl import pysim
from tests.refusals import refused

ONE, TWO = NodeConfig(), NodeConfig(topology=Grid())
RATES = {"clock": 16, "baud": 4}


class Sender(wiring.Component):
    """Stand-in for a node; each port continuously sends its node and port numbers."""

    def __init__(self, config, number):
        self.number, self.ports = number, config.topology.ports
        words = stream.Signature(word_layout())
        super().__init__({"host_i": In(words), "host_o": Out(words), **port_members(config, config.topology.ports)})

    def elaborate(self, platform):
        m = Module()
        for port, (_, successor) in enumerate(ports_of(self)):
            m.d.comb += [successor.valid.eq(1), successor.data.eq(self.number << 4 | port)]
        return m


@pytest.mark.parametrize(("config", "nodes", "grid", "links"), [
    (ONE, 3, None, [((node, 0), (end, 0)) for node, end in RingTopology(3).links]),
    (TWO, 2, None, [((node, 0), (end, 0)) for node, end in RingTopology(2).links]),
    (TWO, 6, (2, 3), GridTopology(2, 3).wiring),
    (TWO, 3, (1, 3), GridTopology(1, 3).wiring),
    (TWO, 2, (2, 1), GridTopology(2, 1).wiring),
])
def test_links(monkeypatch, config, nodes, grid, links):
    """A linked port receives the words of the port at the other end one cycle later; other ports receive nothing."""
    senders = []
    monkeypatch.setattr(board, "node_of", lambda config: senders.append(Sender(config, len(senders))) or senders[-1])
    top = board.BoardTop(config=config, nodes=nodes, flash=1, grid=grid, **RATES)
    received = []

    async def look(context):
        for cycle in range(2):
            for node in senders:
                for port, (predecessor, _) in enumerate(ports_of(node)):
                    if context.get(predecessor.valid):
                        sent = context.get(predecessor.data)
                        received.append((cycle, ((sent >> 4, sent & 15), (node.number, port))))
            await context.tick()

    pysim.simulate(top, look)
    assert sorted(received) == sorted((1, link) for link in links)


test_impossible = refused(board.BoardTop, {"config": TWO, **RATES}, [
    ({"nodes": 4, "grid": (2, 3)}, "Nodes of a 2 x 3 grid must be 6, not 4"),
    ({"config": ONE, "nodes": 4, "grid": (2, 2)},
     "Topology of nodes of a grid must be Grid(), not SingleRing(max_nodes=16)"),
    ({"nodes": 4, "grid": (0, 2)}, "Rows must be between 1 and 16, not 0"),
    ({"nodes": 4, "grid": (2, 17)}, "Columns must be between 1 and 16, not 17"),
    ({"nodes": 17}, "Ring must have between 1 and 16 nodes, not 17"),
])
