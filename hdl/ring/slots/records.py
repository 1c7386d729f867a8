"""Records of what nodes send and have room for: one lap gives them to all; or one collects, and one gives them out."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.sequencer import place_layout
from hdl.ring.replay.control_word import ControlType, control_layout, message_layout
from hdl.ring.slots.layouts import GAP_BITS, MOST_SLOTS, TARGET_BITS, record_layout, record_word_layout, table_layout

__all__ = ["RecordLaps"]

#: Bits of the number of a COLLECT.
_NUMBER_BITS = 4


class RecordLaps(wiring.Component):
    """Give the records of all nodes to all, and fold them into a table that is the same at all nodes.

    Two laps. Rank 0 sends COLLECT, with a place for the record of each rank, from the highest to its own, and for a
    time. Each node puts its own record in. What comes back to rank 0 it hands on as GRANT, word by word, with the TIME
    at which its slots begin behind the records: :attr:`hop` cycles for each node, and once more, from then; and with
    the cycles from the end of slots to the next ones, these and the way round the ring. The last rank takes it off.

    One lap. A node whose slots are over sends its RECORD, and hands on those of the others, which come in falling
    order of ranks, but for its successor's. Rank 0, whose predecessor's slots end later by the way round the ring,
    does so that much later. With the records of all ranks, of a table that is odd as it should be, there is a table.
    Any other RECORD is dropped: then nobody has all, and two laps are next. No word is taken before the own record is
    sent, which at rank 0 is sent, too, when one comes.

    A node has a table if its TIME is valid, and the last word has come at least 5 cycles before slots begin; else it
    has none until the next GRANT. A control word takes 8 cycles and the wires to the next node, and a slot 1 cycle and
    the wires, so words come before slots on wires of any latency.

    A word is offered at ``o`` :attr:`latency` cycle after it has come at ``i``, throughput is one word per cycle, but
    none is taken for two cycles behind the last of a lap. ``o`` and all other outputs are registers but for
    ``target``, which depends on ``o`` and ``way`` alone, and ``i.ready``, which depends combinationally on
    ``o.ready``. Words of other messages, of a ring of another size, and of a COLLECT that is not the last one, are
    taken and dropped.

    Members
    -------
    i, o : In, Out(stream of message_layout())
        From the predecessor, and to the successor.
    place : In(place_layout())
    record : In(record_layout())
        Of this node; taken when it is sent, and at rank 0 in two laps when it is given out.
    ask : In(1)
        Pulse, at rank 0: send COLLECT. Without effect while a lap is under way here.
    over, left : In(1), In(16)
        Those of :class:`~hdl.ring.slots.table.SlotTable`.
    now : In(16)
    valid : In(1)
    way : In(15)
        TIME of the :class:`~hdl.ring.slots.clock.Clock`, and what that says of it.
    target : Out(16)
    sets : Out(1)
        Pulse: low bits of the TIME at which slots of this node begin, as GRANT says. They begin later from node to
        node by the latency of the wires, and so by what the error of TIMEs differs by.
    gap : Out(12)
        Cycles from the end of slots to the beginning of the next ones.
    slots : Out(table_layout())
        Right with ``granted``. There are as many slots as the node with most packets needs, and no more than any node
        has room for: one without packets lets its slots pass.
    granted : Out(1)
        Pulse: there is a table.
    gathers : Out(1)
        Records are to come in one lap.
    home : Out(1)
        Pulse, with ``granted`` or in its place: all records have come, in time or not.
    reset_link : In(1)
        Level: forget all that is under way.
    turn, most, folds, sent : Signal
        Rank of the record that comes next; packets of the node that has most; what ``o`` has is a record that goes
        into the table; the own record is on its way. No ports: for proofs.
    """

    latency = 1
    hop = 8

    i: In(stream.Signature(message_layout()))
    o: Out(stream.Signature(message_layout()))
    place: In(place_layout())
    record: In(record_layout())
    ask: In(1)
    over: In(1)
    left: In(TARGET_BITS)
    now: In(TARGET_BITS)
    valid: In(1)
    way: In(15)
    target: Out(TARGET_BITS)
    sets: Out(1)
    gap: Out(GAP_BITS)
    slots: Out(table_layout())
    granted: Out(1)
    gathers: Out(1)
    home: Out(1)
    reset_link: In(1)

    def __init__(self):
        super().__init__()
        self.turn, self.most, self.folds, self.sent = Signal(4), Signal(5), Signal(), Signal()

    def elaborate(self, platform):
        m = Module()
        word, out, size, rank, table = self.i.payload, self.o.payload, self.place.size, self.place.rank, self.slots
        head, told = data.View(control_layout(), word.data), data.View(record_word_layout(), word.data)
        came, master = data.View(record_word_layout(), out.data), rank == 0
        turn, most, folds = self.turn, self.most, self.folds
        number, asked = Signal(_NUMBER_BITS), Signal()
        mine = Signal(range(2 + 16 + 1))  # words of an own COLLECT that are to be offered
        collects, grants, ended = Signal(), Signal(), Signal()  # records of it have all come
        due, own, last, checks = Signal(), Signal(), Signal(), Signal()
        free, taken, collect, grant, tells = Signal(), Signal(), Signal(), Signal(), Signal()
        final = Signal()  # the record in `o` is the last of one lap
        behind, opens, ends = Signal(4), Signal(), Signal()
        busy = self.sets | final | checks
        m.d.comb += [
            free.eq(self.o.ready | ~self.o.valid),
            own.eq(self.gathers & ~self.sent & (mine == 0) & (~master | due)),
            self.i.ready.eq(free & (mine == 0) & ~(self.gathers & ~self.sent) & ~busy),
            taken.eq(self.i.valid & self.i.ready),
            Cat(collect, grant).eq(Mux(
                word.first & (head.words == size + 1) & (head.reserved == 0) & (size > 1),
                Cat((head.type == ControlType.COLLECT) & (~master | (asked & (head.tag[:_NUMBER_BITS] == number))),
                    (head.type == ControlType.GRANT) & ~master), 0)),
            tells.eq(word.first & (told.type == ControlType.RECORD) & self.gathers
                     & (told.rank == turn) & (told.odd == table.odd)),
            behind.eq(Mux(turn == 0, size, turn) - 1),
            last.eq(behind == rank), ends.eq(rank + 1 == size),
            opens.eq(self.over & ~self.gathers & ~collects & ~grants & ~taken & ~busy),
            self.target.eq(out.data[:TARGET_BITS] + Mux(master, 0, self.way)),
        ]
        m.d.sync += [
            self.home.eq(checks), due.eq((self.left[3:] == size) | self.i.valid),
            self.granted.eq(checks & self.valid & ~self.left[-1] & (self.left[2:] != 0)),
            checks.eq(self.sets | final), folds.eq(0), final.eq(0), self.sets.eq(0),
        ]

        # To the successor: an own COLLECT, with any words in it; the own record; or what comes.
        first, record, span = Signal(control_layout()), Signal(record_word_layout()), Signal(8)
        m.d.comb += [
            span.eq((size + 1) * self.hop),
            first.type.eq(ControlType.COLLECT), first.words.eq(size + 1), first.tag.eq(number),
            record.type.eq(ControlType.RECORD), record.rank.eq(rank), record.odd.eq(table.odd),
            record.record.eq(self.record),
        ]
        with m.If(free):
            m.d.sync += [
                self.o.valid.eq((mine != 0) | own | (taken & (Mux(
                    word.first, collect | (grant & ~ends) | (tells & ~last), collects | (grants & ~ends))))),
                out.first.eq(own | Mux(mine != 0, mine > size + 1, word.first)),
                out.last.eq(own | Mux(mine != 0, mine == 1, word.last)),
            ]
            with m.If(mine != 0):
                m.d.sync += [out.data.eq(first), mine.eq(mine - 1)]
            with m.Elif(own | (collects & ~word.first & ~ended & (turn == rank))):
                m.d.sync += out.data.eq(record)
            with m.Elif(master & ~word.first & ended):
                m.d.sync += out.data.eq(Cat(
                    (self.now + span)[:TARGET_BITS], (self.way + span)[:GAP_BITS], Const(0, 4)))
            with m.Else():
                m.d.sync += out.data.eq(word.data)
                with m.If(word.first & collect & master):
                    m.d.sync += out.data[:4].eq(ControlType.GRANT.value)
            with m.If(own):
                m.d.sync += [self.sent.eq(1), folds.eq(1), turn.eq(behind)]

        # From the predecessor, and the end of the slots of this node.
        with m.If(self.left[-1] | checks):
            m.d.sync += self.gathers.eq(0)
        with m.If(taken & word.first):
            m.d.sync += [collects.eq(collect), grants.eq(grant)]
            with m.If(collect):
                m.d.sync += asked.eq(0)
            with m.If(tells):
                m.d.sync += [folds.eq(1), turn.eq(behind), final.eq(last)]
        with m.Elif(taken & (collects | grants)):
            with m.If(ended):
                m.d.sync += [collects.eq(0), grants.eq(0), self.sets.eq(Mux(master, collects, grants))]
            with m.Else():
                m.d.sync += [turn.eq(behind), ended.eq(turn == 0), folds.eq(Mux(master, collects, grants))]

        # The table is that of records in `o`, a cycle behind.
        with m.If(folds):
            with m.If(came.record.room < table.slots):
                m.d.sync += table.slots.eq(came.record.room)
            with m.If(came.record.pending > most):
                m.d.sync += most.eq(came.record.pending)
            with m.If(came.record.longest > table.longest):
                m.d.sync += table.longest.eq(came.record.longest)
            with m.If(came.record.wants & (came.rank != 0) & ((table.other == 0) | (came.rank < table.other))):
                m.d.sync += table.other.eq(came.rank)
        with m.If(self.sets):
            m.d.sync += self.gap.eq(out.data[TARGET_BITS:])
        with m.If(checks & (most < table.slots)):
            m.d.sync += table.slots.eq(most)
        begins = taken & (collect | grant)
        with m.If(begins | opens):
            m.d.sync += [self.gathers.eq(opens), self.sent.eq(0), ended.eq(0), turn.eq(Mux(opens, rank, size - 1)),
                         table.odd.eq(Mux(opens, ~table.odd, head.tag[0])), table.slots.eq(MOST_SLOTS), most.eq(0),
                         table.longest.eq(0), table.other.eq(0)]
        with m.If(self.ask & master & (size > 1) & (mine == 0) & ~collects & ~begins & ~self.gathers & ~opens):
            m.d.sync += [number.eq(number + 1), asked.eq(1), mine.eq(size + 2)]

        with m.If(self.reset_link):
            m.d.sync += [signal.eq(0) for signal in (
                self.o.valid, self.granted, self.gathers, self.home, number, asked, mine, collects, grants,
                folds, final, self.sets, checks)]
        return m
