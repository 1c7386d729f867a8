# amaranth: UnusedElaboratable=no
"""Control of the collective engine: compared with a model in every cycle, and proven to always end."""

import random

import cocotb
import pytest
from amaranth.hdl import Assert, Assume, Module, ResetInserter, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In
from cocotb.triggers import FallingEdge

from hdl.control.protocol import EventStatus, command_layout, event_layout
from hdl.control.register_file import version_layout
from hdl.ring.control import CUT_TIMEOUT, CollectiveControl, fault_layout, kind_layout
from hdl.ring.order import Planner
from sim import formal, regression
from sim.payload import from_int, to_int
from sim.streams import cycles, start
from tests.hdl import pysim

EXPECTED = 20
_TIMEOUT = 5
#: Flags of a command, each with its probability.
KINDS = {"immediate": 0.1, "busy": 0.5, "repeated": 0.1, "alone": 0.2, "updates": 0.5}

#: One-bit inputs of the unit, each with its probability of being high in a cycle.
INPUTS = {"link_reset": 0.02, "planned": 0.2, "finished": 0.06, "moved": 0.5, "packet_sent": 0.3,
          "packet_received": 0.3, "egress_stalled": 0.5, "local_nan": 0.1, "not_finite": 0.1, "abort_sent": 0.2,
          "abort_received": 0.1}


