"""Limits of the number of microbatches."""

from host.training.record import TrainingConfig
from host.training.workloads import Workload

__all__ = ["MOST", "check_microbatches"]

#: Largest number of microbatches in a step.
MOST = 256


def check_microbatches(workload: Workload, config: TrainingConfig, *, nodes: int) -> None:
    """Raise ``ValueError`` if a run's microbatches cannot be distributed among ``nodes`` nodes."""
    count, most = config.microbatches, min(MOST, 255 * nodes)
    assert count is not None
    if not nodes <= count <= most:
        raise ValueError(f"Microbatches must be between the number of nodes, {nodes}, and {most}, not {count!r}")
    examples = workload.examples
    smallest = examples // -(-examples // config.batch)
    if count > smallest:
        raise ValueError(f"Microbatches must be at most the {smallest:,} examples of a batch, not {count:,}: take a "
                         "larger --batch")
