"""Batches of a training run. They determine the order in which examples are used."""

import abc
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from host.training.record import TrainingConfig

__all__ = ["Batch", "BatchSource", "Batches", "QuorumBatches", "SetBatches", "Shares", "counts_of", "waves_of"]


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """Batch: the examples of one training step."""

    #: Number of the epoch, counted from 1.
    epoch: int
    #: Indices of the batch's examples.
    examples: npt.NDArray[np.intp]
    #: Whether to measure the model after the step.
    due: bool


class BatchSource(abc.ABC):
    """Base class of the sources of a run's batches."""

    #: Number of batches that have been taken so far.
    number = 0

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """Number of examples in the next batch."""

    @abc.abstractmethod
    def take(self) -> Batch:
        """Return the next batch of the run."""

    def state(self) -> dict[str, Any]:
        """Return the state that later batches depend on."""
        return {"number": self.number}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.number = state["number"]


class Batches(BatchSource):
    """Batches of whole epochs. Each epoch uses all examples in a new order. Its batches have nearly equal sizes, and
    there are as few as possible with at most ``config.batch`` examples."""

    def __init__(self, examples: int, config: TrainingConfig):
        self._examples = examples
        self._count = -(-examples // config.batch)  # batches per epoch
        self._interval = config.interval
        self._generator = np.random.default_rng((config.seed, 1))
        self._order = np.empty(0, dtype=np.intp)
        #: Number of batches in the whole run.
        self.total = config.steps(examples)

    @property
    def size(self) -> int:
        return len(range(self.number % self._count, self._examples, self._count))

    def take(self) -> Batch:
        epoch, index = divmod(self.number, self._count)
        if index == 0:
            self._order = self._generator.permutation(self._examples)
        batch = np.array_split(self._order, self._count)[index]
        self.number += 1
        due = index == self._count - 1 if self._interval is None else self.number % self._interval == 0
        return Batch(epoch + 1, batch, due or self.number == self.total)

    def state(self) -> dict[str, Any]:
        return {"number": self.number, "order": self._order.copy(), "generator": self._generator.bit_generator.state}

    def restore(self, state: dict[str, Any]) -> None:
        self.number, self._order = state["number"], state["order"].copy()
        self._generator.bit_generator.state = state["generator"]


class SetBatches(BatchSource):
    """Full batches from successive random orders of the examples, derived from a seed."""

    #: Number of examples in the next batch.
    size = 0

    def __init__(self, examples: int, seed: int):
        self._examples = examples
        self._generator = np.random.default_rng((seed, 1))
        self._left = np.empty(0, np.intp)

    def take(self) -> Batch:
        while len(self._left) < self.size:
            self._left = np.concatenate([self._left, self._generator.permutation(self._examples)])
        examples, self._left = self._left[:self.size], self._left[self.size:]
        self.number += 1
        return Batch(epoch=1, examples=examples, due=False)

    def state(self) -> dict[str, Any]:
        return {"number": self.number, "left": self._left.astype(np.int64),
                "generator": self._generator.bit_generator.state}

    def restore(self, state: dict[str, Any]) -> None:
        self.number, self._left = state["number"], state["left"].astype(np.intp)
        self._generator.bit_generator.state = state["generator"]


#: Numbers of random streams, other than the streams for initial weights and for batches.
_DEALT, _ORDERED = 2, 3


class Shares:
    """Partitioning of a data set among workers, and the batches of each worker.

    The skew is the fraction of each worker's examples that are taken in label order, and so come from few classes;
    the remaining examples are distributed at random. All batches of a worker have the same size: leftover examples at
    the end of a pass start the first batch of the next pass, which has a different order.
    """

    def __init__(self, labels: npt.NDArray[np.int64], *, workers: int, skew: float, seed: int):
        if not 1 <= workers <= len(labels):
            raise ValueError(f"Workers must be between 1 and the examples, {len(labels):,}, not {workers!r}")
        if not 0 <= skew <= 1:
            raise ValueError(f"Skew must be between 0 and 1, not {skew!r}")
        self._seed = seed
        order = np.random.default_rng((seed, _DEALT)).permutation(len(labels))
        sorted_, dealt = np.split(order, [round(skew * len(labels))])
        sorted_ = sorted_[np.argsort(labels[sorted_], kind="stable")]
        # Workers with one more example from ``sorted_`` get one fewer of the remaining examples.
        self._examples = [np.concatenate([own, rest]) for own, rest in zip(
            np.array_split(sorted_, workers), reversed(np.array_split(dealt, workers)), strict=True)]
        #: Number of examples of each worker.
        self.sizes = [len(share) for share in self._examples]

    def batch(self, worker: int, number: int, size: int) -> npt.NDArray[np.intp]:
        """Return the examples in batch ``number`` (counted from 0) of a worker."""
        count, first, last = self.sizes[worker], number * size, (number + 1) * size
        turns = [self._turn(worker, turn) for turn in range(first // count, -(-last // count))]
        return np.concatenate(turns)[first % count:first % count + size]

    def _turn(self, worker: int, turn: int) -> npt.NDArray[np.intp]:
        """Return the examples of a worker in the order for pass ``turn``."""
        order = np.random.default_rng((self._seed, _ORDERED, worker, turn)).permutation(self.sizes[worker])
        return np.asarray(self._examples[worker][order])


class QuorumBatches(BatchSource):
    """Batches that concatenate ``each`` examples of every worker, in the order of the workers."""

    def __init__(self, shares: Shares, each: int):
        self._shares, self._each = shares, each

    @property
    def size(self) -> int:
        return self._each * len(self._shares.sizes)

    def take(self) -> Batch:
        examples = np.concatenate([self._shares.batch(worker, self.number, self._each)
                                   for worker in range(len(self._shares.sizes))])
        self.number += 1
        return Batch(epoch=1, examples=examples, due=False)


def counts_of(microbatches: int, nodes: int) -> list[int]:
    """Return the number of microbatches of each node, in order of rank: nearly equal, and larger numbers first."""
    return [len(part) for part in np.array_split(np.arange(microbatches), nodes)]


def waves_of(counts: Sequence[int]) -> Iterator[list[int]]:
    """Yield the indices of the microbatches that nodes process at the same time: the first of each node, then the
    second of each node, and so on."""
    first = np.cumsum([0, *counts[:-1]])
    for turn in range(max(counts)):
        yield [int(begin) + turn for begin, count in zip(first, counts, strict=True) if turn < count]
