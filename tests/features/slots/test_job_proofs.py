"""Proofs that two jobs on one ring do not influence each other and no packet crosses a slot boundary."""

from amaranth.hdl import Assert, Assume, Cat, Module, Mux, ResetSignal, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In

from hdl.control.sequencer import place_layout
from hdl.features.replay.control_word import control_layout, message_layout
from hdl.features.slots.job_path import JobPath
from hdl.features.slots.job_rooms import ROOM_BITS, RoomLaps, rooms_layout
from hdl.features.slots.job_table import FRAME_BITS, JobFrame, JobTable
from hdl.features.slots.layouts import GAP
from sim.formal import prove
from tests.proofs import held, refuted

LONGEST = 2
FRAME = JobFrame(longest=LONGEST)


class RoomsApart(wiring.Component):
    """Two nodes at the same position that differ at most in the free space advertised for the unobserved job.

    Both receive the same words, except for this free space; if they belong to the unobserved job, their own free
    space may differ, too. Claims: both accept, offer and grant in the same cycles, offer the same free space for the
    observed job, and have the same allowance if they belong to it. ``wrong`` adds the false claim that the free space
    of the unobserved job is equal, too.
    """

    word: In(message_layout())
    offered: In(1)
    ready: In(1)
    place: In(place_layout())
    window: In(1)
    opens: In(1)
    number: In(FRAME_BITS)
    reset_link: In(1)
    job: In(1)
    room: In(data.ArrayLayout(ROOM_BITS, 2))
    told: In(ROOM_BITS)

    def __init__(self, *, wrong=False):
        super().__init__()
        self._wrong = wrong

    def elaborate(self, platform):
        m = Module()
        m.submodules.first, m.submodules.second = nodes = RoomLaps(), RoomLaps()
        held(m, self.job, self.place.rank)
        own = self.place.rank[0] == self.job
        m.d.comb += Assume(~ResetSignal())
        outputs = []
        for number, node in enumerate(nodes):
            head = Signal(control_layout(), name=f"head_{number}")
            rooms = data.View(rooms_layout(), head.tag).rooms
            m.d.comb += head.eq(self.word.data)
            if number:
                with m.If(self.job):
                    m.d.comb += rooms[0].eq(self.told)
                with m.Else():
                    m.d.comb += rooms[1].eq(self.told)
            m.d.comb += [
                node.i.valid.eq(self.offered), node.i.payload.first.eq(self.word.first),
                node.i.payload.last.eq(self.word.last), node.i.payload.data.eq(head), node.o.ready.eq(self.ready),
                node.room.eq(Mux(own, self.room[0], self.room[number])),
                *(getattr(node, name).eq(getattr(self, name)) for name in (
                    "place", "window", "opens", "number", "reset_link")),
            ]
            says = data.View(rooms_layout(), data.View(control_layout(), node.o.payload.data).tag).rooms
            rest = Cat(node.o.payload.data[:18], node.o.payload.data[28:], node.o.payload.first, node.o.payload.last)
            outputs.append((Mux(self.job, says[1], says[0]), Mux(self.job, says[0], says[1]), rest))
        first, second = nodes
        m.d.comb += [
            Assert(first.i.ready == second.i.ready), Assert(first.o.valid == second.o.valid),
            Assert(first.due == second.due), Assert(first.granted == second.granted),
            Assert(~own | (first.kept == second.kept)),
            Assert(~first.o.valid | ((outputs[0][0] == outputs[1][0]) & (outputs[0][2] == outputs[1][2]))),
            Assert(~own | ~first.granted | (first.allowed == second.allowed)),
        ]
        if self._wrong:
            m.d.comb += Assert(~first.o.valid | (outputs[0][1] == outputs[1][1]))
        return m