class Model:
    """Cycle-accurate model of the control: call ``outputs`` for a cycle, then ``step`` to advance."""

    def __init__(self):
        self.state = "idle"
        self.version = 0
        self.waited = self.sent = self.received = 0
        self.aborted = self.abort_seen = False
        self.event = None

    def outputs(self, inputs, kind):
        state = self.state
        aborting = state == "abort"
        stays = (self.aborted and self.abort_seen) or inputs["link_reset"]
        return {
            "planning": state in ("plan", "deal"), "active": state in ("launch", "settle", "run"),
            "plan": state == "plan" and not inputs["link_reset"] and not kind["immediate"] and not kind["repeated"],
            "launch": state == "launch", "running": state == "run", "busy": state not in ("idle", "report"),
            "give_up": aborting and not self.aborted,
            "drain": aborting and not (self.abort_seen or inputs["abort_received"]),
            "stranded": aborting and not stays and self.waited >= inputs["timeout"],
            "weight_version": self.version,
        }

    def step(self, inputs, kind, fault, *, command, taken):
        if self.state not in ("idle", "report"):
            self.event["cycles"] += 1
        packets = self.received << 16 | self.sent
        state, waited = self.state, self.waited
        self.waited = 0 if inputs["moved"] else waited + 1
        self.sent = (self.sent + inputs["packet_sent"]) % (1 << 16)
        self.received = (self.received + inputs["packet_received"]) % (1 << 16)
        aborted, abort_seen = self.aborted, self.abort_seen
        self.abort_seen = abort_seen or inputs["abort_received"]
        if state == "idle":
            if command is not None:
                self.event = {"tag": command["tag"], "status": EventStatus.OK, "flags": 0, "queue": 0, "detail": 0,
                              "cycles": 0}
                self.state = "plan"
        elif state in ("plan", "deal"):
            if state == "deal":
                self.waited = self.sent = self.received = 0
                self.aborted = self.abort_seen = False
            if inputs["link_reset"]:
                self.event["status"] = EventStatus.LINK_RESET
                self.state = "report"
            elif state == "plan":
                self.state = "report" if kind["immediate"] or kind["repeated"] else "deal"
                if kind["immediate"]:
                    self.event["status"] = EventStatus.BUSY if kind["busy"] else EventStatus.OK
                elif kind["repeated"]:
                    self.event["status"] = EventStatus.REPEATED
            elif inputs["planned"]:
                self.state = "launch"
        elif state in ("launch", "settle"):
            self.state = {"launch": "settle", "settle": "run"}[state]
        elif state == "run":
            self.event["flags"] |= inputs["local_nan"] | inputs["not_finite"] << 1
            ended = None
            if fault["found"]:
                ended = fault["status"], fault["detail"]
            elif inputs["link_reset"]:
                ended = EventStatus.LINK_RESET, packets
            elif waited >= inputs["timeout"] and not kind["alone"]:
                side = EventStatus.EGRESS_TIMEOUT if inputs["egress_stalled"] else EventStatus.INGRESS_TIMEOUT
                ended = side, packets
            if ended is not None:
                self.event.update(status=ended[0], detail=ended[1])
                self.state, self.waited = "abort", 0
            elif inputs["finished"]:
                self.version += kind["updates"]
                self.state = "report"
        elif state == "abort":
            self.waited = waited + 1
            self.aborted = aborted or inputs["abort_sent"]
            if (aborted and abort_seen) or inputs["link_reset"] or waited >= inputs["timeout"]:
                self.state = "report"
        elif taken:
            self.state = "idle"


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def follows_the_model(dut):
    p = regression.parameters()
    generator = random.Random(p["seed"])
    await start(dut)
    model, offered, ended, kind = Model(), None, [], dict.fromkeys(KINDS, 0)
    timeout = 0
    for _ in range(16_000):
        if model.state == "idle" and generator.random() < 0.5:
            timeout = generator.choice([3, 12, 30, 1000])
        if offered is None and generator.random() < p["given"]:
            offered = {"tag": generator.getrandbits(16)}
        inputs = {name: int(generator.random() < chance) for name, chance in INPUTS.items()} | {"timeout": timeout}
        # With a short time-out, data should rarely move.
        if timeout < 20 and model.state == "run":
            inputs |= {"moved": int(generator.random() < 0.03), "finished": 0}
        fault = {"found": int(generator.random() < 0.01), "status": generator.getrandbits(8),
                 "detail": generator.getrandbits(32)}
        taken, reset = generator.random() < p["taken"], generator.random() < 0.001
        for name, value in inputs.items():
            getattr(dut, name).value = value
        dut.kind.value = to_int(kind_layout(), kind)
        dut.fault.value = to_int(fault_layout(), fault)
        dut.rst.value = reset
        # The host sets the weight version between commands.
        is_set = p["restorable"] and model.state in ("idle", "report") and generator.random() < 0.1
        version = generator.choice([0, (1 << 32) - 1, generator.getrandbits(32)])
        if p["restorable"]:
            dut.set_version.value = to_int(version_layout(), {"valid": int(is_set), "value": version})
        dut.command__valid.value = offered is not None
        dut.command__payload.value = to_int(command_layout(), {
            name: (offered or {}).get(name, 0) for name, _ in command_layout()})
        dut.event__ready.value = taken
        await FallingEdge(dut.clk)
        where = f"in state {model.state}, seed {p['seed']}"
        expected = model.outputs(inputs, kind)
        actual = {name: int(getattr(dut, name).value) for name in expected}
        assert actual == {name: int(value) for name, value in expected.items()}, where
        assert dut.command__ready.value == (model.state == "idle"), where
        assert dut.event__valid.value == (model.state == "report"), where
        if model.state == "report":
            event = from_int(event_layout(), int(dut.event__payload.value))
            assert event == {**model.event, "weight_version": model.version}, where
            if taken and not reset:
                ended.append(event)
        accepted = model.state == "idle" and offered is not None and not reset
        if reset:
            model = Model()
        else:
            model.step(inputs, kind, fault, command=offered, taken=taken)
            model.version = version if is_set else model.version % (1 << 32)
        if accepted:
            offered = None
            kind = {name: int(generator.random() < share) for name, share in KINDS.items()}
        await cycles(dut, 1)
    statuses = [event["status"] for event in ended]
    for status in (EventStatus.OK, EventStatus.BUSY, EventStatus.REPEATED, EventStatus.LINK_RESET,
                   EventStatus.INGRESS_TIMEOUT, EventStatus.EGRESS_TIMEOUT):
        assert statuses.count(status) > EXPECTED, f"{status.name}, seed {p['seed']}"
    assert {event["flags"] for event in ended} == {0, 1, 2, 3}
    assert any(event["detail"] >> 16 and event["detail"] & 0xFFFF for event in ended)


@pytest.mark.parametrize(("settable", "rate", "taken"), [(False, 1.0, 1.0), (False, 0.3, 0.2), (True, 0.3, 0.2)])
def test_control(settable, rate, taken):
    regression.run(CollectiveControl(settable=settable), module=__name__, testcase="follows_the_model",
                   parameters={"given": rate, "taken": taken, "seed": 31,
                               "restorable": settable})


