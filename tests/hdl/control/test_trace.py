# amaranth: UnusedElaboratable=no
"""Trace of commands, compared with a list of all starts and ends: records, times and addresses."""

import random

import cocotb
import pytest

from hdl.control.trace import TRACE_WORDS, Trace, trace_record_layout
from sim import regression
from sim.payload import from_int
from sim.streams import cycles, start
from tests.hdl import pysim
from tests.hdl.control.units import simulate
from tests.refusals import refuses

RECORDS = TRACE_WORDS // 2


def version_of(tag):
    """Weight version in the record of a command."""
    return 5 * tag % (1 << 13)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def records_all(dut):
    """Commands of one or more cycles are recorded, even in immediate succession and if all queues start at once."""
    p = regression.parameters()
    generator, lanes, queues = random.Random(p["seed"]), p["lanes"], p["queues"]
    apart = 2 * queues - 1
    ports = {name: getattr(dut, f"trace_{lanes}__{name}") for name in (
        "started", "ended", "tags", "versions", "node_time", "pointer", "read__valid", "read__row", "read__ready",
        "read__response", "read__elements")}
    ports["started"].value = ports["ended"].value = ports["read__valid"].value = 0
    await start(dut)
    tags, new = [0] * queues, [0] * queues
    follows = [("started", 1)] * queues  # next event of each queue, and cycles until then
    expected = []
    for cycle in range(2500):
        pulses = {"started": 0, "ended": 0}
        for queue in range(queues):
            kind, left = follows[queue]
            if left:
                follows[queue] = kind, left - 1
                continue
            pulses[kind] |= 1 << queue
            if kind == "started":
                new[queue] = generator.getrandbits(16)
                expected.append((cycle, 0, queue, new[queue]))
                follows[queue] = "ended", generator.choice([0, 0, 0, 3, 40])
            else:
                expected.append((cycle, 1, queue, new[queue]))
                follows[queue] = "started", generator.choice(
                    [apart, apart, apart, apart + 1, 20]) if cycle > 200 else apart
        ports["started"].value, ports["ended"].value = pulses["started"], pulses["ended"]
        ports["tags"].value = sum(tag << 16 * n for n, tag in enumerate(tags))
        ports["versions"].value = sum(version_of(tag) << 13 * n for n, tag in enumerate(tags))
        if cycle == 0:
            begin = int(ports["node_time"].value)
        await cycles(dut, 1)
        tags = list(new)
    ports["started"].value = ports["ended"].value = 0
    ports["tags"].value = sum(tag << 16 * n for n, tag in enumerate(tags))
    ports["versions"].value = sum(version_of(tag) << 13 * n for n, tag in enumerate(tags))
    await cycles(dut, 8)
    count = int(ports["pointer"].value)
    assert count == len(expected) > 2 * RECORDS
    words = []
    for row in range(TRACE_WORDS // lanes):
        ports["read__valid"].value, ports["read__row"].value = 1, row
        await cycles(dut, 1)
        assert int(ports["read__ready"].value) == 1
        ports["read__valid"].value = 0
        await cycles(dut, 2)
        assert int(ports["read__response"].value) == 1
        elements = int(ports["read__elements"].value)
        words += [elements >> 32 * n & 0xFFFFFFFF for n in range(lanes)]
    records = [from_int(trace_record_layout(), words[2 * (n % RECORDS)] | words[2 * (n % RECORDS) + 1] << 32)
               for n in range(count - RECORDS, count)]
    offset = records[-1]["time"] - expected[-1][0]
    assert 0 <= offset - begin <= 2 * queues - 2
    actual = [(record["time"] - offset, record["end"], record["queue"], record["tag"]) for record in records]
    assert all(record["version"] == version_of(record["tag"]) for record in records)
    assert sorted(actual) == sorted(sorted(expected)[-RECORDS:])


@pytest.mark.parametrize(("lanes", "queues", "seed"), [(1, 2, 1), (2, 2, 2), (8, 2, 3), (4, 3, 4)])
def test_trace(lanes, queues, seed):
    simulate(__name__, "records_all", lanes=lanes, queues=queues, seed=seed)


@pytest.mark.parametrize("begin", [0x7FFF_FFFD, 0xFFFF_FFFD])
def test_late_times(begin):
    """A record contains all 32 bits of the time, even if the time wraps around."""
    trace = Trace(queues=1, lanes=2)
    times = []

    async def bench(ctx):
        ctx.set(trace.node_time, begin)
        for started in (1, 0, 0, 1, 0, 0, 1, 0, 0, 0):
            ctx.set(trace.started, started)
            if started:
                times.append(ctx.get(trace.node_time))
            await ctx.tick()
        assert times == [(begin + cycle) % (1 << 32) for cycle in (0, 3, 6)]
        assert ctx.get(trace.pointer) == 3
        for row, time in enumerate(times):
            ctx.set(trace.read.valid, 1)
            ctx.set(trace.read.row, row)
            await ctx.tick()
            ctx.set(trace.read.valid, 0)
            await ctx.tick()
            assert ctx.get(trace.read.elements)[1] == time

    pysim.simulate(trace, bench)


@pytest.mark.parametrize(("options", "message"), [
    ({"queues": 0, "lanes": 4}, "Queue count must be between 1 and 3, not 0"),
    ({"queues": 4, "lanes": 4}, "Queue count must be between 1 and 3, not 4"),
    ({"queues": 2, "lanes": 3}, "Lane count must be 1, 2, 4 or 8, not 3"),
])
def test_options_are_checked(options, message):
    refuses(message, Trace, **options)
