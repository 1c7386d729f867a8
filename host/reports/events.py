"""Write the scalars of training runs as TensorBoard events, using tensorboardX.

Example
-------
::

    with Events(folder, ["adam", "sgd"], measure="accuracy/test") as events:
        events.begin(0, [])
        ...
        events.step(training)  # after each step and each measurement
"""

import contextlib
import importlib.util
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from host.output import prepare
from host.training.record import Step, Training, TrainingConfig

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter

__all__ = ["Events", "needed", "run_name"]


def needed() -> None:
    """Raise ``ValueError`` if TensorBoard events cannot be written."""
    if importlib.util.find_spec("tensorboardX") is None:
        raise ValueError("tensorboardX must be installed for TensorBoard's events: pip install "
                         "gradring[tensorboard], or make .venv/.tensorboard in a clone")


def run_name(config: TrainingConfig) -> str:
    """Return the name of a run and of its folder, which is unique within a command."""
    parts = (config.optimizer.name, None if config.density is None else f"{config.density:.0%}", config.overlap)
    return re.sub(r"[^\w.%]+", "-", "-".join(part for part in parts if part is not None))


def _scalars(step: Step, *, grid: bool, replay: bool) -> Iterator[tuple[str, float | None]]:
    """Return the names and values of a step's scalars. A value is None if the step does not have it."""
    yield "loss/training", step.loss
    yield "cycles/update", step.cycles
    yield "cycles/bound", step.bound or None
    yield "cycles/sparsify", step.sparsify_cycles or None
    yield "words/sent", step.words_sent
    yield "words/raw", step.words_dense
    yield "density/mean", sum(step.density) / len(step.density) if step.density else None
    yield "density/threshold", step.threshold
    if grid:
        yield "rings/nodes", step.nodes
    if replay:
        yield "links/restarts", step.link_restarts
        yield "links/words_repeated", step.words_repeated


class Events(contextlib.AbstractContextManager["Events"]):
    """Context manager for the event files of several runs, each in a folder named after the run.

    A run replaces an earlier run in the same folder: TensorBoard drops the earlier steps. ``measure`` names the
    measurement taken after each epoch or interval. ``grid`` (nodes leave and join) and ``replay`` (links repeat
    words) add further scalars.
    """

    def __init__(self, folder: Path, names: Sequence[str], *, measure: str, grid: bool = False,
                 replay: bool = False):
        needed()
        self._folder = prepare(folder)
        self._names, self._measure, self._grid, self._replay = names, measure, grid, replay
        self._begun: set[int] = set()
        self._writer: SummaryWriter | None = None
        self._steps = self._measures = 0

    def __exit__(self, *exception: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def begin(self, number: int, trainings: Sequence[Training]) -> None:
        """End the previous run and begin run ``number``; write the runs that a checkpoint contains first."""
        for earlier in range(number):
            if earlier not in self._begun:
                self._open(earlier)
                self.step(trainings[earlier])
        self._open(number)

    def _open(self, number: int) -> None:
        from tensorboardX import SummaryWriter

        self._close()
        self._writer = SummaryWriter(str(self._folder / self._names[number]), purge_step=1, flush_secs=10)
        self._begun.add(number)
        self._steps = self._measures = 0

    def step(self, training: Training) -> None:
        """Write all steps and measurements that were added to a run since the last call."""
        assert self._writer is not None
        for step in training.steps[self._steps:]:
            for name, value in _scalars(step, grid=self._grid, replay=self._replay):
                if value is not None:
                    self._writer.add_scalar(name, value, step.number)
        measures = zip(training.measured, training.losses, training.measures, strict=True)
        for at, loss, measure in list(measures)[self._measures:]:
            self._writer.add_scalar("loss/mean", loss, at)
            self._writer.add_scalar(self._measure, measure, at)
        self._steps, self._measures = len(training.steps), len(training.measures)
