# amaranth: UnusedElaboratable=no
"""Control of one queue: proofs, and a comparison of all outputs with a model in every cycle. The proofs show that no
command starts early, that each one ends once, and that no end is lost."""

import collections
import dataclasses
import random

import cocotb
import pytest
from amaranth.hdl import Assert, Assume, Module, Mux, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from hdl.control.command_control import CommandControl, Rejection
from hdl.control.protocol import command_layout
from sim import formal, regression
from sim.payload import to_int
from sim.streams import start
from tests.hdl.control import command_control_model as golden
from tests.hdl.control.units import lockstep, simulate


class Control(wiring.Component):
    """Specification: the control with an arbitrary loader, engine and event queue.

    The loader eventually accepts, rejects or defers each granted command. The engine offers exactly one event for
    each command. A dependency that is met stays met until the command has started.
    """

    granted: In(1)
    passed: In(1)
    deferred: In(1)
    bad: In(1)
    available: In(1)
    of_program: In(1)
    stale: In(1)
    holds: In(1)
    alive: In(1)
    right: In(1)
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
        loading = Signal()  # whether a granted command has not been accepted, rejected or deferred yet
        there = Signal()  # whether the head has passed its check, but has not left yet
        run = Signal()  # whether a command is running, with its event not accepted yet
        of_program = Signal()  # whether the running command belongs to the program
        counted = Signal()  # whether the end of this command has been counted
        offered = Signal()  # whether the engine offers its event
        was_good = Signal()
        waits = Signal()  # whether the dependency held in the previous cycle
        refused = Signal()
        m.d.comb += [
            *(getattr(unit, name).eq(getattr(self, name)) for name in (
                "granted", "passed", "deferred", "available", "of_program", "stale", "holds", "alive", "right",
                "blocked", "flags", "link_reset", "timeout", "stop", "good", "queued", "head")),
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
            # No command starts before its dependencies hold, while another command runs, or without having been
            # checked.
            Assert(~unit.start.valid | self.holds),
            Assert(~unit.start.valid | ~run),
            Assert(~unit.start.valid | there),
            # No command starts if it would compute with the wrong weights.
            Assert(~unit.goes | self.right),
            # No command is rejected while another command is running, so each event belongs to one command.
            Assert(~unit.rejected | ~run),
            Assert(~(unit.rejected & unit.start.valid)),
            # The end of each started command is seen exactly once, and no later than the acceptance of its event.
            Assert(~unit.ended | (run & offered & ~counted)),
            Assert(~(run & offered & self.queued) | unit.ended | counted),
            Assert(unit.done == (unit.ended & of_program & self.good)),
            # Invariants needed for the induction.
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
    """Proof by induction: no command starts early, each ends once, and every end is counted."""
    formal.prove(Control(), depth=6)


class Surroundings:
    """The units around the control: loader, engine, event queue and settings, which act at random times."""

    _sets = (0, 1, 1 << 15, 1 | 1 << 15)  # sets of flags to choose from

    def __init__(self, seed, busy):
        self._random = random.Random(seed)
        self._busy = busy  # probability of each action per cycle
        self.model = golden.CommandControl()
        self.seen = collections.Counter()
        self._fields = {"wait": 0, "signal": 0, "tag": 0}
        self._head = 0
        self._bad = None  # verdict of the check on the command being loaded
        self._refused = self._holds = self._offered = self._good = self._rejecting = False
        self._flags, self._timeout, self._reset = 0, 5, False
        self._inputs = None

    def drive(self):
        """Draw the inputs of the next cycle, keyed by port."""
        choose, model = self._random, self.model

        def often(share=1.0):
            return choose.random() < share * self._busy

        if choose.random() < 0.01:
            self._timeout = choose.choice([0, 1, 2, 5, 12, (1 << 32) - 1])
        self._reset = choose.random() < (0.7 if self._reset else 0.012)
        self._flags = choose.choice(self._sets) if choose.random() < 0.15 else self._flags
        self._holds |= often(0.3)
        self._offered |= self._offers and often(0.5)
        available, stop = often(), choose.random() < (0.2 if self._rejecting else 0.04)
        granted = model.wanted(available=available, stop=stop) and often()
        verdict = self._bad is not None and not self._refused and often(0.4)
        self._refused &= self._bad is not None
        if verdict and self._bad and model.deliver:
            self._refused = True
        if not self._offered:
            self._good = choose.random() < 0.8
        inputs = {
            "available": available, "of_program": choose.random() < 0.6, "granted": granted,
            "passed": verdict and not self._bad, "refused": self._refused and model.deliver,
            # The loader withdraws a rejection that can no longer be delivered.
            "deferred": bool((verdict and self._bad) or self._refused) and not model.deliver,
            "stale": choose.random() < 0.03, "holds": self._holds, "blocked": choose.random() < 0.2,
            "alive": choose.random() < 0.15, "right": choose.random() < 0.9,
            "flags": self._flags, "link_reset": self._reset, "timeout": self._timeout, "stop": stop,
            "completion": self._offered, "good": self._good,
            "queued": (self._offered or self._rejecting) and often(0.6),
        }
        self._inputs = golden.Inputs(**inputs, head=dict(self._fields), ready=often(0.7))
        return {**inputs, "head": self._head, "start__ready": self._inputs.ready}

    def outputs(self, inputs):
        """Outputs of the model in this cycle."""
        expected = self.model.outputs(self._inputs)
        return {**expected, "start__payload": self._head}

    def step(self, inputs):
        """Advance the model and the simulated units around it by one cycle."""
        choose, now = self._random, self._inputs
        before = self.model.outputs(now)
        self.model.step(now)
        after = self.model.outputs(dataclasses.replace(now, stop=False))
        self._rejecting = after["rejected"]
        for name in ("started", "done", "failed", "takes"):
            self.seen[name] += before[name]
        self.seen["patience"] += bool(now.alive and before["waiting"] and before["count"] > 1 and after["count"] == 1)
        if after["rejected"] and not before["rejected"]:
            self.seen[Rejection(after["reason"]).name] += 1
        self.seen["dropped"] += bool(before["loaded"] and not after["loaded"] and now.stop and not before["removed"])
        if now.granted:
            # The loader writes the head before it reports the result of the check.
            self._bad, self._refused, self._holds = choose.random() < 0.15, False, choose.random() < 0.5
            self._fields = {"wait": choose.choice([0, *self._sets]), "signal": choose.getrandbits(16),
                            "tag": choose.getrandbits(16)}
            self._head = to_int(command_layout(), {
                name: self._fields.get(name, 0) for name, _ in command_layout()}) | choose.getrandbits(8)
        if now.passed or now.deferred or before["dismiss"]:
            self._bad = None
        if now.completion and now.queued:
            self._offered = False

    @property
    def _offers(self):
        """Whether the running command may offer its event."""
        return bool(self.model.outputs(self._inputs)["running"]) if self._inputs is not None else False


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def follows_the_model(dut):
    p = regression.parameters()
    await start(dut)
    surroundings = Surroundings(p["seed"], p["busy"])
    print("seed", p["seed"])
    await lockstep(dut, "control", surroundings, surroundings.drive, 8_000)
    least = {name: surroundings.seen[name] for name in (
        "started", "done", "failed", "takes", "patience", "dropped", *(reason.name for reason in Rejection))}
    assert min(least.values()) > 4, (least, f"seed {p['seed']}")


@pytest.mark.parametrize(("busy", "seed"), [(1.0, 1), (0.3, 2)])
def test_model(busy, seed):
    simulate(__name__, "follows_the_model", busy=busy, seed=seed)
