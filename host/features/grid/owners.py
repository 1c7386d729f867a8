"""Owners of a vector's elements in the rings of a plan, and data transfer from old rings to new ones.

The optimizer state and the master weight of an element are stored only on its owner; every node stores residuals and
errors for the whole vector. The functions do not modify their arguments.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from host.driver.memory import Allocation
from host.driver.protocols import VectorRing
from host.features.grid.grid import Plan, Shape
from sim.golden import floating
from sim.golden.ring import block_indices, floats

__all__ = ["Carried", "Handover", "carry_over", "hand_over", "moved", "owners"]

Bits = npt.NDArray[np.uint32]
Indices = npt.NDArray[np.int64]


def owners(plan: Plan, length: int) -> dict[int, Indices]:
    """Return the elements that each node updates, in the order of their state in memory.

    In a ring of N nodes, rank r owns block (r + 1) mod N. In two dimensions, the block owned by a node in its row is
    partitioned again, group by group, among the nodes of its column: with C nodes per row and R per column, each node
    owns one of R · C blocks.
    """
    if plan.shape is not Shape.GRID:
        return {node: blocks[(rank + 1) % len(ring)] for ring in plan.rings
                for blocks in [block_indices(length, len(ring))] for rank, node in enumerate(ring)}
    owned = {}
    for node in plan.active:
        row, column = plan.settings[node].seats
        assert row is not None
        assert column is not None
        blocks = block_indices(length, row.size * column.size)
        owned[node] = blocks[(column.rank + 1) % column.size * row.size + (row.rank + 1) % row.size]
    return owned


def _owner_of(owned: Mapping[int, Indices], length: int) -> npt.NDArray[np.int64]:
    """Return the owner of each element; raises ``ValueError`` unless each element has exactly one owner."""
    owner = np.full(length, -1)
    for node, index in owned.items():
        owner[index] = node
    count = np.bincount(np.concatenate([*owned.values()]), minlength=length)
    if (count != 1).any():
        raise ValueError(f"Elements must have one owner each, not {count[count != 1][0]}: nodes of one flat ring or "
                         f"of a grid own each element once")
    return owner


def moved(old: Mapping[int, Indices], new: Mapping[int, Indices]) -> int:
    """Count the elements with different owners in the old and in the new partition."""
    length = sum(map(len, new.values()))
    return int(np.count_nonzero(_owner_of(old, length) != _owner_of(new, length)))


@dataclasses.dataclass(frozen=True)
class Handover:
    """Residuals or errors of the nodes after a reconfiguration, one row per node."""

    rows: dict[int, Bits]  # row of each active node, keyed by node
    heirs: dict[int, int]  # the node that received the row of each departed node
    dropped: int  # number of elements set to zero because their sums were not finite


def hand_over(rows: Mapping[int, Bits], old: Plan, new: Plan) -> Handover:
    """Add the residuals or errors of departing nodes to the rows of their heirs.

    The heir of a node is the next remaining node in its ring; in two dimensions, the next one in its row, or else in
    its column. If there is none, the heir is the lowest remaining node, or the lowest joining node if no node
    remains. An heir adds the rows to its own in binary32, in node order; a non-finite sum becomes +0.0, like a
    residual on a node. A joining node starts with zeros.
    """
    length = len(next(iter(rows.values())))
    kept = {node: rows[node].copy() if node in rows else np.zeros(length, dtype=np.uint32) for node in new.active}
    heirs: dict[int, int] = {}
    dropped = 0
    for node in old.active:
        if node in kept:
            continue
        heir = heirs[node] = _heir(node, old, new)
        total = floating.add(kept[heir], rows[node])
        finite = np.isfinite(floats(total))
        dropped += int(np.count_nonzero(~finite))
        kept[heir] = np.where(finite, total, np.uint32(0))
    return Handover(kept, heirs, dropped)


def _heir(node: int, old: Plan, new: Plan) -> int:
    stays = set(old.active) & set(new.active)
    for ring in old.rings:
        if node in ring:
            position = ring.index(node)
            following = [other for other in (*ring[position + 1:], *ring[:position]) if other in stays]
            if following:
                return following[0]
    return min(stays or new.active)


@dataclasses.dataclass(frozen=True)
class Carried:
    """Record of a reconfiguration."""

    left: tuple[int, ...]  # nodes that have left the grid
    joined: tuple[int, ...]
    heirs: dict[int, int]  # the node that received the residuals and errors of each departed node
    moved: int  # number of elements with a different owner
    dropped: int  # number of residuals and errors set to zero because their sums were not finite


def carry_over(before: VectorRing, after: VectorRing, vector: Allocation, *, old: Plan, new: Plan) -> Carried:
    """Copy the vectors of the old rings to the nodes of the new ones, at the start of each memory.

    Each element's state and master weight move from its old owner to its new one. Residuals and errors stay on their
    nodes, or pass to the heirs of departing nodes (:func:`hand_over`). Every node receives the weights of rank 0.
    Everything is read before anything is written, since a node may belong to both old and new rings. All rings must
    be idle, with nodes in plan order; plans are for a flat ring or for rings in two dimensions.

    Raises ``ValueError``, before anything is read or written, if a plan has separate rings with a whole vector each,
    if a plan and its ring differ in the number of nodes, or if the new nodes lack memory for the vector.
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
    transfers: list[tuple[Callable[..., Any], Callable[..., None]]] = []
    if before.formats.has_residual:
        transfers.append((before.memory.read_residual, after.memory.write_residual))
    if vector.errors:
        transfers.append((before.memory.read_errors, after.memory.write_errors))
    handed = [hand_over(dict(zip(old.order, read(length).view(np.uint32), strict=True)), old, new)
              for read, _ in transfers]

    after.memory.write_weights(weights, length)
    if master is not None:
        after.memory.write_master(master, length)
    for plane, values in enumerate(state):
        after.memory.write_state(values, plane, length, packed_state=packed_state)
    for (_, write), handover in zip(transfers, handed, strict=True):
        write([handover.rows[node].view(np.float32) for node in new.order], length)
    return Carried(left=tuple(sorted(set(old.active) - set(new.active))),
                   joined=tuple(sorted(set(new.active) - set(old.active))),
                   heirs=handed[0].heirs if handed else {}, moved=changed,
                   dropped=sum(handover.dropped for handover in handed))
