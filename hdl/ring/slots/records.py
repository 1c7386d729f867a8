"""Records of what nodes send and have room for: one lap of the ring collects them, a second gives them out."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.sequencer import place_layout
from hdl.ring.replay.control_word import ControlType, control_layout, message_layout
from hdl.ring.slots.layouts import MOST_SLOTS, TARGET_BITS, record_layout, table_layout

__all__ = ["RecordLaps"]

#: Bits of the number of a COLLECT.
_NUMBER_BITS = 4


class RecordLaps(wiring.Component):
    """Collect the records of all nodes, give them out, and fold them into a table that is the same at all nodes.

    Rank 0 sends COLLECT, with a place for the record of each rank and for a time. Each node puts its own record in.
    What comes back to rank 0 it hands on as GRANT, word by word, with the TIME at which its slots begin behind the
    records: :attr:`hop` cycles for each node and :attr:`margin` cycles from then. A control word takes 8 cycles and
    the wires to the next node, and a slot 1 cycle and the wires, so GRANT comes before the slots on wires of any
    latency. A node has a table if its TIME is valid, and GRANT has come at least 4 cycles before its slots begin;
    else it has none until the next GRANT.

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
        TIME of the :class:`~hdl.ring.slots.clock.Clock`, and what that says of it; 0 for the way at rank 0.
    slots : Out(table_layout())
        Right with ``granted``. There are as many slots as the node with most packets needs, and no more than any node
        has room for: one without packets lets its slots pass.
    target : Out(16)
        With ``granted``: low bits of the TIME at which slots of this node begin. They begin later from node to node
        by the latency of the wires, and so by what the error of TIMEs differs by.
    granted : Out(1)
        Pulse: there is a table.
    home : Out(1)
        Pulse, at rank 0: GRANT has come back. A COLLECT before that would keep it waiting.
    reset_link : In(1)
        Level: forget all that is under way.
    index, most : Signal
        Records that are in the table, while a message is handed on, and packets of the node among them that has most.
        No ports: for proofs.
    """

    latency = 1
    hop, margin = 8, 16

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
    home: Out(1)
    reset_link: In(1)

    def __init__(self):
        super().__init__()
        self.index, self.most = Signal(range(16 + 1)), Signal(5)

    def elaborate(self, platform):
        m = Module()
        word, out, size, table = self.i.payload, self.o.payload, self.place.size, self.slots
        head, came = data.View(control_layout(), word.data), data.View(record_layout(), word.data)
        master = self.place.rank == 0
        number, asked = Signal(_NUMBER_BITS), Signal()
        mine = Signal(range(2 + 16 + 1))  # words of an own COLLECT that are to be offered
        collects, grants = Signal(), Signal()
        index, most = self.index, self.most  # of the record that comes
        returns = Signal()  # what comes is a GRANT that has gone all the way round
        checks, begins, ahead = Signal(), Signal(32), Signal(32)
        free, taken, collect, grant, at_end = Signal(), Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            free.eq(self.o.ready | ~self.o.valid),
            self.i.ready.eq(free & (mine == 0) & ~checks),
            taken.eq(self.i.valid & self.i.ready),
            Cat(collect, grant).eq(Mux(
                word.first & (head.words == size + 1) & (head.reserved == 0) & (size > 1),
                Cat((head.type == ControlType.COLLECT) & (~master | (asked & (head.tag[:_NUMBER_BITS] == number))),
                    (head.type == ControlType.GRANT) & ~master), 0)),
            at_end.eq(index == size),
            ahead.eq(begins - self.now), self.target.eq(begins),
        ]
        m.d.sync += self.home.eq(taken & ~word.first & word.last & returns)
        m.d.sync += [self.granted.eq(checks & self.valid & (ahead[15:] == 0) & (ahead[2:15] != 0)), checks.eq(0)]

        # To the successor: an own COLLECT, with this record in the place of all; or what comes.
        start = Signal(32)
        first = Signal(control_layout())
        m.d.comb += [
            start.eq(self.now + (size * self.hop + self.margin)),
            first.type.eq(ControlType.COLLECT), first.words.eq(size + 1), first.tag.eq(number),
        ]
        gives = master & ~word.first & at_end
        with m.If(free):
            m.d.sync += [
                self.o.valid.eq((mine != 0) | (taken & (Mux(word.first, collect | grant, collects | grants)))),
                out.first.eq(Mux(mine != 0, mine > size + 1, word.first)),
                out.last.eq(Mux(mine != 0, mine == 1, word.last)),
            ]
            with m.If(mine > size + 1):
                m.d.sync += out.data.eq(first)
            with m.Elif((mine != 0) | (collects & ~word.first & ~master & (index == self.place.rank))):
                m.d.sync += out.data.eq(self.record)
            with m.Elif(gives):
                m.d.sync += out.data.eq(start)
            with m.Else():
                m.d.sync += out.data.eq(word.data)
                with m.If(word.first & master):
                    m.d.sync += out.data[:4].eq(ControlType.GRANT.value)
            with m.If(mine != 0):
                m.d.sync += mine.eq(mine - 1)

        # From the predecessor. The table is that of the records which go round for the second time.
        with m.If(checks & (most < table.slots)):
            m.d.sync += table.slots.eq(most)
        with m.If(taken & word.first):
            m.d.sync += returns.eq(master & (head.type == ControlType.GRANT))
            m.d.sync += [collects.eq(collect), grants.eq(grant), index.eq(0), table.slots.eq(MOST_SLOTS),
                         most.eq(0), table.longest.eq(0), table.other.eq(0), table.odd.eq(head.tag[0])]
            with m.If(collect):
                m.d.sync += asked.eq(0)
        with m.Elif(taken):
            m.d.sync += index.eq(index + 1)
            with m.If(at_end):
                m.d.sync += [collects.eq(0), grants.eq(0), checks.eq(Mux(master, collects, grants)),
                             begins.eq(Mux(master, start, word.data) + self.way)]
            with m.Else():
                with m.If(came.room < table.slots):
                    m.d.sync += table.slots.eq(came.room)
                with m.If(came.pending > most):
                    m.d.sync += most.eq(came.pending)
                with m.If(came.longest > table.longest):
                    m.d.sync += table.longest.eq(came.longest)
                with m.If(came.wants & (table.other == 0)):
                    m.d.sync += table.other.eq(index)
        with m.If(self.ask & master & (size > 1) & (mine == 0) & ~collects & ~taken):
            m.d.sync += [number.eq(number + 1), asked.eq(1), mine.eq(size + 2)]

        with m.If(self.reset_link):
            m.d.sync += [signal.eq(0) for signal in (
                self.o.valid, self.granted, self.home, returns, number, asked, mine, collects, grants, checks)]
        return m
