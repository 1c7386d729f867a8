"""Layer streaming on simulated nodes: golden bits, stalls, edits between sets, and errors."""

import collections
import dataclasses
import functools

import numpy as np
import pytest

from hdl.compression.registry import FETCH_FORMATS
from hdl.control.protocol import EventStatus, Operation
from host.driver.command import Command
from host.driver.device import Device
from host.driver.ring import Ring
from host.driver.trace import TraceError
from host.features.compute.instructions import Array
from host.features.programs.program import CompiledProgram
from host.features.streaming.edits import Kind, Structure
from host.features.streaming.lists import compile_streaming, streaming_program
from host.features.streaming.node_run import NodeRun, worker_of
from host.features.streaming.ring import SetOutcome, StreamingRing
from host.features.streaming.run import GoldenStreaming, Underflow
from host.features.streaming.timeline import Far, set_times
from host.models.digits import Dataset
from host.training.optimizers import SGD, Adam
from sim.golden import ring as golden
from sim.golden.codecs import WEIGHT_CODECS
from sim.golden.features.streaming.streaming import Counts, counts, push_sum
from tests.host import rings
from tests.host.features.streaming.sets import do
from tests.refusals import refuses

RELAY = rings.MIXED["relay"]
WORKER, SERVER = RELAY[0], RELAY[-1]
MICROBATCH = 8

open_streaming = functools.partial(rings.open_nodes, len(RELAY), config=RELAY, timeout=50_000)


def structure_of(widths, count, rate):
    return Structure(tuple(widths), ("raw",) * (len(widths) - 1), count, rate, MICROBATCH, worker_of(WORKER))


def some(data, count):
    return Dataset(data.train_x[:count], data.train_y[:count], data.test_x[:50], data.test_y[:50], data.classes)


def test_four_layers(data):
    """Three sets of four layers match the golden bits. An edit doubles the number of microbatches from the second set
    on."""
    with open_streaming(host_port=False) as (ring, simulation):
        simulation.set_far_speed(latency=16, rate=4, node=ring.nodes - 1)
        run = NodeRun(ring, some(data, 200), structure_of((64, 64, 64, 64, 10), 1, 0.05),
                      optimizer=SGD(0.05, momentum=0.9), traced=True)
        do(run)
        run.propose(0, Kind.MICROBATCHES, 2)
        do(run, 2)
        assert run.same
        assert run.compare()
        assert run.times[0].run.stall > 0.15
        for number, times in enumerate(run.times):
            model, costs = run.timeline(number, rate=4, far=Far())
            assert abs(times.run.stall - model.stall) <= 0.01, number
            moves = [[event.end - event.start for event in source.events if event.kind in ("in", "out")]
                     for source in (times.run, model)]
            assert all(abs(measured - wanted) <= 8 for measured, wanted in zip(*moves, strict=True)), number
            for unit in (1, 2):
                assert times.links["fetch", unit] == pytest.approx(costs[unit].fetch, rel=0.01)
            assert times.links["push", 2] == pytest.approx(costs[2].push, rel=0.03)
        for times in run.times[1:]:
            assert [len(times.executions[kind, unit]) for kind in ("forward", "backward") for unit in range(4)] == [
                2] * 8
            events = collections.defaultdict(list)
            for event in times.run.events:
                events[event.kind, event.unit].append(event)
            for unit in (1, 2):  # backward overlaps the PUSH of the layer above and the FETCH below
                backward = events["backward", unit]
                for inside in (events["push", unit + 1][0], events["fetch", unit - 1][-1]):
                    assert backward[0].start - 10 <= inside.start < inside.end < backward[-1].end
        assert run.server.units[0].words == 4160
        assert structure_of((64, 64, 64, 64, 10), 2, 0.05).plan.peak == 4 * 4160 + 7 * 512


