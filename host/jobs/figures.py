"""Cost of a job's operations on a ring, in cycles, words and so on."""

import dataclasses
from collections.abc import Iterable
from typing import Any, Self

from host.driver.results import Cycles, total

__all__ = ["Figures"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figures:
    """Cost of operations on a ring. The figures of consecutive operations can be added.

    ``bound``, ``words_dense``, ``words_zero_value`` and ``nonzeros`` come from the golden model; they are 0 for a job
    that is not checked.

    Members
    -------
    elements : int
        Number of vector elements, each counted once, not once per node.
    commands : int
        Number of commands: one for each part of a vector that fits into the nodes' memories.
    cycles : int, optional
        Number of cycles of the commands, each from start to end on the slowest node.
    bound : int
        Lower bound on the cycles of the busiest link, without headers, latency and pipelines.
    sparsify_cycles : int
        Number of cycles that the nodes take to select the elements to send, before the commands.
    host_cycles : int
        Cycles to move vectors through the host ports in both directions; modelled, unless ports are simulated.
    words, words_dense, words_zero_value : int
        Number of 32-bit words that all nodes have sent, and the same number if every payload were raw, and if
        gradients and their sums were encoded as zero_value.
    sent, nonzeros : int
        Number of elements that scatter-reduces have sent, and number of nonzero elements among them.
    seconds : float
        Seconds that the simulation has taken.
    """

    elements: int = 0
    commands: int = 0
    cycles: Cycles = 0
    bound: int = 0
    sparsify_cycles: Cycles = 0
    host_cycles: Cycles = 0
    words: int = 0
    words_dense: int = 0
    words_zero_value: int = 0
    sent: int = 0
    nonzeros: int = 0
    seconds: float = 0.0

    @property
    def density(self) -> float | None:
        """Fraction of the elements sent in scatter-reduces that were nonzero, or None if unknown."""
        return self.nonzeros / self.sent if self.sent else None

    def __add__(self, other: "Figures") -> "Figures":
        sums: dict[str, Any] = {field.name: total([getattr(self, field.name), getattr(other, field.name)])
                                for field in dataclasses.fields(self)}
        return Figures(**sums)

    @classmethod
    def total(cls, figures: Iterable[Self]) -> "Figures":
        """Return the sum of the costs of several operations."""
        return sum(figures, start=Figures())
