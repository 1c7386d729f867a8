# amaranth: UnusedElaboratable=no
"""Compare the command queue with models: order, flags in every cycle, and no lost commands or events."""

import random

import cocotb
import pytest
from cocotb.triggers import FallingEdge

from hdl.control.command_queue import CommandQueue
from hdl.control.protocol import (
    DESCRIPTOR_WORDS,
    EventStatus,
    Operation,
    command_layout,
    descriptor_layout,
    event_layout,
)
from hdl.control.registers import checked_layout
from hdl.engines import operations
from hdl.optimizer.rules import Rule
from sim import regression
from sim.payload import from_int, to_int
from sim.streams import Monitor, Sink, Source, cycles, stalls, start
from tests.hdl.control.commands import CONFIG, random_command, verdict
from tests.refusals import refused_values


def descriptors(commands):
    """Stream words of the given commands."""
    return [{"data": to_int(command_layout(), command) >> 32 * n & 0xFFFFFFFF, "first": n == 0,
             "last": n == DESCRIPTOR_WORDS - 1} for command in commands for n in range(DESCRIPTOR_WORDS)]


def update(*, wait):
    """An update of 128 elements whose state does not fit into 96 words."""
    return random_command(random.Random(1), 9, operation=Operation.FUSED_UPDATE, rank=0, size=1, port=0,
                          block_offset=0,
                          stride=1, length=128, gradient_base=0, weight_base=0, state_base=0, wait=wait)


async def receive_events(sink, count):
    words = await sink.receive(4 * count)
    return [from_int(event_layout(), sum(word << 32 * n for n, word in enumerate(words[at:at + 4])))
            for at in range(0, len(words), 4)]


class Engine:
    """Engine model that runs one command at a time, each for some cycles and with a random status."""

    def __init__(self, dut, generator, kind):
        self.dut = dut
        self.started = []
        self.ended = []
        self._generator = generator
        self._start = Sink(dut, "start__0", command_layout(), stalls=stalls(kind, seed=11))
        self._completions = Source(dut, "completions__0", event_layout(), stalls=stalls(kind, seed=12))
        cocotb.start_soon(self._run())

    async def _run(self):
        while True:
            (command,) = await self._start.receive(1)
            self.started.append(command)
            await cycles(self.dut, self._generator.choice([0, 1, 30]))
            status = self._generator.choice([EventStatus.OK, EventStatus.OK, EventStatus.OK, EventStatus.BAD_CRC])
            event = {"tag": command["tag"], "status": status, "flags": self._generator.getrandbits(2),
                     "queue": 0, "detail": self._generator.getrandbits(32), "cycles": 30, "weight_version": 5}
            self.ended.append(event)
            await self._completions.send([event])


async def watch_flags(dut, start_monitor, end_monitor):
    """Check the flags in every cycle, and that no command starts before its flags are set."""
    flags = 0
    starts = ends = 0
    signal = 0
    while True:
        await FallingEdge(dut.clk)
        assert int(dut.flags.value) == flags
        await cycles(dut, 1)
        following = flags
        if len(start_monitor.beats) > starts:
            command = start_monitor.beats[starts]
            starts += 1
            assert command["wait"] & ~flags == 0
            following &= ~command["wait"]
            signal = command["signal"]
        if len(end_monitor.beats) > ends:
            if end_monitor.beats[ends]["status"] == EventStatus.OK:
                following |= signal
            ends += 1
        flags = following | int(dut.set_flags.value)


async def watch_level(dut):
    """Check that the event count is zero after eight cycles in which no event was offered."""
    quiet = 0
    while True:
        await FallingEdge(dut.clk)
        quiet = 0 if dut.events__valid.value else quiet + 1
        assert quiet < 8 or int(dut.queue_status.value) >> 10 == 0


