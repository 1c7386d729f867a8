"""Unit that assigns positions (rank and ring size) to all nodes of a ring, starting from rank 0."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.sequencer import place_layout
from hdl.features.replay.control_word import ControlType, control_layout, message_layout

__all__ = ["PositionRelay"]


class PositionRelay(wiring.Component):
    """Assign positions to the nodes of a ring, starting from rank 0.

    A node with a ``given`` position of rank 0 sends PLACE with its successor's rank and the ring size. Each node
    adopts the position that arrives and sends the next one to its successor, until PLACE is back at rank 0. Until
    then, rank 0 sends another PLACE every :attr:`period` cycles. An arriving position has priority over ``given``.

    Latency is :attr:`latency` cycles from ``i``, which is always ready, to ``o``, which is registered. Words other
    than PLACE are accepted and dropped.

    Members
    -------
    i, o : In, Out(stream of message_layout())
        From the predecessor, and to the successor.
    given : In(place_layout())
        Position from the host, if one is attached to this node.
    place : Out(place_layout())
        Position of this node; depends combinationally on ``given``.
    moved : Out(1)
        The position changes in this cycle.
    """

    latency = 2
    period = 1024

    i: In(stream.Signature(message_layout()))
    o: Out(stream.Signature(message_layout()))
    given: In(place_layout())
    place: Out(place_layout())
    moved: Out(1)

    def elaborate(self, platform):
        m = Module()
        head, first = data.View(control_layout(), self.i.payload.data), Signal(control_layout())
        came, next_rank = data.View(place_layout(), head.tag[:place_layout().size]), Signal(4)
        heard, before = Signal(place_layout()), Signal(place_layout())
        master, takes, due, home = Signal(), Signal(), Signal(), Signal()
        waited = Signal(range(self.period + 1), init=self.period)  # a period begins when the highest bit is set
        m.d.comb += [
            master.eq((self.given.rank == 0) & (self.given.size > 1)),
            self.place.eq(Mux(master | (heard.size == 0), self.given, heard)),
            self.moved.eq(self.place != before),
            self.i.ready.eq(1),
            takes.eq(self.i.valid & self.i.payload.first & (head.type == ControlType.PLACE) & (head.words == 0)
                     & (head.reserved == 0) & (head.tag[place_layout().size:] == 0)),
            first.type.eq(ControlType.PLACE), first.tag.eq(next_rank | self.place.size << 4),
        ]
        m.d.sync += before.eq(self.place)
        with m.If(self.o.ready | ~self.o.valid):
            m.d.sync += [self.o.valid.eq(due), self.o.payload.data.eq(first), self.o.payload.first.eq(1),
                         self.o.payload.last.eq(1), due.eq(0)]
        with m.If(master):
            with m.If(takes & (came.size == self.given.size)):
                m.d.sync += home.eq(1)
            m.d.sync += waited.eq(waited[:-1] + 1)
            with m.If(waited[-1] & ~home):
                m.d.sync += [due.eq(1), next_rank.eq(1)]
        with m.Elif(takes):
            m.d.sync += [heard.eq(came), due.eq(1), next_rank.eq(came.rank + 1)]
        with m.If(self.moved):
            m.d.sync += [home.eq(0), waited.eq(self.period)]
        return m
