"""Results of commands that ended well on a ring."""

import dataclasses
from collections.abc import Iterable
from typing import TypeAlias

from host.driver.masking import Matrices

__all__ = ["Cycles", "MaskOutcome", "Outcome", "SparsifyOutcome", "known", "slowest", "total"]

#: Number of cycles; None for a command of golden nodes without a model of its cycles.
Cycles: TypeAlias = int | None


def known(cycles: Cycles) -> int:
    """Return cycles that must be known; a ``ValueError`` for None."""
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
    # nodes that saw a NaN among their gradients, and nodes that saw a sum that was not finite
    local_nan: tuple[int, ...] = ()
    not_finite: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskOutcome:
    """Result of masking."""

    results: list[list[Matrices]]  # masked matrices of each job, for each node
    replaced: list[int]  # elements on each node that became the alternative
    cycles: Cycles  # sum over commands that ran one after the other, each counted on its slowest node
    commands: int  # number of these commands


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparsifyOutcome:
    """Result of sparsifying."""

    dropped: list[int]  # elements on each node that were moved to its errors
    cycles: Cycles  # cycles on the slowest node
