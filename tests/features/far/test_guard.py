# amaranth: UnusedElaboratable=no
"""Guard of a far memory port: compared with its model, used by the mover, and proven for all inputs."""

import numpy as np
import pytest
from amaranth.hdl import Assert, Assume, Module, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Memories, NodeConfig
from hdl.control.protocol import EventStatus, Operation
from hdl.features.compute.feature import Compute
from hdl.features.far.guard import FarGuard
from hdl.features.far.mover import OUTSTANDING, Mover
from hdl.features.far.port import far_signature
from hdl.features.tenants.command_watch import CommandWatch
from hdl.guard import window_layout
from hdl.streams.stream import connect_stream
from sim import formal
from sim.verilated.vectors import Unit
from tests.features.far import guard_model as golden
from tests.hdl import pysim
from tests.refusals import refuses

ROWS, LANES = 128, 2
GROUP_ROWS = 16
DEPTH = 5


def test_constructor_errors():
    refuses("Outstanding rows must be a positive integer, not 0", FarGuard, rows=ROWS, lanes=LANES, outstanding=0)


@pytest.fixture(scope="module")
def unit():
    return Unit(FarGuard(rows=ROWS, lanes=LANES, outstanding=DEPTH))


@pytest.mark.parametrize(("base", "size"), [(1, 2), (7, 1), (3, 0), (0, 8)])
def test_every_cycle(unit, base, size):
    """The guard of a far memory port matches its model for random requests, late responses and link resets."""
    seed = 10 * base + size
    generator = np.random.default_rng(seed)
    end = GROUP_ROWS * size
    edges = sorted({0, 1, ROWS - 1, *(row for row in (end - 1, end, end + 1) if 0 <= row < ROWS)})
    model, owed, cycles = golden.FarGuard(GROUP_ROWS * base, GROUP_ROWS * size), 0, 6000
    inputs, shown = [], []
    for _ in range(cycles):
        row = int(generator.choice(edges)) if generator.random() < 0.7 else None
        write = generator.random() < 0.3 or owed == DEPTH  # no more reads until an answer arrives
        inputs.append(golden.Inputs(
            row=row, write=write, ready=generator.random() < 0.7, answers=owed > 0 and generator.random() < 0.3,
            link_reset=generator.random() < 0.02))
        shown.append(model.step(inputs[-1]))
        owed += (shown[-1].asked is not None and inputs[-1].ready and not write) - inputs[-1].answers

    def column(values):
        return np.array(values, np.uint64)

    words = generator.integers(1, 1 << 32, (4, cycles), dtype=np.uint64)
    keep = generator.integers(0, 1 << LANES, cycles)
    unit.reset()
    trace = unit.run({
        "window": window_layout(ROWS * LANES).const({"base": base, "size": size}).as_value().value,
        "engine__valid": column([x.row is not None for x in inputs]),
        "engine__row": column([x.row or 0 for x in inputs]), "engine__write": column([x.write for x in inputs]),
        "engine__keep": keep, "engine__elements__0": words[0], "engine__elements__1": words[1],
        "far__ready": column([x.ready for x in inputs]), "far__response": column([x.answers for x in inputs]),
        "far__answer__0": words[2], "far__answer__1": words[3],
        "link_reset": column([x.link_reset for x in inputs])})
    where = f"{seed=}"
    asks, valid = np.array([x.asked is not None for x in shown]), np.array([x.row is not None for x in inputs])
    zeros, answered = np.array([x.zeros for x in shown]), np.array([x.given for x in shown])
    assert (trace["far__valid"] == asks).all(), where
    assert (trace["engine__ready"][valid] == column([x.ready for x in shown])[valid]).all(), where
    assert (trace["far__row"][asks] == column([x.asked or 0 for x in shown])[asks]).all(), where
    assert (trace["far__write"] == column([x.write for x in inputs])).all(), where
    assert (trace["far__keep"] == keep).all(), where
    assert (trace["engine__response"] == (zeros | answered)).all(), where
    for lane in range(LANES):
        assert (trace[f"far__elements__{lane}"] == words[lane]).all(), where
        answers = np.where(zeros[1:], 0, words[2 + lane, :-1])
        assert (trace[f"engine__answer__{lane}"][1:] == answers).all(), where
    assert (trace["stray"] == column([x.stray for x in shown])).all(), where
    assert (trace["owes"] == column([x.owes for x in shown])).all(), where
    assert zeros.any() == (size < 8), where
    assert FarGuard.latency == 1


