"""Files of a training run: its identity in a checkpoint, the room that it needs, and advice on how to go on."""

import dataclasses
from typing import Any

from hdl.config import Configuration
from hdl.config.forms import as_dict
from hdl.ring.slots.job_table import JOBS
from host.console import shown
from host.reports.measured import timeline_names
from host.training.checkpoint import NAME
from host.training.experiment import Experiment, Keeper
from host.training.record import TrainingConfig
from host.training.workloads import Workload

__all__ = ["FILES", "advice", "identity_of", "space"]

#: Files that a run of `gradring train` of any kind may write in its output folder.
FILES = ("report.json", "report.png", "report.html", "run.toml", "weights.npz", NAME, *timeline_names(),
         *(f"job-{job}/report.json" for job in range(JOBS)))


def identity_of(configs: list[TrainingConfig], node: Configuration, **options: object) -> dict[str, Any]:
    """Everything that the bits and the report of a run depend on."""
    names = ("training", "comparison")
    return {**options, "configuration": as_dict(node), **{
        name: {**dataclasses.asdict(config), "optimizer": {"name": config.optimizer.name,
                                                           **dataclasses.asdict(config.optimizer)}}
        for name, config in zip(names, configs, strict=False)}}


def space(task: Workload, config: TrainingConfig, nodes: int) -> int:
    """Bytes that the results take at the most: two checkpoints, one beside the other, weights, and a report."""
    vectors = 8 + config.optimizer.planes + 2 * nodes
    return 2 * (4 * vectors * task.parameters.size + 4096 * config.steps(task.examples)) + (2 << 20)


def advice(experiment: Experiment, keeper: Keeper) -> str:
    """Advice on how a run that has ended early can go on."""
    if not experiment.kept:
        return "there is no checkpoint yet, so that the next run begins at the first step"
    return (f"{shown(keeper.path)} holds {experiment.kept} steps: the same command with --resume (make: RESUME=1) "
            f"goes on from there")
