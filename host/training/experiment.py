"""A training run and the run that it is compared with, with checkpoints and signal handling.

Example
-------
::

    experiment = Experiment(session, task, [config, plain],
                            checkpointer=Checkpointer(folder / NAME, identity), resume=True)
    try:
        experiment.run()
    except Interrupted as interrupted:
        ...  # experiment.trainings has the steps so far
"""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from host.checkpoints.device_frame import DeviceFrame
from host.checkpoints.keys import user_key
from host.driver.ring import Ring
from host.feature import feature
from host.models.layers import Array
from host.signals import Signals
from host.training import checkpoint
from host.training.record import Training, TrainingConfig
from host.training.stages import RingStages
from host.training.trainer import Trainer, make_trainer
from host.training.updates import UpdateExecutor
from host.training.workloads import Workload
from host.transports.session import Elapsed, Session

__all__ = ["Checkpointer", "Experiment"]


@dataclasses.dataclass
class Checkpointer:
    """Checkpoint file, and the steps after which it is written."""

    path: Path
    #: Options of the run, which a checkpoint stores together with the software versions.
    identity: dict[str, Any]
    #: Number of steps between checkpoints, in addition to one after the last step. By default, a checkpoint is
    #: written whenever the model is measured; 0 means no checkpoints.
    steps: int | None = None
    #: Number of steps, over all runs, in the most recent checkpoint.
    kept: int = 0

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 0:
            raise ValueError(f"Steps between checkpoints must be zero or more, not {self.steps!r}")

    def due(self, trainer: Trainer[Any]) -> bool:
        """Whether a checkpoint must be written after the latest step."""
        if self.steps is None:
            return trainer.due
        return self.steps > 0 and (trainer.complete or trainer.number % self.steps == 0)

    def check_key(self) -> None:
        """Call :func:`host.checkpoints.keys.user_key` to raise its errors early, unless checkpoints are disabled."""
        if self.steps != 0:
            user_key()

    def save(self, content: dict[str, Any], kept: int, **device: DeviceFrame) -> None:
        """Write the checkpoint file after ``kept`` steps, unless checkpoints are disabled; ``device`` is optional."""
        if self.steps != 0:
            checkpoint.save(self.path, self._whole(), content, **device)
            self.kept = kept

    def load(self) -> dict[str, Any] | None:
        """Return the content of the checkpoint file, or None if there is no file."""
        try:
            content: dict[str, Any] = checkpoint.load(self.path, self._whole())
        except FileNotFoundError:
            return None
        return content

    def _whole(self) -> dict[str, Any]:
        return {"options": self.identity, "versions": checkpoint.versions()}


class Experiment:
    """Successive training runs on the same ring, each with its own configuration.

    If ``content`` from :meth:`Checkpointer.load` is given, the runs continue from it. On a grid, a
    :class:`host.features.grid.reconfiguration.ReconfigurationPlan` defines the rings of each run.
    """

    def __init__(self, session: Session, task: Workload, configs: list[TrainingConfig], *, checkpointer: Checkpointer,
                 content: dict[str, Any] | None = None, reconfiguration: Any = None):
        self._session, self._task, self._configs = session, task, configs
        self._checkpointer, self._content, self._reconfiguration = checkpointer, content, reconfiguration
        #: Results of each training run that has begun.
        self.trainings: list[Training] = []
        #: Parameters after the first run, or None before it has ended.
        self.parameters: Array | None = None
        #: Cycles that the first run has taken.
        self.elapsed = Elapsed()
        #: Seconds that each run has taken.
        self.seconds = [0.0] * len(configs)
        #: Time in seconds that the first run has spent in the simulation.
        self.simulation_seconds = 0.0

    def run(self, signals: Signals, *, on_run: Callable[[int], None] = lambda number: None,
            on_step: Callable[[Training], None] = lambda training: None,
            on_repeat: Callable[[str], None] = lambda line: None) -> None:
        """Execute all runs. Raises ``Interrupted`` after a signal. ``on_run`` is called before each run with its
        number, starting at 0; :func:`~host.training.trainer.make_trainer` explains ``on_step`` and ``on_repeat``."""
        content, self._content = self._content, None
        first, state = 0, None
        if content is not None:
            first, state = content["run"], content["state"]
            self.trainings = [Training.from_figures(figures) for figures in content["trainings"]]
            self.parameters = content["parameters"]
            self.seconds, self.simulation_seconds = list(content["seconds"]), content["simulation_seconds"]
            self.elapsed = Elapsed(*content["elapsed"])
            if content.get("dealt_to") is not None:
                self._session.ring.partition.set_root(content["dealt_to"])
        for number, config in enumerate(self._configs[first:], first):
            on_run(number)
            trainer = make_trainer(self._rings(), self._task, config, every=self._checkpointer.steps, on_step=on_step,
                                   on_repeat=on_repeat, faults=lambda: self._session.faults)
            self._train(number, trainer, state if number == first else None, signals)

    def _rings(self) -> Ring | RingStages:
        """Return the run's ring, or the rings of all stages if the run reconfigures the grid."""
        session = self._session
        if self._reconfiguration is None:
            return session.ring
        assert session.grid is not None
        return feature("grid").stages(session.grid, self._reconfiguration,
                                      lambda: None if session.golden else session.elapsed.cycles)

    def _train(self, number: int, trainer: Trainer[UpdateExecutor], state: dict[str, Any] | None,
               signals: Signals) -> None:
        seconds, elapsed, simulated = self.seconds[number], self.elapsed, self.simulation_seconds
        begun, first = time.perf_counter(), Elapsed()
        watch = self._session.seconds if number or state is not None else 0.0

        def measure() -> None:
            self.seconds[number] = seconds + time.perf_counter() - begun
            if number == 0:
                self.elapsed = elapsed.plus(self._session.elapsed.since(first))
                self.simulation_seconds = simulated + self._session.seconds - watch

        def block() -> None:
            if signals.asked is not None or self._checkpointer.due(trainer):
                measure()
                self._save(number, trainer)

        self.trainings.append(trainer.executor.training)
        if state is None:
            trainer.begin()
        else:
            trainer.resume(state)
            self.trainings[number] = trainer.executor.training
            self._checkpointer.kept = self._steps
            first = self._session.elapsed if number == 0 else Elapsed()
        trainer.train(signals, on_block=block)
        if number + 1 < len(self._configs):
            signals.check()
        trainer.finish()
        measure()
        if number == 0:
            self.parameters = self._task.parameters.copy()

    @property
    def _steps(self) -> int:
        return sum(len(training.steps) for training in self.trainings)

    def _save(self, number: int, trainer: Trainer[UpdateExecutor]) -> None:
        self._checkpointer.save({
            "run": number, "trainings": [training.figures() for training in self.trainings[:number]],
            "parameters": self.parameters, "elapsed": self.elapsed, "seconds": self.seconds,
            "simulation_seconds": self.simulation_seconds, "state": trainer.state(),
            "dealt_to": self._session.ring.partition.root,
            "requests": [] if self._reconfiguration is None else self._reconfiguration.texts()}, self._steps)
