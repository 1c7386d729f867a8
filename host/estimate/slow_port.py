# amaranth: UnusedElaboratable=no
"""Node whose host port takes a word every few cycles."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring

from hdl.config import NodeConfig
from hdl.node import Node

__all__ = ["SlowPortNode"]


class SlowPortNode(wiring.Component):
    """A node behind a host port that moves one word each way every ``cycles`` cycles.

    It is a machine to compare with, and has no throttle.

    Parameters
    ----------
    cycles : int
        2 or more.

    Members
    -------
    As those of :class:`~hdl.node.Node`.
    """

    def __init__(self, config: NodeConfig, *, cycles: int):
        if not isinstance(cycles, int) or cycles < 2:
            raise ValueError(f"Cycles of a word must be an integer of at least 2, not {cycles!r}")
        self._node = Node(config)
        self._cycles = cycles
        super().__init__(dict(self._node.signature.members.items()))

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.node = node = self._node
        count = Signal(range(self._cycles))
        m.d.sync += count.eq(Mux(count == self._cycles - 1, 0, count + 1))
        for name in self.signature.members:
            wiring.connect(m, inner=getattr(node, name), outer=wiring.flipped(getattr(self, name)))
        with m.If(count != 0):
            m.d.comb += [node.host_i.valid.eq(0), self.host_i.ready.eq(0),
                         self.host_o.valid.eq(0), node.host_o.ready.eq(0)]
        return m
