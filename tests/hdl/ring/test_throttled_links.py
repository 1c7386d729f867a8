# amaranth: UnusedElaboratable=no
"""Link ends with throttles, which connect two nodes in a ring: hdl/ring/link_ends.py."""

import pytest
from amaranth.hdl import Module

from hdl.config import Credits, Memories, NodeConfig, SingleRing
from hdl.features.replay.feature import Replay
from hdl.features.throttles.feature import Throttles
from hdl.ring.extension import link_class
from hdl.ring.ports import joined
from tests.hdl import pysim

CONFIG = NodeConfig(
    lanes=1, segment=32, topology=SingleRing(max_nodes=2),
    memories=Memories(gradient=64, weight=64, state=32, planes=0), masking=False, sparsify=False,
    features=(Throttles(),))
WORDS, LONGEST = 6, 4000


@pytest.mark.parametrize("replay", [False, True])
@pytest.mark.parametrize(("rate", "delay"), [(0, 0), (21845, 0), (0x2000, 3), (0, 200), (40000, 77)])
def test_packets(replay, rate, delay):
    """All packets arrive in order, no faster than the link's rate, and delayed by ``delay``."""
    config = CONFIG.replace(link=Replay() if replay else Credits())
    ends = [link_class(config)(config=config) for _ in range(2)]
    m = Module()
    for number, link_end in enumerate(ends):
        m.submodules[f"end_{number}"] = link_end
        m.d.sync += list(joined(link_end.ring_o, ends[1 - number].ring_i))
    source, sink = ends
    packets, came, left = 12, [], []

    async def feed(ctx):
        for end in ends:
            ctx.set(end.throttle, rate)
            ctx.set(end.wire_delay, delay)
        await ctx.tick().repeat(300)  # the new delay applies after this pause
        for packet in range(packets):
            await ctx.tick().until(source.may_start)
            for word in range(WORDS):
                ctx.set(source.i.payload, {"data": WORDS * packet + word, "last": int(word == WORDS - 1)})
                ctx.set(source.i.valid, 1)
                await ctx.tick().until(source.i.ready)
            ctx.set(source.i.valid, 0)

    async def take(ctx):
        ctx.set(sink.o.ready, 1)
        for cycle in range(LONGEST):
            if ctx.get(source.ring_o.valid) and not (replay and ctx.get(source.ring_o.kind)):
                left.append(cycle)
            if ctx.get(sink.o.valid):
                came.append((cycle, ctx.get(sink.o.payload.data)))
            await ctx.tick()

    pysim.simulate(m, take, background=(feed,))
    assert [word for _, word in came] == list(range(WORDS * packets))
    for window in (10, 50):
        most = 1 + window * (rate or 1 << 16) / (1 << 16)
        assert all(sum(first <= cycle < first + window for cycle in left) <= most for first in left)
