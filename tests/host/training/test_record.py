"""Configurations of training runs."""

import pytest

from host.training.optimizers import LEARNING_RATES, SGD, OptimizerName, create
from host.training.record import TrainingConfig


class TestConfig:
    @pytest.mark.parametrize(("options", "message"), [
        ({"epochs": 0}, r"^Epochs must be at least 1, not 0$"),
        ({"batch": -1}, r"^Batch must be at least 1, not -1$"),
        ({"hidden": (3, 0)}, r"^Widths of hidden layers must be at least 1, not \(3, 0\)$"),
        ({"seed": -1}, r"^Seed must be zero or more, and below 2\^63, not -1$"),
        ({"max_steps": 0}, r"^Steps must be at least 1, not 0$"),
        ({"interval": 0}, r"^Interval must be at least 1, not 0$"),
        ({"density": 0.0}, r"^Density must be above 0 and at most 1, not 0.0$"),
        ({"density": 1.5}, r"^Density must be above 0 and at most 1, not 1.5$"),
    ])
    def test_errors(self, options, message):
        with pytest.raises(ValueError, match=message):
            TrainingConfig(**options)

    def test_default_optimizer(self):
        assert TrainingConfig().optimizer == create(OptimizerName.MOMENTUM)
        assert TrainingConfig().optimizer == SGD(learning_rate=LEARNING_RATES[OptimizerName.MOMENTUM], momentum=0.9)
