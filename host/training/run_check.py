"""Check of a training run before there is a ring."""

from hdl.config import Configuration
from host.training.density import check_zeros
from host.training.number_format import check_optimizer
from host.training.record import TrainingConfig
from host.training.schedule import check_schedule
from host.training.workloads import Workload, WorkloadName

__all__ = ["check_run"]


def check_run(node: Configuration, workload: Workload, config: TrainingConfig, *, nodes: int) -> None:
    """Check that a ring of such nodes can do a training run, before there is one.

    Raises
    ------
    ValueError
        The ring cannot do the run; the message says why.
    """
    if node.is_int16:
        if workload.name is not WorkloadName.DIGITS:
            raise ValueError(f"Workload of int16 nodes must be digits, not {workload.name.value}")
        check_optimizer(config.optimizer)
    if config.density is not None and not node.sparsify:
        raise ValueError("Nodes must have error feedback for a density, to keep the elements that they do not send")
    if config.density is not None:
        check_zeros(node.gradients)
    config.allocation(workload.parameters.size).check(node, nodes=nodes)
    check_schedule(node, workload, config, nodes=nodes)
