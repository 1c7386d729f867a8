# amaranth: UnusedElaboratable=no
"""Training by stale schedules: without layers behind the same bits as one step after the other, checkpoints at the
ends of blocks, losses of nodes that compute, repeats, and refusals."""

import dataclasses
import itertools

import numpy as np
import pytest

from hdl.config import NodeConfig
from hdl.group import GROUP
from host.driver.buffers import Buffer
from host.models.digits import Dataset
from host.training import checkpoint
from host.training.optimizers import SGD
from host.training.record import DivergenceError, TrainingConfig
from host.training.schedule import counted, doubled, programmed
from host.training.stale_run import run_of
from host.training.trainer import check_run
from host.training.workloads import Classifier
from tests.host import rings

NODES = 3
NODE = rings.CONFIGS["centroid"]
#: Three layers, and a codebook that is made anew in between: blocks of two steps, and one of a single step.
CONFIG = TrainingConfig(max_steps=5, batch=24, hidden=(8, 8), refresh=2, macs=4,
                        optimizer=SGD(learning_rate=0.2, momentum=0.9))


@pytest.fixture(scope="module")
def task(data):
    few = Dataset(data.train_x[:96], data.train_y[:96], data.test_x[:50], data.test_y[:50], data.classes)
    return Classifier(few, CONFIG.hidden, align=GROUP)


def open_ring():
    return rings.open_nodes(NODES, config=NODE, host_port=False, timeout=20_000)


def train(ring, task, config, **options):
    run = run_of(ring, task, config, **options)
    run.begin()
    while not run.complete:
        run.advance()
    return run.finish()


def contents(ring, length):
    return [vector.view(np.uint32).copy() for vector in (
        ring.read_weights(length), ring.read_weights(Buffer("weights", length, length)), ring.read_master(length))]


def test_bits_and_cycles(task):
    """With no layer behind, weights and losses are those of steps one after the other; with some behind, others,
    equal to those of golden, in fewer cycles."""
    length = task.parameters.size
    with open_ring() as (ring, _):
        expected = train(ring, task, dataclasses.replace(CONFIG, overlap="layers"))
        weights = contents(ring, length)[0]
        cycles = []
        for behind in (0, 1, 3):
            training = train(ring, task, dataclasses.replace(CONFIG, overlap=f"stale:{behind}"))
            assert training.bit_exact is True
            assert [step.words_sent > 0 for step in training.steps] == [True] * CONFIG.max_steps
            if behind == 0:
                assert training.losses == expected.losses
                assert training.measures == expected.measures
                assert np.array_equal(contents(ring, length)[0], weights)
            else:
                assert training.losses != expected.losses
            cycles.append(training.steps[1].cycles)  # the second step of a block
            assert all(abs(step.cycles - step.modelled_cycles) <= 0.03 * step.cycles for step in training.steps)
        assert cycles[1] < 0.8 * cycles[0]
        assert cycles[2] <= 1.01 * cycles[1]


def test_goes_on(task, tmp_path):
    """A run that is taken apart after every block, and goes on with other nodes, has the bits of an unbroken one."""
    config, path = dataclasses.replace(CONFIG, overlap="stale:2"), tmp_path / checkpoint.NAME
    with open_ring() as (ring, _):
        expected = train(ring, task, config)
        masters = contents(ring, task.parameters.size)[2]
    for number in itertools.count():
        with open_ring() as (ring, _):
            run = run_of(ring, task, config)
            if number:
                run.resume(checkpoint.load(path, {}))
            else:
                run.begin()
            if run.complete:
                found = run.finish()
                assert np.array_equal(contents(ring, task.parameters.size)[2], masters)
                break
            run.advance()
            checkpoint.save(path, {}, run.state())
    assert number == 3
    assert (found.losses, found.measures) == (expected.losses, expected.measures)
    assert [step.loss for step in found.steps] == [step.loss for step in expected.steps]


def test_repeats(task):
    """A block that fails is done again from its beginning, and a golden model that differs is found."""
    said, config = [], dataclasses.replace(CONFIG, overlap="stale:2")
    with open_ring() as (ring, simulation):
        expected = train(ring, task, config)
        masters = contents(ring, task.parameters.size)[2]
        run_programs, calls = ring.run_programs, []

        def damaged(**options):
            calls.append(options)
            if len(calls) == 2:
                link = simulation.links[1]
                link.corrupt(word=link.status().words_carried + 200, bit=7)
            return run_programs(**options)

        ring.run_programs = damaged
        training = train(ring, task, config, on_repeat=said.append)
        assert (training.repeats, len(said)) == (1, 1)
        assert said[0].startswith("block of steps 3 to 4 is repeated: ")
        assert training.losses == expected.losses
        assert np.array_equal(contents(ring, task.parameters.size)[2], masters)
        ring.run_programs = run_programs
        run = run_of(ring, task, config)
        run.begin()
        ring.write_master(np.zeros(task.parameters.size, np.float32))
        with pytest.raises(DivergenceError, match=r"^Step 2: .* weights"):
            run.advance()


def test_nodes_that_compute(data):
    """Losses of the last step of each block and scores of the test set are those of golden."""
    few = Dataset(data.train_x[:24], data.train_y[:24], data.test_x[:8], data.test_y[:8], data.classes)
    small = Classifier(few, (4,), align=GROUP)
    config = dataclasses.replace(CONFIG, batch=6, hidden=(4,), compute="node", overlap="stale:1")
    with open_ring() as (ring, _):
        assert train(ring, small, config).bit_exact is True


def test_refusals(task):
    config = dataclasses.replace(CONFIG, overlap="stale:2")
    check_run(NODE, task, config, nodes=NODES)
    with pytest.raises(ValueError, match=r"^Nodes must have versions and masters for schedule stale:2$"):
        check_run(programmed(NodeConfig(), 928, 3), task, config, nodes=NODES)
    with pytest.raises(ValueError, match=r"^Layers one update behind must be at most all 3, not 4$"):
        check_run(NODE, task, dataclasses.replace(config, overlap="stale:4"), nodes=NODES)
    with pytest.raises(ValueError, match=r"^Two copies of weights must take at most the 1,024 elements of a node's "
                                         r"weight memory, not 1,376$"):
        check_run(dataclasses.replace(NODE, weight_words=1024), task, config, nodes=NODES)


def test_nodes(task):
    config = dataclasses.replace(CONFIG, overlap="stale:2")
    node = counted(NodeConfig(), config)
    assert (node.queues, node.versions, node.masters) == (2, True, True)
    assert counted(NodeConfig(), CONFIG) == NodeConfig()
    assert doubled(dataclasses.replace(node, weight_words=512), task, config, nodes=2).weight_words == 2048
