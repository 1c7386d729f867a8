"""Search for the number of layers that travel together: sizes of chunks are tried until one is not shorter."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence

__all__ = ["Search", "Trials", "search"]


@dataclasses.dataclass(frozen=True)
class Search:
    """Outcome of a search for the best size of chunks.

    Members
    -------
    trials : list of (int, int)
        Sizes, in the order in which they were tried, and cycles of each.
    chosen : int
        The last size that was shorter than all before it.
    claimed : int, optional
        The size that a literal reading of the claim chooses: the first that was shorter than the one before it, at
        which that search ends.
    """

    trials: list[tuple[int, int]]
    chosen: int
    claimed: int | None

    def lines(self) -> list[str]:
        """The log: a line for each trial, and one for both readings of the rule."""
        found = [f"chunks:{size}  {cycles:,} cycles" for size, cycles in self.trials]
        literal = "none" if self.claimed is None else f"chunks:{self.claimed}"
        return [*found, f"chosen: chunks:{self.chosen} (the first that is shorter than the one before: {literal})"]


class Trials:
    """The sizes of chunks that a search tries, one after the other.

    Parameters
    ----------
    most : int
        Layers but the last one: a chunk of so many, or more, holds them all, and is the last that is tried.
    trials : sequence of (int, int)
        Trials that were made before.

    Members
    -------
    trials : list of (int, int)
        Sizes and cycles so far.
    """

    def __init__(self, most: int, trials: Sequence[tuple[int, int]] = ()):
        if most < 1:
            raise ValueError(f"Layers to choose chunks from must be at least 1, not {most!r}")
        self._most = most
        self.trials = list(trials)

    @property
    def over(self) -> bool:
        """Whether a size was not shorter than the one before it, or there is none left."""
        if not self.trials:
            return False
        return self._longer or self.trials[-1][0] >= self._most

    @property
    def _longer(self) -> bool:
        return len(self.trials) > 1 and self.trials[-1][1] >= self.trials[-2][1]

    @property
    def size(self) -> int:
        """The size to be tried next, and in the end the one that was chosen."""
        if self.over:
            return self.trials[-2 if self._longer else -1][0]
        return 2 * self.trials[-1][0] if self.trials else 1

    def note(self, cycles: int) -> None:
        """Note the cycles of a pass with chunks of the size that was to be tried."""
        self.trials.append((self.size, cycles))

    @property
    def outcome(self) -> Search:
        """The outcome, once the search is over."""
        claimed = next((size for (_, before), (size, cycles) in itertools.pairwise(self.trials) if cycles < before),
                       None)
        return Search(list(self.trials), self.size, claimed)


def search(most: int, measure: Callable[[int], int]) -> Search:
    """Try chunks of 1, 2, 4, … layers, until a size is not shorter than the one before it.

    Parameters
    ----------
    most : int
        Layers but the last one; see :class:`Trials`.
    measure : callable
        Cycles of a pass with chunks of a size.
    """
    trials = Trials(most)
    while not trials.over:
        trials.note(measure(trials.size))
    return trials.outcome
