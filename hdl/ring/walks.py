"""Walks through the order of a collective: which participants there are, and which blocks each of them goes through.

A :class:`WalkDescription` names a participant of :mod:`hdl.ring.order` and says its tour in either phase, as values
that follow from a :class:`Situation`. The four here are those of a node without codecs; parts of the datapath may
bring others (:mod:`hdl.ring.parts.part`).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from amaranth.hdl import Mux

from hdl.ring.order import Phase

__all__ = ["EGRESS", "ENCODE", "INGRESS", "OWN", "Situation", "Tour", "WalkDescription", "is_final", "is_gather",
           "is_scatter", "walks_of"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Situation:
    """A planned command on this node: the values that tours follow from."""

    #: The view of :func:`hdl.ring.setup.setup_layout`, of which all but the tours is settled.
    setup: Any
    #: Nodes of the ring.
    size: Any
    #: Rank of the node.
    rank: Any
    #: First groups of the blocks of the predecessor, of this node and of the successor, as
    #: :func:`hdl.ring.order.first_layout` has them; in a broadcast all of them are that of the vector.
    previous: Any
    own: Any
    following: Any
    #: Steps of this node in the scatter-reduce and in the all-gather, as one that sends and as one that receives; 0
    #: where the command leaves the phase out.
    sends: Any
    receives: Any
    passes: Any
    gathers: Any
    #: Steps in which this node forms sums of a command that sums, and in which it updates its block.
    sums: Any
    updates: Any
    #: Whether the vector moves as one block, from a root to all others.
    is_broadcast: Any
    #: Whether this node is the root.
    is_root: Any
    #: Whether this node passes a broadcast on: its successor is not the root.
    passes_on: Any
    #: Steps in which this node gives its block to a gather that nothing precedes.
    gives: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tour:
    """Part of a walk in a phase: the values of :func:`hdl.ring.order.tour_layout`."""

    steps: Any
    first: Any = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class WalkDescription:
    """One participant of a collective, and its tours; a phase without a tour is left out of its order."""

    #: Name in the setup of a command, where its tours are ``<name>_scatter`` and ``<name>_gather``.
    name: str
    scatter: Callable[[Situation], Tour] | None = None
    gather: Callable[[Situation], Tour] | None = None

    @property
    def tours(self):
        """Tours by their names in the setup of a command."""
        given = {f"{self.name}_scatter": self.scatter, f"{self.name}_gather": self.gather}
        return {name: tour for name, tour in given.items() if tour is not None}


def is_scatter(at):
    """Whether a record is of the scatter-reduce."""
    return at.phase == Phase.SCATTER


def is_gather(at):
    """Whether a record is of the all-gather."""
    return ~is_scatter(at)


def is_final(at):
    """Whether a block that is received is summed to its end."""
    return is_scatter(at) & at.last


def _gathers(now, broadcasts, steps, first):
    """Tour of an all-gather or of a broadcast, whose only block is the whole vector."""
    return Tour(steps=Mux(now.is_broadcast, broadcasts, steps), first=first)


#: The packets that are sent.
EGRESS = WalkDescription(
    name="egress",
    scatter=lambda now: Tour(steps=now.sends, first=now.own),
    gather=lambda now: _gathers(now, now.passes_on, now.passes, now.following))

#: The packets that come. A ring of one expects nothing and takes its own sums.
INGRESS = WalkDescription(
    name="ingress",
    scatter=lambda now: Tour(steps=Mux(now.setup.alone & now.setup.sum, 1, now.receives), first=now.previous),
    gather=lambda now: _gathers(now, ~now.is_root, now.gathers, now.own))

#: The local gradients that are encoded, or summed before they are.
ENCODE = WalkDescription(
    name="encode",
    scatter=lambda now: Tour(steps=Mux(now.setup.sum, now.sums, now.sends), first=now.own))

#: The own block: updated by the optimizer, or given away by a command without one.
OWN = WalkDescription(
    name="own",
    scatter=lambda now: Tour(steps=now.updates, first=now.following),
    gather=lambda now: _gathers(now, now.is_root & ~now.setup.alone, now.gives, now.following))


def walks_of(steps):
    """Walks that steps follow, those of packets first."""
    return tuple(dict.fromkeys((EGRESS, INGRESS, *(walk for step in steps for walk in step.walks))))
