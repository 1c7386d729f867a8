"""Results of commands that ended well on a ring."""

import dataclasses
from collections.abc import Iterable
from typing import TypeAlias

from host.driver.command import Event
from host.driver.masking import Matrices
from host.driver.trace import TraceRecord
from host.features.quantization.inference import Integers

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
    """Result of a collective that ended well."""

    cycles: Cycles  # cycles from the command's start to its end, on the slowest node
    # nodes that saw a NaN among their gradients, and nodes that saw a sum which was not finite
    local_nan: tuple[int, ...] = ()
    not_finite: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskOutcome:
    """Result of masking."""

    results: list[list[Matrices]]  # masked matrices of each job, for each node
    replaced: list[int]  # elements on each node that became the alternative
    cycles: Cycles  # sum over commands that ran one after the other, each counted on its slowest node
    commands: int  # number of those commands


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparsifyOutcome:
    """Result of sparsifying."""

    dropped: list[int]  # elements on each node that were moved to its errors
    cycles: Cycles  # cycles on the slowest node


@dataclasses.dataclass(frozen=True, kw_only=True)
class InferOutcome:
    """Result of inference."""

    outputs: Integers  # sums of the last layer, a row for each sample
    cycles: Cycles  # sum over commands, each counted on its slowest node
    multiplied: int  # cycles in which all lanes of a node have multiplied, summed over all nodes
    commands: int  # number of commands, which ran one after the other


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListsOutcome:
    """End of a list on all nodes that have run it."""

    cycles: Cycles  # on the node where it took longest
    # cycles in which all lanes of a node's unit for centroids have multiplied, added up over the nodes
    multiplied: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Passes:
    """Result of a run."""

    events: list[list[Event]]  # events of each node, those of its first queue before those of the next
    # starts and ends of its commands; empty where they were not asked for, and on nodes with one queue
    traces: list[list[TraceRecord]]
    # cycles from the first start to the last end, of the node on which they were most. Without traces, the sum of the
    # cycles that its commands took.
    outcome: Outcome