async def begin(dut):
    """Set all inputs to zero, since they keep their values from the previous test."""
    for port in ("set_flags", "link_reset", "rule", "packed_state", "timeout", "weight_version"):
        getattr(dut, port).value = 0
    await start(dut)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def runs_what_may_run(dut):
    p = regression.parameters()
    generator = random.Random(p["seed"])
    await begin(dut)
    monitors = {name: Monitor(dut, name, layout) for name, layout in (
        ("commands", descriptor_layout()), ("start__0", command_layout()), ("completions__0", event_layout()),
        ("events", 32))}
    cocotb.start_soon(watch_flags(dut, monitors["start__0"], monitors["completions__0"]))
    cocotb.start_soon(watch_level(dut))
    engine = Engine(dut, random.Random(p["seed"] + 1), p["engine"])
    source = Source(dut, "commands", descriptor_layout(), stalls=stalls(p["source"], seed=p["seed"]))
    sink = Sink(dut, "events", 32, stalls=stalls(p["sink"], seed=p["seed"]))
    dut.timeout.value = 200
    dut.weight_version.value = 77
    dut.rule.value = Rule.MOMENTUM.value

    def mask():
        few = generator.getrandbits(16) & generator.getrandbits(16)
        return generator.choice([0, 0, 1 << generator.randrange(16), few])

    commands = [random_command(generator, tag, wait=mask(), signal=mask()) for tag in range(400)]

    async def set_flags():
        setter = random.Random(p["seed"])
        while True:
            await cycles(dut, setter.randrange(20))
            dut.set_flags.value = 1 << setter.randrange(16) if setter.random() < 0.5 else 0
            await cycles(dut, 1)
            if setter.random() < 0.03:
                # The flags are being set for 60 cycles, enough for a command to consume them in the meantime.
                dut.set_flags.value = setter.getrandbits(16) & setter.getrandbits(16)
                await cycles(dut, 60)
            dut.set_flags.value = 0

    words = []
    for command in commands:
        if generator.random() < 0.2:  # send an incomplete command before the next one
            words += descriptors([random_command(generator, 999)])[:generator.randrange(1, DESCRIPTOR_WORDS)]
        words += descriptors([command])
    cocotb.start_soon(set_flags())
    cocotb.start_soon(source.send(words))
    events = await receive_events(sink, len(commands))
    ended = iter(engine.ended)
    seen = set()
    for command, event in zip(commands, events, strict=True):
        assert event["tag"] == command["tag"]
        status, detail = verdict(command, CONFIG, Rule.MOMENTUM, 0)
        seen.add(EventStatus(event["status"]))
        if status != EventStatus.OK:
            assert event == {"tag": command["tag"], "status": status, "flags": 0, "queue": 0, "detail": detail,
                             "cycles": 0, "weight_version": 77}
        elif event["status"] == EventStatus.WAIT_TIMEOUT:
            assert event["detail"] & ~command["wait"] == 0
            assert event["detail"] != 0
            assert (event["flags"], event["cycles"], event["weight_version"]) == (0, 200, 77)
        else:
            assert event == next(ended)
    assert next(ended, None) is None
    assert seen >= {EventStatus.OK, EventStatus.BAD_CRC, EventStatus.WAIT_TIMEOUT, EventStatus.BAD_LENGTH}
    assert [command["tag"] for command in engine.started] == [event["tag"] for event in engine.ended]
    await cycles(dut, 2)
    assert int(dut.queue_status.value) == 0
    last = [event for event in events if event["status"] != EventStatus.OK][-1]
    assert int(dut.last_error.value) == to_int(event_layout(), last) & 0xFFFFFFFF


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def holds_what_there_is_no_room_for(dut):
    """If no event is popped, the queues fill up, and the engine waits to deliver its event."""
    depth = regression.parameters()["depth"]
    await begin(dut)
    Engine(dut, random.Random(1), "none")
    source = Source(dut, "commands", descriptor_layout())
    taken, started = Monitor(dut, "commands", descriptor_layout()), Monitor(dut, "start__0", command_layout())
    commands = [random_command(random.Random(1), tag, operation=Operation.QUIESCE) for tag in range(2 * depth + 3)]
    cocotb.start_soon(source.send(descriptors(commands)))
    await cycles(dut, 300 * depth)
    assert started.cycles[0] == taken.cycles[DESCRIPTOR_WORDS - 1] + CommandQueue.latency
    # Enough commands to fill the event queue, the engine's pending event and the command queue.
    assert int(dut.full.value) == 1
    assert int(dut.completions__0__valid.value) == 1
    assert int(dut.queue_status.value) == 1 | depth << 2 | depth << 10
    sink = Sink(dut, "events", 32)
    assert [event["tag"] for event in await receive_events(sink, len(commands))] == list(range(len(commands)))
    await cycles(dut, 2)
    assert int(dut.queue_status.value) == 0
    assert int(dut.full.value) == 0


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def link_reset_empties_the_queue(dut):
    depth = regression.parameters()["depth"]
    await begin(dut)
    engine = Engine(dut, random.Random(1), "none")
    source = Source(dut, "commands", descriptor_layout())
    sink = Sink(dut, "events", 32)
    dut.timeout.value = 1 << 30
    generator = random.Random(1)
    bad = random_command(generator, 1, operation=99)
    waiting = [random_command(generator, tag, operation=Operation.QUIESCE, wait=1) for tag in (0, 2)]
    cocotb.start_soon(source.send(descriptors([waiting[0], bad, waiting[1]][:depth])))
    await cycles(dut, 200)
    assert int(dut.queue_status.value) & 0b11 == 0b10
    dut.link_reset.value = 1
    statuses = [(event["tag"], event["status"]) for event in await receive_events(sink, min(depth, 3))]
    assert statuses == [(0, EventStatus.LINK_RESET), (1, EventStatus.UNKNOWN_OPERATION),
                        (2, EventStatus.LINK_RESET)][:depth]
    dut.link_reset.value = 0
    cocotb.start_soon(source.send(descriptors([random_command(generator, 3, operation=Operation.QUIESCE)])))
    assert [event["tag"] for event in await receive_events(sink, 1)] == [3]
    assert len(engine.started) == 1


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def settings_are_looked_at_when_a_command_starts(dut):
    """A command is checked again after it has waited.

    In this test, the optimizer rule has changed to one that needs state, for which the memory is too small.
    """
    await begin(dut)
    Engine(dut, random.Random(3), "none")
    source = Source(dut, "commands", descriptor_layout())
    sink = Sink(dut, "events", 32)
    dut.timeout.value = 1 << 30
    command = update(wait=1)
    cocotb.start_soon(source.send(descriptors([command])))
    await cycles(dut, 100)
    assert int(dut.queue_status.value) & 0b11 == 0b10
    dut.rule.value = Rule.MOMENTUM.value
    dut.set_flags.value = 1
    await cycles(dut, 1)
    dut.set_flags.value = 0
    (event,) = await receive_events(sink, 1)
    assert (event["status"], event["detail"]) == (EventStatus.BAD_LENGTH, CONFIG.memories.state)
    assert int(dut.flags.value) == 1


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def a_command_runs_with_what_it_was_checked_with(dut):
    """A command runs with the settings that it was checked with, even if they change during the check.

    The rule and the state packing change once, in each possible cycle of the check. The command must either be
    rejected under the new settings or run with the old ones.
    """
    await begin(dut)
    Engine(dut, random.Random(3), "none")
    source = Source(dut, "commands", descriptor_layout())
    sink = Sink(dut, "events", 32)
    command = update(wait=0)
    started = []

    async def watch():
        while True:
            await FallingEdge(dut.clk)
            if int(dut.start__0__valid.value) and int(dut.start__0__ready.value):
                started.append(int(dut.checked.value))

    cocotb.start_soon(watch())
    # State of 128 elements does not fit into 96 words, but SGD has no state, and packed state takes 64 words.
    for first, second in ((Rule.SGD, Rule.MOMENTUM), (Rule.MOMENTUM, Rule.ADAM), (Rule.ADAMW, Rule.MOMENTUM)):
        refused = 0
        started.clear()
        for cycle in range(80):
            dut.rule.value, dut.packed_state.value = first.value, 1
            cocotb.start_soon(source.send(descriptors([command])))
            await cycles(dut, cycle)
            dut.rule.value, dut.packed_state.value = second.value, 0
            before = len(started)
            (event,) = await receive_events(sink, 1)
            if len(started) == before and event["status"] == EventStatus.BAD_LENGTH:
                assert event["detail"] == CONFIG.memories.state
                refused += 1
        # Some commands are rejected; the others run with the old settings.
        assert 0 < refused < 80, first
        assert started == [to_int(checked_layout(), {"rule": first.value, "packed_state": 1})] * (80 - refused)


@pytest.mark.parametrize(("source", "sink", "engine", "depth", "seed"), [
    ("none", "none", "none", 8, 1),
    ("geometric", "geometric", "geometric", 1, 10),
    ("none", "freeze", "alternating", 3, 5),
])
def test_queue(source, sink, engine, depth, seed):
    queue = CommandQueue(config=CONFIG, operations=operations(CONFIG), depth=depth)
    regression.run(queue, module=__name__, testcase=[
        "runs_what_may_run", "holds_what_there_is_no_room_for", "link_reset_empties_the_queue",
        "settings_are_looked_at_when_a_command_starts", "a_command_runs_with_what_it_was_checked_with",
    ], parameters={"source": source, "sink": sink, "engine": engine, "depth": depth, "seed": seed})


test_depth = refused_values(CommandQueue, {"config": CONFIG, "operations": operations(CONFIG)}, "depth",
                            [0, 256, "8"], "Queue depth must be between 1 and 255")
