# amaranth: UnusedElaboratable=no
"""Port names and wires of a node, and links that connect two ports."""

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring

from hdl.config import NodeConfig
from hdl.features.replay.feature import Replay
from hdl.ring.ports import joined, link_signature, port_members, port_names, ports_of, wires_per_link
from tests.hdl import pysim

CONFIG, REPLAY = NodeConfig(), NodeConfig(link=Replay())


class Ports(wiring.Component):
    def __init__(self, config, ports):
        super().__init__(port_members(config, ports))

    def elaborate(self, platform):
        return Module()


@pytest.mark.parametrize("ports", [1, 2, 3])
def test_names(ports):
    node = Ports(CONFIG, ports)
    names = ["ring_i", "ring_o", "ring_1_i", "ring_1_o", "ring_2_i", "ring_2_o"]
    assert list(node.signature.members) == names[:2 * ports]
    assert [name for number in range(ports) for name in port_names(number)] == names[:2 * ports]
    assert ports_of(node) == [(getattr(node, before), getattr(node, after))
                              for before, after in zip(names[:2 * ports:2], names[1:2 * ports:2], strict=True)]


def test_wires():
    assert wires_per_link(link_signature(CONFIG)) == (34, 1)
    assert wires_per_link(link_signature(REPLAY)) == (43, 1)


@pytest.mark.parametrize(("config", "forward", "back"), [
    (CONFIG, ["valid", "data", "last"], ["credit"]),
    (REPLAY, ["valid", "data", "last", "kind", "check"], ["line"]),
])
def test_joined(config, forward, back):
    """Every wire is connected, through one register, to the wire with the same name at the other end."""
    signature = link_signature(config)
    source, target = signature.create(), signature.flip().create()
    m = Module()
    m.d.sync += joined(source, target)

    async def bench(context):
        for here, there, names in ((source, target, forward), (target, source, back)):
            for name in names:
                context.set(getattr(here, name), 1)
                assert context.get(getattr(there, name)) == 0
                await context.tick()
                assert context.get(getattr(there, name)) == 1
                context.set(getattr(here, name), 0)
                await context.tick()
                assert context.get(getattr(there, name)) == 0

    pysim.simulate(m, bench)