class Slots(wiring.Component):
    """Base class of specifications of packet paths; slots are chosen by the solver.

    Each slot is longer than a packet by at least one word.
    """

    starts: In(1)
    drives: In(1)

    def slots(self, m, *paths, least):
        """Drive the slot inputs of paths; return whether there is a slot, the cycle in it, and whether paths may send
        in it.
        """
        begun, own, cycle = Signal(), Signal(), Signal(4)
        now, drives = Mux(self.starts, 0, cycle), Mux(self.starts, self.drives, own)
        there = begun | self.starts
        m.d.comb += [Assume(~ResetSignal()), Assume(~self.starts | ~begun | (cycle >= least))]
        m.d.sync += cycle.eq(Mux(now == 15, 15, now + 1))
        with m.If(self.starts):
            m.d.sync += [begun.eq(1), own.eq(self.drives)]
        for path in paths:
            for state in (path.slot, path.coming):
                m.d.comb += [state.starts.eq(self.starts), state.drives.eq(there & drives),
                             state.passes.eq(there & ~drives)]
        return there, now, drives

    @staticmethod
    def enter(m, path, offers, ends, flush):
        """Drive a path's input with packets of at least two words, which may pause or be flushed."""
        index = Signal(2)
        m.d.comb += [
            path.i.valid.eq(offers & ~flush), path.i.payload.last.eq(ends), path.flush.eq(flush),
            Assume(~ends | (index != 0)), Assume(ends | (index != LONGEST - 1)),
        ]
        with m.If(path.i.valid & path.i.ready):
            m.d.sync += index.eq(Mux(ends, 0, index + 1))
        with m.If(flush):
            m.d.sync += index.eq(0)


class PathsApart(Slots):
    """Two nodes with the same slots, each of which may be shorter than planned by at most ``less`` cycles.

    In slots of the observed job, both nodes receive the same words and, if the job is their own, send the same
    packets; other packets, resets, free space, and incoming words may differ. Claim: in slots of the observed job the
    same words leave and arrive, and a passing word never collides with one of the node's own words.
    """

    own: In(1)
    words: In(data.ArrayLayout(data.StructLayout({"valid": 1, "last": 1, "data": 4}), 2))
    offers: In(data.ArrayLayout(data.StructLayout({"valid": 1, "last": 1, "data": 4}), 2))
    flush: In(2)
    goes: In(2)
    control: In(1)

    def __init__(self, *, less=2):
        super().__init__()
        self._less = less

    def elaborate(self, platform):
        m = Module()
        m.submodules.first, m.submodules.second = paths = [JobPath(depth=5, frame=FRAME) for _ in range(2)]
        held(m, self.own)
        there, _, drives = self.slots(m, *paths, least=LONGEST + GAP - self._less)
        looked = ~there | (drives == self.own)
        for number, path in enumerate(paths):
            here = Mux(looked, self.words[0], self.words[number])
            came, enters = Signal.like(self.words[0], name=f"came_{number}"), Signal.like(
                self.words[0], name=f"enters_{number}")
            m.d.comb += [
                came.eq(here), enters.eq(Mux(self.own, self.offers[0], self.offers[number])),
                path.ring_i.valid.eq(came.valid), path.ring_i.last.eq(came.last), path.ring_i.data.eq(came.data),
                path.goes.eq(Mux(self.own, self.goes[0], self.goes[number])),
                path.i.payload.data.eq(enters.data),
                path.transmitter.valid.eq(self.control & ~there), path.transmitter.kind.eq(1),
                Assert(~path.lost),
            ]
            self.enter(m, path, enters.valid, enters.last, Mux(self.own, self.flush[0], self.flush[number]))
        first, second = paths
        before, same = Signal(init=1), Signal()
        m.d.sync += before.eq(looked)
        m.d.comb += [
            same.eq((first.ring_o.valid == second.ring_o.valid) & (~first.ring_o.valid | (
                (first.ring_o.data == second.ring_o.data) & (first.ring_o.last == second.ring_o.last)
                & (first.ring_o.kind == second.ring_o.kind)))),
            Assert(~before | same),
            Assert(~(self.own & looked) | (first.arrived == second.arrived)),
            Assert(~self.own | ((first.left == second.left) & (first.whole == second.whole)
                                & (first.i.ready == second.i.ready))),
        ]
        return m


