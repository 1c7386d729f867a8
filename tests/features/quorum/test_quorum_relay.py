# amaranth: UnusedElaboratable=no
"""READY and CLOSE messages on a ring of relays: hdl/features/quorum/quorum_relay.py."""

import random

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from hdl.features.quorum.layouts import INDEX_BITS
from hdl.features.quorum.quorum_relay import CLOSE_WORDS, QuorumRelay
from hdl.features.replay.control_word import ControlType, control_layout, ready_layout
from tests.hdl import pysim

#: Number of cycles without a message after which the test fails.
PATIENCE = 400


class Relays(wiring.Component):
    """Ring of relays; bit n of ``stall`` stalls the link from node n to the next node."""

    def __init__(self, count):
        self.units = [QuorumRelay() for _ in range(count)]
        super().__init__({"stall": In(count)})

    def elaborate(self, platform):
        m = Module()
        for n, unit in enumerate(self.units):
            m.submodules[f"relay_{n}"] = unit
            after = self.units[(n + 1) % len(self.units)]
            m.d.comb += [
                after.i.payload.eq(unit.o.payload), after.i.valid.eq(unit.o.valid & ~self.stall[n]),
                unit.o.ready.eq(after.i.ready & ~self.stall[n]),
            ]
        return m


class Bench:
    """Nodes that send READY and receive CLOSE; links and rank 0 stall in a fraction ``busy`` of the cycles."""

    def __init__(self, ctx, relays, *, seed, busy):
        self.ctx, self.relays, self.seed, self.busy = ctx, relays, seed, busy
        self.generator = random.Random(seed)
        count = len(relays.units)
        self.ready = [[] for _ in range(count)]  # READY messages that each node has yet to send, as (slot, tag)
        self.close = []
        self.heard = []
        self.closed = [[] for _ in range(count)]  # CLOSE messages received by each node, as (cycle, fields)
        self.cycle = 0
        self._new = 0  # cycle of the latest READY or CLOSE message
        for rank, unit in enumerate(relays.units):
            ctx.set(unit.place, {"rank": rank, "size": count})

    async def step(self):
        ctx, units = self.ctx, self.relays.units
        ctx.set(self.relays.stall, sum((self.generator.random() < self.busy) << n for n in range(len(units))))
        for sets, unit in zip(self.ready, units, strict=True):
            port = unit.rounds.ready
            ctx.set(port.valid, bool(sets))
            if sets:
                ctx.set(port.payload, dict(zip(("slot", "tag"), sets[0], strict=True)))
        first = units[0].rounds
        ctx.set(first.heard.ready, self.generator.random() >= self.busy)
        ctx.set(first.close.valid, bool(self.close))
        if self.close:
            ctx.set(first.close.payload, self.close[0])
        if ctx.get(first.heard.valid) and ctx.get(first.heard.ready):
            self._new = self.cycle
            self.heard.append(tuple(ctx.get(first.heard.payload[name]) for name in ("source", "slot", "tag")))
        for rank, unit in enumerate(units):
            if ctx.get(unit.rounds.closed):
                closing, self._new = unit.rounds.closing, self.cycle
                self.closed[rank].append((self.cycle, {
                    name: ctx.get(closing[name]) for name in ("tag", "on_time", "late", "index")}))
        taken = [bool(sets) and ctx.get(unit.rounds.ready.ready)
                 for sets, unit in zip(self.ready, units, strict=True)]
        closes = self.close and ctx.get(first.close.ready)
        await ctx.tick()
        for sets, gone in zip(self.ready, taken, strict=True):
            if gone:
                sets.pop(0)
        if closes:
            self.close.pop(0)
        self.cycle += 1
        assert self.cycle - self._new < PATIENCE, f"seed {self.seed}: nothing new for {PATIENCE} cycles"


def simulate(run, *, count, seed=1, busy=0.0):
    relays = Relays(count)
    async def testbench(ctx):
        await run(Bench(ctx, relays, seed=seed, busy=busy))

    pysim.simulate(relays, testbench)


