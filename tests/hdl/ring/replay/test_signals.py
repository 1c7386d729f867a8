# amaranth: UnusedElaboratable=no
"""SIGNALs round a ring: hdl/ring/replay/signals.py."""

import random

import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from hdl.ring.replay.control_word import ControlType, signal_layout
from hdl.ring.replay.signals import SOURCES, SignalRelay
from hdl.streams.stream import Queue, connect_stream

QUEUES = 2


class RingOfRelays(wiring.Component):
    """Relays, each joined to the next one by a queue that a stall may hold."""

    def __init__(self, *, nodes):
        self.relays = [SignalRelay(queues=QUEUES) for _ in range(nodes)]
        super().__init__({
            "done": In(data.ArrayLayout(data.ArrayLayout(16, QUEUES), nodes)), "stall": In(nodes),
            "node": In(4), "queue": In(2), "counts": Out(data.ArrayLayout(16, nodes)), "known": Out(nodes),
            "reset_link": In(1), "full": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        for rank, relay in enumerate(self.relays):
            m.submodules[f"relay_{rank}"] = relay
            m.submodules[f"wire_{rank}"] = wire = Queue(shape=relay.o.payload.shape(), depth=40)
            connect_stream(m, relay.o, wire.i)
            successor = self.relays[(rank + 1) % len(self.relays)]
            m.d.comb += [
                successor.i.valid.eq(wire.o.valid & ~self.stall[rank]),
                successor.i.payload.eq(wire.o.payload),
                wire.o.ready.eq(successor.i.ready & ~self.stall[rank]),
                relay.rank.eq(rank), relay.done.eq(self.done[rank]), relay.reset_link.eq(self.reset_link),
                relay.of_node.eq(self.node), relay.of_queue.eq(self.queue),
                self.counts[rank].eq(relay.count), self.known[rank].eq(relay.known),
            ]
        # No relay's queue is ever full.
        full = [Signal(name=f"full_{rank}") for rank in range(len(self.relays))]
        m.d.comb += [signal.eq(~relay.i.ready) for signal, relay in zip(full, self.relays, strict=True)]
        m.d.comb += self.full.eq(sum(full[1:], full[0]) != 0)
        return m


def simulate(dut, bench):
    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()


@pytest.mark.parametrize("nodes", [2, 5, SOURCES])
def test_ring(nodes):
    """Counts that grow at random on all nodes: none is ever known before it is so, or goes back, and in the end all
    nodes know all."""
    dut = RingOfRelays(nodes=nodes)
    generator = random.Random(nodes)

    async def bench(ctx):
        done = [[65_500 + generator.randrange(36), 0] for _ in range(nodes)]
        start = [counts[0] for counts in done]
        seen = {}
        for cycle in range(600):
            if cycle < 400:
                counts = done[generator.randrange(nodes)]
                counts[generator.randrange(QUEUES)] += generator.random() < .3
            ctx.set(dut.done, [[count % 65_536 for count in counts] for counts in done])
            ctx.set(dut.stall, generator.getrandbits(nodes) & generator.getrandbits(nodes) if cycle < 500 else 0)
            node, queue = generator.randrange(nodes), generator.randrange(QUEUES)
            ctx.set(dut.node, node)
            ctx.set(dut.queue, queue)
            assert not ctx.get(dut.full)
            await ctx.tick()
            for reader in range(nodes):
                if reader == node or not ctx.get(dut.known) >> reader & 1:
                    continue
                base = (0 if queue else start[node])
                count = (ctx.get(dut.counts[reader]) - base) % 65_536
                assert seen.get((reader, node, queue), 0) <= count <= done[node][queue] - base
                seen[reader, node, queue] = count
        for node in range(nodes):
            for queue in range(QUEUES):
                ctx.set(dut.node, node)
                ctx.set(dut.queue, queue)
                await ctx.tick()
                for reader in range(nodes):
                    if reader != node:
                        assert ctx.get(dut.counts[reader]) == done[node][queue] % 65_536
        ctx.set(dut.reset_link, 1)
        await ctx.tick()
        await ctx.tick()
        assert ctx.get(dut.known) == 0
        assert ctx.get(dut.counts[0]) == 0

    simulate(dut, bench)


def test_relay():
    """Latency, the own word goes first and one at a time, and words that are no SIGNALs are dropped."""
    dut = SignalRelay(queues=QUEUES)

    def word(source, queue, done, **fields):
        return signal_layout().const({"type": ControlType.SIGNAL, "source": source, "queue": queue, "done": done,
                                      **fields}).as_bits()

    async def bench(ctx):
        ctx.set(dut.rank, 3)
        ctx.set(dut.o.ready, 1)
        passed = []

        async def send(value):
            ctx.set(dut.i.payload, value)
            ctx.set(dut.i.valid, 1)
            await tick()
            ctx.set(dut.i.valid, 0)

        async def tick():
            *_, valid, payload = await ctx.tick().sample(dut.o.valid, dut.o.payload)
            passed.append(payload if valid else None)

        foreign = [word(5, 1, 77), word(0, 0, 1)]
        for value in foreign:
            await send(value)
        for bad in (word(16, 0, 9), word(4, 2, 9), word(4, 0, 9, reserved=1), word(4, 0, 9) ^ 1, word(3, 0, 9)):
            await send(bad)
        for _ in range(4):
            await tick()
        assert [value for value in passed if value is not None] == foreign
        assert passed.index(foreign[0]) == SignalRelay.latency
        passed.clear()
        ctx.set(dut.done, [4, 6])
        for _ in range(8):
            await tick()
        own = [value for value in passed if value is not None]
        assert own in ([word(3, 0, 4)], [word(3, 1, 6)])
        passed.clear()
        await send(own[0])
        for _ in range(8):
            await tick()
        assert [value for value in passed if value is not None] == [word(3, 1, 6) if own == [word(3, 0, 4)]
                                                                   else word(3, 0, 4)]

    simulate(dut, bench)


@pytest.mark.parametrize("queues", [0, 5, 1.0])
def test_parameters(queues):
    with pytest.raises(ValueError, match=rf"^Queue count must be an integer from 1 to 4, not {queues}$"):
        SignalRelay(queues=queues)