class Guarded(wiring.Component):
    """Unit under test: the mover, with a guard at its far port and a monitor of its commands."""

    def __init__(self):
        config = NodeConfig(
            lanes=LANES, memories=Memories(gradient=32, weight=32, state=32),
            compute=Compute(rows=1, activations=128, far=ROWS * LANES))
        self.mover = Mover(config=config)
        members = self.mover.signature.members
        super().__init__({
            **{name: members[name] for name in ("command", "event", "activation_read", "activation_write")},
            "far": Out(far_signature(ROWS, LANES)), "window": In(window_layout(ROWS * LANES))})

    def elaborate(self, platform):
        m = Module()
        m.submodules.mover = mover = self.mover
        m.submodules.guard = guard = FarGuard(rows=ROWS, lanes=LANES, outstanding=OUTSTANDING)
        m.submodules.watch = watch = CommandWatch()
        wiring.connect(m, mover=mover.far, guard=guard.engine)
        wiring.connect(m, guard=guard.far, far=wiring.flipped(self.far))
        for name in ("activation_read", "activation_write"):
            wiring.connect(m, mover=getattr(mover, name), memory=wiring.flipped(getattr(self, name)))
        connect_stream(m, self.command, mover.command)
        connect_stream(m, mover.event, watch.i)
        connect_stream(m, watch.o, self.event)
        m.d.comb += [guard.window.eq(self.window), mover.timeout.eq(500), watch.stray.eq(guard.stray),
                     watch.started.eq(self.command.valid & self.command.ready)]
        return m


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize(("first", "rows", "status"), [
    (0, 32, EventStatus.OK), (0, 33, EventStatus.OUT_OF_WINDOW), (31, 2, EventStatus.OUT_OF_WINDOW),
    (32, 1, EventStatus.OUT_OF_WINDOW), (100, 28, EventStatus.OUT_OF_WINDOW)])
