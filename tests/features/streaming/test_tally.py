# amaranth: UnusedElaboratable=no
"""Tally of zeros and saturated elements in a server's commands: hdl/features/streaming/tally.py."""

import random

import pytest
from amaranth.hdl import Module

from hdl.features.streaming.tally import ENTRIES, Tally
from tests.hdl import pysim


def commands(generator, lanes):
    """Draw commands as (counted, entry, half, length, packets); each packet is a list of beats (zeros, saturations).
    """
    for _ in range(30):
        length, packets, left = generator.randrange(1, 200), [], 0
        left = length
        while left > 0:
            beats = generator.randrange(1, 8)
            packets.append([(generator.getrandbits(lanes), generator.getrandbits(lanes)) for _ in range(beats)])
            left -= beats * lanes
        yield (generator.random() < 0.8, generator.randrange(ENTRIES), generator.randrange(2), length, packets)


@pytest.mark.parametrize("stalls", [False, True])
@pytest.mark.parametrize("lanes", [2, 4, 8])
def test_counts(lanes, stalls):
    """A command's table entry counts all packets written by this command, and none written by earlier commands."""
    seed = lanes + 16 * stalls
    generator, note = random.Random(seed), f"{seed=}"
    unit, m = Tally(lanes=lanes, elements=256), Module()
    m.submodules.unit = unit
    table, expected = [[9, 9, 9, 9] for _ in range(ENTRIES)], [[9, 9, 9, 9] for _ in range(ENTRIES)]
    written, due, firsts = 0, [], []

    async def step(ctx):
        """Run one cycle and apply writes to the table; check the entry when ``written`` is accepted."""
        nonlocal written
        ctx.set(unit.port.ready, not stalls or generator.random() < 0.3)
        ctx.set(unit.written.ready, not stalls or generator.random() < 0.5)
        if ctx.get(unit.port.valid & unit.port.ready):
            row, keep = ctx.get(unit.port.row), ctx.get(unit.port.keep)
            for lane in range(lanes):
                if keep >> lane & 1:
                    word = row * lanes + lane
                    table[word // 4][word % 4] = ctx.get(unit.port.elements[lane])
        taken = ctx.get(unit.written.valid & unit.written.ready)
        await ctx.tick()
        if taken:
            written += 1
            assert written <= len(due), note
            entry, half, counts = due[written - 1]
            actual = table[entry][2 * half:2 * half + 2]
            assert actual[0] >= counts[0], note
            assert actual[1] >= counts[1], note

    async def bench(ctx):
        nonlocal written, due
        for counted, entry, half, length, packets in commands(generator, lanes):
            written, due = 0, []
            for name, value in (("enable", counted), ("entry", entry), ("push", half), ("length", length),
                                ("start", 1)):
                ctx.set(getattr(unit, name), value)
            await step(ctx)
            ctx.set(unit.start, 0)
            if not stalls:
                await step(ctx)
                if counted:
                    assert table[entry][2 * half:2 * half + 2] == [0, 0], note
            total, left = [0, 0], length
            for packet in packets:
                for number, beat in enumerate(packet):
                    while stalls and generator.random() < 0.4:
                        ctx.set(unit.flags.valid, 0)
                        await step(ctx)
                    kept = (1 << min(lanes, left)) - 1
                    total = [count + (flags & kept).bit_count() for count, flags in zip(total, beat, strict=True)]
                    left = max(left - lanes, 0)
                    for name, value in (("zeros", beat[0]), ("saturations", beat[1]),
                                        ("last", number == len(packet) - 1), ("valid", 1)):
                        ctx.set(unit.flags[name], value)
                    if counted and number == len(packet) - 1:
                        due.append((entry, half, tuple(total)))
                    await step(ctx)
                ctx.set(unit.flags.valid, 0)
                if not stalls and counted:
                    firsts.append(ctx.get(unit.port.valid))
            for _ in range(40):
                if written == len(due):
                    break
                await step(ctx)
            assert written == len(due), note
            if counted:
                expected[entry][2 * half:2 * half + 2] = total
            assert table == expected, note

    pysim.simulate(m, bench)
    assert all(firsts), note  # a write is offered `latency` cycles after the last counts
    assert stalls or (firsts and Tally.latency == 1)
