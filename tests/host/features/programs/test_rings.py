# amaranth: UnusedElaboratable=no
"""Schedules on simulated rings give bit-identical results, as programs or on nodes with only one queue."""

import dataclasses

import numpy as np
import pytest

from hdl.control.protocol import EventStatus, Operation, Space
from host.cycles.estimate import Costs
from host.driver.command import Command
from host.driver.diagnosis import RingError
from host.driver.optimizer_settings import Settings
from host.features.codebook.codebooks import codebook
from host.features.programs.execution import ProgramExecution
from host.features.programs.order import Region
from host.features.programs.program import CompiledProgram, Program, Queue, RaceError
from host.features.programs.schedules import Kind, Schedule, build
from host.models.layer_shapes import layers_of
from host.training.optimizers import SGD, Adam
from sim.golden.features.compute_stub.compute_model import compute_cycles
from tests.host import rings
from tests.refusals import refuses

#: Ten layers of one to three groups each.
LAYERS = layers_of([12, *[6] * 9, 5])
LENGTH = LAYERS[-1].base + LAYERS[-1].length
COSTS = Costs(examples=4)
STEPS = 36
MOMENTUM = SGD(learning_rate=0.125, momentum=0.9)
SCHEDULES = ("none", "layers", "search", "strict")


def steps_of(ring, optimizer, seed, count):
    """Return initial weights, a golden model, and gradients, settings and expected weights for each step."""
    generator = np.random.default_rng(seed)
    weights = rings.random(generator, LENGTH)
    centroids = codebook(ring.formats.weight_codec, weights) if ring.formats.has_codebook else None
    if centroids is not None:
        ring.memory.write_codebook(centroids)
    reference = rings.Reference(ring, weights, planes=optimizer.planes, centroids=centroids)
    steps = []
    for number in range(1, count + 1):
        gradients = rings.random(generator, (ring.nodes, LENGTH), density=0.6)
        gradients *= np.float32(2) ** generator.integers(-4, 4, LENGTH).astype(np.float32)
        settings = Settings(**dataclasses.asdict(optimizer.settings(number, gradient_scale=0.25)))
        reference.step(gradients, settings)
        steps.append((list(gradients), settings, reference.weights.copy()))
    return weights, reference, steps


def train(ring, weights, steps, optimizer, schedule):
    """Run steps with a schedule, compare each with the golden model, and return the schedules tried."""
    ring.collectives.distribute(weights)
    if optimizer.planes:
        ring.memory.clear_state(LENGTH)
    ring.counters.clear()
    execution = ProgramExecution(ring, LENGTH, schedule=schedule, layers=LAYERS, costs=COSTS)
    tried = []
    for number, (gradients, settings, expected) in enumerate(steps, 1):
        ring.settings.write(settings)
        execution.write(gradients)
        tried.append(str(execution.schedule))
        execution.update()
        assert (ring.memory.read_weights(LENGTH).view(np.uint32) == expected).all(), f"{schedule}, step {number}"
    return list(dict.fromkeys(tried))


def compare_state(ring, reference, message):
    reference.compare(message)
    for plane, expected in enumerate(reference.state):
        assert (ring.memory.read_state(LENGTH, plane).view(np.uint32) == expected).all(), message


@pytest.mark.parametrize(("name", "nodes", "steps", "optimizer", "schedules"), [
    ("centroid", 4, STEPS, Adam(learning_rate=0.02), (*SCHEDULES, "chunks:2", "chunks:5")),
    ("wide", 3, STEPS, MOMENTUM, (*SCHEDULES, "chunks:3", "chunks:9")),
    ("mx9", 2, STEPS, Adam(learning_rate=0.02), (*SCHEDULES, "chunks:4", "chunks:10")),
    ("table", 3, STEPS, SGD(learning_rate=0.125), (*SCHEDULES, "chunks:6", "chunks:7")),
    ("engines", 8, 6, MOMENTUM, ("none", "layers", "search", "chunks:8")),
])
def test_same_bits(name, nodes, steps, optimizer, schedules):
    """Weights match after every step, and so do master weights, residuals and state at the end. Schedules are loaded
    only once."""
    with rings.open_nodes(nodes, config=rings.CONFIGS[name], host_port=False) as (ring, _):
        weights, reference, prepared = steps_of(ring, optimizer, 41, steps)
        for schedule in schedules:
            tried = train(ring, weights, prepared, optimizer, Schedule.parse(schedule))
            compare_state(ring, reference, f"{name}, {schedule}")
            loads = [device.read_register("PROGRAM_LOADS") for device in ring.devices]
            runs = [device.read_register("PROGRAM_RUNS") for device in ring.devices]
            assert (loads, runs) == ([len(tried)] * nodes, [steps] * nodes)
            assert len(tried) > 1 if schedule == "search" else tried == [schedule]


