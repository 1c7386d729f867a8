# amaranth: UnusedElaboratable=no
"""Programs of two command queues: every start time, event and record is compared with a model."""

import itertools
import random

import cocotb
import pytest
from cocotb.triggers import FallingEdge

from hdl.control.command_loader import WORDS
from hdl.control.command_queue import CommandQueue
from hdl.control.program_layouts import program_status_layout, program_word_layout
from hdl.control.protocol import EventStatus, Operation, command_layout, descriptor_layout, event_layout
from hdl.control.sequencer import run_layout
from hdl.control.trace import trace_record_layout
from hdl.features.programs.feature import Programs
from sim import regression
from sim.payload import from_int
from sim.streams import Monitor, Sink, Source, cycles, stalls, start
from tests.hdl.control.commands import CONFIG, random_command
from tests.hdl.control.programs import OPERATIONS, issued, load_words, random_program
from tests.hdl.control.test_command_queue import descriptors, receive_events

QUEUES = 2
STRIDE = 64
LANES = CONFIG.lanes
RECORDS = 256
DEPTH = 16


def run_of(passes, **options):
    return {"passes": passes, "model": 0, "parity": 0, "number": 0, "reserved_0": 0, "collective": 100,
            "collectives": 3, "rank": 0, "size": 0, "first": 0, "reserved_2": 0, **options}


