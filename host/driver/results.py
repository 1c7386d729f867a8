"""Results of commands that ended well on a ring."""

import dataclasses
from collections.abc import Iterable
from typing import TypeAlias

from host.driver.command import Event
from host.driver.inference import Integers
from host.driver.masking import Matrices
from host.driver.trace import TraceRecord

__all__ = ["Cycles", "InferOutcome", "ListsOutcome", "MaskOutcome", "Outcome", "Passes", "SparsifyOutcome", "known",
           "slowest", "total"]

#: Number of cycles; None for a command of golden nodes without a model of its cycles.
Cycles: TypeAlias = int | None


def known(cycles: Cycles) -> int:
    """Return cycles that must be known: a ``ValueError`` for those of a command without a model on golden nodes."""
    if cycles is None:
        raise ValueError("Cycles of the command must be measured, not those of golden nodes, which have no model of "
                         "them: take transport verilated")
    return cycles


def total(cycles: Iterable[Cycles]) -> Cycles:
    """Sum of cycles; None where some are not known."""
    every = list(cycles)
    return None if None in every else sum(map(known, every))


def slowest(cycles: Iterable[Cycles]) -> Cycles:
    """Largest number of cycles; None where some are not known."""
    every = list(cycles)
    return None if None in every else max(map(known, every))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a collective that ended well.

    Members
    -------
    cycles : int, optional
        Cycles from the command's start to its end, on the slowest node.
    local_nan, not_finite : tuple of int
        Nodes that saw a NaN among their gradients, and nodes that saw a sum which was not finite.
    """

    cycles: Cycles
    local_nan: tuple[int, ...] = ()
    not_finite: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskOutcome:
    """Result of masking.

    Members
    -------
    results : list of list of array
        Masked matrices of each job, for each node.
    replaced : list of int
        Elements on each node that became the alternative.
    cycles : int
        Sum over commands that ran one after the other, each counted on its slowest node.
    commands : int
        Number of those commands.
    """

    results: list[list[Matrices]]
    replaced: list[int]
    cycles: Cycles
    commands: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparsifyOutcome:
    """Result of sparsifying.

    Members
    -------
    dropped : list of int
        Elements on each node that were moved to its errors.
    cycles : int
        Cycles on the slowest node.
    """

    dropped: list[int]
    cycles: Cycles


@dataclasses.dataclass(frozen=True, kw_only=True)
class InferOutcome:
    """Result of inference.

    Members
    -------
    outputs : array of int
        Sums of the last layer, a row for each sample.
    cycles : int
        Sum over commands, each counted on its slowest node.
    multiplied : int
        Cycles in which all lanes of a node have multiplied, summed over all nodes.
    commands : int
        Number of commands, which ran one after the other.
    """

    outputs: Integers
    cycles: Cycles
    multiplied: int
    commands: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListsOutcome:
    """End of a list on all nodes that have run it.

    Members
    -------
    cycles : int
        On the node where it took longest.
    multiplied : int
        Cycles in which all lanes of a node's unit for centroids have multiplied, added up over the nodes.
    """

    cycles: Cycles
    multiplied: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Passes:
    """Result of a run.

    Members
    -------
    events : list of list of Event
        Events of each node, those of its first queue before those of the next.
    traces : list of list of TraceRecord
        Starts and ends of its commands; empty where they were not asked for, and on nodes with one queue.
    outcome : Outcome
        Cycles from the first start to the last end, of the node on which they were most. Without traces, the sum of
        the cycles that its commands took.
    """

    events: list[list[Event]]
    traces: list[list[TraceRecord]]
    outcome: Outcome
