"""Proofs about tables: equal records, equal tables."""

import pytest
from amaranth.hdl import Array, Assert, Assume, Cat, Module, Mux, ResetSignal, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In

from hdl.ring.replay.control_word import ControlType, control_layout, message_layout
from hdl.ring.slots.layouts import MOST_SLOTS, record_layout, table_layout
from hdl.ring.slots.records import RecordLaps
from sim.formal import RefutedError, prove


def state_layout():
    """A table, and packets of the node that has most of them."""
    return data.StructLayout({"table": table_layout(), "most": 5})


def folded(m, state, record, index, *, wrong=False):
    """State after one more record."""
    result, table = Signal(table_layout()), state.table
    most = Mux(record.pending > state.most, record.pending, state.most)
    m.d.comb += [
        result.slots.eq(Mux(record.room < table.slots, record.room, table.slots)),
        result.longest.eq(Mux((record.longest > table.longest) ^ wrong, record.longest, table.longest)),
        result.other.eq(Mux(record.wants & (table.other == 0), index, table.other)), result.odd.eq(table.odd),
    ]
    return Cat(result, most)


class FoldedRecords(wiring.Component):
    """A node to which GRANT comes with given records, or COLLECT at rank 0, word by word with any pauses, among words
    of any other messages. If it has a table of that message, it is the one that follows from the records and the
    number alone: so nodes with the same records have the same table. Rank 0 gives out the records of its own table.

    The solver chooses ring size and rank, and holds the records and what follows from the first of them.

    Parameters
    ----------
    most : int
        Most nodes.
    wrong : bool
        Take another table for right.
    """

    def __init__(self, *, most=15, wrong=False):
        self._most, self._wrong = most, wrong
        self.dut = RecordLaps()
        super().__init__({
            "records": In(data.ArrayLayout(record_layout(), most)),
            "states": In(data.ArrayLayout(state_layout(), most + 1)), "tag": In(16), "size": In(4), "rank": In(4),
            "valid": In(1), "begins": In(1), "any": In(message_layout()), "start": In(32), "ready": In(1),
            "now": In(32), "tells": In(1), "ask": In(1), "record": In(record_layout()), "way": In(15),
            "reset_link": In(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.dut = dut = self.dut
        held = [self.records, self.states, self.tag, self.size, self.rank]
        begun = Signal()
        m.d.sync += begun.eq(1)
        for number, value in enumerate(held):
            bits = value.as_value() if isinstance(value, data.View) else value
            before = Signal(len(bits), name=f"before_{number}")
            m.d.sync += before.eq(bits)
            m.d.comb += Assume(~begun | (before == bits))
        m.d.comb += [Assume(~ResetSignal()), Assume((self.size >= 2) & (self.size <= self._most)),
                     Assume(self.rank < self.size)]
        empty = Signal(state_layout())
        m.d.comb += [empty.table.slots.eq(MOST_SLOTS), empty.table.odd.eq(self.tag[0]),
                     Assume(self.states[0].as_value() == empty.as_value())]
        for k in range(self._most):
            following = folded(m, self.states[k], self.records[k], k, wrong=self._wrong and k == 1)
            m.d.comb += Assume(self.states[k + 1].as_value() == following)

        # Words at the node: those of GRANT in order, or any.
        place, done = Signal(range(self._most + 3)), Signal(2)  # of a word of GRANT; all have been taken
        header, word = Signal(control_layout()), dut.i.payload
        records = Array([0, *(self.records[k].as_value() for k in range(self._most)), 0])
        m.d.comb += [
            header.type.eq(Mux(self.rank == 0, ControlType.COLLECT, ControlType.GRANT)),
            header.words.eq(self.size + 1), header.tag.eq(self.tag),
            dut.i.valid.eq(self.valid), word.eq(self.any),
            dut.o.ready.eq(self.ready), dut.place.rank.eq(self.rank), dut.place.size.eq(self.size),
            dut.record.eq(self.record), dut.ask.eq(self.ask), dut.now.eq(self.now), dut.valid.eq(self.tells),
            dut.way.eq(self.way), dut.reset_link.eq(self.reset_link),
        ]
        with m.If(place != 0):
            m.d.comb += [word.first.eq(0), word.last.eq(place == self.size + 1),
                         word.data.eq(Mux(place == self.size + 1, self.start, records[place]))]
        with m.Elif(self.begins):
            m.d.comb += [word.first.eq(1), word.last.eq(0), word.data.eq(header)]
        given, gives = Signal(32), Signal()  # word that rank 0 gives out
        granting = Signal(control_layout())
        m.d.comb += [granting.eq(header), granting.type.eq(ControlType.GRANT)]
        m.d.sync += [done.eq(done << 1), gives.eq(0)]
        with m.If(dut.i.valid & dut.i.ready):
            m.d.sync += [given.eq(Mux(place == 0, granting, word.data)),
                         gives.eq((self.rank == 0) & Mux(place == 0, self.begins, place <= self.size))]
            with m.If(place != 0):
                m.d.sync += [place.eq(Mux(place == self.size + 1, 0, place + 1)), done[0].eq(place == self.size + 1)]
            with m.Elif(self.begins):
                m.d.sync += place.eq(1)
        with m.If(self.reset_link):
            m.d.sync += [place.eq(0), done.eq(0)]

        # What is folded so far, which holds from cycle to cycle, and the table that follows.
        states, final = Array([self.states[k].as_value() for k in range(self._most + 1)]), Signal(state_layout())
        state, table = Cat(dut.slots, dut.most), Signal(table_layout())
        m.d.comb += [
            final.eq(states[self.size]), table.eq(final.table),
            table.slots.eq(Mux(final.most < final.table.slots, final.most, final.table.slots)),
            Assert((place == 0) | ((dut.index == place - 1) & (state == states[place - 1]))),
            Assert(place <= self.size + 1),
            Assert(~done[0] | (state == final.as_value())),
            Assert(~(done[1] & dut.granted) | (dut.slots.as_value() == table.as_value())),
            Assert(~(gives & dut.o.valid) | (dut.o.payload.data == given)),
        ]
        return m


def test_equal_tables():
    """Rings of 2 to 15 nodes, for all time."""
    prove(FoldedRecords(), depth=2)


def test_unequal_tables():
    """Another rule for the longest packet is refuted."""
    with pytest.raises(RefutedError):
        prove(FoldedRecords(most=3, wrong=True), depth=8, mode="bmc")
