"""Configurations of training runs: valid and invalid values."""

import pytest

from host.training.optimizers import LEARNING_RATES, SGD, OptimizerName, create
from host.training.record import TrainingConfig
from tests.refusals import refuses


class TestConfig:
    @pytest.mark.parametrize(("options", "message"), [
        ({"epochs": 0}, "Epochs must be at least 1, not 0"),
        ({"batch": -1}, "Batch must be at least 1, not -1"),
        ({"hidden": (3, 0)}, "Widths of hidden layers must be at least 1, not (3, 0)"),
        ({"seed": -1}, "Seed must be zero or more, and below 2^63, not -1"),
        ({"max_steps": 0}, "Steps must be at least 1, not 0"),
        ({"interval": 0}, "Interval must be at least 1, not 0"),
        ({"density": 0.0}, "Density must be above 0 and at most 1, not 0.0"),
        ({"density": 1.5}, "Density must be above 0 and at most 1, not 1.5"),
    ])
    def test_errors(self, options, message):
        refuses(message, TrainingConfig, **options)

    def test_default_optimizer(self):
        assert TrainingConfig().optimizer == create(OptimizerName.MOMENTUM)
        assert TrainingConfig().optimizer == SGD(learning_rate=LEARNING_RATES[OptimizerName.MOMENTUM], momentum=0.9)
