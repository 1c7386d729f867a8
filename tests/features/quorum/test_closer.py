"""Closing of quorum rounds, compared with the golden model: hdl/features/quorum/closer.py."""

import random

import pytest

from hdl.features.quorum.closer import NODES, QuorumCloser
from hdl.features.quorum.layouts import SLOTS
from sim.golden.features.quorum.rounds import ONE, Closer, stale_weights
from tests.hdl import pysim

#: Latency from ``waits`` to CLOSE, in cycles: one scan inspects all nodes, and a second scan clears them.
LATENCY = 2 * QuorumCloser.lap


async def hear(ctx, closer, node, slot, tag):
    ctx.set(closer.heard.payload, {"source": node, "slot": slot, "tag": tag})
    ctx.set(closer.heard.valid, 1)
    await ctx.tick().until(closer.heard.ready)
    ctx.set(closer.heard.valid, 0)


async def closes(ctx, closer, *, most):
    """Wait for CLOSE and accept it; return the cycles until CLOSE was offered, and its fields or None."""
    for cycle in range(most):
        if ctx.get(closer.close.valid):
            fields = {name: ctx.get(closer.close.payload[name]) for name in ("tag", "on_time", "late", "index")}
            ctx.set(closer.close.ready, 1)
            await ctx.tick()
            ctx.set(closer.close.ready, 0)
            ctx.set(closer.waits, 0)
            await ctx.tick()
            return cycle, fields
        await ctx.tick()
    return None


def simulate(bench):
    closer = QuorumCloser()
    async def cleared(ctx):
        await ctx.tick().until(closer.heard.ready)
        await bench(ctx, closer)

    pysim.simulate(closer, cleared)


@pytest.mark.parametrize("weights", [stale_weights(0.5), stale_weights(0.0), (ONE,) * 15])
def test_follows_the_golden_model(weights):
    """Rounds of random gradients close as in the golden model; some gradients are too old to have a weight."""
    generator = random.Random(str(weights))

    async def bench(ctx, closer):
        golden = Closer(nodes=NODES, quorum=1, weights=weights)
        ctx.set(closer.weights, weights)
        slots = {}  # tags that the golden model holds, keyed by node and slot
        first = 65520  # tags of 16 bits wrap soon
        kinds = set()
        for number in range(40):
            for node in generator.sample(range(NODES), 9):
                free = [slot for slot in range(SLOTS) if (node, slot) not in slots]
                tags = {number - age for age in (0, 0, 0, 1, 2, 6, 17) if number >= age}
                tag = generator.choice(sorted(tags - {slots.get((node, slot)) for slot in range(SLOTS)}))
                if free:
                    slots[node, generator.choice(free)] = tag
                    golden.ready(node, tag, 0)
            for (node, slot), tag in slots.items():
                await hear(ctx, closer, node, slot, first + tag & 0xFFFF)
            in_time = sum(tag == number for tag in slots.values())
            ctx.set(closer.quorum, in_time)
            ctx.set(closer.tag, first + number & 0xFFFF)
            ctx.set(closer.waits, 1)
            if not in_time:  # late gradients do not close a round
                assert await closes(ctx, closer, most=2 * LATENCY) is None
                ctx.set(closer.waits, 0)
                await ctx.tick()
                continue
            cycles, fields = await closes(ctx, closer, most=2 * LATENCY)
            assert cycles == LATENCY
            want = golden.close(number, 0)
            assert fields == {"tag": first + number & 0xFFFF, "on_time": want.on_time, "late": want.late,
                              "index": want.index}
            slots = {key: tag for key, tag in slots.items() if (key[0], tag) in golden._known}
            kinds |= {want.late != 0}
        assert (True in kinds) == any(weights)

    simulate(bench)


def test_quorum_and_deadline():
    """Without a quorum, a round closes at the deadline, counted from the end of the first scan that finds a gradient.
    """
    async def bench(ctx, closer):
        ctx.set(closer.quorum, 3)
        ctx.set(closer.waits, 1)
        ctx.set(closer.tag, 4)
        await hear(ctx, closer, 2, 0, 4)
        await hear(ctx, closer, 9, 1, 4)
        assert await closes(ctx, closer, most=10 * QuorumCloser.lap) is None
        ctx.set(closer.deadline, 1000)
        cycles, fields = await closes(ctx, closer, most=2000)
        assert 1000 + QuorumCloser.lap <= cycles <= 1000 + 4 * QuorumCloser.lap
        assert fields == {"tag": 4, "on_time": 1 << 2 | 1 << 9, "late": 0, "index": 2 * ONE}
        # The third gradient of the next round closes it before the deadline.
        ctx.set(closer.tag, 5)
        ctx.set(closer.waits, 1)
        for node in (0, 1, 15):
            assert await closes(ctx, closer, most=100) is None
            await hear(ctx, closer, node, 0, 5)
        cycles, fields = await closes(ctx, closer, most=500)
        assert cycles <= LATENCY + QuorumCloser.lap
        assert fields["on_time"] == 1 << 0 | 1 << 1 | 1 << 15

    simulate(bench)


def test_reset_forgets():
    async def bench(ctx, closer):
        await hear(ctx, closer, 3, 0, 0)
        ctx.set(closer.reset, 1)
        await ctx.tick()
        ctx.set(closer.reset, 0)
        ctx.set(closer.waits, 1)
        assert await closes(ctx, closer, most=2 * LATENCY) is None

    simulate(bench)
