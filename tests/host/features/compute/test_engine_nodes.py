"""Training on Verilated compute nodes: bit-identical results, words written, and rejected lists."""

import collections
import dataclasses

import numpy as np
import pytest

from hdl.control.protocol import Opcode, Operation, header_layout
from hdl.features.compute.layer_list import Place, operand_layout
from hdl.group import GROUP
from host.driver.command import Command
from host.driver.diagnosis import RingError
from host.driver.planned_lists import PlanError
from host.driver.words import fields, places
from host.features.compute.engine import Computer, differentiator_of
from host.features.compute.instructions import Array
from host.features.compute.lists import compile_lists
from host.labs.centroids.lab import CentroidClassifier
from host.models.digits import Dataset
from host.models.layer_shapes import layers_of
from host.training.optimizers import SGD
from host.training.record import TrainingConfig
from host.training.trainer import make_trainer
from host.training.updates import check_run
from host.training.workloads import Classifier
from sim.payload import from_int, to_int
from tests.host import rings
from tests.host.features.compute.test_lists import give
from tests.host.features.compute.test_lists import run as run_lists
from tests.refusals import refuses

NODES = 3
NODE = rings.CONFIGS["centroid"]
#: A word that never occurs in results.
POISON = np.uint32(0x7FC0_0001)
#: Timeout in cycles for a queue that waits for the other queue.
TIMEOUT = 40_000
#: Training of layers with 544 and 96 elements, with shares alternating between 8 and 7 examples, and a codebook
#: refresh.
CONFIG = TrainingConfig(max_steps=6, batch=24, hidden=(8,), refresh=3, macs=4, compute="node", compute_format="bf16",
                        optimizer=SGD(learning_rate=0.2, momentum=0.9))


@pytest.fixture(scope="module")
def task(data):
    few = Dataset(data.train_x[:93], data.train_y[:93], data.test_x[:50], data.test_y[:50], data.classes)
    return Classifier(few, CONFIG.hidden, align=GROUP, operands=CONFIG.compute_format)


def train(ring, task, config):
    run = make_trainer(ring, task, config)
    run.begin()
    while not run.complete:
        run.advance()
    run.finish()
    return run.executor.training


def contents(ring, length):
    """Return the bits of the weights, master weights and momenta of all nodes."""
    vectors = [ring.memory.read_weights(length), ring.memory.read_master(length), ring.memory.read_state(length)]
    return [vector.view(np.uint32) for vector in vectors]


def test_same_bits(task):
    """Weights, master weights, momenta, losses and accuracies equal the host's, with every schedule and without one.
    The cycles of a step are the sum over its parts."""
    check_run(NODE, task, CONFIG, nodes=NODES)
    with rings.open_nodes(NODES, config=NODE, host_port=False, timeout=TIMEOUT) as (ring, _):
        expected = train(ring, task, dataclasses.replace(CONFIG, compute="host"))
        bits = contents(ring, task.parameters.size)
        for overlap in ("none", "strict", "layers", None):
            training = train(ring, task, dataclasses.replace(CONFIG, overlap=overlap))
            for actual, wanted in zip(contents(ring, task.parameters.size), bits, strict=True):
                assert np.array_equal(actual, wanted), overlap
            assert [step.loss for step in training.steps] == [step.loss for step in expected.steps]
            assert (training.losses, training.measures) == (expected.losses, expected.measures)
            for step in training.steps:
                assert 0 < step.vector_cycles < step.gemm_cycles
                assert 0 < step.compute_cycles - step.gemm_cycles - step.vector_cycles < 600
                assert overlap is None or step.compute_cycles < step.cycles


def test_tables(data, task):
    """Centroid tables trained on the nodes with index products are bit-identical to tables trained on the host, with
    and without a schedule, and each output takes 16 multiplications."""
    dense = Classifier(data, CONFIG.hidden)
    dense.initialize(2)
    few = Dataset(data.train_x[:93], data.train_y[:93], data.test_x[:50], data.test_y[:50], data.classes)
    tables = CentroidClassifier(few, CONFIG.hidden, dense.parameters, align=GROUP,
                                operands=CONFIG.compute_format)
    assert tables.parameters.size < task.parameters.size / 4
    check_run(NODE, tables, CONFIG, nodes=NODES)
    with rings.open_nodes(NODES, config=NODE, host_port=False, timeout=TIMEOUT) as (ring, _):
        expected = train(ring, tables, dataclasses.replace(CONFIG, compute="host"))
        bits = contents(ring, tables.parameters.size)
        for overlap in ("layers", None):
            training = train(ring, tables, dataclasses.replace(CONFIG, overlap=overlap))
            for actual, wanted in zip(contents(ring, tables.parameters.size), bits, strict=True):
                assert np.array_equal(actual, wanted), overlap
            assert [step.loss for step in training.steps] == [step.loss for step in expected.steps]
            assert (training.losses, training.measures) == (expected.losses, expected.measures)
        # A node's share of 7 examples costs as much as 8, and 10 outputs cost as much as 12.
        assert {step.centroid_multiplications for step in training.steps} == {16 * NODES * 8 * (2 * (8 + 12) + 8)}


