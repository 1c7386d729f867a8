"""Sections of a node's configuration for its links, its topology, and its role on the ring."""

import dataclasses
from typing import Any, ClassVar

from hdl.ring.topology import MAX_NODES, SMALL_RING
from hdl.section import Flag, Integer, Section, option

__all__ = ["Credits", "Link", "Peer", "Role", "RootReduce", "SingleRing", "Topology"]


class Link(Section):
    """Base class of all link types, with their traits.

    Members
    -------
    replay : bool
        Whether links retransmit damaged or lost words.
    slots : bool
        Whether packets are sent in time slots of TIME, the clock shared by all nodes.
    jobs : int
        Number of jobs that share the ring.
    messages : bool
        Whether time slots carry messages to all nodes.
    """

    replay: ClassVar[bool] = False
    slots: ClassVar[bool] = False
    jobs: ClassVar[int] = 1
    messages: ClassVar[bool] = False

    def wires(self) -> Any:
        """Signature of the link's wires, as seen by the transmitter."""
        from hdl.ring.link import LinkSignature

        return LinkSignature()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Credits(Link):
    """Link on which packets are sent on credit: docs/ring/link.md.

    Parameters
    ----------
    ingress : int
        Number of whole segments that the ring ingress holds; at least 2, see docs/ring/collective/theory.md.
    """

    ingress: int = option(4, Integer(2))


class Topology(Section):
    """Base class of all topologies.
    """

    ports: ClassVar[int] = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class SingleRing(Topology):
    """A ring that uses a single port.

    Parameters
    ----------
    max_nodes : int
        Maximum number of nodes in a ring, 1 to 255. More than 16 nodes need wider counters.
    """

    max_nodes: int = option(SMALL_RING, Integer(1, MAX_NODES))


class Role(Section):
    """Base class of all roles, with their traits.

    Members
    -------
    interleaved : bool
        Whether two segments of a collective alternate on the ring.
    root_reduce : bool
        Whether a single root node may own every block.
    streams : bool
        Whether layers are streamed from a server; the node then has the PUSH operation: docs/streaming.md.
    broadcast_formats : bool
        Whether BROADCAST commands select the format of the weights that they send.
    """

    interleaved: ClassVar[bool] = False
    root_reduce: ClassVar[bool] = False
    streams: ClassVar[bool] = False
    broadcast_formats: ClassVar[bool] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peer(Role):
    """One of several nodes that each own one block of a vector.

    Parameters
    ----------
    interleaved : bool
        Whether two segments of a collective alternate on the ring: docs/ring/interleaved.md.
    """

    interleaved: bool = option(False, Flag())


@dataclasses.dataclass(frozen=True, kw_only=True)
class RootReduce(Role):
    """Peer that also supports commands with a single root that owns every block, so that only the root's results
    cross a slow link: docs/ring/root_reduce.md."""

    root_reduce: ClassVar[bool] = True
