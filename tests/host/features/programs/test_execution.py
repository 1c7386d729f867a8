"""Training with programs on nodes with two queues: bits, cycles, recovery and rejected configurations."""

import dataclasses
import itertools

import numpy as np
import pytest

from hdl.config import Memories, NodeConfig
from hdl.control.command_queue import CommandQueue
from hdl.features.compute_stub.feature import ComputeStub
from hdl.features.programs.feature import Programs
from hdl.group import GROUP
from host.cycles.estimate import Costs
from host.features.programs.execution import programmed
from host.features.programs.program import Queue
from host.features.programs.schedules import Kind, Schedule, build
from host.models.digits import Dataset
from host.models.layer_shapes import layers_of
from host.training import checkpoint
from host.training.optimizers import SGD
from host.training.record import TrainingConfig
from host.training.trainer import make_trainer
from host.training.updates import check_run
from host.training.workloads import Classifier
from sim.golden.features.programs.program import Span
from tests.host import rings
from tests.refusals import refuses

NODES = 3
NODE = rings.CONFIGS["centroid"]
#: Layers of 672, 128 and 128 elements, with a codebook that is refreshed during the run.
CONFIG = TrainingConfig(max_steps=4, batch=24, hidden=(10, 10), refresh=2, macs=4,
                        optimizer=SGD(learning_rate=0.2, momentum=0.9))
SCHEDULES = ("none", "strict", "layers", "chunks:2", "search")


@pytest.fixture(scope="module")
def task(data):
    few = Dataset(data.train_x[:96], data.train_y[:96], data.test_x[:50], data.test_y[:50], data.classes)
    return Classifier(few, CONFIG.hidden, align=GROUP)


def train(ring, task, overlap, **options):
    run = make_trainer(ring, task, dataclasses.replace(CONFIG, overlap=overlap), **options)
    run.begin()
    while not run.complete:
        run.advance()
    run.finish()
    return run.executor.training


def contents(ring, length):
    """Return the bits of weights, master weights and momenta on all nodes."""
    vectors = [ring.memory.read_weights(length), ring.memory.read_state(length)]
    if ring.devices[0].config.weights.has_master:
        vectors.append(ring.memory.read_master(length))
    return [vector.view(np.uint32) for vector in vectors]


