# amaranth: UnusedElaboratable=no
"""Prove that far-memory answers reach the requesting reader, or no reader after a reset, and that engine requests to
guarded memories stay in the tenant's windows."""

from amaranth.hdl import Assert, Assume, Cat, Module, Mux, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from hdl.features.far.memories import OUTSTANDING, FarMemories
from hdl.features.streaming.feature import ServerConfig, ServerMemories
from hdl.group import GROUP
from sim.formal import prove


class Owners(wiring.Component):
    """Specification for an engine and the host sharing a memory; it tracks one read chosen by the solver.

    The far memory answers requests in order, and links are not reset.
    """

    def __init__(self):
        config = ServerConfig(lanes=1, memories=ServerMemories(gradient=32, weight=32, planes=0, far=32))
        self._unit = FarMemories(config=config, readers={"weights": (0,)}, writers={"weights": 1})
        super().__init__({
            "reads": In(2), "writes": In(2), "row": In(5).array(4), "elements": In(32).array(2), "ready": In(1),
            "response": In(1), "answer": In(32), "abandon": In(1), "timeout": In(32), "mark": In(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = self._unit
        far, readers, writers = unit.far, unit.weights_read, unit.weights_write
        m.d.comb += [
            Assume(~ResetSignal()), far.ready.eq(self.ready), far.response.eq(self.response),
            far.answer[0].eq(self.answer), unit.abandon.eq(self.abandon), unit.timeout.eq(self.timeout)]
        for n in range(2):
            m.d.comb += [
                readers[n].valid.eq(self.reads[n]), readers[n].row.eq(self.row[n]),
                writers[n].valid.eq(self.writes[n]), writers[n].row.eq(self.row[2 + n]), writers[n].keep.eq(1),
                writers[n].elements[0].eq(self.elements[n])]

        # At most one request is granted per cycle, and only accepted reads get answers.
        away = [self.abandon, unit.silent]
        reads = [readers[0].valid & readers[0].ready, readers[1].valid & readers[1].ready & ~unit.silent]
        writes = [writers[0].valid & writers[0].ready, writers[1].valid & writers[1].ready & ~unit.silent]
        asked, owed = Signal(range(OUTSTANDING + 1)), Signal(range(OUTSTANDING + 1))
        granted, expected_row, expected_elements = Signal(4), Signal(5), Signal(32)
        m.d.comb += [Assume(~self.response | (asked != 0)), Assert(sum([*reads, *writes]) <= 1)]
        m.d.sync += [
            asked.eq(asked + (far.valid & far.ready & ~far.write) - self.response),
            owed.eq(owed + (reads[0] | reads[1]) - self.response)]
        for n, goes in enumerate([*reads, *writes]):
            m.d.sync += granted[n].eq(goes)
            with m.If(goes):
                m.d.sync += [expected_row.eq(self.row[n]), expected_elements.eq(self.elements[n % 2])]
        with m.If(granted.any()):
            m.d.comb += Assert(far.valid & (far.row == expected_row) & (far.write == granted[2:].any()))
            with m.If(far.write):
                m.d.comb += Assert((far.elements[0] == expected_elements) & far.keep.all())

        # The tracked read: its port, the number of answers due before its own, and whether its port has been reset
        # since.
        follows, port, ahead, dropped = Signal(), Signal(), Signal.like(owed), Signal()
        arrived, came, expected = Signal(), Signal(), Signal(32)
        gone = Signal()
        m.d.comb += [gone.eq(dropped | Mux(port, away[1], away[0])),
                     arrived.eq(self.response & follows & (ahead == 0))]
        m.d.sync += [came.eq(arrived), expected.eq(self.answer)]
        with m.If(follows):
            m.d.sync += [dropped.eq(gone), ahead.eq(ahead - self.response)]
        with m.If(arrived):
            m.d.sync += follows.eq(0)
        with m.If(self.mark & ~follows & ~came & (reads[0] | reads[1])):
            m.d.sync += [follows.eq(1), port.eq(reads[1]), ahead.eq(owed - self.response), dropped.eq(0)]
        responses = [reader.response for reader in readers]
        m.d.comb += Assert(~(responses[0] & responses[1]))
        with m.If(came):
            m.d.comb += [
                Assert(responses[0] == ~(port | dropped)), Assert(responses[1] == (port & ~dropped)),
                Assert(dropped | (readers[0].elements[0] == expected))]
        return m


def test_answers_go_to_their_owners():
    prove(Owners(), depth=8, mode="bmc")


class Inside(wiring.Component):
    """Specification for engines and the host accessing two guarded memories, for arbitrary requests and constant
    windows: engines stay in their windows and the host in its memory; other requests are reported and read zeros."""

    WORDS = 128, 64

    def __init__(self):
        config = ServerConfig(
            lanes=1,
            memories=ServerMemories(gradient=32, weight=self.WORDS[0], state=self.WORDS[1], planes=1, far=256))
        self._unit = FarMemories(config=config, readers={"weights": (0,), "state_0": (0,)},
                                 writers={"weights": 1, "state_0": 1},
                                 owners={"weights": ((0,), (1,)), "state_0": ((1,), (0,))})
        members = self._unit.signature.members
        super().__init__({
            **{name: In(members[name].shape) for name in ("abandon", "timeout", "link_reset", "weights_window",
                                                          "state_0_window")},
            **{f"{name}_{kind}": members[f"{name}_{kind}"] for name in ("weights", "state_0")
               for kind in ("read", "write")},
            "ready": In(1), "response": In(1), "answer": In(32)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = self._unit
        far = unit.far
        windows = [self.weights_window, self.state_0_window]
        before, settled = Signal(len(Cat(windows))), Signal()
        m.d.sync += [before.eq(Cat(windows)), settled.eq(1)]
        m.d.comb += [
            *(getattr(unit, name).eq(getattr(self, name)) for name in ("abandon", "timeout", "link_reset",
                                                                       "weights_window", "state_0_window")),
            far.ready.eq(self.ready), far.response.eq(self.response), far.answer[0].eq(self.answer),
            Assume(~ResetSignal()), Assume(~settled | (before == Cat(windows)))]
        first, outside, blank = 0, [[], []], Signal()
        zeros, told = Signal(), Signal(2)
        for number, (name, words, window) in enumerate(zip(("weights", "state_0"), self.WORDS, windows, strict=True)):
            begin, size = Signal(10, name=f"begin_{number}"), Signal(10, name=f"size_{number}")
            m.d.comb += [
                begin.eq(first + GROUP * window.base), size.eq(GROUP * window.size),
                Assume((window.size == 0) | (window.base + window.size <= words // GROUP))]
            for kind in ("read", "write"):
                for n, (outer, inner) in enumerate(zip(getattr(self, f"{name}_{kind}"),
                                                       getattr(unit, f"{name}_{kind}"), strict=True)):
                    wiring.connect(m, outer=wiring.flipped(outer), inner=inner)
                    if n == 0:
                        queue = number if kind == "read" else 1 - number
                        outside[queue].append((kind, inner.valid & inner.ready & (inner.row >= size)))
            selected = far.valid & (unit.request.memory == number)
            m.d.comb += [
                Assert(~selected | unit.request.by_host | ((far.row >= begin) & (far.row < begin + size))),
                Assert(~selected | ((far.row >= first) & (far.row < first + words)))]
            first += words
        m.d.sync += [told.eq(Cat(Cat(stray for _, stray in queue).any() for queue in outside)),
                     blank.eq(Cat(stray for queue in outside for kind, stray in queue if kind == "read").any()),
                     zeros.eq(blank)]
        m.d.comb += [Assert(~settled | (unit.strays == told)),
                     Assert(~zeros | (unit.weights_read[0].elements[0] == 0))]
        return m


def test_requests_are_inside():
    prove(Inside(), depth=4)
