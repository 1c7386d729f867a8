"""Training with overlapping passes: bits, losses, checkpoints, retries and rejected configurations."""

import dataclasses
import itertools

import numpy as np
import pytest

from hdl.config import NodeConfig
from hdl.group import GROUP
from host.driver.diagnosis import RingError
from host.driver.memory import Buffer, distance_of
from host.features.programs.delayed import OverlappingExecution
from host.features.programs.execution import programmed
from host.models.digits import Dataset
from host.training import checkpoint
from host.training.optimizers import SGD
from host.training.record import DivergenceError, TrainingConfig, TrainingError
from host.training.trainer import make_trainer
from host.training.updates import check_run
from host.training.workloads import Classifier
from sim.golden.features.programs.program import Span
from tests.host import rings

NODES = 3
NODE = rings.CONFIGS["wide"]
#: Three layers. A block consists of the steps between two measurements of accuracy.
CONFIG = TrainingConfig(max_steps=7, interval=4, batch=24, hidden=(10, 10), macs=4,
                        optimizer=SGD(learning_rate=0.2, momentum=0.9))


@pytest.fixture(scope="module")
def task(data):
    few = Dataset(data.train_x[:96], data.train_y[:96], data.test_x[:50], data.test_y[:50], data.classes)
    return Classifier(few, CONFIG.hidden, align=GROUP)


def run_of(ring, task, overlap, **options):
    config = dataclasses.replace(CONFIG, overlap=overlap)
    return make_trainer(ring, task, config, **options)


def finish(run):
    while not run.complete:
        run.advance()
    run.finish()
    return run.executor.training


def train(ring, task, overlap, **options):
    run = run_of(ring, task, overlap, **options)
    run.begin()
    return finish(run)


def contents(ring, length):
    """Bits of the master weights and momenta. Weights need no comparison, as master weights determine them."""
    return [vector.view(np.uint32) for vector in (ring.memory.read_master(length), ring.memory.read_state(length))]


def test_behind(task):
    """With no delayed layers, bits and losses are the same as without overlap of passes. With one, two or all layers
    delayed, bits match the golden model, losses differ from the second step on, and steps take fewer cycles."""
    length = task.parameters.size
    with rings.open_nodes(NODES, config=NODE, host_port=False) as (ring, _):
        expected = train(ring, task, "layers")
        bits = contents(ring, length)
        cycles = {}
        for behind in range(4):
            said = []
            training = train(ring, task, f"delayed:{behind}",
                             on_step=lambda progress, said=said: said.append(len(progress.steps)))
            assert training.bit_exact is True
            assert [device.read_register("PROGRAM_LOADS") for device in ring.devices] == [1] * NODES
            losses = [step.loss for step in training.steps]
            assert losses[0] == expected.steps[0].loss
            same = all(map(np.array_equal, contents(ring, length), bits))
            assert same == (losses == [step.loss for step in expected.steps])
            assert same == (behind == 0)
            # The callback is called after each step and after each measurement.
            assert said == [1, 2, 3, 4, 4, 5, 6, 7, 7]
            assert training.measured == [4, 7]
            cycles[behind] = sum(step.cycles for step in training.steps)
            for step in training.steps:
                assert (step.schedule, step.nodes) == (f"delayed:{behind}", NODES)
                # The first update of a pass may end before the last update of the previous pass has been read.
                assert abs(step.cycles - step.modelled_cycles) <= 0.03 * step.modelled_cycles
            spans = [Span(*row) for row in training.timeline]
            assert {span.number for span in spans} == {0, 1, 2}
            begins = {(span.number, span.node): span.start for span in spans if span.name == "forward 1"}
            ends = {(span.number, span.node): span.end for span in spans if span.name == "update 1"}
            overlapping = [begins[number, node] < ends[number - 1, node] for number, node in begins if number]
            assert all(overlapping) if behind else not any(overlapping)
        assert cycles[1] < cycles[0]


