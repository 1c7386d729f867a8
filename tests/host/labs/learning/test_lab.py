"""Accuracy studies on golden nodes: host/labs/learning/lab.py."""

import re

import numpy as np
import pytest

from host.labs.learning import lab as learning
from host.training.comparison import no_masks
from host.training.optimizers import SGD
from host.training.record import TrainingConfig
from host.training.trainer import train
from tests.host.golden import GoldenRing
from tests.refusals import refuses

CONFIG = TrainingConfig(max_steps=6, batch=10, hidden=(7, 6), optimizer=SGD(learning_rate=0.3, momentum=0.9))


@pytest.mark.parametrize("schedule", ["none", "layers", "strict", "chunks:2"])
def test_schedules(few, schedule):
    """Losses and accuracy match a ring that updates the whole vector. With two nodes, sums do not depend on how the
    vector is partitioned."""
    steps = []
    config = TrainingConfig(**{**vars(CONFIG), "overlap": schedule})
    accuracy = learning.learn(few, config, nodes=2, on_step=lambda training: steps.append(training.steps[-1]))
    expected = train(GoldenRing(2), few, CONFIG)
    assert list(dict.fromkeys(step.loss for step in steps)) == [step.loss for step in expected.steps]
    assert accuracy == expected.measures[-1]


@pytest.mark.parametrize("name", ["raw", "mxfp4_e2m1_up"])
def test_formats(few, name):
    """The lab reports the same accuracy as training on a ring with the same codecs."""
    config = TrainingConfig(epochs=2, batch=10, hidden=(7,), optimizer=SGD(learning_rate=0.3, momentum=0.9))
    accuracy = learning.learn(few, config, nodes=3, format=name)
    expected = train(GoldenRing(3, weight_codec=name, gradient_codec=name), few, config)
    assert accuracy == expected.measures[-1]


@pytest.mark.parametrize(("options", "rows"), [
    (("schedules", "--values", "strict,delayed:1", "--hidden", "5", "--nodes", "3"),
     ["strict, rate 0.02", "delayed:1, rate 0.02"]),
    (("formats", "--values", "mx4,mxfp8_e4m3_up"), ["mx4", "mxfp8_e4m3_up"]),
    (("formats", "--compute", "--values", "bf16"), ["bf16"]),
])
def test_command(few, monkeypatch, run, options, rows):
    """The table has one row per value, with the mean over its seeds."""
    monkeypatch.setattr(learning, "digits", lambda: few)
    code, printed, _ = run("lab", "learning", *options, "--seeds", "2", "--epochs", "1")
    assert code == 0
    table = re.findall(r"^(\S.*?) {2,}([\d.]+) +([\d., ]+?) *$", printed, re.MULTILINE)
    assert [name for name, _, _ in table] == rows
    for _, mean, each in table:
        assert float(mean) == pytest.approx(np.mean([float(value) for value in each.split(", ")]), abs=0.02)


def test_least_accuracy(few, monkeypatch, run):
    monkeypatch.setattr(learning, "digits", lambda: few)
    options = ["formats", "--values", "raw", "--seeds", "1", "--epochs", "1", "--least"]
    assert [run("lab", "learning", *options, least)[0] for least in ("0", "1")] == [0, 1]


@pytest.mark.parametrize(("options", "message"), [
    (("formats", "--values", "mx7"), "Format must be one of "),
    (("formats", "--values", "raw,sum32"),
     "error: Format must be one of weights and gradients, since a row has both in the same format, not sum32, which "
     "is of gradients only: choose another one, or train with --gradients sum32 and other weights\n"),
    (("formats", "--values", "table32"), "not table32, which is of weights only: "),
    (("formats", "--compute", "--values", "mx7"), "must be one of "),
    (("schedules", "--values", "fast"), "must be one of none, "),
])
def test_errors(run, options, message):
    code, out, error = run("lab", "learning", *options)
    assert (code, out) == (1, "")
    assert message in error


def test_masks_are_refused():
    refuses("Workload must be one without masks", no_masks, [], 0.0)
