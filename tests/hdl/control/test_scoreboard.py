# amaranth: UnusedElaboratable=no
"""Scoreboard of dependencies: compared with a model that has unbounded counts; a proof covers its comparison."""

import random

import cocotb
import pytest
from amaranth.hdl import Assert, Assume, Module, ResetSignal, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In

from hdl.control.program_layouts import DEPTH_MAX
from hdl.control.scoreboard import AFTER_MAX, LEAD_MAX, Scoreboard, after_layout, others
from sim import formal, regression
from sim.payload import to_int
from sim.streams import start
from tests.hdl.control.passes import Passes
from tests.hdl.control.units import lockstep, simulate
from tests.refusals import refused_values


class Model(Passes):
    """Model of the scoreboard, with pass and command counts that never wrap around."""

    def __init__(self, queues):
        super().__init__(queues)
        self.done = [0] * queues
        self.sizes, self.pairs, self.before = [3] * queues, None, None

    def needed(self, queue, index, other):
        """Number of completed commands of the other queue that a head waits for; None if it cannot be reached."""
        pair = self.pairs[queue][index]
        number = self.passes[queue] - pair["lag"]
        if not pair["after"] or number < 0:
            return 0
        return number * self.sizes[other] + pair["after"] if pair["after"] <= AFTER_MAX else None

    def missing(self):
        """For each queue, the flags of its unmet dependencies."""
        result = []
        for queue in range(self.queues):
            bits = 0
            for index, other in enumerate(others(queue, self.queues)):
                needed = self.needed(queue, index, other)
                bits |= (needed is None or self.done[other] < needed) << index
            result.append(bits)
        return result

    def outputs(self, inputs):
        if self.before is None:
            return {}
        held = 0
        for queue in range(self.queues):
            held |= any(self.passes[queue] - self.passes[other] == LEAD_MAX and inputs["active"] >> other & 1
                        for other in others(queue, self.queues)) << queue
        known = self.stable >= Scoreboard.settling
        missing = self.before
        return {
            "held": held,
            "counts": sum((count & 0xFFFF) << 16 * n for n, count in enumerate(self.done)),
            "missing": sum(bits << (self.queues - 1) * n for n, bits in enumerate(missing)) if known else None,
            "holds": sum((bits == 0) << n for n, bits in enumerate(missing)) if known else None,
        }

    def step(self, inputs):
        # The outputs of the next cycle reflect the state in this cycle.
        self.before = self.missing()
        self.done = [0 if inputs["clear"] else done + (inputs["done"] >> queue & 1)
                     for queue, done in enumerate(self.done)]
        self.advance(inputs)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def counts_and_compares(dut):
    """Queues run programs continuously, in random orders that the scoreboard allows."""
    p = regression.parameters()
    queues, generator = p["queues"], random.Random(p["seed"])
    prefix = "scoreboard" if queues == 2 else "scoreboard_3"
    await start(dut)
    model = Model(queues)
    pace, seen, leads = [1] * queues, set(), set()

    def new_pairs():
        bounds = (1, 2, 8, 60, 1 << 16)
        return [[{"after": generator.randrange(generator.choice(bounds)), "lag": generator.randrange(4)}
                 for _ in range(queues - 1)] for _ in range(queues)]

    def drive():
        begins = done = 0
        clear = int(model.pairs is None or generator.random() < 0.001)
        if clear:
            model.sizes = [generator.choice([1, 2, generator.randrange(1, 30)]) for _ in range(queues)]
            pace[:] = [generator.choice([0.02, 0.3, 0.9]) for _ in range(queues)]
        elif model.stable > 6 and generator.random() < 0.3:
            held = model.outputs({"active": (1 << queues) - 1})["held"]
            # A pass starts when the last command of the previous pass starts.
            for queue in range(queues):
                if model.done[queue] >= (model.passes[queue] + 1) * model.sizes[queue] - 1:
                    begins |= generator.getrandbits(1) << queue
            begins &= ~held
        if clear or begins:
            model.pairs = new_pairs()
        if not clear:
            for queue in range(queues):
                if model.done[queue] < (model.passes[queue] + 1) * model.sizes[queue]:
                    done |= (generator.random() < pace[queue]) << queue
        seen.add(tuple(model.before or ()))
        leads.add(max(model.passes) - min(model.passes))
        lengths = sum(size << 16 * n for n, size in enumerate(model.sizes))
        layout = data.ArrayLayout(data.ArrayLayout(after_layout(), queues - 1), queues)
        active = generator.choice([(1 << queues) - 1, generator.getrandbits(queues)])
        return {"clear": clear, "active": active, "begins": begins, "done": done, "lengths": lengths,
                "after": to_int(layout, model.pairs)}

    await lockstep(dut, prefix, model, drive, p["cycles"])
    assert len(seen) == (1 << queues - 1) ** queues + 1
    assert max(leads) == LEAD_MAX


