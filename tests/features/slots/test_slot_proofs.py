"""Proofs about slots: passing words do not collide with own words, and slot boundaries do not cut packets."""

from amaranth.hdl import Assert, Assume, Module, Mux, ResetSignal, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In

from hdl.features.slots.layouts import GAP, mode_layout, table_layout
from hdl.features.slots.path import SlotPath
from hdl.features.slots.table import SlotTable
from sim.formal import prove
from tests.proofs import refuted

LONGEST = 2


class Undisturbed(wiring.Component):
    """A node in slots whose modes the solver chooses; each slot is at least ``LONGEST`` + 4 cycles long.

    The node's packets have up to ``LONGEST`` words, which arrive with arbitrary pauses. Passing packets began at the
    previous node in the same slot and arrive up to ``slack`` cycles (1 to 3) early or late. Control words may come
    and go in any cycle.

    Every word that the node must forward is forwarded. The node's own packets leave without pauses or other words in
    between, and end before a packet of the next slot can begin.
    """

    starts: In(1)
    mode: In(mode_layout())
    enters: In(1)
    ends: In(1)
    comes: In(1)
    comes_last: In(1)
    control: In(1)
    own: In(1)

    def __init__(self, *, slack=2):
        super().__init__()
        self._slack = slack

    def elaborate(self, platform):
        m = Module()
        m.submodules.path = path = SlotPath(depth=5, message_depth=5)
        hushed = Signal()  # whether the transmitter sends no word
        in_slot, held, begun = Signal(4), Signal(mode_layout()), Signal()  # cycle in the slot; its mode
        index, sent, came = Signal(2), Signal(2), Signal(2)  # positions in entering, leaving, arriving packets
        length = LONGEST + GAP
        m.d.comb += [
            Assume(~ResetSignal()),
            Assume(~self.starts | ~begun | (in_slot >= length - 1)),
            path.starts.eq(self.starts), path.mode.eq(Mux(self.starts, self.mode, held)),
            Assume(~(self.mode.drives & self.mode.passes)),
            # Words of the node's own packets hold a marker: 1 in the first word and 2 in all later words.
            path.i.valid.eq(self.enters), path.i.payload.last.eq(self.ends),
            path.i.payload.data.eq(Mux(index == 0, 0x11, 0x21)),
            Assume(~self.ends | (index != 0)), Assume(self.ends | (index != LONGEST - 1)),
        ]
        m.d.sync += in_slot.eq(Mux(self.starts, 0, in_slot + (in_slot != 15)))
        with m.If(self.starts):
            m.d.sync += [held.eq(self.mode), begun.eq(1)]
        with m.If(path.i.valid & path.i.ready):
            m.d.sync += index.eq(Mux(self.ends, 0, index + 1))

        # The cycle number is 0 at `starts`. Passing words should arrive from the second cycle of the slot onwards.
        now = Mux(self.starts, 0, in_slot + 1)
        first, soonest, latest = came == 0, 2 - self._slack, 2 + self._slack
        in_time, too_soon, passing = Signal(), Signal(), Signal()
        m.d.comb += [
            path.ring_i.valid.eq(self.comes | self.control), path.ring_i.kind.eq(~self.comes),
            path.ring_i.last.eq(self.comes_last), path.ring_i.data.eq(0x41),
            in_time.eq(path.mode.passes & (begun | self.starts) & (now >= soonest) & (now <= latest)),
            Assume(~self.comes | ~first | in_time | (soonest < 0)),
            # A word that arrives before its slot begins belongs to the next slot.
            Assume(~too_soon | (self.starts & self.mode.passes)),
            Assume(~self.comes | (now - came <= latest)),
            Assume(~self.comes | self.comes_last | (came != LONGEST - 1)),
            Assume(first | self.comes),  # passing packets arrive without pauses
            path.transmitter.valid.eq(self.own), path.transmitter.kind.eq(self.own),
            path.transmitter.data.eq(Mux(self.own, 0x81, 0)), Assume(~self.own | ~hushed),
        ]
        m.d.sync += [hushed.eq(path.hush), too_soon.eq(self.comes & first & ~in_time), passing.eq(self.comes)]
        with m.If(self.comes):
            m.d.sync += came.eq(Mux(self.comes_last, 0, came + 1))

        out = path.ring_o
        is_own = out.valid & ~out.kind & (out.data != 0x41)
        m.d.comb += [
            Assert(~path.lost),
            Assert(~passing | (out.valid & ~out.kind & (out.data == 0x41))),
            Assert(~is_own | ((sent == 0) == (out.data == 0x11))),  # own packets begin with their first word
            Assert((sent == 0) | is_own),  # own packets leave without pauses
            Assert(~is_own | (in_slot >= 2) & (in_slot < 2 + LONGEST)),
        ]
        with m.If(is_own):
            m.d.sync += sent.eq(Mux(out.last, 0, sent + 1))
        return m


