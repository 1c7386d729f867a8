"""Files of a training run: checkpoint and results, and messages after a signal."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console

from hdl.config import Configuration
from hdl.config.forms import as_dict
from host.console import shown
from host.output import claim, prepare, write_bytes
from host.run.sections import SCHEDULES
from host.run.spec import RunSpec, to_toml
from host.schema import write_report
from host.signals import GRACE, Interrupted, Signals, handle_signals
from host.training.checkpoint import NAME
from host.training.experiment import Checkpointer
from host.training.record import TrainingConfig
from host.training.workloads import Workload

__all__ = ["FILES", "advice", "end_interrupted", "identity_of", "open_files", "space", "until_signal",
           "write_results"]

#: Files that `gradring train` may write to its output folder.
FILES = ("report.json", "report.png", "report.html", "run.toml", "weights.npz", NAME,
         *(name for schedule in SCHEDULES.values() for name in schedule.files()))


#: Options, and sections of a node's configuration, that may change when a run with microbatches is continued.
_ELASTIC, _ELASTIC_SECTIONS = ("nodes",), ("memories", "topology")


def identity_of(configs: list[TrainingConfig], node: Configuration, **options: object) -> dict[str, Any]:
    """Return the data that a checkpoint must match: everything that affects results, cycles and words. With
    microbatches, the number of nodes is left out, so that a run can continue on a different number of nodes."""
    configuration = as_dict(node)
    if configs[0].microbatches is not None:
        options = {name: value for name, value in options.items() if name not in _ELASTIC}
        configuration = {name: value for name, value in configuration.items() if name not in _ELASTIC_SECTIONS}
    return {**options, "configuration": configuration, **{
        name: {**dataclasses.asdict(config), "optimizer": {"name": config.optimizer.name,
                                                           **dataclasses.asdict(config.optimizer)}}
        for name, config in zip(("training", "comparison"), configs, strict=False)}}


def space(task: Workload, config: TrainingConfig, nodes: int) -> int:
    """Return the maximum size of the results in bytes: weights, a report, and two simultaneous checkpoints."""
    vectors = 8 + config.optimizer.planes + 2 * nodes
    return 2 * (4 * vectors * task.parameters.size + 4096 * config.steps(task.examples)) + (2 << 20)


def open_files(spec: RunSpec, checkpointer: Checkpointer, say: Callable[[str], None], *, space: int = 0,
               check: Callable[[dict[str, Any]], None] = lambda content: None) -> dict[str, Any] | None:
    """Check that results of ``space`` bytes can be written; return the checkpoint to resume from, if any. Before
    that, ``check`` is called with the checkpoint's contents and may raise ``CheckpointError``."""
    folder = spec.known("output.folder")
    checkpointer.check_key()
    prepare(folder, files=[name for name in FILES if "/" not in name], space=space)
    content = checkpointer.load() if spec.output.resume else None
    if content is not None:
        check(content)
    claim(folder, files=FILES, keep=() if content is None else (NAME,))
    if spec.output.resume:
        say(f"{shown(checkpointer.path)}: " + (
            "there is none, so the run begins at its first step" if content is None else
                                         "the run continues from there"))
    return content


def until_signal(action: Callable[[Signals], None]) -> int:
    """Run steps until they end or a signal stops them between two steps; return the signal number, or 0."""
    with handle_signals(grace=GRACE) as signals:
        try:
            action(signals)
        except Interrupted as interrupted:
            return interrupted.signal
    return 0


def write_results(spec: RunSpec, report: dict[str, Any]) -> Path:
    """Write a run's report and description; return the path of the report."""
    folder = spec.known("output.folder")
    write_bytes(folder / "run.toml", to_toml(spec).encode())
    return write_report(report, folder)


def advice(checkpointer: Checkpointer) -> str:
    """Return advice on how to continue a run that ended early."""
    if not checkpointer.kept:
        return "there is no checkpoint yet, so that the next run begins at its first step"
    return (f"{shown(checkpointer.path)} holds {checkpointer.kept} step{'s' if checkpointer.kept > 1 else ''}: "
            f"the same command with "
            f"--resume (make: RESUME=1) continues from there")


def end_interrupted(number: int, checkpointer: Checkpointer, console: Console) -> NoReturn:
    """Exit after a signal, with advice on how to continue."""
    console.print(f"interrupted; {advice(checkpointer)}", soft_wrap=True)
    raise typer.Exit(128 + number)
