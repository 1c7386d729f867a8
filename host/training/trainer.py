"""Training loop: it takes batches, makes an executor run the steps, and counts the steps.

    Trainer = batches x executor (with its golden model) x nodes

Example
-------
::

    trainer = make_trainer(ring, task, TrainingConfig(epochs=2))
    trainer.begin()
    trainer.train()
    trainer.finish()
    print(trainer.executor.training.measures)
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from host.driver.protocols import TrainingRing
from host.feature import feature
from host.models.digits import Dataset
from host.signals import Signals
from host.training.batches import Batch, Batches, BatchSource
from host.training.executor import Executor
from host.training.record import Training, TrainingConfig
from host.training.stages import RingStages
from host.training.updates import UpdateExecutor
from host.training.workloads import Classifier, Workload

__all__ = ["Trainer", "make_trainer", "train"]

ExecutorT = TypeVar("ExecutorT", bound=Executor[Any])


class Trainer(Generic[ExecutorT]):
    """A run of ``total`` steps; by default, the executor decides when it ends.

    The run is divided into blocks of ``every`` steps, so that a checkpoint can be written after each block.
    ``on_step`` is called after each step and after each measurement of the model.
    """

    def __init__(self, executor: ExecutorT, batches: BatchSource, *, total: int | None = None,
                 every: int | None = None, on_step: Callable[[], None] = lambda: None):
        self.executor = executor
        self._batches, self._total, self._every, self._on_step = batches, total, every, on_step
        #: Whether the model was measured after the last step.
        self.due = False
        #: Number of completed steps, excluding steps of an abandoned block.
        self.number = batches.number

    @property
    def left(self) -> int:
        """Number of remaining steps; if the total was not given, the executor reports it."""
        return self.executor.left if self._total is None else self._total - self.number

    @property
    def complete(self) -> bool:
        """Whether all steps of the run are complete."""
        return self.left < 1

    def begin(self) -> None:
        """Write the initial weights to the nodes."""
        self.executor.begin()

    def advance(self) -> None:
        """Run the steps of a block, and measure the model if a measurement is due."""
        self.executor.prepare(self.number)
        batches = self._take()
        steps = self.executor.execute(self.number + 1, batches)
        self.number = self._batches.number = self.number + len(steps)
        for step in steps:
            self.executor.record(step)
            self._on_step()
        self.due = batches[-1].due
        if self.due:
            self.executor.measure(self.number)
            self._on_step()

    def _take(self) -> list[Batch]:
        """Take the batches of the next block. It ends no later than a measurement or a possible checkpoint."""
        batches: list[Batch] = []
        for _ in range(min(self.executor.most, self.left)):
            if batches and self.executor.equal and self._batches.size != len(batches[-1].examples):
                break
            batches.append(self._batches.take())
            if batches[-1].due or (self._every and self._batches.number % self._every == 0):
                break
        return batches

    def train(self, signals: Signals | None = None, *, until: int | None = None,
              on_block: Callable[[], None] = lambda: None) -> None:
        """Execute all remaining steps of a run that has begun or resumed, or stop at step ``until``. Raises
        ``Interrupted`` if a signal was received. ``on_block`` is called after each block."""
        signals = Signals() if signals is None else signals
        while not self.complete and self.number != until:
            signals.check()
            self.advance()
            signals.settle()
            on_block()

    def finish(self) -> None:
        """Complete the run after its last step: compare all memories and take a sample."""
        self.executor.finish()

    def state(self) -> dict[str, Any]:
        """Return the state needed for the rest of the run; see :meth:`Executor.state`."""
        return {**self.executor.state(), "batches": self._batches.state(), "due": self.due}

    def resume(self, state: dict[str, Any], *, restored: bool = False) -> None:
        """Resume from a state, instead of calling :meth:`begin`. If ``restored``, the nodes already have it."""
        self._batches.restore(state["batches"])
        self.number, self.due = self._batches.number, state["due"]
        self.executor.resume(state, restored=restored)


def make_trainer(ring: TrainingRing | RingStages, workload: Workload, config: TrainingConfig, *,
                 every: int | None = None, on_step: Callable[[Training], None] = lambda training: None,
                 on_repeat: Callable[[str], None] = lambda line: None,
                 faults: Callable[[], int] = lambda: 0) -> Trainer[UpdateExecutor]:
    """Create a trainer for steps that sum gradients and update weights on nodes. ``on_step`` is called with the
    results so far. The other parameters are the same as for :class:`~host.training.updates.UpdateExecutor` and
    :class:`Trainer`."""
    kind: type[UpdateExecutor] = feature("programs").overlapping() if config.overlaps else UpdateExecutor
    executor = kind(ring, workload, config, on_repeat=on_repeat, faults=faults)
    return Trainer(executor, Batches(workload.examples, config), total=config.steps(workload.examples), every=every,
                   on_step=lambda: on_step(executor.training))


def train(ring: TrainingRing, data: Dataset | Workload, config: TrainingConfig, **options: Any) -> Training:
    """Train a workload, or a perceptron on a data set, with the options of :func:`make_trainer`.

    Raises ``DivergenceError`` if a node differs from the golden model, ``TrainingError`` if gradients are not finite,
    and ``RingError`` if a command and all of its retries have failed.
    """
    if isinstance(data, Dataset):
        data = Classifier(data, config.hidden, align=config.align, operands=config.compute_format)
    trainer = make_trainer(ring, data, config, **options)
    trainer.begin()
    trainer.train()
    trainer.finish()
    return trainer.executor.training
