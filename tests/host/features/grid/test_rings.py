"""Training on golden nodes while the rings of a grid change."""

import dataclasses

import numpy as np
import pytest

from hdl.compression.registry import GRADIENT_CODECS, ZERO_VALUE
from hdl.registry import section
from host.driver.diagnosis import RingError
from host.features.grid.grid import Shape
from host.features.grid.reconfiguration import ReconfigurationPlan, Request, Rings
from host.signals import Interrupted, Signals
from host.training import checkpoint
from host.training.experiment import Checkpointer, Experiment
from host.training.optimizers import SGD, OptimizerName, create
from host.training.record import DivergenceError, TrainingConfig
from host.training.trainer import make_trainer
from host.training.workloads import CharacterModel, Classifier
from host.transports.session import Elapsed
from tests.host.features.grid.golden_grid import Grid
from tests.host.golden import SMALL, TEXT, GoldenRing, trained
from tests.host.training.test_checkpoint import interrupt
from tests.present import needs

CONFIG = TrainingConfig(epochs=3, batch=20, hidden=())
RUNS = {
    "momentum": ({}, CONFIG),
    "adam, bfloat16": ({}, dataclasses.replace(CONFIG, optimizer=create(OptimizerName.ADAM), packed_state=True)),
    "density": ({}, dataclasses.replace(CONFIG, density=0.2)),
    "mx9, density": ({"weight_codec": "mx9", "gradient_codec": "mx9"}, dataclasses.replace(CONFIG, density=0.2)),
    "codebook": ({"weight_codec": "table32", "gradient_codec": "mxfp8_e4m3"},
                 dataclasses.replace(CONFIG, refresh=2, optimizer=SGD(learning_rate=0.5))),
    "sums of integers": ({"gradient_codec": "sum32"}, CONFIG),
    "text": ({}, TEXT),
    "programs in flat rings": ({"programs": section("Programs")()}, CONFIG),
}
#: Requests that make nodes, cards and links of a 2 x 3 grid leave and join. The resulting shapes are grid, flat,
#: flat, grid, grid, flat, unless integers are summed.
REQUESTS = "-node4@1 -card0@2 -node3@2 +card0@3 +node4@3 +node3@3 -node1@4 -node4@4 +node1@5 +node4@5 -link5:1@5"


def reconfiguration_plan(requests=REQUESTS, shape=None, **options):
    return ReconfigurationPlan(2, 3, [
        Request.parse(word[1:], enable=word[0] == "+") for word in requests.split()], shape, **options)


def workload_of(name, few, lines):
    return CharacterModel(lines, SMALL, chunk=5) if name == "text" else Classifier(few, CONFIG.hidden)


def finish(run):
    while not run.complete:
        run.advance()
    run.finish()
    return run.executor.training


@pytest.mark.parametrize("name", RUNS)
def test_every_step_and_change(few, lines, tmp_path, name):
    """Nodes match the golden model in every step, and runs resumed after any step report the same figures."""
    options, config = RUNS[name]
    needs(*["reproducible"] * (name == "sums of integers"))
    gradients = options.get("gradient_codec", ZERO_VALUE)
    shapes = ["flat"] * 5 if GRADIENT_CODECS[gradients].agreed else ["flat", "flat", "grid", "grid", "flat"]
    if name == "text":
        config = dataclasses.replace(config, max_steps=6)

    def begin():
        rings = Rings(Grid(2, 3, **options), reconfiguration_plan(gradients=gradients))
        return rings, make_trainer(rings, workload_of(name, few, lines), config)

    rings, run = begin()
    run.begin()
    expected = finish(run)
    last = trained(rings.ring, run.executor._length, packed_state=config.packed_state)
    assert expected.bit_exact is True
    assert [step.nodes for step in expected.steps[:6]] == [6, 5, 1, 6, 4, 6]
    assert [change.shape for change in expected.changes] == shapes
    assert [(change.left, change.joined) for change in expected.changes] == [
        ([4], []), ([0, 1, 2, 3], []), ([], [0, 1, 2, 3, 4]), ([1, 4], []), ([], [1, 4])]
    kept = rings.ring.formats.has_residual or config.density is not None
    assert [dict(change.heirs) if kept else {} for change in expected.changes] == [
        dict(change.heirs) for change in expected.changes]
    assert [bool(change.heirs) for change in expected.changes] == [kept, kept, False, kept, False]

    rings, run = begin()
    run.begin()
    for number in range(1, len(expected.steps) + 1):
        run.advance()
        checkpoint.save(tmp_path / "file", {}, run.state())
        rings, run = begin()
        run.resume(checkpoint.load(tmp_path / "file", {}))
        assert len(run.executor.training.steps) == number
    run.finish()
    assert run.executor.training == expected
    assert trained(rings.ring, run.executor._length, packed_state=config.packed_state) == last