@pytest.mark.parametrize(("count", "busy"), [(2, 0.0), (5, 0.5), (16, 0.2)])
def test_words_of_all_nodes(count, busy):
    """Rank 0 receives each node's READYs once and in order, and every node receives each CLOSE in order."""
    async def run(bench):
        generator = bench.generator
        sent = [[(generator.getrandbits(1), generator.getrandbits(16)) for _ in range(20)] for _ in range(count)]
        closes = [{"tag": generator.getrandbits(16), "on_time": generator.getrandbits(16),
                   "late": generator.getrandbits(16), "index": generator.getrandbits(INDEX_BITS)} for _ in range(12)]
        for sets, words in zip(bench.ready, sent, strict=True):
            sets.extend(words)
        due = list(closes)
        while len(bench.heard) < 20 * count or len(bench.closed[0]) < len(closes):
            # Like rank 0 in a real ring, send each CLOSE only after the previous one has returned.
            if due and len(bench.closed[0]) == len(closes) - len(due) and not bench.close and (
                    generator.random() < 0.05):
                bench.close.append(due.pop(0))
            await bench.step()
        for rank, words in enumerate(sent):
            assert [heard[1:] for heard in bench.heard if heard[0] == rank] == words
        for closed in bench.closed:
            assert [fields for _, fields in closed] == closes

    simulate(run, count=count, busy=busy)


def test_latency():
    """A word passes a node in :attr:`QuorumRelay.latency` cycles; a node reports CLOSE after its last word."""
    async def run(bench):
        bench.close.append({"tag": 5, "on_time": 3, "late": 8, "index": 40})
        for _ in range(30):
            await bench.step()
        cycles = [closed[0][0] for closed in bench.closed]
        # Rank 0 is the last to receive its own CLOSE.
        assert cycles == [QuorumRelay.latency * (n or 4) + CLOSE_WORDS for n in range(4)]
        bench.ready[1].append((1, 9))
        start = bench.cycle
        while not bench.heard:
            await bench.step()
            assert bench.cycle - start < 20
        assert bench.cycle - start == QuorumRelay.latency * 3 + 1
        assert bench.heard == [(1, 1, 9)]

    simulate(run, count=4)


def test_damaged_words():
    """A relay drops words of other types and all words while it has no position; a reset drops a partial message."""
    relay = QuorumRelay()
    ready = ready_layout().const({"type": ControlType.READY, "source": 3, "slot": 1, "zeros": 0, "tag": 70}).as_bits()
    close = control_layout().const({"type": ControlType.CLOSE, "words": CLOSE_WORDS - 1, "tag": 7, "reserved": 0})

    async def run(ctx):
        async def offer(data, *, first=1, last=1):
            """Offer a word to the relay; return the word that its output ``o`` then offers, or None."""
            ctx.set(relay.i.payload, {"data": data, "first": first, "last": last})
            ctx.set(relay.i.valid, 1)
            await ctx.tick().until(relay.i.ready)
            ctx.set(relay.i.valid, 0)
            return ctx.get(relay.o.payload.data) if ctx.get(relay.o.valid) else None

        ctx.set(relay.o.ready, 1)
        assert await offer(ready) is None  # dropped, since the relay has no position yet
        ctx.set(relay.place, {"rank": 2, "size": 4})
        assert await offer(ready) == ready
        for bad in (ready | 1 << 9, ready ^ 1, ready & ~(0xF << 4) | 2 << 4, close.as_bits() + (1 << 4), 0):
            assert await offer(bad) is None, hex(bad)
        assert await offer(ready, first=0) is None
        assert await offer(close.as_bits(), last=0) == close.as_bits()
        assert await offer(0x0008_0007, first=0, last=0) == 0x0008_0007
        ctx.set(relay.reset_link, 1)
        await ctx.tick()
        ctx.set(relay.reset_link, 0)
        assert await offer(99, first=0) is None
        for word, (first, last) in zip((close.as_bits(), 0x0002_0001, 33), ((1, 0), (0, 0), (0, 1)), strict=True):
            assert await offer(word, first=first, last=last) == word
        assert ctx.get(relay.rounds.closed)
        closing = {name: ctx.get(relay.rounds.closing[name]) for name in ("tag", "on_time", "late", "index")}
        assert closing == {"tag": 7, "on_time": 1, "late": 2, "index": 33}

    pysim.simulate(relay, run)
