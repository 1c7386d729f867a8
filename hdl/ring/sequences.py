"""Sequences, which define the blocks that each participant processes in the order of a collective.

A :class:`Sequence` names a participant of :mod:`hdl.ring.order` and computes its path in each phase from a
:class:`PlannedCommand`. The four sequences here are for nodes without codecs; parts of the datapath may add more
(:mod:`hdl.ring.parts.part`).
"""

import dataclasses
from typing import Any

from amaranth.hdl import Mux

__all__ = ["EGRESS", "ENCODE", "INGRESS", "OWN", "Path", "PlannedCommand", "Sequence", "sequences_of"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Path:
    """Path of a sequence in one phase, as values for :func:`hdl.ring.order.path_layout`."""

    steps: Any
    first: Any = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedCommand:
    """A planned command on this node; paths are computed from it."""

    #: View with :func:`hdl.ring.setup.setup_layout`; all fields are valid except the paths.
    setup: Any
    #: Number of nodes in the ring.
    size: Any
    #: Rank of the node.
    rank: Any
    #: First groups of the blocks of the predecessor, this node and the successor
    #: (:func:`hdl.ring.order.first_layout`); in a broadcast, all three are the first group of the vector.
    previous: Any
    own: Any
    following: Any
    #: Number of steps of this node in the scatter-reduce and in the all-gather, as sender and as receiver; 0 in a
    #: phase that the command omits.
    sends: Any
    receives: Any
    passes: Any
    gathers: Any
    #: Number of steps that form sums on this node, if the command forms sums, and number of steps that update its
    #: block.
    sums: Any
    updates: Any
    #: Whether the vector is sent as one block from a root to all other nodes.
    is_broadcast: Any
    #: Whether this node is the root.
    is_root: Any
    #: Whether this node forwards a broadcast, which it does unless its successor is the root.
    passes_on: Any
    #: Number of steps in which this node sends its block in an all-gather without a preceding scatter-reduce.
    gives: Any

    def gather_path(self, steps, broadcast_steps, first):
        """Return the path in an all-gather, or in a broadcast, in which the whole vector is the only block."""
        return Path(steps=Mux(self.is_broadcast, broadcast_steps, steps), first=first)


class Sequence:
    """Blocks that one participant of a collective processes.

    A subclass has a ``name`` and a method ``scatter(command)``, ``gather(command)`` or both, which return the
    :class:`Path` in that phase. The sequence has no path for a phase without a method.
    """

    #: Name of the sequence; a command's setup has its paths as ``<name>_scatter`` and ``<name>_gather``.
    name: str

    @property
    def paths(self):
        """Return the methods that compute the paths of the sequence, keyed by phase: ``scatter``, ``gather``."""
        return {phase: getattr(self, phase) for phase in ("scatter", "gather") if hasattr(self, phase)}


class _Egress(Sequence):
    name = "egress"

    def scatter(self, command):
        return Path(steps=command.sends, first=command.own)

    def gather(self, command):
        return command.gather_path(command.passes, command.passes_on, command.following)


class _Ingress(Sequence):
    name = "ingress"

    def scatter(self, command):
        setup = command.setup
        return Path(steps=Mux(setup.alone & setup.sum, 1, command.receives), first=command.previous)

    def gather(self, command):
        return command.gather_path(command.gathers, ~command.is_root, command.own)


class _Encode(Sequence):
    name = "encode"

    def scatter(self, command):
        return Path(steps=Mux(command.setup.sum, command.sums, command.sends), first=command.own)


class _Own(Sequence):
    name = "own"

    def scatter(self, command):
        return Path(steps=command.updates, first=command.following)

    def gather(self, command):
        return command.gather_path(command.gives, command.is_root & ~command.setup.alone, command.following)


#: Sequence of packets to send.
EGRESS = _Egress()
#: Sequence of incoming packets. A ring of one node receives none and uses its own sums.
INGRESS = _Ingress()
#: Sequence of local gradients to encode, either directly or after summation.
ENCODE = _Encode()
#: Sequence of the node's own block, which the optimizer updates or a command sends without an update.
OWN = _Own()


def sequences_of(instructions):
    """Return the sequences for packets, followed by all other sequences that the instructions use."""
    return tuple(dict.fromkeys((EGRESS, INGRESS, *(
        sequence for instruction in instructions for sequence in instruction.sequences))))
