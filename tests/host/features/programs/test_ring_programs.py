"""Programs of nodes with two queues, on simulated rings: loading, running, order, traces and errors."""

import functools

import numpy as np
import pytest

from hdl.config import NodeConfig
from hdl.control.command_queue import CommandQueue
from hdl.control.protocol import EventFlag, EventStatus, Operation, Space
from hdl.memory_map import TRACE_WORDS
from host.driver.command import Command, ProgramRun
from host.driver.device import Device
from host.driver.errors import (
    BadAddressError,
    DeviceTimeoutError,
    ProgramNotLoadedError,
    ProgramRunningError,
    ProgramTooLongError,
    ReadOnlyError,
)
from host.driver.optimizer_settings import Rule, Settings
from host.driver.ring import Ring
from host.driver.trace import TraceRecord, records
from sim.golden.features.compute_stub.compute_model import compute_cycles
from tests.host import rings
from tests.refusals import refuses

CONFIG = rings.CONFIGS["centroid"]
open_nodes = functools.partial(rings.open_nodes, nodes=2, config=CONFIG)

#: Two layers of gradients, as (base, length), and the address at which they are staged.
LAYERS = ((256, 224), (0, 256))
STAGED = 1024
PASSES = 3


def pop(device, count):
    """Pop the next `count` events."""
    events = [device.pop_event(20 * rings.TIMEOUT) for _ in range(count)]
    assert None not in events, f"{device.name}: {events}"
    return events


def layers(rank, *, durations=(700, 600), ordered=True):
    """Programs for both queues that compute each layer and then sum it over the ring."""
    compute = [Command(operation=Operation.COMPUTE, gradient_base=base, state_base=STAGED + base, length=length,
                       duration=duration, after_0=index + 1, lag_0=1, tag=10 + index)
               for index, ((base, length), duration) in enumerate(zip(LAYERS, durations, strict=True))]
    communicate = [Command(operation=Operation.ALL_REDUCE, rank=rank, size=2, gradient_base=base, length=length,
                           collective=1 + index, after_0=(index + 1) * ordered, tag=20 + index)
                   for index, (base, length) in enumerate(LAYERS)]
    return compute, communicate


def stage(ring, generator):
    """Write random gradients to the source of each COMPUTE and NaNs to its target; return the sum of the
    gradients."""
    gradients = [rings.random(generator, 512) for _ in ring.devices]
    for device, own in zip(ring.devices, gradients, strict=True):
        device.write_memory(Space.GRADIENT, STAGED, own)
        device.write_memory(Space.GRADIENT, 0, np.full(512, np.nan, np.float32))
    return gradients[0] + gradients[1]


def test_sums_travel_while_layers_are_computed():
    """In every pass, each layer is summed while the next one is computed, in program order. The programs are loaded
    only once for 200 passes."""
    with open_nodes() as (ring, _):
        expected = stage(ring, np.random.default_rng(1))
        ring.programs.load([layers(rank) for rank in range(2)], model=7)
        done = 0
        for runs, passes in enumerate((PASSES, 165, 32), 1):
            pointers = [device.read_register("TRACE_POINTER") for device in ring.devices]
            played = ring.programs.play(passes, collective=100 + 2 * done, collectives=2)
            done += passes
            for device, events, pointer in zip(ring.devices, played, pointers, strict=True):
                for queue, tags in zip(events, ((10, 11), (20, 21)), strict=True):
                    assert [(event.tag, event.status, event.flags) for event in queue] == [
                        (tag, EventStatus.OK, EventFlag(0)) for tag in tags] * passes
                assert [event.cycles for event in events[0]] == [700, 600] * passes
                sums = device.read_memory(Space.GRADIENT, 0, 480).view(np.float32)
                np.testing.assert_array_equal(sums, expected[:480])
                assert (device.read_register("PROGRAM_LOADS"), device.read_register("PROGRAM_RUNS")) == (1, runs)
                assert device.read_fields("PROGRAM_STATUS") == {
                    "running": 0, "stopped": 0, "loaded": 1, "model": 7, "passes": 0}
                if 8 * passes <= TRACE_WORDS // 2:
                    check_trace(device.trace(pointer), passes)
        assert done == 200


def check_trace(trace, passes):
    """Check that gaps between commands are short, and that sums start during the next COMPUTE."""
    starts, ends = ({(queue, index): record.time for queue in (0, 1) for index, record in enumerate(
        record for record in trace if record.queue == queue and record.end == end)} for end in (False, True))
    assert len(trace) == 8 * passes
    for index in range(2 * passes):
        assert 0 <= ends[0, index] - starts[0, index] - (700, 600)[index % 2] <= 3
        assert 0 <= starts[1, index] - ends[0, index] <= CommandQueue.dependency_latency
        if index + 1 < 2 * passes:
            assert starts[0, index + 1] - ends[0, index] <= CommandQueue.gap
    for turn in range(passes):
        assert ends[0, 2 * turn] < starts[1, 2 * turn] < ends[1, 2 * turn] < ends[0, 2 * turn + 1]
    assert (CommandQueue.gap, CommandQueue.dependency_latency) == (8, 3)


