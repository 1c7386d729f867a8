"""KEEPALIVE words, with which a computing node informs all other nodes that it is still working."""

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.sequencer import place_layout
from hdl.features.replay.control_word import ControlType, keepalive_layout

__all__ = ["KeepAlive"]


class KeepAlive(wiring.Component):
    """Send a KEEPALIVE after every :attr:`period` cycles of work, and forward KEEPALIVEs of other nodes.

    A KEEPALIVE travels once around the ring and back to its sender, which thus learns that no link is broken. It
    contains the number of hops left, so it cannot circulate forever. Of several that are waiting, only the one with
    the most hops left is sent, since it reaches all nodes that the others would reach. One register therefore holds
    all that are waiting.

    A KEEPALIVE is offered at ``o`` :attr:`latency` cycles after it arrives at ``i``. ``o`` comes from registers,
    ``i`` is always ready, and ``alive`` depends combinationally on ``i``. Words other than KEEPALIVE are dropped.

    Members
    -------
    i : In(stream of unsigned(32))
        Control words from the predecessor.
    o : Out(stream of unsigned(32))
        Control words to the successor.
    at_work : In(1)
        The node is doing work that ends by itself and that other nodes may wait for.
    place : In(place_layout())
        Position of the node. A single node, or one without a position in the ring, sends no KEEPALIVE of its own.
    alive : Out(1)
        Pulse: this node or another one is working, and all links between it and this node are intact.
    """

    period = 1024
    latency = 2

    i: In(stream.Signature(unsigned(32)))
    o: Out(stream.Signature(unsigned(32)))
    at_work: In(1)
    place: In(place_layout())
    alive: Out(1)

    def elaborate(self, platform):
        m = Module()
        count = Signal(range(self.period))
        came, leaves = data.View(keepalive_layout(), self.i.payload), Signal(keepalive_layout())
        due = Signal()  # a KEEPALIVE must be sent
        hops = Signal.like(came.hops)
        handed_on, own, free = Signal(), Signal(), Signal()
        m.d.comb += [
            self.i.ready.eq(1),
            self.alive.eq(self.i.valid & (came.type == ControlType.KEEPALIVE) & (came.words == 0)
                          & (came.reserved == 0)),
            handed_on.eq(self.alive & (came.hops != 0)),
            own.eq(self.at_work & (count == self.period - 1) & (self.place.size > 1)),
            leaves.type.eq(ControlType.KEEPALIVE),
            leaves.hops.eq(hops),
            free.eq(self.o.ready | ~self.o.valid),
        ]
        m.d.sync += count.eq(Mux(self.at_work, count + 1, 0))
        with m.If(free):
            m.d.sync += [self.o.valid.eq(due), self.o.payload.eq(leaves), due.eq(0)]
        with m.If(own):
            m.d.sync += [due.eq(1), hops.eq(self.place.size - 1)]
        with m.Elif(handed_on):
            waits = due & ~free
            m.d.sync += due.eq(1)
            with m.If(~waits | (hops < came.hops - 1)):
                m.d.sync += hops.eq(came.hops - 1)
        return m
