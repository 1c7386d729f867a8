"""Change from some rings of nodes to others: weights, state, masters, residuals and errors go along."""

import dataclasses

import numpy as np
import numpy.typing as npt

from host.driver.memory import Allocation
from host.driver.vector_protocols import VectorRing
from host.driver.words import Vector
from host.topology.grid import Plan
from host.topology.owners import Handover, hand_over, moved, owners

__all__ = ["Carried", "carry_over"]


@dataclasses.dataclass(frozen=True)
class Carried:
    """Account of a change.

    Members
    -------
    left, joined : tuple of int
        Nodes of the grid that are no longer there, and those that were not there before.
    heirs : dict of int to int
        Node to which each node that has left gave its residuals and errors; empty if there are none.
    moved : int
        Elements whose owner has changed.
    dropped : int
        Elements of residuals and errors whose sum was not finite, and which are zeros now.
    """

    left: tuple[int, ...]
    joined: tuple[int, ...]
    heirs: dict[int, int]
    moved: int
    dropped: int


def carry_over(before: VectorRing, after: VectorRing, vector: Allocation, *, old: Plan, new: Plan) -> Carried:
    """Give the nodes of new rings what those of the old ones have.

    Each element of a state plane and of the masters is read from its old owner and written to its new one. Residuals
    and errors stay with their nodes, or go to the heirs of nodes that leave
    (:func:`~host.topology.owners.hand_over`). Every node is given the weights of rank 0. Everything is read before
    anything is written, so that a node may be in both rings. Both must be at rest.

    Parameters
    ----------
    before, after : VectorRing
        Nodes of the plans, in their :attr:`~host.topology.grid.Plan.order`.
    vector : Allocation
        The vector, at the start of each memory.
    old, new : Plan
        Plans of a flat ring, or of rings in two dimensions.

    Raises
    ------
    ValueError
        A plan is of rings apart, each of which has the whole vector, or of another number of nodes, or the new nodes
        have no room. Nothing has been read or written then.
    """
    for name, ring, plan in (("Old", before, old), ("New", after, new)):
        if ring.nodes != len(plan.active):
            raise ValueError(f"{name} ring must have the {len(plan.active)} nodes of its plan, not {ring.nodes}")
    after.memory.require(vector)
    length, packed_state = vector.length, vector.packed_state
    changed = moved(owners(old, length), owners(new, length))

    weights = before.memory.read_weights(length, ranks=[0])[0]
    master = before.memory.read_master(length) if before.formats.has_master else None
    state = [before.memory.read_state(length, plane, packed_state=packed_state)
             for plane in range(vector.planes)]
    residuals = _handed(before.memory.read_residual(length), old, new) if before.formats.has_residual else None
    left_over = _handed(before.memory.read_errors(length), old, new) if vector.errors else None

    after.memory.write_weights(weights, length)
    if master is not None:
        after.memory.write_master(master, length)
    for plane, values in enumerate(state):
        after.memory.write_state(values, plane, length, packed_state=packed_state)
    if residuals is not None:
        after.memory.write_residual(_rows(residuals, new), length)
    if left_over is not None:
        after.memory.write_errors(_rows(left_over, new), length)
    given = [handover for handover in (residuals, left_over) if handover is not None]
    return Carried(left=tuple(sorted(set(old.active) - set(new.active))),
                   joined=tuple(sorted(set(new.active) - set(old.active))),
                   heirs=given[0].heirs if given else {}, moved=changed,
                   dropped=sum(handover.dropped for handover in given))


def _handed(rows: Vector, old: Plan, new: Plan) -> Handover:
    """Rows of the new nodes, from one row for each of the old."""
    return hand_over(dict(zip(old.order, rows.view(np.uint32), strict=True)), old, new)


def _rows(handover: Handover, new: Plan) -> list[npt.NDArray[np.float32]]:
    """Rows in order."""
    return [handover.rows[node].view(np.float32) for node in new.order]
