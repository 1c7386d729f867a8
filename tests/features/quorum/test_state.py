"""Compare a node's gradient state in quorum updates with the golden model: hdl/features/quorum/state.py."""

import random

import numpy as np
import pytest

from hdl.features.quorum.layouts import counts_layout
from hdl.features.quorum.state import QuorumState
from sim.golden.features.quorum.rounds import ONE, Close, QuorumRounds, stale_weights
from tests.hdl import pysim

RANK = 5


class Bench:
    """Run a state unit through random computations and rounds, next to a golden model of one node.

    A computation may end in any cycle around a CLOSE. Its gradient enters the golden model after all rounds closed
    before it.
    """

    def __init__(self, ctx, keeper, weights, generator):
        self.ctx, self.keeper, self.generator = ctx, keeper, generator
        self.rounds = QuorumRounds(nodes=1, length=1, weights=weights)
        self.counts = dict.fromkeys(("computed", "applied", "applied_late", "dropped"), 0)
        self.told = []
        self.computing = None
        self.number = 0  # number of the next computation
        self.ended = 0  # number of completed rounds
        ctx.set(keeper.rank, RANK)
        ctx.set(keeper.weights, weights)

    async def cycle(self, **inputs):
        """Run one cycle with the given inputs; all other inputs are 0."""
        ctx, keeper = self.ctx, self.keeper
        for name in ("closed", "begun", "ended", "good", "taken", "finished"):
            ctx.set(getattr(keeper, name), inputs.get(name, 0))
        ctx.set(keeper.ready.ready, self.generator.random() < 0.3)
        for status in self.counts:
            self.counts[status] += ctx.get(keeper.count[f"gradients_{status}"])
        if ctx.get(keeper.ready.valid) and ctx.get(keeper.ready.ready):
            self.told.append(ctx.get(keeper.ready.payload.tag))
        await ctx.tick()

    def end(self):
        """End the computation in the golden model; return the unit's inputs in the cycle in which it ends."""
        good = self.generator.random() < 0.9
        if good:
            self.rounds.ready(0, self.computing, np.full(1, self.computing + 1, np.uint32))
        self.computing = None
        return {"ended": 1, "good": good}

    async def compute(self):
        """End the current computation; if there is none, start one if possible."""
        if self.computing is not None:
            await self.cycle(**self.end())
        else:
            self.ctx.set(self.keeper.tag, self.number)
            while self.ctx.get(self.keeper.over):
                self.number += 1
                self.ctx.set(self.keeper.tag, self.number)
            assert self.number in (self.ended, self.ended + 1)
            if self.number <= self.ended and self.ctx.get(self.keeper.room):
                self.computing = self.number
                self.ctx.set(self.keeper.into, self.ctx.get(self.keeper.slot))
                await self.cycle(begun=1)
                self.number += 1

    async def close(self):
        """Close and complete a round; the current computation may end in the meantime."""
        number, keeper = self.ended, self.keeper
        on_time = number in self.rounds.pending(0)
        old = self.rounds.late_tag(0, number)
        late = old is not None and self.generator.random() < 0.8
        weight = self.rounds.weights[number - old - 1] if late else 0
        ends = self.generator.randrange(-1, 6) if self.computing is not None else None
        if ends == -1:
            await self.cycle(**self.end())
        self.ctx.set(keeper.closing, {"tag": number, "on_time": on_time << RANK, "late": late << RANK, "index": 0})
        self.ctx.set(keeper.asked, number)
        self.rounds.close(Close(tag=number, on_time=int(on_time), late=int(late), index=ONE * on_time + weight))
        for cycle in range(keeper.latency + 2):
            assert self.ctx.get(keeper.known) == (cycle >= keeper.latency)
            await self.cycle(closed=cycle == 0, **(self.end() if cycle == ends else {}))
        await self.cycle(taken=1)
        work = {"fresh": on_time, "late": late, **({"weight": weight} if late else {})}
        assert {name: self.ctx.get(keeper.work[name]) for name in work} == work
        for _ in range(self.generator.randrange(4)):
            await self.cycle()
        await self.cycle(finished=1)
        self.ended += 1

    async def compare(self):
        """Let the unit settle, then compare counts and pending gradients."""
        for _ in range(self.keeper.latency + 1):
            await self.cycle()
        assert self.counts == self.rounds.ledgers[0].counts
        slots = [{name: self.ctx.get(slot[name]) for name in ("tag", "pending", "taken")}
                 for slot in self.keeper.slots]
        assert sorted(slot["tag"] for slot in slots if slot["pending"]) == list(self.rounds.pending(0))
        assert not any(slot["taken"] for slot in slots)


@pytest.mark.parametrize("weights", [
    stale_weights(0.5, ages=3), stale_weights(0.0), stale_weights(1.0, ages=2), (ONE,) * 15])
def test_follows_the_golden_model(weights):
    generator = random.Random(str(weights))
    keeper = QuorumState()
    async def run(ctx):
        bench = Bench(ctx, keeper, weights, generator)
        for _ in range(400):
            if generator.random() < 0.5:
                await bench.compute()
            else:
                await bench.close()
            if generator.random() < 0.3:
                await bench.compare()
        for _ in range(50):
            await bench.cycle()
        counts = bench.rounds.ledgers[0].counts
        assert counts["applied"] > 10
        assert (counts["applied_late"] > 10) == any(weights)
        assert (counts["dropped"] > 0) == (not all(weights))
        # A gradient is reported to rank 0 at most once, and exactly once if it was used in a round.
        assert len(bench.told) == len(set(bench.told))
        assert len(bench.told) >= counts["applied"] + counts["applied_late"]
        assert set(counts_layout().members) == {f"gradients_{status}" for status in bench.counts}

    pysim.simulate(keeper, run)


def test_resumed_and_reset():
    """A resumed gradient is pending and reported once; a reset clears all state, including pending gradients."""
    keeper = QuorumState()
    async def run(ctx):
        bench = Bench(ctx, keeper, (ONE,) * 15, random.Random(1))
        for slot, tag in ((0, 7), (1, 9)):
            for ready in (0, 1, 1, 0):
                ctx.set(keeper.resumed, {"tag": tag, "slot": slot, "ready": ready})
                await bench.cycle()
        for _ in range(30):
            await bench.cycle()
        assert bench.told == [7, 9]
        assert not ctx.get(keeper.room)
        ctx.set(keeper.reset, 1)
        for _ in range(3):
            await bench.cycle()
        assert bench.counts == {"computed": 2, "applied": 0, "applied_late": 0, "dropped": 2}
        assert ctx.get(keeper.room)

    pysim.simulate(keeper, run)
