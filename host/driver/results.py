"""How commands that ended well have gone on a ring."""

import dataclasses

from host.driver.inference import Integers
from host.driver.masking import Matrices

__all__ = ["InferOutcome", "MaskOutcome", "Outcome", "SparsifyOutcome"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a collective that ended well has gone.

    Members
    -------
    cycles : int
        From the command's start to its end, on the node where that took longest.
    local_nan, not_finite : tuple of int
        Nodes that saw a NaN among their gradients, and nodes that saw a sum which was not finite.
    """

    cycles: int
    local_nan: tuple[int, ...] = ()
    not_finite: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskOutcome:
    """How masking has gone.

    Members
    -------
    results : list of list of array
        Of each node, the masked matrices of each job.
    replaced : list of int
        Elements on each node that became the alternative.
    cycles : int
        Summed over commands that ran one after the other: of each, on the node where it took longest.
    commands : int
        How many those were.
    """

    results: list[list[Matrices]]
    replaced: list[int]
    cycles: int
    commands: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparsifyOutcome:
    """How sparsifying has gone.

    Members
    -------
    dropped : list of int
        Elements on each node that were moved to its errors.
    cycles : int
        On the node where it took longest.
    """

    dropped: list[int]
    cycles: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class InferOutcome:
    """How inference has gone.

    Members
    -------
    outputs : array of int
        Sums of the last layer, a row for each sample.
    cycles : int
        Sum over commands, each counted on the node where it took longest.
    multiplied : int
        Cycles in which all lanes of a node have multiplied, of all nodes.
    commands : int
        Commands that it took, one after the other.
    """

    outputs: Integers
    cycles: int
    multiplied: int
    commands: int
