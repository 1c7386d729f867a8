"""Sequences in the order of a collective: the blocks of each participant.

A :class:`Sequence` names a participant of :mod:`hdl.ring.order` and gives its path in either phase, as values
computed from a :class:`PlannedCommand`. The four sequences here are for nodes without codecs; parts of the datapath
may add more (:mod:`hdl.ring.parts.part`).
"""

import dataclasses
from typing import Any

from amaranth.hdl import Mux

__all__ = ["EGRESS", "ENCODE", "INGRESS", "OWN", "Path", "PlannedCommand", "Sequence", "sequences_of"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Path:
    """Number of blocks of a sequence in a phase, as values for :func:`hdl.ring.order.path_layout`."""

    steps: Any
    first: Any = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedCommand:
    """A planned command on this node, as input for the computation of the paths."""

    #: View with :func:`hdl.ring.setup.setup_layout`; all fields are valid except the paths.
    setup: Any
    #: Number of nodes in the ring.
    size: Any
    #: Rank of the node.
    rank: Any
    #: First groups of the blocks of the predecessor, of this node and of the successor
    #: (:func:`hdl.ring.order.first_layout`); in a broadcast all three are the first group of the vector.
    previous: Any
    own: Any
    following: Any
    #: Steps of this node in the scatter-reduce and in the all-gather, as sender and as receiver; 0 in a phase that
    #: the command omits.
    sends: Any
    receives: Any
    passes: Any
    gathers: Any
    #: Number of steps in which this node forms sums, if the command sums; number of steps that update its block.
    sums: Any
    updates: Any
    #: Whether the vector moves as one block, from a root to all other nodes.
    is_broadcast: Any
    #: Whether this node is the root.
    is_root: Any
    #: Whether this node forwards a broadcast: its successor is not the root.
    passes_on: Any
    #: Number of steps of this node that contribute its block to a gather without a preceding scatter-reduce.
    gives: Any

    def gather_path(self, steps, broadcast_steps, first):
        """Path in an all-gather, or in a broadcast, where the whole vector is the only block."""
        return Path(steps=Mux(self.is_broadcast, broadcast_steps, steps), first=first)


class Sequence:
    """Number of blocks of one participant of a collective.

    A subclass has a ``name`` and a method ``scatter(command)``, ``gather(command)`` or both, which return the
    :class:`Path` in the respective phase. A phase without a method is omitted from the sequence.
    """

    #: Name of the sequence in a command's setup, which has its paths ``<name>_scatter`` and ``<name>_gather``.
    name: str

    @property
    def paths(self):
        """Methods that compute the sequence's paths, by name of the phase: ``scatter``, ``gather``."""
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


#: Packets that are sent.
EGRESS = _Egress()
#: Packets that arrive. A ring of one node expects none and uses its own sums.
INGRESS = _Ingress()
#: Local gradients that are encoded, either directly or after they have been summed.
ENCODE = _Encode()
#: The node's own block: updated by the optimizer, or sent by a command without an update.
OWN = _Own()


def sequences_of(instructions):
    """Sequences of packets, followed by all other sequences that the instructions use."""
    return tuple(dict.fromkeys((EGRESS, INGRESS, *(
        sequence for instruction in instructions for sequence in instruction.sequences))))