class EndsByReset(wiring.Component):
    """Specification: a command ends ``reset_cycles`` cycles after ``link_reset`` rises and stays high, and without a
    reset the control stays in Abort for at most ``timeout`` + 1 cycles."""

    def __init__(self):
        self._unit = CollectiveControl()
        super().__init__(self._unit.signature)

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = self._unit
        wiring.connect(m, outer=wiring.flipped(self), unit=unit)
        held, aborting = Signal(range(unit.reset_cycles + 2)), Signal(range(_TIMEOUT + 3))
        m.d.sync += [held.eq(held + 1), aborting.eq(aborting + 1)]
        with m.If(~self.link_reset | ~unit.busy):
            m.d.sync += held.eq(0)
        with m.If(~unit.busy | unit.planning | unit.active):
            m.d.sync += aborting.eq(0)
        m.d.comb += [
            Assume(~ResetSignal()),
            Assume(self.timeout == _TIMEOUT),
            Assert(held <= unit.reset_cycles),
            Assert(aborting <= _TIMEOUT + 1),
        ]
        return m


class PlansAfterReset(wiring.Component):
    """Specification: after a reset from any state, a planner finishes its plan within its latency."""

    reset: In(1)
    start: In(1)
    size: In(range(17))
    rank: In(range(16))
    length: In(range(65))

    def elaborate(self, platform):
        m = Module()
        unit = Planner(elements=64, segment=32)
        m.submodules.unit = ResetInserter(self.reset)(unit)
        was_reset, begun = Signal(), Signal()
        passed = Signal(range(unit.latency + 2))
        before = {name: Signal.like(getattr(self, name), name=f"{name}_before")
                  for name in ("size", "rank", "length")}
        m.d.sync += [was_reset.eq(self.reset), passed.eq(passed + 1)]
        m.d.sync += [value.eq(getattr(self, name)) for name, value in before.items()]
        m.d.comb += [unit.start.eq(self.start), Assume(~ResetSignal())]
        for name, value in before.items():
            m.d.comb += getattr(unit, name).eq(getattr(self, name))
            with m.If(begun):
                m.d.comb += Assume(getattr(self, name) == value)
        with m.If(was_reset & self.start & ~self.reset):
            m.d.comb += [Assume((self.size >= 1) & (self.size <= 16)), Assume(self.rank < self.size)]
            m.d.sync += [begun.eq(1), passed.eq(1)]
        with m.Elif(self.reset | unit.done):
            m.d.sync += begun.eq(0)
        m.d.comb += Assert(~begun | (passed <= unit.latency))
        return m


def test_ends_by_reset():
    """Prove by induction, starting from every state, whether reachable or not."""
    formal.prove(EndsByReset(), depth=_TIMEOUT + 3)


def test_plans_after_reset():
    """Proof by induction that every plan is finished in time; the engine resets its planner whenever it is not
    planning."""
    formal.prove(PlansAfterReset(), depth=25)


@pytest.mark.parametrize(("timeout", "cut", "cycles"), [
    (3 * CUT_TIMEOUT, 0, 3 * CUT_TIMEOUT), (3 * CUT_TIMEOUT, 1, CUT_TIMEOUT), (20, 1, 20), (20, 0, 20)])
@pytest.mark.parametrize("settable", [False, True])
def test_cut(settable, timeout, cut, cycles):
    """A truncated command waits at most ``CUT_TIMEOUT`` cycles for a word, and as long for an ABORT."""
    dut, seen = CollectiveControl(settable=settable, cuttable=True), {}

    async def follow(ctx):
        for port, value in ((dut.command.valid, 1), (dut.planned, 1), (dut.timeout, timeout), (dut.cut, cut)):
            ctx.set(port, value)
        for _ in range(8 * CUT_TIMEOUT):
            for name in ("running", "give_up"):
                seen[name] = seen.get(name, 0) + ctx.get(getattr(dut, name))
            if ctx.get(dut.event.valid):
                seen["status"] = ctx.get(dut.event.payload.status)
                return
            await ctx.tick()

    pysim.simulate(dut, follow)
    # The node starts waiting for a word two cycles before Run, and for an ABORT when Abort begins.
    assert seen == {"running": cycles - 2 + 1, "give_up": cycles + 1, "status": EventStatus.INGRESS_TIMEOUT}
