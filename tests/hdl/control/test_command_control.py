# amaranth: UnusedElaboratable=no
"""Proofs about the control of one queue: none starts before its time, each ends once, and no end is lost."""

from amaranth.hdl import Assert, Assume, Module, Mux, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from hdl.control.command_control import CommandControl, Rejection
from hdl.control.protocol import command_layout
from sim import formal


class Control(wiring.Component):
    """Specification: a control between a loader, an engine and a queue of events of any behaviour.

    A loader that was granted a command says sooner or later that it passed, is refused or deferred. An engine offers
    exactly one event for each command. What a command waits for, once there, stays until it has started.
    """

    granted: In(1)
    passed: In(1)
    deferred: In(1)
    bad: In(1)
    available: In(1)
    of_program: In(1)
    stale: In(1)
    holds: In(1)
    blocked: In(1)
    flags: In(16)
    link_reset: In(1)
    timeout: In(32)
    stop: In(1)
    accepts: In(1)
    ends: In(1)
    good: In(1)
    queued: In(1)
    head: In(command_layout())

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = CommandControl()
        loading = Signal()  # granted, and without a verdict
        there = Signal()  # the head has passed, and has not left
        run = Signal()  # started, and its event is not taken
        of_program = Signal()  # what runs is of the program
        counted = Signal()  # its end was seen
        offered = Signal()  # by the engine
        was_good = Signal()
        waits = Signal()  # the dependency has held in the last cycle
        refused = Signal()
        m.d.comb += [
            *(getattr(unit, name).eq(getattr(self, name)) for name in (
                "granted", "passed", "deferred", "available", "of_program", "stale", "holds", "blocked", "flags",
                "link_reset", "timeout", "stop", "good", "queued", "head")),
            refused.eq(loading & self.bad & unit.deliver),
            unit.refused.eq(refused),
            unit.start.ready.eq(self.accepts),
            unit.completion.eq(offered),
        ]
        verdict = self.passed | self.deferred
        gone = self.queued & unit.rejected
        with m.If(self.granted):
            m.d.sync += loading.eq(1)
        with m.Elif(verdict | (gone & (unit.reason == Rejection.VERDICT))):
            m.d.sync += loading.eq(0)
        with m.If(self.passed):
            m.d.sync += there.eq(1)
        with m.Elif(unit.removed | unit.wanted):
            m.d.sync += there.eq(0)
        with m.If(unit.started):
            m.d.sync += [run.eq(1), counted.eq(0), of_program.eq(unit.head_of_program)]
        with m.Elif(offered & self.queued):
            m.d.sync += run.eq(0)
        with m.If(unit.ended):
            m.d.sync += counted.eq(1)
        with m.If(run & ~(offered & self.queued)):
            m.d.sync += offered.eq(offered | self.ends)
        with m.Else():
            m.d.sync += offered.eq(0)
        m.d.sync += [was_good.eq(self.good), waits.eq(self.holds & ~unit.removed)]
        m.d.comb += [
            Assume(~ResetSignal()),
            Assume(~self.granted | unit.wanted),
            Assume(~self.passed | (loading & ~self.bad)),
            Assume(~self.deferred | (loading & self.bad & ~unit.deliver)),
            Assume(~verdict | ~unit.rejected),
            Assume(~self.queued | offered | unit.rejected),
            Assume(~waits | self.holds),
            Assume(~(offered & counted) | (self.good == was_good)),
            # No command starts before its dependencies hold, while another one runs, or without having passed.
            Assert(~unit.start.valid | self.holds),
            Assert(~unit.start.valid | ~run),
            Assert(~unit.start.valid | there),
            # None is rejected while another one runs, and so each event is of one command.
            Assert(~unit.rejected | ~run),
            Assert(~(unit.rejected & unit.start.valid)),
            # Each command that has started is seen to end exactly once, before its event is taken or with it.
            Assert(~unit.ended | (run & offered & ~counted)),
            Assert(~(run & offered & self.queued) | unit.ended | counted),
            Assert(unit.done == (unit.ended & of_program & self.good)),
            # States that the induction needs.
            Assert(unit.running == run),
            Assert(~offered | run),
            Assert(~run | (counted == unit.known)),
            Assert(~run | (of_program == unit.run_of_program)),
            Assert(loading == unit.loading),
            Assert(~unit.start.valid | unit.loaded),
            Assert(~unit.rejected | Mux(unit.reason == Rejection.VERDICT, loading, unit.loaded)),
            Assert(~unit.loaded | there),
            Assert(~(unit.loading & unit.loaded)),
        ]
        return m


def test_control_of_a_queue():
    """No command starts early, each ends once, and every end is counted: for all time, by induction."""
    formal.prove(Control(), depth=6)
