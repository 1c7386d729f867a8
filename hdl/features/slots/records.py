"""Exchange of records, which inform all nodes of each node's packets and free space in one trip around the ring."""

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.sequencer import place_layout
from hdl.features.replay.control_word import ControlType, message_layout
from hdl.features.slots.layouts import (
    BEGIN_UNIT,
    GAP_BITS,
    MAX_SLOTS,
    TARGET_BITS,
    lap_layout,
    record_layout,
    record_word_layout,
    table_layout,
)

__all__ = ["RecordLaps"]


class RecordLaps(wiring.Component):
    """Send this node's record when its slots end, and combine all records into a table on every node.

    A node forwards the RECORDs of the other nodes, except its successor's; they arrive in descending rank order.
    The slots of rank 0's predecessor end later than rank 0's, by the latency around the ring, so rank 0 delays its
    own RECORD by the same number of cycles, or until the first one arrives. The records of all ranks form a table
    if they have arrived at least 3 cycles before slots begin. Any other RECORD is dropped: no node then has all
    records at the end of the next slots.

    The first exchange, and the one after a table that rank 0 missed, begins as if slots had ended at a certain TIME.
    LAP, which rank 0 sends around the ring, contains this TIME, and the number of cycles from the end of slots to
    the next slots: :attr:`hop` for each node, :attr:`margin`, and the latency around the ring. A control word takes
    8 cycles plus the wires to the next node, and a slot 1 cycle plus the wires, so records precede slots on wires
    of any latency.

    A word is offered at ``o`` :attr:`latency` cycle after it arrives at ``i``; throughput is one word per cycle. No
    word is accepted for two cycles after the last record, for one cycle after LAP, or before the node's record is
    sent. ``o`` and all other outputs are registers, except ``target``, which depends only on ``o`` and ``way``, and
    ``i.ready``, which depends combinationally on ``o.ready``. Unexpected words are accepted and dropped.

    Members
    -------
    i, o : In, Out(stream of message_layout())
        From the predecessor, and to the successor.
    place : In(place_layout())
    record : In(record_layout())
        Record of this node; taken when it is sent.
    ask : In(1)
        Pulse, at rank 0: send LAP.
    over, left : In(1), In(16)
        As in :class:`~hdl.features.slots.table.SlotTable`.
    now : In(16)
    valid : In(1)
    way : In(15)
    error : In(signed(16))
        TIME, and the state of the :class:`~hdl.features.slots.clock.Clock`.
    target : Out(16)
    sets : Out(1)
        Pulse, only while TIME is valid: ``target`` contains the low bits of the TIME at which this node's slots
        end, according to LAP. Slots end later from node to node by the latency of the wires, which includes the
        difference between the errors of the nodes' TIMEs.
    gap : Out(12)
        Number of cycles from the end of slots to the beginning of the next slots.
    slots : Out(table_layout())
        Valid with ``granted``. The number of slots is the maximum of the nodes' packets, limited by the room of each
        node: a node without packets leaves its slots unused.
    granted : Out(1)
        Pulse: there is a table.
    gathers : Out(1)
        Records are expected.
    home : Out(1)
        Pulse, at rank 0: LAP has returned, and with it all words that were sent before it.
    reset_link : In(1)
        Level: drop everything in progress.
    turn, most, opens, sent, folds, final, checks : Signal
        Rank of the last record; maximum packets of a node; an exchange begins; the node's record is sent; ``o`` has
        a record for the table; this is the last record; the last record came one cycle ago. These are not ports;
        proofs use them.
    """

    latency = 1
    hop, margin = 8, 2

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
    error: In(signed(16))
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
        self.turn, self.most = Signal(4), Signal(5)
        self.opens, self.sent, self.folds, self.final, self.checks = (Signal(name=name) for name in (
            "opens", "sent", "folds", "final", "checks"))

    def elaborate(self, platform):
        m = Module()
        word, out, size, rank, table = self.i.payload, self.o.payload, self.place.size, self.place.rank, self.slots
        heard, came = (data.View(record_word_layout(), source.data) for source in (word, out))
        said, master = data.View(lap_layout(), out.data), rank == 0
        turn, most, folds = self.turn, self.most, self.folds
        opens, final, checks = self.opens, self.final, self.checks
        calls, due, own, last = Signal(), Signal(), Signal(), Signal()
        free, taken, fits, lap, next = Signal(), Signal(), Signal(), Signal(), Signal(4)
        busy = final | checks | self.sets
        m.d.comb += [
            free.eq(self.o.ready | ~self.o.valid),
            own.eq(self.gathers & ~self.sent & ~calls & (~master | due)),
            self.i.ready.eq(free & ~calls & ~(self.gathers & ~self.sent) & ~busy),
            taken.eq(self.i.valid & self.i.ready),
            next.eq(Mux(turn == 0, size, turn) - 1), last.eq(next == Mux(rank + 1 == size, 0, rank + 1)),
            fits.eq((heard.type == ControlType.RECORD) & self.gathers & (heard.rank == next)
                     & (heard.odd == table.odd)),
            lap.eq(heard.type == ControlType.LAP),
            opens.eq(self.over & ~self.gathers & ~busy),
            self.target.eq((said.begin << BEGIN_UNIT) + Mux(master, 0, self.way)),
        ]
        m.d.sync += [
            due.eq((self.left[1:] == size << 2) | self.i.valid), self.home.eq(taken & lap & master),
            self.granted.eq(checks & self.valid & ~self.left[-1] & (self.left[1:] != 0)),
            checks.eq(final), final.eq(0), folds.eq(0), self.sets.eq(0),
        ]

        # Send a LAP, this node's record, or a word that has arrived to the successor.
        record, first, span = Signal(record_word_layout()), Signal(lap_layout()), Signal(8)
        m.d.comb += [
            span.eq(size * self.hop + self.margin),
            record.type.eq(ControlType.RECORD), record.rank.eq(rank), record.odd.eq(table.odd),
            record.record.eq(self.record),
            first.type.eq(ControlType.LAP), first.odd.eq(table.odd),
            first.gap.eq(self.way[:GAP_BITS] - self.error[:GAP_BITS] + span),
            first.begin.eq((self.now >> BEGIN_UNIT) + (size + 2)),
            out.first.eq(1), out.last.eq(1),
        ]
        with m.If(free):
            m.d.sync += [self.o.valid.eq(calls | own | (taken & ((lap & ~master) | (fits & ~last)))), calls.eq(0)]
            with m.If(calls):
                m.d.sync += [out.data.eq(first), self.sets.eq(self.valid)]
            with m.Elif(own):
                m.d.sync += [out.data.eq(record), self.sent.eq(1), folds.eq(1), turn.eq(rank)]
            with m.Else():
                m.d.sync += out.data.eq(word.data)
        with m.If(self.ask & master):
            m.d.sync += calls.eq(1)

        # React to words from the predecessor, and to the end of this node's slots.
        with m.If(taken & lap & ~master):
            m.d.sync += self.sets.eq(self.valid)
        with m.If(taken & fits):
            m.d.sync += [folds.eq(1), turn.eq(next), final.eq(last)]
        with m.If(self.left[-1] | checks | self.sets):
            m.d.sync += self.gathers.eq(0)

        # A record in `o` is added to the table one cycle later.
        with m.If(folds):
            with m.If(came.record.room < table.slots):
                m.d.sync += table.slots.eq(came.record.room)
            with m.If(came.record.pending > most):
                m.d.sync += most.eq(came.record.pending)
            with m.If(came.record.longest > table.longest):
                m.d.sync += table.longest.eq(came.record.longest)
            with m.If(came.record.wants & (came.rank != 0) & ((table.other == 0) | (came.rank < table.other))):
                m.d.sync += table.other.eq(came.rank)
        with m.If(checks & (most < table.slots)):
            m.d.sync += table.slots.eq(most)
        with m.If(opens):
            m.d.sync += [self.gathers.eq(1), self.sent.eq(0), table.odd.eq(~table.odd), table.slots.eq(MAX_SLOTS),
                         most.eq(0), table.longest.eq(0), table.other.eq(0)]
        with m.If(self.sets):
            m.d.sync += [self.gap.eq(said.gap), table.odd.eq(said.odd)]

        with m.If(self.reset_link):
            m.d.sync += [signal.eq(0) for signal in (
                self.o.valid, self.granted, self.gathers, self.home, calls, folds, final, self.sets, checks)]
        return m