class Counted:
    """Transport that counts the payload words of requests by opcode."""

    def __init__(self, transport):
        self._transport = transport
        self.words = collections.Counter()

    def __getattr__(self, name):
        return getattr(self._transport, name)

    def send(self, packet):
        header = fields(places(header_layout()), int(packet[0]))
        self.words[Opcode(header["opcode"])] += header["count"]
        self._transport.send(packet)


def test_words_to_a_node(task, monkeypatch):
    """In each step, the host sends a node only inputs, labels, a setting and the program."""
    config = dataclasses.replace(CONFIG, overlap="none", refresh=100, check=True)
    with rings.open_nodes(NODES, config=NODE, timeout=TIMEOUT) as (ring, _):
        run = make_trainer(ring, task, config)
        run.begin()
        run.advance()
        counted = [Counted(device.transport) for device in ring.devices]
        for device, transport in zip(ring.devices, counted, strict=True):
            monkeypatch.setattr(device, "transport", transport)
        loads, programs = 0, [device.read_register("PROGRAM_LOADS") for device in ring.devices]
        for _ in range(3):
            before = [list(run.executor._computer.lengths), *(transport.words.copy() for transport in counted)]
            run.executor._step(run._batches.number + 1, run._batches.take())
            lengths = run.executor._computer.lengths
            loaded = lengths != before[0]
            loads += loaded
            for rank, (examples, transport, words) in enumerate(zip(lengths, counted, before[1:], strict=True)):
                sent = transport.words - words
                again = examples != before[0][rank]
                programs[rank] += again
                assert sent[Opcode.WRITE_MEMORY] == examples * (64 + 1)
                # The learning rate is written in every step, but the number of examples is written only when it
                # changes.
                assert sent[Opcode.WRITE_REGISTER] == 1 + loaded
                # Four lists of sixteen words each are loaded only when a node's number of examples changes.
                assert sent[Opcode.LOAD_PROGRAM] == 16 * 4 * again
                assert not set(sent) & {Opcode.PUSH_COMMAND}
        assert 0 < loads < 3
        assert [device.read_register("PROGRAM_LOADS") for device in ring.devices] == programs


def test_refused_list(task):
    """A damaged list ends the run immediately, and the error names the node and the instruction at fault."""
    with rings.open_nodes(NODES, config=NODE, host_port=False, timeout=TIMEOUT) as (ring, _):
        for overlap in (None, "none"):
            config = dataclasses.replace(CONFIG, overlap=overlap, refresh=100)
            computer = differentiator_of(ring, task, config)
            run = make_trainer(ring, task, config)
            run.begin()
            second = computer.lists.places.lists + 16
            for device in ring.devices[1:2]:
                number = NODE.memory_map["activations"].number
                device.write_memory(number, second, np.array([9], np.uint32))
            with pytest.raises(RingError, match=r"node 1.*: instruction 1 of the list is wrong"):
                run.advance()
            ring.recover()


def test_dead_read(task):
    """If a list reads the output of the first layer with a wrong buffer number, the run ends, and the error names the
    node, the instruction and the row."""
    with rings.open_nodes(NODES, config=NODE, host_port=False, timeout=TIMEOUT) as (ring, _):
        for overlap in (None, "none"):
            config = dataclasses.replace(CONFIG, overlap=overlap, refresh=100)
            lists = differentiator_of(ring, task, config).lists
            run = make_trainer(ring, task, config)
            run.begin()
            # Word 4 of the instruction is operand A of the second layer's product.
            start = lists.commands[1].fields["weight_base"]
            operand = int(lists.words[start - lists.places.lists + 4])
            layout = operand_layout()
            assert from_int(layout, operand)["owner"] == list(lists.places.rooms).index("output 1") + 1
            wrong = to_int(layout, from_int(layout, operand) | {"owner": 200})
            space = NODE.memory_map["activations"].number
            ring.devices[1].write_memory(space, start + 4, np.array([wrong], np.uint32))
            row = lists.places.output(1).base // NODE.lanes
            with pytest.raises(RingError, match=rf"node 1.*: instruction 0 of the list read row {row} of the activ"):
                run.advance()
            ring.recover()