class Comparison(wiring.Component):
    """Specification: a head that is stable for three cycles waits exactly until its dependencies hold."""

    clear: In(1)
    begins: In(2)
    done: In(2)
    after: In(after_layout())
    length: In(16)

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = Scoreboard(queues=2)
        pair, length = Signal(after_layout()), Signal(16)  # dependency and program length, constant
        base, early = Signal(16), Signal(2)
        counts = Signal(16), Signal(16)
        stable = Signal(range(Scoreboard.settling + 1))
        holds = Signal()
        m.d.comb += [
            unit.clear.eq(self.clear), unit.begins.eq(self.begins), unit.done.eq(self.done), unit.active.eq(0b11),
            unit.lengths[1].eq(self.length), unit.after[0][0].eq(self.after),
        ]
        m.d.sync += [pair.eq(self.after), length.eq(self.length)]
        changed = self.clear | self.begins[0] | (pair != self.after) | (length != self.length)
        with m.If(changed):
            m.d.sync += stable.eq(0)
        with m.Elif(stable != Scoreboard.settling):
            m.d.sync += stable.eq(stable + 1)
        with m.If(self.clear):
            m.d.sync += [base.eq(0), early.eq(0)]
        with m.Elif(self.begins[0]):
            m.d.sync += [base.eq(base + length), early.eq(early + (early != 3))]
        for n, count in enumerate(counts):
            with m.If(self.clear):
                m.d.sync += count.eq(0)
            with m.Elif(self.done[n]):
                m.d.sync += count.eq(count + 1)
        distance = (counts[1] - (base + self.after.after - self.after.lag * self.length))[:16]
        m.d.sync += holds.eq((self.after.after == 0) | (early < self.after.lag) | (
            (self.after.after <= AFTER_MAX) & ~distance[15]))
        m.d.comb += [
            Assume(~ResetSignal()),
            # Lengths change only between runs, when counts are cleared.
            Assume((length == self.length) | self.clear),
            Assert(unit.bases[0][0] == base),
            Assert(unit.early[0] == early),
            # Each ended command is counted exactly once.
            Assert(unit.counts[0] == counts[0]),
            Assert(unit.counts[1] == counts[1]),
            Assert((stable != Scoreboard.settling) | (unit.holds[0] == holds)),
            Assert((unit.holds[0] == 1) == (unit.missing[0] == 0)),
        ]
        return m


def test_comparison():
    """Proof by induction: counts include all commands that have ended, and dependencies are checked against them."""
    formal.prove(Comparison(), depth=5)


@pytest.mark.parametrize(("queues", "cycles", "seed"), [(2, 6000, 1), (3, 6000, 2)])
def test_scoreboard(queues, cycles, seed):
    simulate(__name__, "counts_and_compares", queues=queues, cycles=cycles, seed=seed)


def test_counts_are_never_too_far_apart():
    """The sign of the difference of counts is correct for all passes and program lengths of two queues."""
    for length in (1, 2, 1000, DEPTH_MAX):
        for lead in (-LEAD_MAX, -1, 0, LEAD_MAX):
            for part in (0, length):
                for lag in range(4):
                    for after in (1, length, AFTER_MAX):
                        done = (20 + lead) * length + part
                        difference = done - ((20 - lag) * length + after)
                        assert (difference % (1 << 16) < 1 << 15) == (difference >= 0)


test_queues_are_checked = refused_values(Scoreboard, {}, "queues", [1, 4, "2"], "Queue count must be between 2 and 3")
