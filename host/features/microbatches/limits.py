"""Limits on the number of microbatches."""

from collections.abc import Sequence

from hdl.control.registers import register
from host.training.record import HOST, TrainingConfig
from host.training.workloads import Workload

__all__ = ["MAX_COUNT", "MAX_TOTAL", "check_counts", "check_microbatches"]

#: Maximum number of gradients per node, and of all nodes together.
MAX_COUNT = (1 << register("MICROBATCHES").field("count").width) - 1
MAX_TOTAL = 1 << register("MICROBATCHES").field("total").width - 1


def check_counts(counts: Sequence[int], *, nodes: int, gradients: int) -> None:
    """Raise ``ValueError`` unless ``counts`` assigns all ``gradients``, at least one to each node."""
    if len(counts) != nodes or sum(counts) != gradients or not all(1 <= count <= MAX_COUNT for count in counts):
        raise ValueError(f"Counts must be {nodes} numbers from 1 to {MAX_COUNT} with the sum {gradients}, not "
                         f"{list(counts)}")
    if gradients > MAX_TOTAL:
        raise ValueError(f"Gradients of all nodes must be at most {MAX_TOTAL}, not {gradients}")


def check_microbatches(count: int, workload: Workload, config: TrainingConfig, *, nodes: int) -> None:
    """Raise ``ValueError`` if a run's microbatches cannot be distributed among ``nodes`` nodes, or if the run's
    other options do not allow microbatches."""
    if config.compute != HOST or config.overlap is not None or config.density is not None:
        raise ValueError("Microbatches must be of a run whose gradients are computed on the host and sent whole, "
                         "without a schedule that overlaps passes")
    most = min(MAX_TOTAL, MAX_COUNT * nodes)
    if not nodes <= count <= most:
        raise ValueError(f"Microbatches must be between the number of nodes, {nodes}, and {most}, not {count!r}")
    smallest = config.smallest(workload.examples)
    if count > smallest:
        raise ValueError(f"Microbatches must be at most the {smallest:,} examples of the smallest batch, not "
                         f"{count:,}: take a larger --batch")
