"""Results of commands that have succeeded on a ring."""

import dataclasses
from collections.abc import Iterable
from typing import TypeAlias

from host.driver.masking import Matrices

__all__ = ["Cycles", "MaskOutcome", "Outcome", "SparsifyOutcome", "known", "slowest", "total"]

#: Number of cycles; None for a command of golden nodes that has no cycle model.
Cycles: TypeAlias = int | None


def known(cycles: Cycles) -> int:
    """Return the cycles, which must be known; raises ``ValueError`` for None."""
    if cycles is None:
        raise ValueError("Cycles of the command must be measured, not those of golden nodes, which have no model of "
                         "them: take transport verilated")
    return cycles


def total(cycles: Iterable[Cycles]) -> Cycles:
    """Sum of cycles; None if any are unknown."""
    every = list(cycles)
    return None if None in every else sum(map(known, every))


def slowest(cycles: Iterable[Cycles]) -> Cycles:
    """Largest number of cycles; None if any are unknown."""
    every = list(cycles)
    return None if None in every else max(map(known, every))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a collective that has succeeded."""

    cycles: Cycles  # cycles from the start of the command to its end, on the slowest node
    # ranks of nodes that encountered a NaN in their gradients, and of nodes that encountered a non-finite sum
    local_nan: tuple[int, ...] = ()
    not_finite: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskOutcome:
    """Result of a mask operation."""

    results: list[list[Matrices]]  # masked matrices of each job, for each node
    replaced: list[int]  # number of elements per node that masks have replaced by the alternative
    cycles: Cycles  # sum over successive commands, each counted on its slowest node
    commands: int  # number of successive commands


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparsifyOutcome:
    """Result of a sparsify operation."""

    dropped: list[int]  # number of elements per node that were not kept and have become errors
    cycles: Cycles  # cycles on the slowest node