def check_order(training, schedule, task):
    """Check that gaps between commands are short, and that sums start during the COMPUTE of the layer below."""
    layers, spans = layers_of(task.widths), [Span(*row) for row in training.timeline]
    program = build(schedule, layers, nodes=NODES, costs=Costs(examples=CONFIG.batch // NODES, macs=4),
                    staged=task.parameters.size)
    for node in range(NODES):
        ends = {(span.queue, span.place): span.end for span in spans if span.node == node}
        assert len(ends) == len(program.tasks)
        own = {span.name: span for span in spans if span.node == node}
        for span in own.values():
            (wait,) = program.queues[span.queue][span.place].waits
            before = [ends[span.queue, span.place - 1] + CommandQueue.gap] if span.place else []
            awaited = 0
            if wait.after and not wait.lag:
                awaited = ends[1 - span.queue, wait.after - 1] + CommandQueue.dependency_latency
            assert span.start > max([0, *before]) - CommandQueue.gap
            if before:
                assert span.start <= max(*before, awaited), span
            assert not awaited or span.start >= awaited - CommandQueue.dependency_latency
        if schedule.kind is Kind.STRICT:
            assert own["update"].start > own["sum 1"].end
            for layer in layers[1:]:
                above, below = own[f"backward {layer.number}"], own[f"backward {layer.number - 1}"]
                assert above.end <= own[f"sum {layer.number}"].start < below.end


def test_same_bits(task):
    """Weights, master weights and momenta are the same with every schedule and without one, and match the golden
    model after every step. Each program is loaded only once."""
    length = task.parameters.size
    with rings.open_nodes(NODES, config=NODE, host_port=False) as (ring, _):
        expected = train(ring, task, None)
        bits = contents(ring, length)
        for name in SCHEDULES:
            training = train(ring, task, name)
            assert training.bit_exact is True
            for actual, wanted in zip(contents(ring, length), bits, strict=True):
                assert np.array_equal(actual, wanted), name
            assert training.losses == expected.losses
            tried = [schedule for schedule, _ in itertools.groupby(step.schedule for step in training.steps)]
            assert [device.read_register("PROGRAM_LOADS") for device in ring.devices] == [len(tried)] * NODES
            for step in training.steps:
                assert max(step.compute_cycles, step.communicate_cycles) <= step.cycles
                assert step.cycles <= 1.03 * step.modelled_cycles
            check_order(training, Schedule.parse(tried[-1]), task)
            if name == "search":
                assert tried[:2] == ["chunks:1", "chunks:2"]
                assert training.search[0] == f"chunks:1  {training.steps[0].cycles:,} cycles"
                assert training.search[-1].startswith(f"chosen: {tried[-1]} ")
            else:
                assert (tried, training.search) == ([name], [])


def test_one_queue(task):
    """Nodes without programs get the commands of a schedule one by one. Results are bit-identical, and the cycles of
    a step are the sum over its commands."""
    length = task.parameters.size
    with rings.open_nodes(NODES, config=rings.CONFIGS["narrow"], host_port=False) as (ring, _):
        expected = train(ring, task, None)
        bits = contents(ring, length)
        cycles = {}
        for name in ("none", "layers", "search"):
            training = train(ring, task, name)
            assert training.bit_exact is True
            assert all(map(np.array_equal, contents(ring, length), bits)), name
            assert training.losses == expected.losses
            assert training.timeline is None
            cycles[name] = [step.cycles for step in training.steps]
        layers = build(Schedule(Kind.LAYERS), layers_of(task.widths), nodes=NODES, staged=length,
                       costs=Costs(examples=CONFIG.batch // NODES, macs=CONFIG.macs))
        compute = sum(task.duration for task in layers.tasks if task.queue == Queue.COMPUTE)
        for alone, together, apart in zip(expected.steps, cycles["none"], cycles["layers"], strict=True):
            # On links with replay, credits are sent in messages of 30 cycles.
            assert -60 <= together - compute - alone.cycles <= 40 + 60
            assert together < apart
        assert training.search[-1] == "chosen: chunks:2 (the first that is shorter than the one before: chunks:2)"
@pytest.mark.parametrize("name", SCHEDULES)
def test_goes_on(task, tmp_path, name):
    """Stopping a run after each step and resuming it on other nodes does not change its bits, cycles, search log or
    last timeline."""
    config, path = dataclasses.replace(CONFIG, overlap=name), tmp_path / checkpoint.NAME
    with rings.open_nodes(NODES, config=NODE, host_port=False) as (ring, _):
        expected = train(ring, task, name)
        bits = contents(ring, task.parameters.size)
    for number in range(1 + CONFIG.max_steps):
        with rings.open_nodes(NODES, config=NODE, host_port=False) as (ring, _):
            run = make_trainer(ring, task, config)
            if number:
                run.resume(checkpoint.load(path, {}))
            else:
                run.begin()
            if run.complete:
                run.finish()
                assert run.executor.training == expected
                assert all(map(np.array_equal, bits, contents(ring, task.parameters.size)))
            else:
                run.advance()
                checkpoint.save(path, {}, run.state())
                searched = [line.partition("  ")[0] for line in run.executor.training.search]
                if name == "search":
                    assert searched[:2] == ["chunks:1", "chunks:2"][:number + 1]
    assert number == len(expected.steps)


def test_recovery(task):
    """A pass that loses a word is repeated from the state before it, and programs need not be loaded again."""
    said = []
    with rings.open_nodes(NODES, config=NODE, host_port=False) as (ring, simulation):
        run_programs, calls = ring.programs.run, []

        def damaged(**options):
            calls.append(options)
            if len(calls) != 3:
                return run_programs(**options)
            link = simulation.links[1]
            link.corrupt(word=link.status().words_carried + 200, bit=7)
            try:
                return run_programs(**options)
            finally:
                link.mend()

        ring.programs.run = damaged
        training = train(ring, task, "layers", on_repeat=said.append)
        assert (training.repeats, len(said), len(calls)) == (1, 1, CONFIG.max_steps + 1)
        assert said[0].startswith("step 3 is repeated: fused-update failed: node 2: command with tag ")
        assert training.bit_exact is True
        assert [device.read_register("PROGRAM_LOADS") for device in ring.devices] == [1] * NODES
        bits = contents(ring, task.parameters.size)
        ring.programs.run = run_programs
        train(ring, task, None)
        assert all(map(np.array_equal, bits, contents(ring, task.parameters.size)))


def test_refusals(data, task):
    config = dataclasses.replace(CONFIG, overlap="layers")
    check_run(NODE, task, config, nodes=NODES)
    plain = Classifier(data, CONFIG.hidden)
    refuses("Nodes must have COMPUTE for a schedule", check_run, NodeConfig(), task, config, nodes=NODES)
    refuses("Layers must each take whole groups of 32 elements for a schedule, 928 in all, not 870", check_run, NODE,
            plain, config, nodes=NODES)
    refuses("Density must not be given with a schedule, whose programs send everything", check_run,
            programmed(NodeConfig(), 928, 4), task, dataclasses.replace(config, density=0.5), nodes=NODES)
    wide = Classifier(data, (20,), align=GROUP)
    refuses("Gradients and staged gradients must take at most the 2,048 elements of a node's gradient memory, not "
            "3,072", check_run, NODE, wide, config, nodes=NODES)
    with pytest.raises(ValueError, match=r"^Schedule with state as bfloat16 must be none or strict, not chunks:1"):
        check_run(NODE, task, dataclasses.replace(config, overlap="search", packed_state=True), nodes=NODES)
    refuses("Overlap must be one of none, strict, layers, chunks:n, delayed:n, search with n of at least 1, or 0 of "
            "delayed, not 'chunks:0'", dataclasses.replace, config, overlap="chunks:0")
    refuses("Multiply-adds per cycle must be between 1 and 1,000,000,000, not 0", dataclasses.replace, config, macs=0)


def test_nodes():
    node = programmed(NodeConfig(), 10_880, 10)
    assert node == NodeConfig(memories=Memories(gradient=32768), programs=Programs(), stub=ComputeStub())
    node = programmed(NodeConfig(), 4_864, 40)
    assert (node.memories.gradient, node.programs.depth) == (16384, 128)
