"""The order in which a training run takes its examples."""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from host.training.record import TrainingConfig

__all__ = ["Batch", "Batches"]


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """The examples of one step.

    Members
    -------
    epoch : int
        Number of the epoch, from 1.
    examples : array of int
        Numbers of the examples.
    due : bool
        Whether the model is measured after the step.
    """

    epoch: int
    examples: npt.NDArray[np.intp]
    due: bool


class Batches:
    """Batches of a run, one after the other: each epoch takes all examples in a new order.

    An epoch is cut into as few batches of at most ``config.batch`` examples as possible, of sizes as equal as
    possible.

    Members
    -------
    number : int
        Batches taken so far.
    total : int
        Batches of the whole run.
    """

    def __init__(self, examples: int, config: TrainingConfig):
        self._examples = examples
        self._count = -(-examples // config.batch)  # of an epoch
        self._interval = config.interval
        self._generator = np.random.default_rng((config.seed, 1))
        self._order = np.empty(0, dtype=np.intp)
        self.number = 0
        self.total = config.steps(examples)

    @property
    def size(self) -> int:
        """Examples of the next batch."""
        return len(range(self.number % self._count, self._examples, self._count))

    def take(self) -> Batch:
        """The next batch."""
        epoch, place = divmod(self.number, self._count)
        if place == 0:
            self._order = self._generator.permutation(self._examples)
        batch = np.array_split(self._order, self._count)[place]
        self.number += 1
        due = place == self._count - 1 if self._interval is None else self.number % self._interval == 0
        return Batch(epoch + 1, batch, due or self.number == self.total)

    def state(self) -> dict[str, Any]:
        """State that later batches depend on."""
        return {"number": self.number, "order": self._order.copy(), "generator": self._generator.bit_generator.state}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.number = state["number"]
        self._order = state["order"].copy()
        self._generator.bit_generator.state = state["generator"]
