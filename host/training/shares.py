"""Examples of workers that each keep their own, dealt evenly, or so that a worker has more of its own classes."""

import numpy as np
import numpy.typing as npt

__all__ = ["Shares"]

#: Streams of random numbers, beside those of first weights and of batches.
_DEALT, _ORDERED = 2, 3


class Shares:
    """Shares of a data set, one for each worker, and their batches.

    Of each worker's examples a part comes in the order of labels, so that it has classes of its own; the others are
    dealt at random. All batches of a worker have the same size: what is left of its examples at the end of a turn
    begins the first batch of the next one, which has another order.

    Parameters
    ----------
    labels : array of int
        Label of each example.
    skew : float
        Part of a worker's examples that comes from its own classes: 0 for none.

    Members
    -------
    sizes : list of int
        Examples of each worker.
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
        # Those who have one more of the first part have one less of the second.
        self._examples = [np.concatenate([own, rest]) for own, rest in zip(
            np.array_split(sorted_, workers), reversed(np.array_split(dealt, workers)), strict=True)]
        self.sizes = [len(one) for one in self._examples]

    def batch(self, worker: int, number: int, size: int) -> npt.NDArray[np.intp]:
        """Examples of a worker's batch of a number, from 0."""
        mine = self._examples[worker]
        first, last = number * size, (number + 1) * size
        turns = [self._turn(worker, turn) for turn in range(first // len(mine), -(-last // len(mine)))]
        start = first % len(mine)
        return np.concatenate(turns)[start:start + size]

    def _turn(self, worker: int, turn: int) -> npt.NDArray[np.intp]:
        """All examples of a worker in the order of a turn."""
        order = np.random.default_rng((self._seed, _ORDERED, worker, turn)).permutation(self.sizes[worker])
        found: npt.NDArray[np.intp] = self._examples[worker][order]
        return found
