"""Proof that nodes with equal records compute equal slot tables."""

from amaranth.hdl import Array, Assert, Assume, Module, Mux, ResetSignal, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In

from hdl.features.replay.control_word import ControlType, message_layout
from hdl.features.slots.layouts import MAX_SLOTS, lap_layout, record_layout, record_word_layout, table_layout
from hdl.features.slots.records import RecordLaps
from sim.formal import prove
from tests.proofs import held, refuted


class FoldedRecords(wiring.Component):
    """A node that receives given records during one trip of records around the ring, with pauses and arbitrary words.
    The resulting table depends only on the records and the parity of the trip, so nodes with the same records get the
    same table.

    The solver chooses ring size, rank and records, and also the constant results over all records: the maximum number
    of packets, the smallest free space and the longest packet, each with a rank where it occurs, and the lowest rank
    other than 0 that has a message to send. The rank of the latest record determines which results the table contains
    so far.

    Parameters
    ----------
    most : int
        Maximum number of nodes.
    wrong : bool
        Use a wrong rule for the expected table.
    """

    def __init__(self, *, most=15, wrong=False):
        self._most, self._wrong = most, wrong
        self.dut = RecordLaps()
        super().__init__({
            "records": In(data.ArrayLayout(record_layout(), most)), "all": In(table_layout()), "pending": In(5),
            "of": In(data.ArrayLayout(4, 3)), "size": In(4), "rank": In(4), "word": In(message_layout()),
            "record": In(record_layout()), "tracks": In(1), "reset_link": In(1),
            **{name: In(width) for name, width in (("valid", 1), ("ready", 1), ("ask", 1), ("over", 1), ("left", 16),
                                                   ("now", 16), ("tells", 1), ("way", 15), ("error", 16))}})

    def elaborate(self, platform):
        m = Module()
        m.submodules.dut = dut = self.dut
        held(m, self.records, self.all, self.pending, self.of, self.size, self.rank)
        records = Array(self.records[k].as_value() for k in range(self._most))

        def of(rank):
            return data.View(record_layout(), records[rank])

        # Constant results over all records.
        m.d.comb += [Assume(~ResetSignal()), Assume((self.size >= 2) & (self.size <= self._most)),
                     Assume(self.rank < self.size), Assume(self.all.slots <= MAX_SLOTS)]
        m.d.comb += [Assume(self.of[n] < self.size) for n in range(3)]
        for k in range(self._most):
            here, entry = self.size > k, self.records[k]
            m.d.comb += Assume(~here | ((entry.pending <= self.pending) & (entry.room >= self.all.slots)
                                        & (entry.longest <= self.all.longest)))
            if k:
                m.d.comb += Assume(~(here & entry.wants) | ((self.all.other != 0) & (self.all.other <= k)))
        m.d.comb += [
            Assume(of(self.of[0]).pending == self.pending),
            Assume((self.all.slots == MAX_SLOTS) | (of(self.of[1]).room == self.all.slots)),
            Assume(of(self.of[2]).longest == self.all.longest),
            Assume((self.all.other == 0) | ((self.all.other < self.size) & of(self.all.other).wants)),
        ]

        # A received word is either a record from the tracked trip around the ring, or arbitrary.
        tracked, done, told = Signal(), Signal(), data.View(record_word_layout(), self.word.data)
        m.d.sync += done.eq(tracked & dut.checks)
        with m.If(dut.opens | dut.checks | dut.reset_link):
            m.d.sync += tracked.eq(dut.opens & self.tracks & ~dut.reset_link)
        m.d.comb += [
            dut.i.valid.eq(self.valid), dut.i.payload.eq(self.word), dut.o.ready.eq(self.ready),
            dut.place.rank.eq(self.rank), dut.place.size.eq(self.size), dut.record.eq(self.record),
            *(getattr(dut, name).eq(getattr(self, name)) for name in (
                "ask", "over", "left", "now", "way", "error", "reset_link")),
            dut.valid.eq(self.tells),
            Assume(~tracked | (told.type != ControlType.RECORD) | (told.odd != self.all.odd)
                   | (told.rank >= self.size) | (told.record.as_value() == records[told.rank])),
            Assume(~tracked | (self.record.as_value() == records[self.rank])),
            Assume(~(dut.opens & self.tracks) | (dut.slots.odd != self.all.odd)),
        ]

        def place(rank):
            return Mux(rank > self.rank, self.size, 0) + self.rank - rank

        def folded(rank):
            """Whether the table already includes the record of ``rank``."""
            return dut.sent & (place(rank)[:5] <= place(dut.turn)[:5]) & ~(dut.folds & (rank == dut.turn))

        came, said = (data.View(layout, dut.o.payload.data) for layout in (record_word_layout(), lap_layout()))
        table, every = dut.slots, self.all
        successor = Mux(self.rank + 1 == self.size, 0, self.rank + 1)
        least = Mux(self.pending < every.slots, self.pending, every.slots)
        longest = every.longest + self._wrong
        holds = {
            "pending": (dut.most <= self.pending) & (~folded(self.of[0]) | (dut.most == self.pending)),
            "room": (table.slots >= every.slots) & (table.slots <= MAX_SLOTS)
                    & (~folded(self.of[1]) | (table.slots == every.slots) | (every.slots == MAX_SLOTS)),
            "longest": (table.longest <= every.longest) & (~folded(self.of[2]) | (table.longest == every.longest)),
            "other": ((table.other == 0) | ((every.other != 0) & (table.other >= every.other)))
                     & (~folded(every.other) | (table.other == every.other) | (every.other == 0)),
        }
        m.d.comb += [
            Assert(~tracked | ~dut.sent | (dut.turn < self.size)),
            Assert(~tracked | ~dut.gathers | (table.odd == every.odd)),
            Assert(~(tracked & dut.folds) | (dut.sent & (came.rank == dut.turn)
                                             & (came.record.as_value() == records[dut.turn]))),
            Assert(~(tracked & dut.final) | (dut.folds & ~dut.sets)),
            Assert(~(tracked & dut.checks) | (dut.sent & ~dut.folds & (~dut.sets | (said.odd == every.odd)))),
            Assert(~(tracked & (dut.final | dut.checks)) | ((dut.turn == successor) & (table.odd == every.odd))),
            *(Assert(~tracked | entry) for entry in holds.values()),
            Assert(~(done & dut.granted) | (
                (table.slots == least) & (table.longest == longest) & (table.other == every.other)
                & (table.odd == every.odd))),
        ]
        return m


def test_equal_tables():
    """In rings of 2 to 15 nodes, equal records always give equal tables."""
    prove(FoldedRecords(), depth=2)


def test_unequal_tables():
    """A specification with a wrong rule for the longest packet is refuted."""
    refuted(FoldedRecords(most=3, wrong=True), depth=9)