class SteadySlots(wiring.Component):
    """Two nodes with the same slot table and with TIMEs that differ by at most one cycle.

    TIME advances by 1 in each cycle, except in one cycle per slot, when it advances by 0 to 2. Each packet slot may
    be shorter than planned by at most ``less`` cycles, and both nodes have the same kinds of slots in the same order.
    """

    slots: In(table_layout())
    advance: In(data.ArrayLayout(2, 2))

    def __init__(self, *, less=2):
        super().__init__()
        self._less = less

    def elaborate(self, platform):
        m = Module()
        before, begun = Signal(22), Signal()
        m.d.sync += [before.eq(self.slots), begun.eq(1)]
        m.d.comb += [
            Assume(~ResetSignal()), Assume(~begun | (before == self.slots.as_value())),
            Assume(self.slots.longest <= 1), Assume(self.slots.slots <= 16), Assume(self.slots.other == 0),
        ]
        times, counts, kinds, tables = [], [], [], []
        for n in range(2):
            table = SlotTable()
            m.submodules += table
            now, count = Signal(16, name=f"now_{n}"), Signal(4, name=f"count_{n}")
            jumped, since = Signal(name=f"jumped_{n}"), Signal(8, name=f"since_{n}")
            packets, kind = Signal(name=f"packets_{n}"), Signal(16, name=f"kind_{n}")  # kind of slot, by number
            irregular = self.advance[n] != 1
            m.d.comb += [
                table.now.eq(now), table.slots.eq(self.slots), table.rank.eq(n),
                # A table without slots at TIME 0; the slots of ``table`` begin at TIME 4.
                table.sets.eq(~begun), table.gap.eq(4), table.granted.eq(table.over),
                Assume(self.advance[n] != 3), Assume(~jumped | ~irregular),
                Assert(~(table.starts & packets) | (since + 1 + self._less >= self.slots.longest + GAP)),
            ]
            m.d.sync += [now.eq(now + self.advance[n]), since.eq(since + 1),
                         jumped.eq((jumped & ~table.starts) | irregular)]
            with m.If(table.starts):
                m.d.sync += [count.eq(count + 1), since.eq(0), packets.eq(~table.mode.message),
                             kind.bit_select(count, 1).eq(table.mode.message)]
            times.append(now)
            counts.append(count)
            kinds.append(kind)
            tables.append(table)
        difference = Signal(16)
        fewer = Mux(counts[0] < counts[1], counts[0], counts[1])
        known = ((1 << fewer) - 1)[:16]
        m.d.comb += [
            difference.eq(times[0] - times[1] + 1), Assume(difference <= 2),
            Assert(((kinds[0] ^ kinds[1]) & known) == 0),
        ]
        return m


def test_steady_slots():
    prove(SteadySlots(), depth=16, mode="bmc")


def test_shorter_slots():
    """The bound of two cycles is tight: the claim that slots are at most one cycle short is refuted."""
    refuted(SteadySlots(less=1), depth=16)


def test_undisturbed():
    prove(Undisturbed(), depth=15, mode="bmc")


def test_slack():
    """The bound on slack is tight: with one more cycle, the specification is refuted."""
    refuted(Undisturbed(slack=3), depth=15)
