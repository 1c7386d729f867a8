# amaranth: UnusedElaboratable=no
"""Units that work only in cycles that a throttle enables: memories and the transmitter of a link."""

import numpy as np

from hdl.memory import LanedMemory
from hdl.ring.link import LinkTransmitter
from tests.hdl import pysim


def test_memory():
    """Each kind of port is served once in each enabled cycle, and in no other; all elements arrive."""
    dut = LanedMemory(rows=16, lanes=1, readers=2, writers=2, throttled=True)
    enables = np.random.default_rng(1).random(200) < 0.4
    written, read, responses = [], [], []

    async def bench(ctx):
        for port in (*dut.read, *dut.write):
            ctx.set(port.valid, 1)
        for port in dut.write:
            ctx.set(port.keep, 1)
        for cycle, enable in enumerate(enables):
            ctx.set(dut.enable, int(enable))
            for number, port in enumerate(dut.write):
                ctx.set(port.row, cycle % 8)
                ctx.set(port.elements[0], 2 * cycle + number)
            ctx.set(dut.read[0].row, 8)
            ctx.set(dut.read[1].row, 9)
            written.append([ctx.get(port.ready) for port in dut.write])
            read.append([ctx.get(port.ready) for port in dut.read])
            responses.append(sum(ctx.get(port.response) for port in dut.read))
            await ctx.tick()
        ctx.set(dut.enable, 1)
        for port in dut.write:
            ctx.set(port.valid, 0)
        ctx.set(dut.read[1].valid, 0)
        await ctx.tick().repeat(2)
        for row in range(8):
            ctx.set(dut.read[0].row, row)
            await ctx.tick().repeat(3)
            latest = max(cycle for cycle, enable in enumerate(enables) if enable and cycle % 8 == row)
            assert ctx.get(dut.read[0].elements[0]) == 2 * latest

    pysim.simulate(dut, bench)
    assert [first for first, _ in written] == enables.tolist()
    assert not any(second for _, second in written)
    assert [sum(one) for one in read] == enables.tolist()
    assert abs(sum(first - second for first, second in read)) <= 1
    assert responses[2:] == enables[:-2].astype(int).tolist()


def test_transmitter():
    """Words leave in the enabled cycles, in order."""
    dut = LinkTransmitter(segments=4, egress_words=8, throttled=True)
    enables = np.random.default_rng(2).random(300) < 0.3
    words, came = list(range(60)), []

    async def feed(ctx):
        for word in words:
            ctx.set(dut.i.payload, {"data": word, "last": int(word % 5 == 4)})
            ctx.set(dut.i.valid, 1)
            await ctx.tick().until(dut.i.ready)
        ctx.set(dut.i.valid, 0)

    async def wires(ctx):
        for cycle, enable in enumerate(enables):
            ctx.set(dut.enable, int(enable))
            await ctx.delay(1e-7)
            if ctx.get(dut.ring_o.valid):
                came.append((cycle, ctx.get(dut.ring_o.data), ctx.get(dut.ring_o.last)))
            ctx.set(dut.ring_o.credit, int(bool(came) and came[-1][0] == cycle and came[-1][2]))
            await ctx.tick()

    pysim.simulate(dut, feed, wires)
    assert [(data, last) for _, data, last in came] == [(word, int(word % 5 == 4)) for word in words]
    allowed = np.flatnonzero(enables).tolist()
    first = allowed.index(came[0][0])
    assert [cycle for cycle, *_ in came] == allowed[first:first + len(words)]
