"""Sections of a node's configuration: its links, its topology and its role among the nodes."""

import dataclasses
from typing import ClassVar

from hdl.ring.topology import MOST_NODES, SMALL_RING
from hdl.section import Flag, Integer, Section, option

__all__ = ["Credits", "Grid", "JobSlots", "Link", "Peer", "Replay", "Role", "RootReduce", "Server", "SingleRing",
           "Slots", "Topology", "Worker"]

#: Segments of an ingress whose packets the messages of a link with replay can count.
_MAX_REPLAYED = 15


class Link(Section):
    """Base of the kinds of links, with their traits.

    Members
    -------
    replay : bool
        Whether links repeat words that were damaged or lost.
    slots : bool
        Whether packets are sent in slots of a common TIME.
    jobs : int
        Jobs that have the ring in common.
    messages : bool
        Whether slots carry messages to all nodes.
    """

    replay: ClassVar[bool] = False
    slots: ClassVar[bool] = False
    jobs: ClassVar[int] = 1
    messages: ClassVar[bool] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Credits(Link):
    """Packets are sent on credit: docs/ring/link.md.

    Parameters
    ----------
    ingress : int
        Whole segments that the ring ingress holds; at least 2, see docs/ring/collective/theory.md.
    """

    ingress: int = option(4, Integer(2))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replay(Link):
    """Packets are sent on credit, and words that were damaged or lost are repeated: docs/ring/replay.md.

    Such a link has nine more wires. With programs it has control words as well, so that commands can wait for those
    of other nodes: docs/ring/control_words.md.

    Parameters
    ----------
    ingress : int
        As of :class:`Credits`, at most 15.
    """

    replay: ClassVar[bool] = True

    ingress: int = option(4, Integer(2, _MAX_REPLAYED))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slots(Link):
    """Packets are sent in slots of a common TIME, on links with the wires and control words of :class:`Replay`:
    docs/ring/slots.md.

    Parameters
    ----------
    ingress : int
        As of :class:`Replay`.
    messages : bool
        Whether there are messages to all nodes in slots: docs/ring/messages.md.
    """

    replay: ClassVar[bool] = True
    slots: ClassVar[bool] = True

    ingress: int = option(4, Integer(2, _MAX_REPLAYED))
    messages: bool = option(False, Flag())


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobSlots(Link):
    """Packets of two jobs are sent in slots of their own: docs/ring/two_jobs.md.

    Parameters
    ----------
    ingress : int
        As of :class:`Replay`.
    """

    replay: ClassVar[bool] = True
    slots: ClassVar[bool] = True
    jobs: ClassVar[int] = 2

    ingress: int = option(4, Integer(2, _MAX_REPLAYED))


class Topology(Section):
    """Base of the topologies.

    Members
    -------
    ports : int
        Ports to other nodes.
    """

    ports: ClassVar[int] = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class SingleRing(Topology):
    """A ring, over one port.

    Parameters
    ----------
    max_nodes : int
        Nodes of the largest ring, 1 to 255. More than 16 take wider counters.
    """

    max_nodes: int = option(SMALL_RING, Integer(1, MOST_NODES))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid(Topology):
    """Rings in rows and columns of a grid, over two ports, with a switch and the operation SWITCH:
    docs/ring/switch.md.

    Parameters
    ----------
    max_nodes : int
        Nodes of the largest ring, 1 to 16.
    """

    ports: ClassVar[int] = 2

    max_nodes: int = option(SMALL_RING, Integer(1, SMALL_RING))


class Role(Section):
    """Base of the roles, with their traits.

    Members
    -------
    interleaved : bool
        Whether two segments of a collective are on their way in turn.
    root_reduce : bool
        Whether one root may own every block.
    streams : bool
        Whether layers are streamed from a server, so that the node has the operation PUSH: docs/relay.md.
    broadcast_formats : bool
        Whether weights have a format in BROADCAST.
    """

    interleaved: ClassVar[bool] = False
    root_reduce: ClassVar[bool] = False
    streams: ClassVar[bool] = False
    broadcast_formats: ClassVar[bool] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peer(Role):
    """One of several nodes that have the blocks of a vector in partitions.

    Parameters
    ----------
    interleaved : bool
        Whether two segments of a collective are on their way in turn: docs/ring/interleaved.md.
    """

    interleaved: bool = option(False, Flag())


@dataclasses.dataclass(frozen=True, kw_only=True)
class RootReduce(Role):
    """A peer whose commands may give every block to one root, so that a slow link is crossed only by the root's
    results: docs/ring/one_owner.md."""

    root_reduce: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Worker(Role):
    """A worker, to which a server streams layers, and which gives it gradients by PUSH: docs/relay.md.

    Parameters
    ----------
    broadcast_formats : bool
        Whether weights have a format in BROADCAST: docs/ring/collective/formats.md.
    """

    streams: ClassVar[bool] = True

    broadcast_formats: bool = option(False, Flag())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Server(Role):
    """The server of workers, with weights and state in its far memory: docs/relay.md.

    Parameters
    ----------
    broadcast_formats : bool
        Whether weights have a format in BROADCAST, and are counted: docs/ring/collective/formats.md.
    """

    streams: ClassVar[bool] = True

    broadcast_formats: bool = option(False, Flag())
