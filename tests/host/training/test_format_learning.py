"""Training with formats on golden nodes: host/training/format_learning.py."""

import re

import numpy as np
import pytest

from host.training import format_learning
from host.training.optimizers import SGD
from host.training.record import TrainingConfig
from host.training.trainer import train
from tests.host.golden import GoldenRing


@pytest.mark.parametrize("name", ["raw", "mxfp4_e2m1_up"])
def test_as_the_trainer(few, name):
    """The accuracy is that of the trainer on a ring with these codecs."""
    config = TrainingConfig(epochs=2, batch=10, hidden=(7,), optimizer=SGD(learning_rate=0.3, momentum=0.9))
    accuracy = format_learning.learn(few, config, weights=name, gradients=name, nodes=3)
    expected = train(GoldenRing(3, weight_codec=name, gradient_codec=name), few, config)
    assert accuracy == expected.measures[-1]


def test_command(few, monkeypatch, capsys):
    monkeypatch.setattr(format_learning, "digits", lambda: few)
    assert format_learning.main(["--seeds", "2", "--epochs", "1", "--formats", "mx4,mxfp8_e4m3_up"]) == 0
    rows = re.findall(r"^\| (m\S+) \| ([\d.]+) \| (.*) \|$", capsys.readouterr().out, re.MULTILINE)
    assert [name for name, _, _ in rows] == ["mx4", "mxfp8_e4m3_up"]
    for _, mean, each in rows:
        assert float(mean) == pytest.approx(np.mean([float(one) for one in each.split(", ")]), abs=0.02)
    with pytest.raises(SystemExit):
        format_learning.main(["--formats", "mx7"])
    assert "Format must be one of " in capsys.readouterr().err