def test_loads_of_what_has_changed():
    """Only queues with changed commands are loaded again, but after a failed load, all queues are."""
    with open_nodes() as (ring, _):
        def loads():
            return [device.read_register("PROGRAM_LOADS") for device in ring.devices]

        first = [layers(rank) for rank in range(2)]
        other = [first[0], layers(1, durations=(500, 600))]
        long = [first[0], (first[1][0], first[1][1] * 100)]
        ring.programs.load(first)
        counts = [loads()]
        for programs in (first, other, first):
            ring.programs.load(programs, changes=True)
            counts.append(loads())
        assert counts == [[1, 1], [1, 1], [1, 2], [1, 3]]
        with pytest.raises(ProgramTooLongError):
            ring.programs.load(long, changes=True)
        before = loads()
        ring.programs.load(first, changes=True)
        assert loads() == [number + 1 for number in before]


def test_a_dependency_that_is_missing_is_seen():
    """If a command's ``after`` is missing, the ring sums gradients that are not yet written, and its event reports
    NaNs."""
    with open_nodes() as (ring, _):
        stage(ring, np.random.default_rng(2))
        ring.programs.load([layers(rank, ordered=False) for rank in range(2)])
        for _, sums in ring.programs.play(1):
            assert EventFlag.LOCAL_NAN in sums[0].flags


def test_updates_have_the_settings_that_were_latched():
    """A learning rate written during a run takes effect at the next LATCH. A learning rate written at any other time
    takes effect immediately."""
    generator = np.random.default_rng(3)
    length, space = 64, CONFIG.memory_map["masters"].number
    gradients, masters = rings.random(generator, length), rings.random(generator, length)
    update = Command(operation=Operation.FUSED_UPDATE, length=length)
    with open_nodes(nodes=1) as (ring, _):
        (device,) = ring.devices
        ring.settings.write(Settings(rule=Rule.SGD, gradient_scale=1.0, learning_rate=0.5))
        device.write_memory(Space.GRADIENT, 0, gradients)
        device.write_memory(space, 0, masters)
        wait = Command(operation=Operation.COMPUTE, duration=3000)
        numbered = [Command(**{**vars(update), "collective": n, "after_0": 1 if n == 1 else 0}) for n in (1, 2, 3)]
        ring.programs.load([([wait], [*numbered[:2], Command(operation=Operation.LATCH), numbered[2]])])
        device.run(ProgramRun(1))
        device.write_register("LEARNING_RATE", 0.25)
        assert device.read_fields("PROGRAM_STATUS")["running"]
        assert {event.status for event in pop(device, 5)} == {EventStatus.OK}
        for rate in (0.5, 0.5, 0.25):
            masters = masters - np.float32(rate) * gradients
        np.testing.assert_array_equal(device.read_memory(space, 0, length).view(np.float32), masters)
        device.write_register("LEARNING_RATE", 2.0)
        device.push(Command(**{**vars(update), "collective": 9}))
        assert pop(device, 1)[0].status is EventStatus.OK
        masters = masters - np.float32(2.0) * gradients
        np.testing.assert_array_equal(device.read_memory(space, 0, length).view(np.float32), masters)


def test_bad_programs_are_refused():
    """A rejected request changes nothing, and the error gives the reason."""
    quiesce = Command(operation=Operation.QUIESCE)
    with open_nodes(nodes=1) as (ring, _):
        (device,) = ring.devices
        with pytest.raises(ProgramNotLoadedError, match="a run of 1 passes of program 0 was refused with NOT_LOADED"):
            device.run(ProgramRun(1))
        with pytest.raises(ProgramTooLongError, match=r"a load of 21 commands from slot 0 of queue 1 on was refused"):
            device.load_program(1, [quiesce] * 21)
        with pytest.raises(ProgramTooLongError, match=r"after 0 words were written; load a shorter program"):
            device.load_program(0, [quiesce] * 2, slot=19)
        with pytest.raises(BadAddressError):
            device.load_program(3, [quiesce])
        with pytest.raises(ValueError, match=r"^Program must be one of at most the 3 queues .*, not of 4$"):
            ring.programs.load([([], [], [], [])])
        refuses("Program's slot must be a number of 16 bits, not 65536", device.load_program, 0, [], slot=1 << 16)
        refuses("Run's passes must be a number of 16 bits, not -1", ProgramRun, -1)
        assert device.read_fields("PROGRAM_STATUS")["loaded"] == 0
        ring.programs.load([([Command(operation=Operation.COMPUTE, duration=2000)], [quiesce])], model=3)
        with pytest.raises(ProgramNotLoadedError, match="load the program first, with the number that the run names"):
            device.run(ProgramRun(1, model=4))
        device.run(ProgramRun(2, model=3))
        with pytest.raises(ProgramRunningError, match=r"wait until PROGRAM_STATUS.running is 0"):
            device.load_program(0, [])
        with pytest.raises(ProgramRunningError):
            device.run(ProgramRun(1, model=3))
        with pytest.raises(ReadOnlyError, match=r"refused with READ_ONLY after 0 words"):
            device.write_memory(CONFIG.memory_map["trace"].number, 0, np.zeros(2, np.uint32))
        events = pop(device, 4)
        assert [(event.queue, event.status) for event in events] == [
            (1, EventStatus.OK), (1, EventStatus.OK), (0, EventStatus.OK), (0, EventStatus.OK)]
        assert device.read_register("PROGRAM_LOADS") == device.read_register("PROGRAM_RUNS") == 1


