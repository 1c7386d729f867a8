# amaranth: UnusedElaboratable=no
"""APPLY_LATE on a memory, compared bit for bit with the golden model: hdl/features/quorum/apply_late.py."""

import random

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from hdl.control.protocol import EventStatus, Operation
from hdl.features.quorum.apply_late import ApplyLate
from hdl.memory import LanedMemory, read_signature, write_signature
from sim.golden import ring as golden_ring
from sim.golden.features.quorum.rounds import apply_late
from tests.hdl import pysim
from tests.host import rings

CONFIG = rings.CONFIGS["wide"]
LANES = CONFIG.lanes
ROWS = CONFIG.memories.gradient // LANES
BASE, STRIDE = 2 * LANES, 24 * LANES  # base and stride of gradient slots, in elements
WORDS = BASE + 2 * STRIDE + LANES  # number of memory words that are compared
MASKS = 0x0008_0007
TIMEOUT = 500


class Bench(wiring.Component):
    """The APPLY_LATE engine with a memory that has extra ports for the test."""

    def __init__(self):
        self.apply_late = ApplyLate(config=CONFIG)
        super().__init__({"read": In(read_signature(ROWS, LANES)), "write": In(write_signature(ROWS, LANES))})

    def elaborate(self, platform):
        m = Module()
        m.submodules.apply_late = apply_late = self.apply_late
        m.submodules.memory = memory = LanedMemory(rows=ROWS, lanes=LANES, readers=2, writers=2)
        wiring.connect(m, apply_late.gradient_read, memory.read[0])
        wiring.connect(m, apply_late.gradient_write, memory.write[0])
        wiring.connect(m, wiring.flipped(self.read), memory.read[1])
        wiring.connect(m, wiring.flipped(self.write), memory.write[1])
        return m

    async def fill(self, ctx, words):
        for row, elements in enumerate(words.reshape(-1, LANES).tolist()):
            ctx.set(self.write.row, row)
            ctx.set(self.write.elements, elements)
            ctx.set(self.write.keep, (1 << LANES) - 1)
            ctx.set(self.write.valid, 1)
            await ctx.tick().until(self.write.ready)
        ctx.set(self.write.valid, 0)

    async def words(self, ctx):
        """Read the memory words that are compared."""
        words = []
        for row in range(WORDS // LANES):
            ctx.set(self.read.row, row)
            ctx.set(self.read.valid, 1)
            await ctx.tick().until(self.read.ready)
            ctx.set(self.read.valid, 0)
            while not ctx.get(self.read.response):
                await ctx.tick()
            words += [ctx.get(element) for element in self.read.elements]
            await ctx.tick()
        return np.array(words, np.uint32)

    async def command(self, ctx, generator, *, length, number):
        """Issue an APPLY_LATE command with random values in its unused fields."""
        port = self.apply_late.command
        ctx.set(port.payload, {
            "operation": Operation.APPLY_LATE, "gradient_base": BASE, "length": length, "number": number, "round": 1,
            "weight_base": generator.getrandbits(32), "state_base": generator.getrandbits(32),
            "duration": generator.getrandbits(32), "block_offset": generator.getrandbits(8),
            "stride": generator.getrandbits(8), "format": (bits := generator.getrandbits(128)) & 15,
            "entry": bits >> 4 & 255, "reserved_12": bits >> 12})
        ctx.set(port.valid, 1)
        await ctx.tick().until(port.ready)
        ctx.set(port.valid, 0)

    async def event(self, ctx, *, most):
        """Wait for the event for at most ``most`` cycles, and return it."""
        port = self.apply_late.event
        for _ in range(most):
            if ctx.get(port.valid):
                event = {name: ctx.get(port.payload[name]) for name in ("status", "detail", "cycles")}
                ctx.set(port.ready, 1)
                await ctx.tick()
                ctx.set(port.ready, 0)
                return event
            await ctx.tick()
        raise AssertionError(f"No event in {most} cycles")


def simulate(run):
    bench = Bench()
    async def testbench(ctx):
        ctx.set(bench.apply_late.stride, STRIDE)
        ctx.set(bench.apply_late.timeout, TIMEOUT)
        await run(ctx, bench)

    pysim.simulate(bench, testbench)


def numbers(generator, count):
    """Draw random numbers, including zeros, subnormals, infinities and NaNs."""
    words = generator.integers(0, 1 << 32, count, dtype=np.uint32)
    return np.where(generator.random(count) < 0.2, words & 0x8000_0000 | np.uint32(0x7F80_0000), words)


def test_folds():
    """Late gradients are applied correctly for random lengths, slots and weights, even during host reads."""
    random_bits, generator = random.Random(3), np.random.default_rng(3)
    lengths = [0, 1, LANES, LANES + 1, 3 * LANES - 1, 24 * LANES] + [random_bits.randrange(1, 90) for _ in range(18)]

    async def run(ctx, bench):
        unit = bench.apply_late
        for number, length in enumerate(lengths):
            words = numbers(generator, WORDS)
            await bench.fill(ctx, words)
            slot, fresh, late = random_bits.getrandbits(1), random_bits.random() < 0.6, random_bits.random() < 0.8
            weight = random_bits.randrange(1, 17)
            await bench.command(ctx, random_bits, length=length, number=number)
            while not ctx.get(unit.waits):
                await ctx.tick()
            assert ctx.get(unit.tag) == number
            for _ in range(random_bits.randrange(9)):
                assert ctx.get(unit.waits)
                await ctx.tick()
            ctx.set(unit.known, 1)
            assert ctx.get(unit.taken)
            ctx.set(bench.read.valid, random_bits.getrandbits(1))
            await ctx.tick()
            ctx.set(unit.known, 0)
            ctx.set(unit.work, {"fresh": fresh, "late": late, "fresh_slot": 1 - slot, "late_slot": slot,
                                "weight": weight, "index": random_bits.getrandbits(9), "masks": MASKS})
            row = 7 if fresh else 4
            event = await bench.event(ctx, most=100 + (row + LANES) * (length // LANES + 1) * 2)
            assert (event["status"], event["detail"]) == (EventStatus.OK, MASKS)
            if not ctx.get(bench.read.valid) and late and length >= 3 * LANES:
                rows = -(-length // LANES)
                latency = event["cycles"] - length - row * rows
                assert 0 < latency <= 30, (length, event)
            ctx.set(bench.read.valid, 0)
            await ctx.tick().repeat(4)

            slots = [slice(BASE + n * STRIDE, BASE + n * STRIDE + length) for n in range(2)]
            want = words.copy()
            if late:
                want[slots[1 - slot if fresh else slot]] = apply_late(
                    words[slots[1 - slot]] if fresh else None, words[slots[slot]], weight)
            actual = await bench.words(ctx)
            np.testing.assert_array_equal(golden_ring.canonical(actual), golden_ring.canonical(want))

    simulate(run)


@pytest.mark.parametrize("alive", [False, True])
def test_time_out(alive):
    """If a round is never closed, APPLY_LATE ends TIMEOUT cycles after the last activity."""
    async def run(ctx, bench):
        await bench.command(ctx, random.Random(1), length=8, number=77)
        late = 3 * TIMEOUT // 4 if alive else 0
        for cycle in range(late):
            ctx.set(bench.apply_late.alive, cycle == late - 1)
            await ctx.tick()
        ctx.set(bench.apply_late.alive, 0)
        event = await bench.event(ctx, most=TIMEOUT + 20)
        assert (event["status"], event["detail"]) == (EventStatus.CLOSE_TIMEOUT, 77)
        assert late + TIMEOUT <= event["cycles"] <= late + TIMEOUT + 8

    simulate(run)


def test_link_reset():
    """A link reset ends a waiting APPLY_LATE, and the next one runs normally."""
    async def run(ctx, bench):
        await bench.command(ctx, random.Random(1), length=8, number=1)
        await ctx.tick().repeat(9)
        ctx.set(bench.apply_late.link_reset, 1)
        event = await bench.event(ctx, most=5)
        ctx.set(bench.apply_late.link_reset, 0)
        assert event["status"] == EventStatus.LINK_RESET
        await bench.command(ctx, random.Random(1), length=8, number=2)
        ctx.set(bench.apply_late.known, 1)
        event = await bench.event(ctx, most=20)
        assert event["status"] == EventStatus.OK

    simulate(run)
