import re

import numpy as np
import pytest

from host.program.schedules import Schedule
from host.training import golden_steps, learning
from host.training.optimizers import SGD
from host.training.record import TrainingConfig
from host.training.trainer import train
from tests.host.golden import GoldenRing

CONFIG = TrainingConfig(max_steps=6, batch=10, hidden=(7, 6), optimizer=SGD(learning_rate=0.3, momentum=0.9))


@pytest.mark.parametrize("schedule", ["none", "layers", "strict", "chunks:2"])
def test_as_the_trainer(few, schedule):
    """Losses and accuracy are those of the trainer on a ring that updates the whole vector, with 2 nodes: sums of two
    do not depend on where the vector is cut."""
    losses = []
    accuracy = learning.learn(few, CONFIG, Schedule.parse(schedule), nodes=2,
                              on_step=lambda number, loss: losses.append(loss))
    expected = train(GoldenRing(2), few, CONFIG)
    assert losses == [step.loss for step in expected.steps]
    assert accuracy == expected.measures[-1]


def test_command(few, monkeypatch, capsys):
    monkeypatch.setattr(learning, "digits", lambda: few)
    monkeypatch.setattr(learning, "DEEP", (5,))
    assert learning.main(["--seeds", "2", "--epochs", "1", "--overlap", "strict", "--nodes", "3"]) == 0
    accuracies = [float(number) for number in re.findall(r"([\d.]+)%", capsys.readouterr().out)]
    assert accuracies[2] == pytest.approx(np.mean(accuracies[:2]), abs=0.02)
    assert learning.main(["--seeds", "1", "--epochs", "1", "--least", "1.01"]) == 1


def test_masks_are_refused():
    with pytest.raises(ValueError, match=r"^Workload must be one without masks$"):
        golden_steps.no_masks([], 0.0)