class WholePackets(Slots):
    """A node that sends and receives packets in the same slot.

    Received packets begin up to ``slack`` cycles (1 to 3) early or late. In slots of the other job, each incoming
    word is forwarded one cycle later; in slots of its own job it is received. A packet of the node is sent without a
    pause and ends before a packet of the next slot can begin.
    """

    comes: In(1)
    last: In(1)
    offers: In(1)
    ends: In(1)

    def __init__(self, *, slack=2):
        super().__init__()
        self._slack = slack

    def elaborate(self, platform):
        m = Module()
        m.submodules.path = path = JobPath(depth=5, frame=FRAME)
        there, now, drives = self.slots(m, path, least=LONGEST + GAP)
        count, began_in, passing, sent = Signal(2), Signal(), Signal(), Signal(2)
        is_first, out = count == 0, path.ring_o
        belongs = Mux(is_first, drives, began_in)
        in_time = there & (now >= max(2 - self._slack, 0)) & (now <= 2 + self._slack)
        self.enter(m, path, self.offers, self.ends, 0)
        m.d.comb += [
            path.goes.eq(1), path.i.payload.data.eq(Mux(self.ends, 0x21, 0x11)),
            path.ring_i.valid.eq(self.comes), path.ring_i.last.eq(self.last), path.ring_i.data.eq(0x41),
            Assume(~self.comes | ~is_first | in_time), Assume(is_first | self.comes),
            Assume(~self.comes | (self.last == (count == LONGEST - 1))),
            Assert(~self.comes | (path.arrived == belongs)), Assert(~path.lost),
            Assert(~passing | (out.valid & (out.data == 0x41))),
        ]
        m.d.sync += passing.eq(self.comes & ~belongs)
        with m.If(self.comes):
            m.d.sync += [count.eq(Mux(self.last, 0, count + 1)), began_in.eq(belongs)]
        is_own = out.valid & (out.data != 0x41)
        m.d.comb += [Assert(~is_own | ((sent == 0) == (out.data == 0x11))), Assert((sent == 0) | is_own),
                     Assert(~is_own | (drives & (now >= 3) & (now < 3 + LONGEST)))]
        with m.If(is_own):
            m.d.sync += sent.eq(Mux(out.last, 0, sent + 1))
        return m


class SteadyTables(wiring.Component):
    """Two nodes whose TIMEs advance by 1 in each cycle, except in one cycle per slot, when they advance by 0 to 2.

    Both nodes have slots of the same jobs in the same order; each slot may be shorter than planned by at most
    ``less`` cycles.
    """

    advance: In(data.ArrayLayout(2, 2))

    def __init__(self, *, less=2):
        super().__init__()
        self._less = less

    def elaborate(self, platform):
        m = Module()
        times, orders = [], []
        m.d.comb += Assume(~ResetSignal())
        for n in range(2):
            m.submodules[f"table_{n}"] = table = JobTable(frame=FRAME)
            now, count = Signal(16, name=f"now_{n}", init=FRAME.window - 3), Signal(3, name=f"count_{n}")
            jumped, since = Signal(name=f"jumped_{n}"), Signal(8, name=f"since_{n}")
            irregular = self.advance[n] != 1
            m.d.comb += [
                table.now.eq(now), table.valid.eq(1), Assume(self.advance[n] != 3), Assume(~jumped | ~irregular),
                Assert(~(table.slot.starts & (count != 0)) | (since + 1 + self._less >= FRAME.slot)),
                Assert(~table.slot.starts | (table.slot.drives == ~count[0])),
                Assert(~(table.slot.drives & table.slot.passes)),
            ]
            m.d.sync += [now.eq(now + self.advance[n]), since.eq(since + 1),
                         jumped.eq((jumped & ~table.slot.starts) | irregular)]
            with m.If(table.slot.starts):
                m.d.sync += [count.eq(count + 1), since.eq(0)]
            times.append(now)
            orders.append(count)
        difference, apart = Signal(16), Signal(3)
        m.d.comb += [difference.eq(times[0] - times[1] + 1), Assume(difference <= 2),
                     apart.eq(orders[0] - orders[1] + 1), Assert(apart <= 2)]
        return m


def test_rooms_apart():
    """Prove by induction that equal words always lead to equal behaviour."""
    prove(RoomsApart(), depth=2)
    refuted(RoomsApart(wrong=True), depth=4)


def test_paths_apart():
    prove(PathsApart(), depth=11, mode="bmc")
    refuted(PathsApart(less=3), depth=11)


def test_whole_packets():
    prove(WholePackets(), depth=15, mode="bmc")
    refuted(WholePackets(slack=3), depth=15)


def test_steady_tables():
    prove(SteadyTables(), depth=18, mode="bmc")
    refuted(SteadyTables(less=1), depth=18)
