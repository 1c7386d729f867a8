"""TensorBoard events of training runs are written and read back."""

import dataclasses

import numpy as np
import pytest

from host import cli
from host.reports import events
from host.training.optimizers import SGD, Adam
from host.training.record import TrainingConfig
from tests.host.reports.test_report import training
from tests.refusals import refuses
from tests.tensorboard_events import scalars


def begun(whole, steps, measures):
    """Return a training run with only the first steps and measurements of a whole run."""
    return dataclasses.replace(whole, steps=whole.steps[:steps], losses=whole.losses[:measures],
                               measures=whole.measures[:measures], measured=whole.measured[:measures])


def close(actual, expected):
    assert list(actual) == list(range(1, len(expected) + 1))
    assert list(actual.values()) == [float(np.float32(value)) for value in expected]


def test_every_step_and_measurement(tmp_path):
    whole = training()
    with events.Events(tmp_path / "new", ["momentum"], measure="accuracy/test") as file:
        file.begin(0, [])
        for steps, measures in ((1, 0), (2, 0), (2, 1), (5, 2), (6, 2), (6, 3)):
            file.step(begun(whole, steps, measures))
    series = scalars(tmp_path / "new" / "momentum")
    assert set(series) == {"loss/training", "loss/mean", "accuracy/test", "cycles/update", "cycles/bound",
                           "words/sent", "words/raw", "density/mean"}
    close(series["loss/training"], [step.loss for step in whole.steps])
    close(series["cycles/update"], [step.cycles for step in whole.steps])
    close(series["words/sent"], [step.words_sent for step in whole.steps])
    close(series["density/mean"], [np.mean(step.density) for step in whole.steps])
    assert series["accuracy/test"] == {at: float(np.float32(measure)) for at, measure in
                                       zip(whole.measured, whole.measures, strict=True)}
    assert series["loss/mean"] == {2: 1.5, 4: 0.5, 6: 0.25}


def test_of_a_node_without_links(tmp_path):
    alone = training(nodes=1)
    alone.steps[0] = dataclasses.replace(alone.steps[0], density=[], threshold=0.5, sparsify_cycles=40)
    with events.Events(tmp_path, ["sgd"], measure="accuracy/test") as file:
        file.begin(0, [])
        file.step(begun(alone, 1, 0))
    series = scalars(tmp_path / "sgd")
    assert "density/mean" not in series
    assert (series["density/threshold"], series["cycles/sparsify"]) == ({1: 0.5}, {1: 40})


def test_nodes_and_repairs(tmp_path):
    """On a grid with replay, events include the number of nodes in each step and the words that links repeat."""
    whole = training()
    whole.steps = [dataclasses.replace(step, nodes=5 - step.number // 2, link_restarts=step.number - 1,
                                       words_repeated=10 * step.number) for step in whole.steps]
    with events.Events(tmp_path, ["sgd"], measure="accuracy/test", grid=True, replay=True) as file:
        file.begin(0, [])
        file.step(whole)
    series = scalars(tmp_path / "sgd")
    close(series["rings/nodes"], [5, 4, 4, 3, 3, 2])
    close(series["links/restarts"], range(6))
    close(series["links/words_repeated"], range(10, 70, 10))


def test_run_that_goes_on(tmp_path):
    """After a resume, steps since the checkpoint are written again, and their earlier events are discarded."""
    whole, second = training(), training(steps=4, losses=[1.0], measures=[0.5], measured=[4])
    with events.Events(tmp_path, ["adam", "sgd"], measure="accuracy/test") as file:
        file.begin(0, [])
        file.step(begun(whole, 5, 2))
    steps = [dataclasses.replace(step, loss=step.loss + 1) for step in whole.steps]
    changed = dataclasses.replace(whole, steps=steps)
    with events.Events(tmp_path, ["adam", "sgd"], measure="accuracy/test") as file:
        file.begin(1, [changed])
        file.step(second)
    close(scalars(tmp_path / "adam")["loss/training"], [step.loss for step in steps])
    close(scalars(tmp_path / "sgd")["loss/training"], [step.loss for step in second.steps])
    assert scalars(tmp_path / "sgd")["accuracy/test"] == {4: 0.5}


@pytest.mark.parametrize(("options", "name"), [
    ({}, "momentum"), ({"density": 0.1}, "momentum-10%"), ({"optimizer": Adam()}, "adam"),
    ({"optimizer": SGD(learning_rate=1)}, "sgd"), ({"overlap": "chunks:2"}, "momentum-chunks-2"),
])
def test_names(options, name):
    assert events.run_name(TrainingConfig(**options)) == name


def test_writer_is_needed(monkeypatch, tmp_path):
    """If no package for writing events is installed, an error says so before anything is built or written."""
    monkeypatch.setattr(events.importlib.util, "find_spec", lambda name: None)
    message = ("tensorboardX must be installed for TensorBoard's events: pip install gradring[tensorboard], or make "
               ".venv/.tensorboard in a clone")
    refuses(message, events.Events, tmp_path / "new", ["sgd"], measure="accuracy/test")
    refuses(message, cli.app, ["train", "--tensorboard", str(tmp_path / "new"), "--output", str(tmp_path / "out")],
            standalone_mode=False)
    assert list(tmp_path.iterdir()) == []