def test_a_program_that_fails_leaves_the_node_usable():
    """A faulty command ends the run with an event that reports the error; the next run works normally."""
    quiesce, unknown = Command(operation=Operation.QUIESCE, tag=1), Command(operation=99, tag=2)
    never = Command(operation=Operation.QUIESCE, tag=3, after_0=2)
    wait = Command(operation=Operation.COMPUTE, duration=100, tag=4)
    cases = {
        "unknown": (([wait], [quiesce, unknown, quiesce]), (EventStatus.UNKNOWN_OPERATION, 99, 1)),
        "queue": (([Command(operation=Operation.ALL_REDUCE, tag=2)], [wait]), None),
        "never": (([wait], [quiesce, never]), (EventStatus.AFTER_TIMEOUT, 2 | 0 << 24, 1)),
    }
    with open_nodes(nodes=1) as (ring, _):
        (device,) = ring.devices
        for name, (programs, expected) in cases.items():
            ring.programs.load([programs])
            (queues,) = ring.programs.play(1)
            events = [event for queue in queues for event in queue]
            assert device.read_fields("PROGRAM_STATUS") == {
                "running": 0, "stopped": 1, "loaded": 1, "model": 0, "passes": 0}, name
            failed = [event for event in events if event.status is not EventStatus.OK]
            if expected is None:
                assert {event.status for event in failed} == {EventStatus.UNKNOWN_OPERATION}, name
            else:
                assert [(event.status, event.detail, event.queue) for event in failed] == [expected], name
            ring.programs.load([([quiesce], [quiesce])])
            (queues,) = ring.programs.play(2)
            assert [[event.status for event in queue] for queue in queues] == [[EventStatus.OK] * 2] * 2, name
            assert ring.programs.play(0) == [[[], []]], name


def test_a_stand_in_alone():
    """A single COMPUTE, pushed as a command, takes the same cycles as in the golden model."""
    with open_nodes(nodes=1) as (ring, _):
        (device,) = ring.devices
        for length, duration in ((100, 0), (100, 500), (0, 77)):
            device.push(Command(operation=Operation.COMPUTE, state_base=512, length=length, duration=duration))
            (event,) = pop(device, 1)
            assert (event.cycles, event.queue) == (compute_cycles(length, duration, lanes=CONFIG.lanes), 0)


def test_a_run_that_does_not_end_is_noticed():
    """A command that takes longer than ``patience`` is reported, and is not mistaken for the end of the run."""
    with open_nodes(nodes=1) as (ring, _):
        ring.programs.load([([Command(operation=Operation.COMPUTE, duration=5000)], [])])
        refuses("node 0: no command of the program has ended in 100 cycles, and 1 events are missing",
                ring.programs.play, 1, patience=100, error=DeviceTimeoutError)
        assert pop(ring.devices[0], 1)[0].status is EventStatus.OK


def test_queued_commands_run_in_order_across_queues():
    """Commands run in the order in which they are submitted, because a queue gets a command only while the other
    queue is empty."""
    generator = np.random.default_rng(4)
    with open_nodes() as (ring, _):
        expected = stage(ring, generator)[:100]
        compute = Command(operation=Operation.COMPUTE, state_base=STAGED, length=100, duration=900)
        computed = ring.commands.submit_apart(dict.fromkeys(range(2), compute))
        summed = ring.collectives.submit(Operation.ALL_REDUCE, 100)
        again = ring.commands.submit_apart({0: compute})
        ring.commands.wait(computed, summed, again)
        gradients = ring.memory.read_gradients(100)
        np.testing.assert_array_equal(gradients[1], expected)
        staged = ring.devices[0].read_memory(Space.GRADIENT, STAGED, 100).view(np.float32)
        np.testing.assert_array_equal(gradients[0], staged)


def test_programs_of_a_ring():
    ring = Ring([Device(None, NodeConfig())] * 2)
    refuses("Programs must be loaded before they are sent", ring.programs.run, collectives=0)
    refuses("Programs must be one per node, 2, not 1", ring.programs.load, [([], [])])


def test_records():
    """If the trace memory has wrapped around, reading starts at the oldest record that cannot have been
    overwritten."""
    words = np.zeros(8, np.uint32)
    for number in range(6):
        slot = number % 4
        words[2 * slot:2 * slot + 2] = number | (number % 2) << 29 | (number % 2) << 30, 100 * number
    assert [record.time for record in records(words, 2)] == [400, 500]
    assert records(words, 6) == [
        TraceRecord(queue=number % 2, tag=number, end=bool(number % 2), time=100 * number) for number in (3, 4, 5)]
    assert records(words, 0) == []