def test_another_plan(task, monkeypatch):
    """Lists are rejected, before any word is sent to a node, if they do not match their memory plan or were written
    without it."""
    units = Array(rows=NODE.compute.rows, lanes=NODE.lanes, operands=NODE.compute.operands)
    with rings.open_nodes(NODES, config=NODE, host_port=False, timeout=TIMEOUT) as (ring, _):
        computer = differentiator_of(ring, task, CONFIG)
        computer.prepare()
        counted = [Counted(device.transport) for device in ring.devices]
        for device, transport in zip(ring.devices, counted, strict=True):
            monkeypatch.setattr(device, "transport", transport)
        layers, base = layers_of((64, 12, 10)), computer.lists.places.lists
        other = compile_lists(layers, array=units, examples=8, words=NODE.compute.activations)
        for wrong in (dataclasses.replace(other, plan=computer.lists.plan),
                      dataclasses.replace(computer.lists, plan=other.plan)):
            with pytest.raises(PlanError, match=r"plan its memory again$"):
                Computer(ring, wrong, task.parameters.size).prepare()
        program = computer.lists.programs[0]
        late = dataclasses.replace(program, words=np.resize(program.words, NODE.compute.activations))
        with pytest.raises(PlanError, match=r"^Memory plan and lists must end within the [\d,]+ words of a node's "
                                            r"activation memory, not at [\d,]+$"):
            ring.compute.write_lists([late], computer.lists.plan)
        refuses(f"List must be one of the program of the memory plan, not the one at {base + 16:,}: write it with a "
                "plan of its own", ring.compute.run_layers, [base, base + 16], [8] * NODES, error=PlanError)
        stray = Command(operation=Operation.LAYERS, weight_base=base + 16, length=8)
        with pytest.raises(PlanError, match=r"^List must be one of the program of the memory plan"):
            ring.programs.load([[[stray], []]] * NODES)
        assert not any(transport.words for transport in counted)


def test_activations_and_gradients(task):
    """After each of three steps, every node holds all activations and gradients of the golden engine."""
    config = dataclasses.replace(CONFIG, refresh=100)
    length = task.parameters.size
    with rings.open_nodes(NODES, config=NODE, host_port=False, timeout=TIMEOUT) as (ring, _):
        run = make_trainer(ring, task, config)
        run.begin()
        lists = run.executor._computer.lists
        for _ in range(3):
            weights = ring.memory.read_weights(length).view(np.uint32)
            batch = run._batches.take()
            run.executor._step(run._batches.number, batch)
            dumps = [ring.memory.read_gradients(length), ring.memory.read_activations(0, NODE.compute.activations)]
            for rank, share in enumerate(np.array_split(batch.examples, NODES)):
                x, labels = task.examples_of(share)
                memories = {Place.GRADIENTS: np.zeros(length, np.uint32), Place.WEIGHTS: weights[rank],
                            Place.ACTIVATIONS: np.full(NODE.compute.activations, POISON)}
                memories[Place.ACTIVATIONS][lists.places.lists:lists.end] = lists.words
                give(memories, lists, x, labels)
                array = Array(rows=NODE.compute.rows, lanes=NODE.lanes, operands=NODE.compute.operands)
                run_lists(memories, lists, array, len(share))
                gradients, activations = (memory[rank].view(np.uint32) for memory in dumps)
                np.testing.assert_array_equal(gradients, memories[Place.GRADIENTS])
                written = memories[Place.ACTIVATIONS] != POISON
                # The memory holds inputs, output, gradients of both outputs, one label per example, the loss, and the
                # lists. Gradients of the hidden layer have overwritten the first scores.
                assert lists.places.outputs[2] == lists.places.gradient(1).base
                scores = (12 * np.arange(len(share))[:, None] + np.arange(10)).ravel()
                kept = (scores >= 8 * len(share)).sum()
                assert written.sum() == len(share) * (64 + 8 + 10 + 8 + 1) + 1 + len(lists.words) + kept
                np.testing.assert_array_equal(activations[written], memories[Place.ACTIVATIONS][written])