def test_parts_of_a_layer_and_words(data):
    """A layer that is larger than a window is split in two, and far memories move the planned number of words."""
    with open_streaming(host_port=False) as (ring, simulation):
        run = NodeRun(ring, some(data, 50), structure_of((64, 96, 10), 2, 0.05), optimizer=SGD(0.05))
        do(run)
        before = [sum(simulation.far_memory(rank)[1:]) for rank in range(3)]
        do(run)
        moved = [sum(simulation.far_memory(rank)[1:]) - words for rank, words in enumerate(before)]
        assert [unit.words for unit in run.server.units] == [65 * 48, 65 * 48, 970]
        plan = run.reports[-1].structure.plan
        program = streaming_program(compile_streaming(plan, array=Array(rows=4, lanes=4)),
                                    lengths=[[MICROBATCH] * 2] * 2,
                                depth=WORKER.programs.depth)
        planned = sum(task.fields["length"] for task in program.tasks if task.operation.startswith("MOVE"))
        batch_words = 2 * (plan.far("x", 0, 1).length + plan.far("labels", 0).length + plan.far("loss", 0).length)
        assert moved[:2] == [planned + batch_words] * 2
        fetched, pushed = (sum(-(-task.fields["length"] // 4) * 4 for task in program.tasks if task.operation == name)
                           for name in ("BROADCAST", "PUSH"))
        assert moved[2] == fetched + pushed + sum(task.fields["length"] for task in program.tasks
                                                  if task.operation == "PUSH")
        assert run.compare()


def test_edits_and_adam(data):
    """Nodes still match the golden bits after edits that add a layer, change the learning rate and remove a layer."""
    with open_streaming(host_port=False) as (ring, _):
        run = NodeRun(ring, some(data, 100), structure_of((64, 32, 10), 1, 0.01), optimizer=Adam(0.01))
        for layer, kind, value in ((2, Kind.ADD, 32), (0, Kind.RATE, 0.005), (2, Kind.REMOVE, 32)):
            do(run)
            run.propose(layer, kind, value)
        do(run)
        assert run.compare()
        assert run.server.units[0].words == 65 * 32


def formatted(formats, count=1, rate=0.05):
    """Network structure with one layer of 64 inputs for each of the given formats."""
    return Structure((64,) * len(formats) + (10,), tuple(formats), count, rate, MICROBATCH, worker_of(WORKER))


def test_formats_and_counts(data):
    """Layers in four formats, two of which are changed by edits, match the golden bits and the server's counts."""
    with open_streaming(host_port=False) as (ring, _):
        run = NodeRun(ring, some(data, 100), formatted(FETCH_FORMATS), optimizer=SGD(0.05, momentum=0.9))
        do(run)
        for layer, name in ((1, "mx9"), (4, "mx4")):
            run.propose(layer, Kind.FORMAT, name)
        do(run, 2)
        assert run.reports[-1].structure.formats == ("mx9", "mx4", "mx6", "mx4")
        assert run.same
        assert run.compare()
        table = ring.devices[-1].config.memory_map["counts"]
        rows = ring.devices[-1].read_memory(table.number, 0, 16).view(np.uint32).reshape(4, 4).tolist()
        for layer, row in enumerate(rows, start=1):
            fetched, pushed = run.reports[-1].fetched[layer], run.reports[-1].pushed[layer]
            assert row == [fetched.zeros, fetched.saturations, pushed.zeros, pushed.saturations]
        assert rows[1][0] > rows[2][0] > 0
        assert all(row[1] > 0 and row[2] > 0 for row in rows)
        parts = NodeRun(ring, some(data, 50), Structure((64, 96, 10), ("mx6", "mx4"), 1, 0.05, MICROBATCH,
                                                        worker_of(WORKER)), optimizer=SGD(0.05))
        do(parts, 2)
        assert parts.compare()
        assert parts.reports[-1].fetched[1].elements == 65 * 96


def test_underflow(data):
    """The assessor ``Underflow`` works with the counts of a simulated server: layers change from mx4 to mx6 as on
    golden nodes."""
    with open_streaming(host_port=False) as (ring, _):
        options = {"optimizer": SGD(0.05, momentum=0.9)}
        run, model = (kind(*arguments, some(data, 100), formatted(("mx4", "mx4")), **options,
                           assessor=Underflow(sets=2), **more)
                      for kind, arguments, more in ((NodeRun, (ring,), {}), (GoldenStreaming, (), {"workers": 2})))
        for current in (run, model):
            do(current, 5)
        assert run.compare()
        assert [edit.line for edit in run.log] == [edit.line for edit in model.log]
        assert run.reports[-1].structure.formats == ("mx6", "mx6")
        assert run.described() == model.described()
        run._node_counts = {0: Counts(4160, 0, 0)}, {}
        assert run._counts == run._node_counts


def fetches(ring, *, formats, length=300, entry=0, root=2, collective=1):
    """Start a BROADCAST on each node, with a format for each rank, and return the events."""
    for rank, device in enumerate(ring.devices):
        device.push(Command(operation=Operation.BROADCAST, rank=rank, size=3, root=root, length=length,
                            collective=collective, format=formats[rank], entry=entry))
    return [device.pop_event(60_000) for device in ring.devices]


@pytest.mark.parametrize("seed", range(2))
def test_fetch(seed):
    """Successive BROADCASTs in any format match the bits and counts of the golden codecs. A BROADCAST that names a
    nonexistent table entry is not counted, and unused entries do not change."""
    generator = np.random.default_rng(seed)
    with open_streaming(host_port=False) as (ring, simulation):
        *workers, server = ring.devices
        number = server.config.memory_map["counts"].number
        table = np.zeros((64, 4), np.uint32)
        server.write_memory(number, 0, table.ravel())
        for step in range(4):
            rate, sent = generator.choice([0.5, 1, 4]), []
            simulation.set_far_speed(latency=int(generator.integers(1, 60)), rate=float(rate), node=2)
            base = 0
            for _ in range(2):  # one after the other
                length, choice = int(generator.integers(1, 1500)), int(generator.integers(0, 4))
                entry = int(generator.choice([0, 1, 5, 63, 64, 200]))
                bits = generator.integers(0, 1 << 32, length, dtype=np.uint32)
                near = bits & 0x807F_FFFF | generator.integers(112, 128, length, dtype=np.uint32) << np.uint32(23)
                bits = np.where(generator.random(length) < 0.01, bits, near)
                bits[generator.random(length) < 0.2] = generator.choice([0, 0x8000_0000, 1])
                server.write_memory(1, base, bits)
                sent.append((base, bits, choice, entry))
                base += -(-length // 32) * 32
            simulation.run(200)
            for index, (base, bits, choice, entry) in enumerate(sent):
                for rank, device in enumerate(ring.devices):
                    device.push(Command(operation=Operation.BROADCAST, rank=rank, size=3, root=2, length=len(bits),
                                        weight_base=base, collective=2 * step + index, format=choice, entry=entry))
            for _, bits, choice, entry in sent:
                events = [device.pop_event(50_000) for device in ring.devices]
                assert [event.status for event in events] == [EventStatus.OK] * 3, f"{seed=}, {step=}"
                if entry < 64:
                    counted = counts(bits, FETCH_FORMATS[choice])
                    table[entry, :2] = counted.zeros, counted.saturations
            for base, bits, choice, _ in sent:
                codec = WEIGHT_CODECS[FETCH_FORMATS[choice]]
                for device in workers:
                    actual = device.read_memory(1, base, len(bits)).view(np.uint32)
                    assert (actual == codec.decode(codec.encode(bits), len(bits))).all(), f"{seed=}, {step=}"
            actual = server.read_memory(number, 0, 256).view(np.uint32).reshape(64, 4)
            assert actual.tolist() == table.tolist(), f"{seed=}, {step=}"


def test_fetch_refused():
    """BROADCASTs with unknown or mismatched formats, or with a root that cannot encode, are rejected. If a command
    fails, the counts up to the failure are kept."""
    with open_streaming(host_port=False) as (ring, simulation):
        for rank, root, format in ((0, 2, 4), (2, 2, 15), (0, 0, 1), (2, 1, 3)):
            device = ring.devices[rank]
            device.push(Command(operation=Operation.BROADCAST, rank=rank, size=3, root=root, length=32,
                                format=format))
            event = device.pop_event(1000)
            assert (event.status, event.detail) == (EventStatus.BAD_FORMAT, format)
        server = ring.devices[-1]
        server.write_memory(server.config.memory_map["counts"].number, 0, np.full(8, 7, np.uint32))
        server.write_memory(1, 0, np.zeros(4000, np.uint32))
        simulation.run(2000)
        events = fetches(ring, formats=(2, 3, 3), length=4000, entry=1)
        assert events[0].status == EventStatus.WRONG_CODEC
        assert events[0].detail >> 20 & 0xFF == WEIGHT_CODECS["mx9"].code
        assert events[0].detail >> 4 & 0xFF == WEIGHT_CODECS["mx6"].code
        assert all(event.status != EventStatus.OK for event in events)
        zeros, saturations, *rest = server.read_memory(
            server.config.memory_map["counts"].number, 4, 4).view(np.uint32).tolist()
        assert zeros < 4000
        assert (saturations, rest) == (0, [7, 7])


def test_nodes_without_formats():
    """Formats that the nodes do not support, and more units than the table has entries, are rejected before anything
    runs."""
    worker, server = (config.replace(role={"broadcast_formats": False}) for config in (WORKER, SERVER))
    digits = Dataset(np.zeros((80, 64), np.float32), np.zeros(80, np.int64), np.zeros((1, 64), np.float32),
                     np.zeros(1, np.int64), 10)
    ring = Ring([Device(None, config) for config in (worker, server)])
    refuses("Format of layers on nodes without broadcast_formats must be raw, not mx9", do,
            NodeRun(ring, digits, formatted(("mx9", "raw")), optimizer=SGD(0.01)))
    ring = Ring([Device(None, config) for config in (WORKER, SERVER)])
    many = Structure((64, *(4,) * 64, 10), ("raw",) * 65, 1, 0.1, MICROBATCH, dataclasses.replace(
        worker_of(WORKER), activation_words=1 << 16, far_words=1 << 20))
    refuses("Units must be at most 64, the entries of the server's table of counts, not 65", do,
            NodeRun(ring, digits, many, optimizer=SGD(0.01)))


@pytest.mark.parametrize("seed", range(3))
def test_push(seed):
    """PUSH sums sparse gradients at different base addresses, and the workers' weights do not change."""
    generator = np.random.default_rng(seed)
    with open_streaming(host_port=False) as (ring, simulation):
        simulation.set_far_speed(latency=int(generator.integers(1, 60)), rate=1, node=2)
        ring.settings.write(SGD(0.25, momentum=0.5).settings(1, gradient_scale=0.5))
        for number, length in enumerate((1, 33, 700, int(generator.integers(1, 4000))), 1):
            bases = [int(base) for base in 32 * generator.integers(0, 100, 3)]
            gradients = rings.random(generator, (2, length), density=0.3)
            weights, momentum = rings.random(generator, length), rings.random(generator, length)
            kept = [device.read_memory(1, 0, 4096) for device in ring.devices[:2]]
            for device, base, gradient in zip(ring.devices, bases, gradients, strict=False):
                device.write_memory(0, base, gradient)
            server = ring.devices[-1]
            for space, vector in ((1, weights), (2, momentum)):
                server.write_memory(space, bases[2], vector)
            simulation.run(100)
            for rank, device in enumerate(ring.devices):
                fields = {"gradient_base": bases[rank]} if rank < 2 else {
                    "weight_base": bases[2], "state_base": bases[2]}
                device.push(Command(operation=Operation.PUSH, rank=rank, size=3, root=2, length=length,
                                    collective=number, block_offset=int(generator.integers(0, 3)), **fields))
            events = [device.pop_event(50_000) for device in ring.devices]
            assert [event.status for event in events] == [EventStatus.OK] * 3, f"seed {seed}"
            simulation.run(200)
            total = push_sum(golden.bits(gradients))
            new, state = golden.optimizer.update(
                total, golden.bits(weights), [golden.bits(momentum)] * 2,
                golden.settings(1, gradient_scale=0.5, learning_rate=0.25, first_decay=0.5, first_gain=1.0,
                                clip=np.inf))
            assert (server.read_memory(1, bases[2], length).view(np.uint32) == new).all(), f"seed {seed}, {length}"
            assert (server.read_memory(2, bases[2], length).view(np.uint32) == state[0]).all()
            assert all((device.read_memory(1, 0, 4096) == words).all()
                       for device, words in zip(ring.devices, kept, strict=False))


def test_refused():
    """Nodes reject a PUSH if there are no workers or if the root is a worker. In a ring, the last node must be the
    server."""
    with open_streaming(host_port=False) as (ring, _):
        for rank, root in ((0, 0), (1, 1), (2, 0)):
            ring.devices[rank].push(Command(operation=Operation.PUSH, rank=rank, size=3, root=root, length=32))
            assert ring.devices[rank].pop_event(1000).status == EventStatus.BAD_RANK
        ring.devices[2].push(Command(operation=Operation.PUSH, rank=0, size=1, root=0, length=32))
        assert ring.devices[2].pop_event(1000).status == EventStatus.BAD_RANK
    plan = structure_of((64, 10), 1, 0.1).plan
    for configs in ((WORKER,), (SERVER, WORKER), (WORKER, SERVER, SERVER)):
        roles = ", ".join(type(config.role).__name__.lower() for config in configs)
        with pytest.raises(ValueError, match=rf"^Nodes must be workers and as the last one a server, not {roles}$"):
            StreamingRing(Ring([Device(None, config) for config in configs]), type("Lists", (), {"plan": plan}))


def test_times_of_no_trace():
    with pytest.raises(TraceError, match=r"^Set must have been traced$"):
        set_times(SetOutcome(losses=np.zeros((1, 1), np.uint32), records=[], program=CompiledProgram((), 1, [])))