def test_goes_on(task, tmp_path):
    """A run that is stopped after every block of up to two steps and resumed on other nodes is bit-identical to an
    uninterrupted run, including the losses."""
    path = tmp_path / checkpoint.NAME
    with rings.open_nodes(NODES, config=NODE, host_port=False) as (ring, _):
        expected = train(ring, task, "delayed:2")
        bits = contents(ring, task.parameters.size)
    for steps in (0, 2, 4, 6, 7):
        with rings.open_nodes(NODES, config=NODE, host_port=False) as (ring, _):
            run = run_of(ring, task, "delayed:2", every=2)
            if steps:
                run.resume(checkpoint.load(path, {}))
            else:
                run.begin()
            assert len(run.executor.training.steps) == steps
            if run.complete:
                run.finish()
                training = run.executor.training
                assert (training.losses, training.measures) == (expected.losses, expected.measures)
                assert [step.loss for step in training.steps] == [step.loss for step in expected.steps]
                assert all(map(np.array_equal, contents(ring, task.parameters.size), bits))
            else:
                run.advance()
                checkpoint.save(path, {}, run.state())


def test_repeated(task, monkeypatch):
    """A failed block is repeated from its start, with both copies of the weights restored."""
    do, failures = OverlappingExecution.run_block, [3]

    def run_block(self, settings, *, first, give):
        result = do(self, settings, first=first, give=give)
        if [len(settings)] == failures:
            failures.pop()
            raise RingError("a word was lost", cause=None, events=[None] * NODES)
        return result

    with rings.open_nodes(NODES, config=NODE, host_port=False) as (ring, _):
        expected = train(ring, task, "delayed:1")
        bits, said = contents(ring, task.parameters.size), []
        monkeypatch.setattr(OverlappingExecution, "run_block", run_block)
        training = train(ring, task, "delayed:1", on_repeat=said.append)
        assert said == ["steps 5 to 7 is repeated: a word was lost"]
        assert [step.repeats for step in training.steps] == [0, 0, 0, 0, 1, 1, 1]
        assert training.losses == expected.losses
        assert all(map(np.array_equal, contents(ring, task.parameters.size), bits))


def test_nan(task, monkeypatch):
    """Nodes report a NaN only at the end of a block, but the error names the step, node and parameter it came
    from."""
    calls, differentiate = itertools.count(1), task.differentiate

    def planted(shares, masks):
        results = differentiate(shares, masks)
        if next(calls) == 3:
            task._model.views(results[1][1])[2]["bias"][4] = np.nan
        return results

    monkeypatch.setattr(task, "differentiate", planted)
    text = r"^Step 3: NaN among the gradients of node [0-9, ]*1.* \(nan of node 1 is in bias \(4\) of layer 2\); "
    with rings.open_nodes(NODES, config=NODE, host_port=False) as (ring, _), pytest.raises(TrainingError, match=text):
        train(ring, task, "delayed:1")


@pytest.mark.parametrize(("steps", "name"), [(1, "weights"), (2, "weights of the second copy")])
def test_divergence(task, steps, name):
    """If a bit is wrong in the weights kept for the next pass, the error names the node and the element."""
    with rings.open_nodes(NODES, config=NODE, host_port=False) as (ring, _):
        run = run_of(ring, task, "delayed:2", every=1)
        run.begin()
        for _ in range(steps):
            run.advance()
        where = Buffer("weights", 0 if steps == 1 else distance_of(NODE), GROUP)
        weights = ring.memory.read_weights(where)
        weights.view(np.uint32)[1, 7] ^= 1
        ring.memory.write_weights_of(list(weights), where)
        with pytest.raises(DivergenceError, match=f"Step {steps + 1}: 1 of [0-9]+ {name} of node 1 differ from the "
                                                  f"golden model, first number 7"):
            run.advance()


def test_refused(task):
    """Nodes and runs that cannot overlap passes are rejected, each with its reason."""
    config = dataclasses.replace(CONFIG, overlap="delayed:1")
    check_run(NODE, task, config, nodes=NODES)
    check_run(programmed(NodeConfig(), task.parameters.size, 3, stale=True, nodes=NODES), task, config, nodes=NODES)
    with pytest.raises(ValueError, match="Nodes must count updates of weights and have masters for passes that"):
        check_run(programmed(NodeConfig(), task.parameters.size, 3), task, config, nodes=NODES)
    with pytest.raises(ValueError, match="Weights must go through a codec without a codebook in passes that overlap, "
                                         "not centroid16"):
        check_run(rings.CONFIGS["centroid"], task, config, nodes=NODES)
    with pytest.raises(ValueError, match="Layers one update behind must be at most all 3, not 4"):
        check_run(NODE, task, dataclasses.replace(config, overlap="delayed:4"), nodes=NODES)