def test_moves_that_leave_the_window(back, first, rows, status):
    """Rows outside the window read as zero and are not written; the command continues and reports the access."""
    base, size, last = 16, 32, 60
    far = [[1000 * row + lane for lane in range(LANES)] for row in range(ROWS)]
    near = [[7 * row + 5 + lane for lane in range(LANES)] for row in range(64)]
    expected_far, expected_near = [list(row) for row in far], [list(row) for row in near]
    for n in range(rows):
        inside = first + n < size
        if back:
            expected_near[n] = list(far[base + first + n]) if inside else [0] * LANES
        elif inside:
            expected_far[base + first + n] = list(near[n])
    dut, events = Guarded(), []

    async def memories(ctx):
        reads, answers = [None] * 2, []
        for cycle in range(last + 4 * rows):
            port = dut.activation_write
            ctx.set(port.ready, 1)
            ctx.set(dut.activation_read.ready, 1)
            ctx.set(dut.far.ready, cycle % 3 != 0)
            row = reads.pop(0)
            ctx.set(dut.activation_read.response, row is not None)
            if row is not None:
                ctx.set(dut.activation_read.elements, near[row])
            due = bool(answers) and answers[0][0] <= cycle
            ctx.set(dut.far.response, due)
            for lane in range(LANES):
                ctx.set(dut.far.answer[lane], far[answers[0][1]][lane] if due else 0xDEAD)
            if due:
                answers.pop(0)
            await ctx.delay(1e-8)
            reads.append(ctx.get(dut.activation_read.row) if ctx.get(dut.activation_read.valid) else None)
            if ctx.get(port.valid):
                near[ctx.get(port.row)] = [ctx.get(port.elements[lane]) for lane in range(LANES)]
            if ctx.get(dut.far.valid) and ctx.get(dut.far.ready):
                row = ctx.get(dut.far.row)
                assert base <= row < base + size, (cycle, row)
                if ctx.get(dut.far.write):
                    far[row] = [ctx.get(dut.far.elements[lane]) for lane in range(LANES)]
                else:
                    answers.append((cycle + 5, row))
            if ctx.get(dut.event.valid):
                events.append((ctx.get(dut.event.payload.status), ctx.get(dut.event.payload.detail)))
            taken = ctx.get(dut.command.ready)
            await ctx.tick()
            if taken:
                ctx.set(dut.command.valid, 0)

    async def begin(ctx):
        ctx.set(dut.window, {"base": base // GROUP_ROWS, "size": size // GROUP_ROWS})
        ctx.set(dut.event.ready, 1)
        ctx.set(dut.command.payload, {
            "operation": Operation.MOVE_IN if back else Operation.MOVE_OUT, "length": rows * LANES,
            "weight_base": 0, "state_base": first * LANES})
        ctx.set(dut.command.valid, 1)
        await memories(ctx)

    pysim.simulate(dut, begin)
    assert events == [(status, rows * LANES)]
    assert (far, near) == (expected_far, expected_near)


class Inside(wiring.Component):
    """Specification of the guard, for any requests and a constant window. Far memory is accessed only inside the
    window. Accesses outside the window are accepted and reported, and read as zeros. Answers to requests from before
    a link reset do not reach the engine."""

    def __init__(self):
        super().__init__({
            "engine": In(far_signature(ROWS, 1)), "far_ready": In(1), "far_response": In(1), "far_answer": In(32),
            "window": In(window_layout(ROWS)), "link_reset": In(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = FarGuard(rows=ROWS, lanes=1, outstanding=3)
        wiring.connect(m, outer=wiring.flipped(self.engine), inner=unit.engine)
        far, engine = unit.far, unit.engine
        before, settled = Signal.like(self.window), Signal()
        begin, end = Signal(range(2 * ROWS)), Signal(range(2 * ROWS))
        inside, outside, told, blank = Signal(), Signal(), Signal(), Signal()
        # Number of requests in flight, and number of them from before the latest link reset.
        owed, old = Signal(range(4)), Signal(range(4))
        asked, left = Signal(), Signal.like(owed)
        answered, answer = Signal(), Signal(32)  # valid bit and words of the previous response
        m.d.sync += [before.eq(self.window), settled.eq(1), told.eq(outside),
                     blank.eq(outside & ~engine.write & ~self.link_reset)]
        m.d.comb += [
            unit.window.eq(self.window), unit.link_reset.eq(self.link_reset), far.ready.eq(self.far_ready),
            far.response.eq(self.far_response), far.answer[0].eq(self.far_answer),
            begin.eq(self.window.base * 32), end.eq(begin + self.window.size * 32),
            inside.eq(engine.row < self.window.size * 32), outside.eq(engine.valid & engine.ready & ~inside),
            asked.eq(far.valid & far.ready & ~far.write), left.eq(owed + asked - self.far_response),
            Assume(~ResetSignal()), Assume(~settled | (before == self.window)),
            Assume((self.window.size == 0) | (self.window.base + self.window.size <= ROWS // 32)),
            Assume(~self.far_response | (owed != 0)), Assume((owed != 3) | engine.write | ~engine.valid),
            Assert(~far.valid | (engine.valid & (far.row >= begin) & (far.row < end) & (far.write == engine.write))),
            Assert(~far.valid | (far.row == begin + engine.row)),
            Assert(~(engine.valid & engine.ready & inside) | (far.valid & far.ready)),
            Assert(~(engine.valid & engine.write & ~inside) | engine.ready),
            Assert(unit.stray == told), Assert(~blank | (engine.response & (engine.answer[0] == 0))),
            Assert(blank | (engine.response == answered)), Assert(~(blank & answered)),
            Assert(blank | (engine.answer[0] == answer)), Assert(unit.owes == (owed != 0)),
            # For the induction step, the unit's counters must be tied to the counters of this specification.
            Assert(unit.owed == owed), Assert(unit.old == (old != 0)), Assert((old == 0) | (old == owed)),
        ]
        m.d.sync += [answered.eq(self.far_response & (old == 0)), answer.eq(self.far_answer)]
        m.d.sync += [owed.eq(left), old.eq(old - (self.far_response & (old != 0)))]
        with m.If(self.link_reset):
            m.d.sync += old.eq(left)
        return m


def test_requests_are_inside():
    formal.prove(Inside(), depth=5)