class Bench:
    """Two command queues with engine stubs that record all starts and ends."""

    def __init__(self, dut, seed, *, start="none", sink="none"):
        self.dut = dut
        self.generator = random.Random(seed)
        #: For each queue: starts (cycle, command, number of completed commands), cycles in which events are first
        #: offered, and accepted events (cycle, event).
        self.starts, self.offers, self.ends = ([[] for _ in range(QUEUES)] for _ in range(3))
        self.valids = [[] for _ in range(QUEUES)]
        self.done = [0] * QUEUES
        #: Function of queue and command; returns the latency from the command's start to its event, in cycles.
        self.duration = lambda queue, command: self.generator.choice([0, 1, 30, 60])
        #: Function of queue and command; returns the status of the command's event.
        self.status = lambda queue, command: EventStatus.OK
        self.cycle = 0
        self.commands = Source(dut, "commands", descriptor_layout())
        self.program = Source(dut, "program", program_word_layout())
        self.run = Source(dut, "run", run_layout())
        self.events = Sink(dut, "events", 32, stalls=stalls(sink, seed=seed))
        #: Events received since :meth:`receive` was called.
        self.received = []
        self._taken = Monitor(dut, "run", run_layout())
        self._monitors = [Monitor(dut, f"start__{n}", command_layout()) for n in range(QUEUES)]
        for queue in range(QUEUES):
            cocotb.start_soon(self._engine(queue, stalls(start, seed=seed + queue)))
        cocotb.start_soon(self._watch())

    async def _engine(self, queue, kind):
        commands = Sink(self.dut, f"start__{queue}", command_layout(), stalls=kind)
        events = Source(self.dut, f"completions__{queue}", event_layout())
        while True:
            (command,) = await commands.receive(1)
            duration = self.duration(queue, command)
            if duration:
                await cycles(self.dut, duration)
            await events.send([{
                "tag": command["tag"], "status": self.status(queue, command), "flags": 0, "queue": 3,
                "detail": self.generator.getrandbits(32), "cycles": duration, "weight_version": 5}])

    async def _watch(self):
        """Record the starts and events of every cycle before any driver reacts to them."""
        dut = self.dut
        offered, before = [False] * QUEUES, [False] * QUEUES
        while True:
            await FallingEdge(dut.clk)
            self.cycle = int(dut.node_time.value)
            for queue in range(QUEUES):
                valid = bool(getattr(dut, f"start__{queue}__valid").value)
                if valid and not before[queue]:
                    self.valids[queue].append(self.cycle)
                before[queue] = valid and not getattr(dut, f"start__{queue}__ready").value
                if valid and getattr(dut, f"start__{queue}__ready").value:
                    bits = int(getattr(dut, f"start__{queue}__payload").value)
                    self.starts[queue].append((self.cycle, from_int(command_layout(), bits), tuple(self.done)))
            for queue in range(QUEUES):
                if getattr(dut, f"completions__{queue}__valid").value:
                    event = from_int(event_layout(), int(getattr(dut, f"completions__{queue}__payload").value))
                    if not offered[queue]:
                        self.offers[queue].append(self.cycle)
                        offered[queue] = True
                        self.done[queue] += event["status"] == EventStatus.OK
                    if getattr(dut, f"completions__{queue}__ready").value:
                        self.ends[queue].append((self.cycle, event))
                        offered[queue] = False

    def receive(self):
        """Accept all events from now on, and return the list that collects them."""
        async def take():
            while True:
                self.received.extend(await receive_events(self.events, 1))

        cocotb.start_soon(take())
        return self.received

    @property
    def state(self):
        """Current values of the fields of ``program_status``."""
        return from_int(program_status_layout(), int(self.dut.program_status.value))

    async def load(self, programs, *, model=7):
        for queue, program in enumerate(programs):
            await self.program.send(load_words(queue, program, model=model))

    async def idle(self):
        """Wait until the run has ended."""
        for _ in range(20_000):
            await cycles(self.dut, 1)
            if not self.state["running"]:
                return
        raise TimeoutError("The run has no end")

    def forget(self):
        for record in (self.starts, self.offers, self.ends, self.valids):
            for entries in record:
                entries.clear()
        self.done = [0] * QUEUES

    async def records(self):
        dut, memory = self.dut, []
        for row in range(2 * RECORDS // LANES):
            dut.trace__valid.value, dut.trace__row.value = 1, row
            await cycles(dut, 1)
            dut.trace__valid.value = 0
            await cycles(dut, 2)
            assert int(dut.trace__response.value) == 1
            words = int(dut.trace__elements.value)
            memory += [words >> 64 * n & (1 << 64) - 1 for n in range(LANES // 2)]
        count = int(dut.trace_pointer.value)
        return [from_int(trace_record_layout(), memory[n % RECORDS]) for n in range(max(0, count - RECORDS), count)]


async def begin(dut):
    for port in ("set_flags", "link_reset", "rule", "packed_state", "weight_version", "trace__valid"):
        getattr(dut, port).value = 0
    dut.timeout.value = 5000
    dut.weight_stride.value = STRIDE
    await start(dut)


def with_dependencies(generator, programs):
    """Add random dependencies without deadlocks: commands wait only for predecessors in a common order."""
    order = [0] * len(programs[0]) + [1] * len(programs[1])
    generator.shuffle(order)
    slots = [0, 0]
    for queue in order:
        command, other = programs[queue][slots[queue]], 1 - queue
        if generator.random() < 0.6 and programs[other]:
            lag = generator.choice([0, 0, 1, 2, 3])
            most = slots[other] if lag == 0 else len(programs[other])
            command.update(after_0=generator.randint(0, most), lag_0=lag)
        slots[queue] += 1
    return programs


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def plays_programs(dut):
    """Both queues run random programs in order and adapt commands to their pass; none starts too early."""
    p = regression.parameters()
    await begin(dut)
    bench = Bench(dut, p["seed"], start=p["start"], sink=p["sink"])
    generator = random.Random(p["seed"])
    received = bench.receive()
    for trial in range(p["trials"]):
        print("seed", p["seed"], "trial", trial)
        lengths = generator.choice([(1, 1), (3, 4), (0, 2), (5, 0), (p["depth"], 2), (2, p["depth"])])
        programs = with_dependencies(
            generator, [random_program(generator, n, length, tag=1000 * n) for n, length in enumerate(lengths)])
        await bench.load(programs)
        assert bench.state["loaded"] == 1
        run = run_of(generator.choice([1, 2, 3, 5, 20 if max(lengths) < 5 else 4]), parity=generator.getrandbits(1),
                     collective=generator.getrandbits(16), collectives=generator.getrandbits(16))
        received.clear()
        bench.forget()
        await bench.run.send([run])
        await bench.idle()
        expected = issued(programs, run, STRIDE)
        for queue in range(QUEUES):
            assert len(bench.starts[queue]) == len(expected[queue])
            for n, ((_, command, done), entry) in enumerate(zip(bench.starts[queue], expected[queue], strict=True)):
                # This node drops command words from word 12 onwards.
                known = {name: value for name, value in entry.command.items() if not name.startswith("reserved")
                         and command_layout()[name].offset < 32 * WORDS}
                assert {name: command[name] for name in known} == known
                assert done[1 - queue] >= entry.needs, (queue, n)
                assert done[queue] == n
        await cycles(dut, 200)
        for queue in range(QUEUES):
            assert [event["tag"] for event in received if event["queue"] == queue] == [
                entry.command["tag"] for entry in expected[queue]]
        ends = sorted((end, queue) for queue in range(QUEUES) for end, _ in bench.ends[queue])
        assert [event["queue"] for event in received] == [queue for _, queue in ends]
        assert bench.state["stopped"] == 0
        assert bench.state["passes"] == 0


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def starts_in_time(dut):
    """Each command starts as soon as its predecessor and its dependency have ended; the trace shows all starts."""
    p = regression.parameters()
    await begin(dut)
    bench = Bench(dut, p["seed"])
    generator = random.Random(p["seed"])
    bench.duration = lambda queue, command: generator.choice([90, 100, 101, 102, 150])
    programs = [random_program(generator, n, 6, tag=100 * n) for n in range(QUEUES)]
    for queue, program in enumerate(programs):
        for slot, command in enumerate(program):
            command.update(after_0=slot + 1, lag_0=1 - queue)
    await bench.load(programs)
    pointer = int(dut.trace_pointer.value)
    cocotb.start_soon(bench.events.receive(10_000))
    run = run_of(9)
    await bench.run.send([run])
    await bench.idle()
    waited = set()
    for queue, commands in enumerate(issued(programs, run, STRIDE)):
        for n, entry in enumerate(commands[1:], 1):
            free = bench.ends[queue][n - 1][0] + 1
            needed = bench.offers[1 - queue][entry.needs - 1] if entry.needs else 0
            # Starts do not depend on loading: both programs were loaded a hundred cycles ago.
            assert bench.valids[queue][n] == max(free, needed + CommandQueue.dependency_latency), (queue, n)
            assert free <= bench.offers[queue][n - 1] + CommandQueue.gap
            waited.add((free > bench.offers[queue][n - 1] + 4, free > needed + 3))
    assert len(waited) >= 3
    records = await bench.records()
    assert (int(dut.trace_pointer.value) - pointer) == 2 * 2 * 6 * 9
    seen = sorted((at, 0, queue, command["tag"]) for queue in range(QUEUES) for at, command, _ in bench.starts[queue])
    seen += [(at, 1, queue, event["tag"]) for queue in range(QUEUES)
             for at, (_, event) in zip(bench.offers[queue], bench.ends[queue], strict=True)]
    kept = [(record["time"], record["end"], record["queue"], record["tag"]) for record in records]
    assert all(record["version"] == 0 for record in records)
    assert sorted(kept) == sorted(seen)[-len(kept):]
    # Records are in order of time, except for nearly simultaneous ones.
    assert all(b[0] - a[0] >= -3 for a, b in itertools.pairwise(kept))


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def a_failure_ends_the_run(dut):
    """After a failed command, the rest of the run neither starts nor reports events; later commands work."""
    await begin(dut)
    bench = Bench(dut, 3)
    generator = random.Random(3)
    good = [random_program(generator, n, 4, tag=10 * n) for n in range(QUEUES)]
    received = bench.receive()
    dut.timeout.value = 300

    async def play(programs, passes=3):
        await bench.load(programs)
        received.clear()
        bench.forget()
        await bench.run.send([run_of(passes)])
        await bench.idle()
        await cycles(dut, 60)
        return [(event["queue"], event["tag"], EventStatus(event["status"]), event["detail"]) for event in received]

    def changed(queue, slot, **fields):
        programs = [[dict(command) for command in program] for program in good]
        programs[queue][slot].update(fields)
        return programs

    def check(events, queue, slot, status, detail=None):
        """Check that only the given command failed, was the last one of its queue, and stopped the run."""
        failed = [event for event in events if event[2] != EventStatus.OK]
        assert [event[:3] for event in failed] == [(queue, 10 * queue + slot, status)]
        assert detail is None or failed[0][3] == detail
        own = [tag for number, tag, _, _ in events if number == queue]
        assert own == [10 * queue + n for n in range(slot + 1)]
        rest = [tag for number, tag, _, _ in events if number != queue]
        order = [10 * (1 - queue) + n % 4 for n in range(12)]
        assert rest == order[:len(rest)]
        assert bench.state["stopped"] == 1
        assert len(bench.starts[0]) + len(bench.starts[1]) == len(events) - (
            status not in (EventStatus.BAD_CRC, EventStatus.PEER_ABORT))

    # An engine reports an error for a command in various slots of both queues.
    for queue, slot in ((0, 0), (0, 3), (1, 0), (1, 2)):
        bench.status = lambda engine, command, wrong=10 * queue + slot: (
            EventStatus.BAD_CRC if command["tag"] == wrong else EventStatus.OK)
        check(await play(good), queue, slot, EventStatus.BAD_CRC)
    bench.status = lambda queue, command: EventStatus.OK
    # The command checker rejects an unknown operation, an operation of the other queue, or a wrong base.
    check(await play(changed(0, 2, operation=99)), 0, 2, EventStatus.UNKNOWN_OPERATION, 99)
    check(await play(changed(1, 1, operation=Operation.MASK)), 1, 1, EventStatus.UNKNOWN_OPERATION, Operation.MASK)
    check(await play(changed(0, 0, operation=Operation.ALL_REDUCE)), 0, 0, EventStatus.UNKNOWN_OPERATION)
    check(await play(changed(1, 3, operation=Operation.ALL_GATHER, weight_base=33)), 1, 3, EventStatus.BAD_BASE, 33)
    # A dependency times out if it counts more commands than the other queue has or than can be counted.
    check(await play(changed(0, 1, after_0=13, lag_0=0)), 0, 1, EventStatus.AFTER_TIMEOUT, 13 | 1 << 24)
    check(await play(changed(1, 2, after_0=1 << 15, lag_0=0)), 1, 2, EventStatus.AFTER_TIMEOUT, 1 << 15)
    # A dependency on the other queue does not time out while that queue is busy.
    paced, bench.duration = bench.duration, lambda queue, command: 1000 * (command["tag"] == 10) + 1
    events = await play(changed(0, 1, after_0=1, lag_0=0), passes=1)
    assert [event[2] for event in events] == [EventStatus.OK] * 8
    assert bench.starts[0][1][0] > bench.starts[1][0][0] + 1000
    bench.duration = paced
    # A command times out if it waits for flags that are never set.
    check(await play(changed(1, 1, wait=0b110)), 1, 1, EventStatus.WAIT_TIMEOUT, 0b110)
    # At least one of two commands that wait for each other times out.
    cyclic = changed(0, 1, after_0=2, lag_0=0)
    cyclic[1][1].update(after_0=2, lag_0=0)
    events = await play(cyclic)
    assert [event[:3] for event in events if event[2] != EventStatus.OK] in (
        [(0, 1, EventStatus.AFTER_TIMEOUT)], [(1, 11, EventStatus.AFTER_TIMEOUT)],
        [(0, 1, EventStatus.AFTER_TIMEOUT), (1, 11, EventStatus.AFTER_TIMEOUT)])
    # A link reset, at various times while a program runs, stops the run.
    for cycle in (1, 20, 60, 100):
        await bench.load(good)
        received.clear()
        await bench.run.send([run_of(50)])
        await cycles(dut, cycle)
        dut.link_reset.value = 1
        await bench.idle()
        await cycles(dut, 60)
        dut.link_reset.value = 0
        statuses = [event["status"] for event in received]
        assert 1 <= statuses.count(EventStatus.LINK_RESET) <= QUEUES
        assert set(statuses) <= {EventStatus.OK, EventStatus.LINK_RESET}
        assert bench.state["stopped"] == 1
    # After the errors, the node still executes pushed commands and programs.
    received.clear()
    pushed = [random_command(generator, 77, operation=Operation.QUIESCE), *random_program(generator, 0, 2, tag=78)]
    await bench.commands.send(descriptors(pushed))
    await cycles(dut, 300)
    assert sorted((event["tag"], event["status"]) for event in received) == [(77, 0), (78, 0), (79, 0)]
    events = await play(good, passes=2)
    assert [event[:3] for event in events if event[0] == 0] == [(0, n % 4, EventStatus.OK) for n in range(8)]
    assert [event[:3] for event in events if event[0] == 1] == [(1, 10 + n % 4, EventStatus.OK) for n in range(8)]
    assert bench.state == {**bench.state, "running": 0, "stopped": 0, "loaded": 1, "model": 7}


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def pushed_commands_keep_their_place(dut):
    """In each queue, commands pushed before a run precede the program's commands; later commands follow them."""
    await begin(dut)
    bench = Bench(dut, 5)
    generator = random.Random(5)
    programs = [random_program(generator, n, 3, tag=10 * n) for n in range(QUEUES)]
    await bench.load(programs)
    bench.duration = lambda queue, command: 200 if command["tag"] in (50, 60) else 20
    before = [random_command(generator, 50, operation=Operation.QUIESCE),
              *[{**command, "operation": Operation.MASK, "tag": 60 + n, "state_base": 0}
                for n, command in enumerate(random_program(generator, 0, 3))]]
    await bench.commands.send(descriptors(before))
    await bench.run.send([run_of(2)])
    after = [{**command, "tag": command["tag"] + 20} for command in before]
    await bench.commands.send(descriptors(after))
    assert bench.state["running"] == 1
    assert int(dut.run__ready.value) == 0
    events = await receive_events(bench.events, 2 * len(before) + 2 * 6)
    order = [[event["tag"] for event in events if event["queue"] == queue] for queue in range(QUEUES)]
    assert order == [[60, 61, 62, *[0, 1, 2] * 2, 80, 81, 82], [50, *[10, 11, 12] * 2, 70]]
    assert bench.state["running"] == 0
    # A run without passes or commands ends immediately.
    for program, passes in ((programs, 0), ([[], []], 5)):
        await bench.load(program)
        await bench.run.send([run_of(passes)])
        await cycles(dut, 3)
        assert bench.state["running"] == 0
        assert bench.state["loaded"] == bool(program[0])
    # If two commands wait for the same flag, only one of them consumes it.
    flagged = [{**before[0], "tag": 90, "wait": 1}, {**before[1], "tag": 91, "wait": 1}]
    await bench.commands.send(descriptors(flagged))
    await cycles(dut, 100)
    for tags in (1, 2):
        dut.set_flags.value = 1
        await cycles(dut, 1)
        dut.set_flags.value = 0
        (event,) = await receive_events(bench.events, 1)
        assert event["tag"] in (90, 91)
        assert event["status"] == EventStatus.OK
        assert int(dut.flags.value) == 0
        await cycles(dut, 50)
        assert int(dut.queue_status.value) & 0b11 == (0b10 if tags == 1 else 0)
        assert int(dut.queue_status.value) >> 2 == (1 if tags == 1 else 0)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def a_run_begins_while_pushed_commands_end(dut):
    """A run starts as soon as the pending pushed commands have ended, no matter when the run is accepted."""
    await begin(dut)
    bench = Bench(dut, 6)
    bench.duration = lambda queue, command: 2
    generator = random.Random(6)
    programs = [random_program(generator, n, 2, tag=10 * n) for n in range(QUEUES)]
    await bench.load(programs)
    pushed = [random_command(generator, 50, operation=Operation.QUIESCE),
              *[{**command, "operation": Operation.MASK, "tag": 60 + n, "state_base": 0}
                for n, command in enumerate(random_program(generator, 0, 2))]]
    left = set()  # pushed commands started before the run, by queue
    for delay in range(64):
        bench.forget()
        await bench.commands.send(descriptors(pushed))
        await cycles(dut, delay)
        left.add(tuple(len(starts) for starts in bench.starts))
        await bench.run.send([run_of(1)])
        events = await receive_events(bench.events, len(pushed) + 2 * QUEUES)
        order = [[event["tag"] for event in events if event["queue"] == queue] for queue in range(QUEUES)]
        assert order == [[60, 61, 0, 1], [50, 10, 11]], f"run {delay} cycles after the last command"
        await bench.idle()
    assert {count for count, _ in left} == {0, 1, 2}


def command_queue():
    """Test unit: a command queue that counts updates for weight versions."""
    return CommandQueue(config=CONFIG.replace(programs=Programs(depth=DEPTH, versions=True)), operations=OPERATIONS)


@pytest.mark.parametrize(("start", "sink", "trials", "seed"), [
    ("none", "none", 24, 1), ("geometric", "geometric", 8, 3)])
def test_programs(start, sink, trials, seed):
    regression.run(command_queue(), module=__name__, testcase=[
        "plays_programs", "starts_in_time", "a_failure_ends_the_run", "pushed_commands_keep_their_place",
        "a_run_begins_while_pushed_commands_end",
    ], parameters={"start": start, "sink": sink, "trials": trials, "seed": seed, "depth": DEPTH})

