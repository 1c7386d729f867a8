"""Parts that commands which train on golden nodes have in common: settings of a step, and accuracies in a table."""

import dataclasses
from collections.abc import Iterable, Sequence

from host.driver.masking import MaskJob, Matrices
from host.driver.optimizer_settings import Settings
from host.training.record import TrainingConfig
from sim.golden import optimizer, ring

__all__ = ["falling", "golden_settings", "no_masks", "percentages"]


def golden_settings(settings: Settings) -> optimizer.Settings:
    """Settings in the form that the golden model takes them, for state that is not packed."""
    return ring.settings(**{name: value for name, value in dataclasses.asdict(settings).items()
                            if name != "packed_state"})


def falling(config: TrainingConfig, number: int, *, total: int, examples: int) -> optimizer.Settings:
    """Golden settings of a step of a run, from 1 on, whose learning rate falls to zero in equal parts.

    Parameters
    ----------
    number, total : int
        The step, and steps of the run.
    examples : int
        Examples of the step.
    """
    rule = config.optimizer
    return golden_settings(rule.settings(number, gradient_scale=1 / examples,
                                         learning_rate=rule.learning_rate * (1 - (number - 1) / total)))


def no_masks(jobs: Sequence[Sequence[MaskJob]], alternative: float) -> list[list[Matrices]]:
    """Masks of a workload that has none."""
    raise ValueError("Workload must be one without masks")


def percentages(accuracies: Iterable[float]) -> str:
    """Accuracies of each seed in per cent, as a table has them."""
    return ", ".join(f"{100 * one:.2f}" for one in accuracies)