@pytest.mark.parametrize(("name", "nodes", "kinds"), [
    ("narrow", 3, (Kind.NONE, Kind.LAYERS)), ("mx9", 3, (Kind.STRICT, Kind.LAYERS))])
def test_sent_command_by_command(name, nodes, kinds):
    """The commands of a program can also be sent one by one, to one or two queues, with the same results. Each
    command takes the same cycles as in the driver's own operations. On links with replay, its cycles depend on when
    it starts, because credits are sent in messages of 30 cycles and count only when complete."""
    config = rings.CONFIGS[name]
    slack = 60 if config.link.replay else 0
    with rings.open_nodes(nodes, config=config, host_port=False) as (ring, _):
        if config.queues > 1:
            ring.programs.run = lambda **options: ring.programs.send()
        weights, reference, steps = steps_of(ring, MOMENTUM, 43, 4)
        for kind in kinds:
            train(ring, weights, steps, MOMENTUM, Schedule(kind))
            compare_state(ring, reference, f"{name}, {kind}")
            assert {device.read_register("PROGRAM_RUNS") for device in ring.devices} == {0}
            program = build(Schedule(kind), LAYERS, nodes=nodes, costs=COSTS, staged=LENGTH)
            sent = ring.programs.run(collectives=program.collectives)
            assert sent.traces == []
            cycles = queued(ring, kind, program)
            measured = [[event.cycles for event in events] for events in sent.events]
            assert (np.abs(np.subtract(measured, cycles)) <= slack).all(), (measured, cycles)
            order = [command.task for queue in program.queues for command in queue]
            for events in sent.events:
                assert [(event.tag, event.status) for event in events] == [(task.place, EventStatus.OK)
                                                                           for task in order]
                for task, event in zip(order, events, strict=True):
                    if task.operation == "COMPUTE":
                        length, duration = task.fields["length"], task.fields["duration"]
                        assert event.cycles == compute_cycles(length, duration, lanes=config.lanes)
            assert sent.outcome.cycles == max(map(sum, measured))


def queued(ring, kind, program):
    """Return the cycles of each command of a program when the driver's own operations queue them one by one."""
    ranks, queues, pending = range(ring.nodes), ring.devices[0].config.queues, []
    for task in program.tasks:
        base, length = (task.fields.get(name) for name in ("gradient_base", "length"))
        match task.operation:
            case "COMPUTE":
                command = Command(operation=Operation.COMPUTE, **task.fields)
                pending.append(ring.commands.submit_apart(dict.fromkeys(ranks, command), patience=command.duration))
            case "LATCH":
                command = Command(operation=Operation.QUIESCE if queues == 1 else Operation.LATCH)
                pending.append(ring.commands.submit_apart(dict.fromkeys(ranks, command)))
            case "FUSED_UPDATE" if kind is Kind.STRICT:
                pending.append(ring.collectives.submit_owned_update(LENGTH))
            case operation:
                pending.append(ring.collectives.submit(Operation[operation], LENGTH, first=base, length=length))
    ring.commands.wait(*pending)
    return [[pending[entry.task.place].events[rank].cycles for queue in program.queues for entry in queue]
            for rank in range(ring.nodes)]


def race(durations):
    """Return two programs that compute and sum two layers: one is correct, the other has a race in its second sum."""
    program = Program()
    for number, cycles in enumerate(durations):
        vector = Region("gradients", 64 * number, 64)
        program.add(f"backward {number}", operation="COMPUTE", queue=Queue.COMPUTE, writes=[vector],
                    reads=[Region("gradients", 512 + 64 * number, 64)], duration=cycles,
                    fields={"gradient_base": vector.base, "state_base": 512 + vector.base, "length": 64,
                            "duration": cycles})
    for number in range(2):
        vector = Region("gradients", 64 * number, 64)
        program.add(f"sum {number}", operation="ALL_REDUCE", queue=Queue.COMMUNICATE, reads=[vector],
                    writes=[vector], collective=True, fields={"gradient_base": vector.base, "length": 64})
    compiled = program.compile()
    racy = compiled.replace(3, Queue.COMPUTE)
    refuses("sum 1 may start before backward 1 has ended, and both touch gradients[64:128]: let it wait", racy.check,
            error=RaceError)
    return compiled, racy


