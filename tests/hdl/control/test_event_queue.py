# amaranth: UnusedElaboratable=no
"""Compare the event queue with a model in every cycle: arbitration and order of the events."""

import random

import cocotb
import pytest
from cocotb.triggers import FallingEdge

from hdl.control.event_queue import EventQueue
from hdl.control.protocol import EVENT_WORDS, EventStatus, event_layout
from sim import regression
from sim.payload import from_int, to_int
from sim.streams import Monitor, Sink, Source, stalls, start
from tests.refusals import refused_values

QUEUES = 2
DEPTH = 3


async def watch(dut, sources):
    """Check which source is served in each cycle, given the offered words and the stored words."""
    chosen, index, stored, popped = None, 0, 0, 0
    while True:
        await FallingEdge(dut.clk)
        offered = [n for n, name in enumerate(sources) if getattr(dut, f"{name}__valid").value]
        if chosen is None and offered:
            chosen = offered[0]
        moves = chosen is not None and stored < DEPTH * EVENT_WORDS
        whole = moves and index == EVENT_WORDS - 1
        ready = [int(getattr(dut, f"{name}__ready").value) for name in sources]
        assert [value for n, value in enumerate(ready) if n in offered] == [whole and n == chosen for n in offered]
        assert int(dut.level.value) == stored // EVENT_WORDS + (stored % EVENT_WORDS + popped >= EVENT_WORDS)
        leaves = int(dut.events__valid.value) and int(dut.events__ready.value)
        stored += moves - leaves
        popped = (popped + leaves) % EVENT_WORDS
        if moves:
            index = (index + 1) % EVENT_WORDS
        if whole:
            chosen = None


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def keeps_order(dut):
    p = regression.parameters()
    generator = random.Random(p["seed"])
    await start(dut)
    names = [*[f"completions__{n}" for n in range(QUEUES)], "rejected"]
    monitors = [Monitor(dut, name, event_layout()) for name in names]
    cocotb.start_soon(watch(dut, names))
    sink = Sink(dut, "events", 32, stalls=stalls(p["sink"], seed=p["seed"]))
    for n, name in enumerate(names):
        source = Source(dut, name, event_layout(), stalls=stalls(p["source"], seed=p["seed"] + n, rate=0.1))
        cocotb.start_soon(source.send([{
            "tag": generator.getrandbits(16), "status": generator.choice([EventStatus.OK, EventStatus.BAD_CRC]),
            "flags": generator.getrandbits(6), "queue": generator.getrandbits(2), "detail": generator.getrandbits(32),
            "cycles": generator.getrandbits(32), "weight_version": generator.getrandbits(32),
        } for _ in range(p["count"])]))
    words = await sink.receive(EVENT_WORDS * p["count"] * len(names))
    events = [from_int(event_layout(), sum(word << 32 * n for n, word in enumerate(words[at:at + EVENT_WORDS])))
              for at in range(0, len(words), EVENT_WORDS)]
    taken = sorted((cycle, n, {**event, "queue": n} if n < QUEUES else event)
                   for n, monitor in enumerate(monitors)
                   for cycle, event in zip(monitor.cycles, monitor.beats, strict=True))
    assert events == [event for _, _, event in taken]
    failed = [event for event in events if event["status"] != EventStatus.OK]
    assert int(dut.last_error.value) == to_int(event_layout(), failed[-1]) & 0xFFFFFFFF
    assert int(dut.level.value) <= 1


@pytest.mark.parametrize(("source", "sink", "count", "seed"), [
    ("geometric", "none", 60, 1), ("none", "geometric", 40, 2), ("geometric", "freeze", 60, 3)])
def test_event_queue(source, sink, count, seed):
    regression.run(EventQueue(queues=QUEUES, depth=DEPTH), module=__name__, testcase="keeps_order", parameters={
        "source": source, "sink": sink, "count": count, "seed": seed})


test_depth_is_checked = refused_values(EventQueue, {"queues": 2}, "depth", [0, 256, "8"],
                                       "Queue depth must be between 1 and 255")
