"""Records of what nodes have to send and have room for: one lap of the ring collects them, a second gives them out."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.sequencer import place_layout
from hdl.ring.replay.control_word import ControlType, control_layout, message_layout
from hdl.ring.slots.layouts import MOST_SLOTS, TARGET_BITS, record_layout, table_layout

__all__ = ["RecordLaps"]

_LAP_BITS = 12


class RecordLaps(wiring.Component):
    """Collect the records of all nodes, give them out, and fold them into a table that is the same at all nodes.

    Rank 0 sends COLLECT, with a record for each rank, into which each node puts its own. What comes back to rank 0 it
    hands on as GRANT, word by word, and behind the records the TIME at which slots begin there: a lap from then, as
    long as that of COLLECT, and :attr:`margin` cycles. The table of a node is right if its TIME is, and if GRANT has
    come before its slots begin; else it has none until the next GRANT.

    A word is offered at ``o`` :attr:`latency` cycle after it has come at ``i``, throughput is one word per cycle.
    ``o`` and all other outputs are registers but for ``i.ready``, which depends combinationally on ``o.ready``. Words
    of other messages, of a ring of another size, and of a COLLECT that is not the last one, are taken and dropped.

    Members
    -------
    i, o : In, Out(stream of message_layout())
        From the predecessor, and to the successor.
    place : In(place_layout())
    record : In(record_layout())
        Of this node; taken when it is sent.
    ask : In(1)
        Pulse, at rank 0: send COLLECT. Without effect while a message is being sent or handed on.
    now : In(32)
    valid : In(1)
    way : In(15)
        TIME of the :class:`~hdl.ring.slots.clock.Clock`, and what it says of it.
    slots : Out(table_layout())
        Right with ``granted``.
    target : Out(16)
        With ``granted``: low bits of the TIME at which slots of this node begin. They begin later from node to node
        by the latency of the wires, and so by what the error of TIMEs differs by.
    granted : Out(1)
        Pulse: there is a table.
    reset_link : In(1)
        Level: forget all that is under way.
    """

    latency = 1
    margin = 16

    i: In(stream.Signature(message_layout()))
    o: Out(stream.Signature(message_layout()))
    place: In(place_layout())
    record: In(record_layout())
    ask: In(1)
    now: In(32)
    valid: In(1)
    way: In(15)
    slots: Out(table_layout())
    target: Out(TARGET_BITS)
    granted: Out(1)
    reset_link: In(1)

    def elaborate(self, platform):
        m = Module()
        word, out, size, table = self.i.payload, self.o.payload, self.place.size, self.slots
        head, came = data.View(control_layout(), word.data), data.View(record_layout(), word.data)
        master = self.place.rank == 0
        number, asked, lap = Signal(16), Signal(), Signal(_LAP_BITS)
        mine = Signal(range(2 + 16))  # words of an own COLLECT that are to be offered
        collects, grants, gives = Signal(), Signal(), Signal()
        index = Signal(range(16 + 1))  # of the record that comes
        target, checks, ahead = Signal(32), Signal(), Signal(32)
        free, taken = Signal(), Signal()
        collect, grant, at_end = Signal(), Signal(), Signal()
        m.d.comb += [
            free.eq(self.o.ready | ~self.o.valid),
            self.i.ready.eq(free & (mine == 0) & ~gives & ~checks),
            taken.eq(self.i.valid & self.i.ready),
            collect.eq(word.first & (head.type == ControlType.COLLECT) & (head.words == size)
                       & (head.reserved == 0) & (size > 1) & (~master | (asked & (head.tag == number)))),
            grant.eq(word.first & (head.type == ControlType.GRANT) & (head.words == size + 1)
                     & (head.reserved == 0) & (size > 1) & ~master),
            at_end.eq(index == size),
            ahead.eq(target - self.now), self.target.eq(target[:TARGET_BITS]),
        ]
        m.d.sync += [self.granted.eq(checks & self.valid & (ahead[15:] == 0)), checks.eq(0)]
        with m.If(~lap.all()):
            m.d.sync += lap.eq(lap + 1)

        start = Signal(32)
        m.d.comb += start.eq(Mux(gives, self.now, word.data) + Mux(gives, lap + self.margin, self.way))
        first = Signal(control_layout())
        m.d.comb += [
            first.type.eq(Mux(mine != 0, ControlType.COLLECT, ControlType.GRANT)),
            first.words.eq(Mux(mine != 0, size, size + 1)), first.tag.eq(number),
        ]
        own = (mine == size) | (collects & ~word.first & ~master & (index == self.place.rank))
        with m.If(free):
            m.d.sync += [self.o.valid.eq(0), out.first.eq((mine > size) | ((mine == 0) & ~gives & word.first)),
                         out.last.eq((mine == 1) | gives | ((mine == 0) & ~(master & collects) & word.last))]
            with m.If((mine > size) | ((mine == 0) & ~gives & word.first & master)):
                m.d.sync += out.data.eq(first)
            with m.Elif(own):
                m.d.sync += out.data.eq(self.record)
            with m.Elif(gives):
                m.d.sync += out.data.eq(start)
            with m.Else():
                m.d.sync += out.data.eq(Mux(mine != 0, 0, word.data))
            with m.If(mine != 0):
                m.d.sync += [self.o.valid.eq(1), mine.eq(mine - 1)]
            with m.Elif(gives):
                m.d.sync += [self.o.valid.eq(1), gives.eq(0), target.eq(start), checks.eq(1)]
        with m.If(taken & word.first):
            m.d.sync += [collects.eq(collect), grants.eq(grant), index.eq(0), self.o.valid.eq(collect | grant)]
            with m.If(collect):
                m.d.sync += asked.eq(0)
            with m.If(collect | grant):
                m.d.sync += [table.slots.eq(MOST_SLOTS), table.longest.eq(0), table.other.eq(0),
                             table.odd.eq(head.tag[0])]
                with m.If(master):
                    m.d.sync += out.last.eq(0)
        with m.Elif(taken & (collects | grants)):
            m.d.sync += [self.o.valid.eq(1), index.eq(index + 1)]
            with m.If(at_end):
                m.d.sync += [grants.eq(0), target.eq(start), checks.eq(1)]
            with m.Else():
                least = Signal.like(came.pending)
                m.d.comb += least.eq(Mux(came.pending < came.room, came.pending, came.room))
                with m.If(least < table.slots):
                    m.d.sync += table.slots.eq(least)
                with m.If(came.longest > table.longest):
                    m.d.sync += table.longest.eq(came.longest)
                with m.If(came.wants & (table.other == 0)):
                    m.d.sync += table.other.eq(index)
                with m.If(collects & (index == size - 1)):
                    m.d.sync += [collects.eq(0), gives.eq(master)]
        with m.If(self.ask & master & (size > 1) & (mine == 0) & ~gives & ~collects & ~grants & ~taken):
            m.d.sync += [number.eq(number + 1), asked.eq(1), lap.eq(0), mine.eq(size + 1)]

        with m.If(self.reset_link):
            m.d.sync += [signal.eq(0) for signal in (self.o.valid, self.granted, number, asked, lap, mine, collects,
                                                     grants, gives, checks)]
        return m
