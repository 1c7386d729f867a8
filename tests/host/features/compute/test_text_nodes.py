"""The text model on Verilated nodes that compute: bits are identical to the host's, and cycles are as expected."""

import dataclasses

import numpy as np
import pytest

from hdl.config import NodeConfig
from hdl.features.compute.layer_list import Place
from host.features.compute.engine import TextComputer, engine_node, text_lists
from host.features.compute.instructions import Array
from host.training.optimizers import Adam
from host.training.record import FarMemory, TrainingConfig
from host.training.trainer import train
from host.training.updates import check_run
from host.training.workloads import CharacterModel
from tests.host import rings
from tests.host.features.compute.test_text_lists import NAN, memories_of
from tests.host.features.compute.test_text_lists import run as run_lists
from tests.host.golden import GoldenRing

CONFIG = TrainingConfig(max_steps=4, interval=4, batch=6, compute="node", optimizer=Adam(learning_rate=0.02))
FAR = dataclasses.replace(CONFIG, max_steps=1, interval=1, far=FarMemory(activations=6144, rate=1 / 8))
#: Time-out in cycles of a queue that waits for a list.
TIMEOUT = 40_000


@pytest.fixture(scope="module")
def node(text):
    return node_of(text)


def node_of(text):
    """Node with memory for all runs in this file, a third queue and a far memory."""
    task = CharacterModel(text)
    return engine_node(engine_node(NodeConfig(), task, CONFIG, nodes=4), task, FAR, nodes=4)


def test_same_bits(text, node):
    """Weights, moments, losses and held-out losses of four steps on four nodes equal the host's."""
    check_run(node, CharacterModel(text), CONFIG, nodes=4)
    other = GoldenRing(4)
    expected = train(other, CharacterModel(text), dataclasses.replace(CONFIG, compute="host"))
    with rings.open_nodes(4, config=node, host_port=False, timeout=TIMEOUT) as (ring, _):
        training = train(ring, CharacterModel(text), CONFIG)
        np.testing.assert_array_equal(ring.memory.read_weights(len(other.master)).view(np.uint32), other.weights)
    assert [step.loss for step in training.steps] == [step.loss for step in expected.steps]
    assert training.measures == expected.measures
    assert training.bit_exact
    for step in training.steps:  # the busiest nodes run two sequences
        assert 0 < step.vector_cycles < step.gemm_cycles < step.compute_cycles < 2 * 65_000


@pytest.mark.parametrize(("nodes", "together", "most"), [(1, 2, 2 * 65_000), (2, 1, 2 * 71_000)])
def test_activations_and_gradients(text, node, nodes, together, most):
    """After a long and a short sequence, all activations, gradients and losses on each node match the golden engine.
    Sequences run in pairs if the largest share is six, and one at a time if it is three."""
    task = CharacterModel(text)
    lists = text_lists(task, CONFIG, node, nodes, node.compute.activations)
    assert lists.together == together
    sequences = [text.train[0], min(text.train, key=len)]
    task.initialize(1)
    memories = memories_of(task.model, lists, sequences)
    losses = run_lists(memories, lists, Array(rows=node.compute.rows, lanes=node.lanes), len(sequences))
    before = np.full(node.compute.activations, NAN, np.uint32)
    with rings.open_nodes(nodes, config=node, host_port=False, timeout=TIMEOUT) as (ring, _):
        ring.memory.write_weights(task.parameters)
        ring.memory.write_activations([before] * nodes, 0)
        computer = TextComputer(ring, lists)
        computer.prepare()
        computer.give([sequences] * nodes)
        cycles = computer.run()
        assert computer.losses() == [float(sum(losses, np.float32(0)))] * nodes
        activations = ring.memory.read_activations(0, lists.data).view(np.uint32)
        gradients = ring.memory.read_gradients(len(task.parameters)).view(np.uint32)
    for own, gradient in zip(activations, gradients, strict=True):
        np.testing.assert_array_equal(own, memories[Place.ACTIVATIONS][:lists.data])
        np.testing.assert_array_equal(gradient, memories[Place.GRADIENTS])
    assert cycles < most
