"""KEEPALIVE: a node that waits tells its neighbour that it is there."""

from amaranth.hdl import Module, Signal, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.ring.replay.control_word import ControlType

__all__ = ["KeepAlive"]


class KeepAlive(wiring.Component):
    """Send a KEEPALIVE for every :attr:`period` cycles of waiting.

    ``o.valid`` is a register, and the payload is constant.

    Members
    -------
    waiting : In(1)
        The node waits for something that no other node does for it, so its neighbours should not give up.
    o : Out(stream of unsigned(32))
    """

    period = 1024

    waiting: In(1)
    o: Out(stream.Signature(unsigned(32)))

    def elaborate(self, platform):
        m = Module()
        count = Signal(range(self.period))
        m.d.comb += self.o.payload.eq(ControlType.KEEPALIVE)
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(~self.waiting):
            m.d.sync += count.eq(0)
        with m.Else():
            m.d.sync += count.eq(count + 1)
            with m.If(count == self.period - 1):
                m.d.sync += self.o.valid.eq(1)
        return m
