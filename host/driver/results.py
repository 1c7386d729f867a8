"""Results of successful commands on a ring."""

import dataclasses
from collections.abc import Iterable
from typing import TypeAlias

from host.driver.masking import Matrices

__all__ = ["Cycles", "MaskOutcome", "Outcome", "SparsifyOutcome", "known", "slowest", "total"]

#: Cycle count of a command; None if golden nodes ran it and have no cycle model for it.
Cycles: TypeAlias = int | None


def known(cycles: Cycles) -> int:
    """Return a cycle count, or raise ``ValueError`` if it is unknown (None)."""
    if cycles is None:
        raise ValueError("Cycles of the command must be measured, not those of golden nodes, which have no model of "
                         "them: take transport verilated")
    return cycles


def total(cycles: Iterable[Cycles]) -> Cycles:
    """Sum cycle counts; None if any is unknown."""
    every = list(cycles)
    return None if None in every else sum(map(known, every))


def slowest(cycles: Iterable[Cycles]) -> Cycles:
    """Return the largest cycle count; None if any is unknown."""
    every = list(cycles)
    return None if None in every else max(map(known, every))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a collective that has succeeded."""

    cycles: Cycles  # cycles from start to end of the command on the slowest node
    # ranks of the nodes with a NaN in their gradients, and of the nodes with a non-finite sum
    local_nan: tuple[int, ...] = ()
    not_finite: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskOutcome:
    """Result of a mask operation."""

    results: list[list[Matrices]]  # for each node, the masked matrices of each job
    replaced: list[int]  # number of elements per node that masks replaced by the alternative value
    cycles: Cycles  # cycles of each command on its slowest node, summed over consecutive commands
    commands: int  # number of successive commands


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparsifyOutcome:
    """Result of a sparsify operation."""

    dropped: list[int]  # number of elements per node that were below the threshold and became errors
    cycles: Cycles  # cycles on the slowest node