def test_flat_by_request(few):
    rings = Rings(Grid(2, 3), reconfiguration_plan("-node4@1", Shape.FLAT))
    run = make_trainer(rings, Classifier(few, ()), CONFIG)
    run.begin()
    finish(run)
    assert [plan.shape for plan in rings._grid.switched] == [Shape.FLAT, Shape.FLAT]


def test_mean_over_those_that_are_there(few):
    """Each batch is divided among the active nodes, so the number of nodes affects only rounding."""
    weights = []
    for requests in ("", "-card1@0", "-node4@3 +node4@5"):
        rings = Rings(Grid(2, 3), reconfiguration_plan(requests))
        run = make_trainer(rings, Classifier(few, ()), CONFIG)
        run.begin()
        finish(run)
        weights.append(rings.ring.memory.read_weights(650)[0])
    assert np.abs(weights[0] - weights[1]).max() < 1e-5
    assert np.abs(weights[0] - weights[2]).max() < 1e-5


@pytest.mark.parametrize("at", [0, 2])
def test_lost_words(few, at):
    """A word that was sent but not received is detected at the next reconfiguration or at the end."""
    grid = Grid(2, 3)
    run = make_trainer(Rings(grid, reconfiguration_plan("-node4@2")), Classifier(few, ()), CONFIG)
    run.begin()
    for _ in range(at + 1):
        run.advance()
    grid.lose(3)
    message = r"^Step (2|9): nodes have sent [\d,]+ words since their rings were formed, and received [\d,]+$"
    with pytest.raises(DivergenceError, match=message):
        finish(run)


def failing(number):
    """Create a fault that loses words after a given number of updates."""
    def fault(grid):
        if grid.hooks.steps == number:
            grid.lose(7)
            raise RingError("fused-update failed: a word was lost", cause=None, events=[])
    return fault


@pytest.mark.parametrize("update", [1, 2, 3, 4])
def test_repeated_step(few, update):
    """A failed step is repeated on the same rings, and words lost during it are not reported as missing."""
    outcomes, said = [], []
    for number in (0, update):
        grid = Grid(2, 3, fault=failing(number))
        run = make_trainer(Rings(grid, reconfiguration_plan()), Classifier(few, ()), CONFIG, on_repeat=said.append)
        run.begin()
        training = finish(run)
        assert len(said) == training.repeats == bool(number)
        outcomes.append(dataclasses.replace(training, repeats=0, steps=[
            dataclasses.replace(step, repeats=0, scatter_cycles=0) for step in training.steps]))
    assert outcomes[0] == outcomes[1]


def test_divergence(few):
    """A node state that differs from the golden model is detected at the next change of rings."""
    rings = Rings(Grid(2, 3), reconfiguration_plan("-node4@2"))
    run = make_trainer(rings, Classifier(few, ()), CONFIG)
    run.begin()
    run.advance()
    run.advance()
    momenta = rings.ring.memory.read_state(650).view(np.uint32)
    momenta[7] ^= 1
    rings.ring.memory.write_state(momenta)
    with pytest.raises(DivergenceError, match=r"^Step 2: 1 of 650 momenta differ from the golden model, first num"):
        run.advance()


class Session:
    """Session with a grid of golden nodes and a clock that does not advance."""

    def __init__(self):
        self.grid, self.ring, self.golden = Grid(2, 3), GoldenRing(6), True
        self.seconds, self.faults, self.elapsed = 0.25, 0, Elapsed()


@pytest.mark.parametrize("number", [2, 10, 13])
def test_both_runs(few, tmp_path, number):
    """Two consecutive runs each execute the whole reconfiguration plan, even if resumed after any step."""
    configs = [dataclasses.replace(CONFIG, density=0.2), CONFIG]

    def start(folder, *, resume=False):
        checkpointer = Checkpointer(folder / checkpoint.NAME, {})
        return Experiment(Session(), Classifier(few, ()), configs, checkpointer=checkpointer,
                          reconfiguration=reconfiguration_plan(),
                          content=checkpointer.load() if resume else None)

    whole = start(tmp_path / "whole")
    whole.run(Signals())
    assert [[len(change.nodes) for change in run.changes] for run in whole.trainings] == [[5, 1, 6, 4, 6]] * 2
    with pytest.raises(Interrupted):
        interrupt(start(tmp_path), number)
    again = start(tmp_path, resume=True)
    again.run(Signals())
    assert again.trainings == whole.trainings
    assert again.parameters.tobytes() == whole.parameters.tobytes()