def test_a_race_has_two_results():
    """A slower command changes the sums of a program that the check rejects, but not the sums of a correct
    program."""
    with rings.open_nodes(2, config=rings.CONFIGS["centroid"], host_port=False) as (ring, _):
        gradients = rings.random(np.random.default_rng(5), (2, 128))
        results = {}
        for cycles in (50, 3000):
            for name, program in zip(("ordered", "racy"), race((50, cycles)), strict=True):
                for device, row in zip(ring.devices, gradients, strict=True):
                    device.write_memory(Space.GRADIENT, 0, np.ones(128, np.float32))
                    device.write_memory(Space.GRADIENT, 512, row)
                ring.programs.load([program.commands(rank, 2) for rank in range(2)])
                ring.programs.run(collectives=2)
                results[name, cycles] = ring.memory.read_gradients(128)
        total = gradients.sum(axis=0)
        for name, cycles in (("ordered", 50), ("ordered", 3000), ("racy", 50)):
            assert (results[name, cycles] == total).all(), (name, cycles)
        # The COMPUTE delayed by 3,000 cycles overwrites the sum of the old gradients.
        assert (results["racy", 3000][:, :64] == total[:64]).all()
        assert (results["racy", 3000][:, 96:] == gradients[:, 96:]).all()


def changed(program: CompiledProgram, nodes, rank, queue, index, **fields):
    """Return the commands of all nodes, changing some fields of one command."""
    commands = [program.commands(node, nodes) for node in range(nodes)]
    commands[rank][queue][index] = dataclasses.replace(commands[rank][queue][index], **fields)
    return commands


def test_bad_programs():
    """If a program cannot end, the faulty node's status gives the reason, and the ring then runs a correct program
    normally. Two collectives swapped on one node are rejected."""
    nodes, optimizer = 3, MOMENTUM
    with rings.open_nodes(nodes, config=rings.CONFIGS["wide"], host_port=False, timeout=3000) as (ring, _):
        weights, reference, steps = steps_of(ring, optimizer, 47, 1)
        (gradients, settings, _), = steps
        good = build(Schedule(Kind.LAYERS), LAYERS, nodes=nodes, costs=COSTS, staged=LENGTH)
        swapped = [good.commands(rank, nodes) for rank in range(nodes)]
        swapped[1][1][2], swapped[1][1][5] = swapped[1][1][5], swapped[1][1][2]  # with equal length and block offset
        cases = {
            r"AFTER_TIMEOUT: command 21 of the program of queue 0, 0 passes before, did not end": (
                EventStatus.AFTER_TIMEOUT, changed(good, nodes, 1, Queue.COMMUNICATE, 4, after_0=21)),
            r"UNKNOWN_OPERATION: there is no operation 99": (
                EventStatus.UNKNOWN_OPERATION, changed(good, nodes, 2, Queue.COMMUNICATE, 2, operation=99)),
            r"UNKNOWN_OPERATION: there is no operation 2,": (
                EventStatus.UNKNOWN_OPERATION,
                changed(good, nodes, 0, Queue.COMPUTE, 7, operation=Operation.ALL_REDUCE)),
            r"ended with WRONG_COLLECTIVE": (EventStatus.WRONG_COLLECTIVE, swapped),
        }
        for message, (status, programs) in cases.items():
            ring.settings.write(settings)
            ring.programs.load(programs)
            with pytest.raises(RingError, match=message) as caught:
                ring.programs.run(collectives=good.collectives)
            assert status in [event.status for event in caught.value.events if event is not None]
            ring.recover()
            assert [device.read_fields("PROGRAM_STATUS")["running"] for device in ring.devices] == [0] * nodes
            train(ring, weights, steps, optimizer, Schedule(Kind.LAYERS))
            compare_state(ring, reference, message)
        # Adding a QUIESCE at the beginning of each queue does not change the results.
        quiet = [[[dataclasses.replace(queue[0], operation=Operation.QUIESCE, tag=100, after_0=0), *queue]
                  for queue in good.commands(rank, nodes)] for rank in range(nodes)]
        ring.collectives.distribute(weights)
        ring.memory.clear_state(LENGTH)
        ring.settings.write(settings)
        ProgramExecution(ring, LENGTH, schedule=Schedule(Kind.LAYERS), layers=LAYERS, costs=COSTS).write(gradients)
        for commands in quiet:  # waits must also count the additional command
            for queue in commands:
                queue[1:] = [dataclasses.replace(command, after_0=command.after_0 + bool(command.after_0))
                             for command in queue[1:]]
        ring.programs.load(quiet)
        assert len(ring.programs.run(collectives=good.collectives).events[0]) == len(good.tasks) + 2
        compare_state(ring, reference, "quiesce")
