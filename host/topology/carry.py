"""Change from some rings of nodes to others: weights, state, masters, residuals and errors go along."""

import dataclasses

import numpy as np
import numpy.typing as npt

from host.driver.buffers import Buffers
from host.driver.memory import Allocation
from host.driver.protocols import VectorRing
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


def carry_over(before: VectorRing, after: VectorRing, *, old: Plan, new: Plan, where: int | Buffers,
               to: int | Buffers | None = None, planes: int = 0, packed_state: bool = False,
               errors: bool = False) -> Carried:
    """Give the nodes of new rings what those of the old ones have.

    Each element of a state plane and of the masters is read from its old owner and written to its new one. Residuals
    and errors stay with their nodes, or go to the heirs of nodes that leave
    (:func:`~host.topology.owners.hand_over`). Every node is given the weights of rank 0. Everything is read before
    anything is written, so that a node may be in both rings. Both must be at rest.

    Parameters
    ----------
    before, after : Ring or GridRings
        Drivers whose devices are the nodes of the plans, in their :attr:`~host.topology.grid.Plan.order`.
    old, new : Plan
        Plans of a flat ring, or of rings in two dimensions.
    where : Buffers or int
        The vector on the old nodes.
    to : Buffers or int, optional
        The vector on the new nodes; by default it lies at the same place.
    planes : int
        State planes that the optimizer uses.
    packed_state : bool
        Whether state is stored as bfloat16.
    errors : bool
        Whether errors are kept; see :meth:`host.driver.protocols.Operations.sparsify`.

    Raises
    ------
    ValueError
        A plan is of rings apart, each of which has the whole vector, or of another number of nodes, or the new nodes
        have no room. Nothing has been read or written then.
    """
    for name, ring, plan in (("Old", before, old), ("New", after, new)):
        if ring.nodes != len(plan.active):
            raise ValueError(f"{name} ring must have the {len(plan.active)} nodes of its plan, not {ring.nodes}")
    to = where if to is None else to
    length = where if isinstance(where, int) else where.length
    after.memory.require(Allocation(length=length, planes=planes, packed_state=packed_state, errors=errors))

    changed = moved(owners(old, length), owners(new, length))

    weights = before.memory.read_weights(where, ranks=[0])[0]
    master = before.memory.read_master(where) if before.formats.has_master else None
    state = [before.memory.read_state(where, plane, packed_state=packed_state) for plane in range(planes)]
    residuals = _handed(before.memory.read_residual(where), old, new) if before.formats.has_residual else None
    left_over = _handed(before.memory.read_errors(where), old, new) if errors else None

    after.memory.write_weights(weights, to)
    if master is not None:
        after.memory.write_master(master, to)
    for plane, values in enumerate(state):
        after.memory.write_state(values, plane, to, packed_state=packed_state)
    if residuals is not None:
        after.memory.write_residual(_rows(residuals, new), to)
    if left_over is not None:
        after.memory.write_errors(_rows(left_over, new), to)
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
