"""Topology of the nodes: neighbours and block owners.

:class:`RingTopology` computes both as integers, for the host and for simulations; :class:`GridTopology` gives the
links of a grid, in which switches select the rings. The functions of this module compute neighbours in gateware,
where rank and size are signals. No other module computes neighbours, so a new network shape needs a class here.
"""

import dataclasses
import enum

from amaranth.hdl import Mux

__all__ = ["MAX_NODES", "MAX_PORTS", "SMALL_RING", "GridTopology", "RingTopology", "Source", "check_nodes",
           "is_predecessor", "is_successor", "predecessor", "ranks", "sizes", "successor"]

#: Number of nodes in the largest ring; packets and commands have 8 bits for a rank, a block or a node count.
MAX_NODES = 255

#: Number of nodes in the largest ring with 4-bit ranks, as in control words, quorum updates and frames of a board.
SMALL_RING = 16

#: Maximum number of ports that connect a node to other nodes.
MAX_PORTS = 2


class Source(enum.IntEnum):
    """Source of the words that a node sends on one of its ports."""

    OFF = 0
    """None: the port is idle."""
    ENGINE = 1
    """The node itself."""
    BYPASS_0 = 2
    """Words from port 0."""
    BYPASS_1 = 3
    """Words from port 1."""


def ranks(nodes_max):
    """Return the shape of a rank or block number, for rings of up to ``nodes_max`` nodes; at least 4 bits."""
    return range(max(nodes_max, SMALL_RING))


def sizes(nodes_max):
    """Return the shape of a node, block or step count in rings of up to ``nodes_max`` nodes; at least 5 bits."""
    return range(max(nodes_max, SMALL_RING) + 1)


def check_nodes(nodes, *, name="Ring size"):
    """Raise ``ValueError`` unless ``nodes`` nodes can form a ring."""
    if isinstance(nodes, bool) or not isinstance(nodes, int) or not 1 <= nodes <= MAX_NODES:
        raise ValueError(f"{name} must be between 1 and {MAX_NODES} nodes, not {nodes!r}")


@dataclasses.dataclass(frozen=True)
class RingTopology:
    """Nodes in a ring, numbered by rank; link k starts at node k.

    Parameters
    ----------
    nodes : int
        Ring size, 1 to :data:`MAX_NODES`. A single node is its own predecessor and successor.
    """

    nodes: int

    def __post_init__(self):
        check_nodes(self.nodes)

    def successor(self, rank: int) -> int:
        """Rank of the next node, which receives the words that this node sends."""
        return (rank + 1) % self.nodes

    def predecessor(self, rank: int) -> int:
        """Rank of the previous node, which receives the credits that this node sends."""
        return (rank - 1) % self.nodes

    def owned_block(self, rank: int) -> int:
        """Block that this node sums last, updates and stores."""
        return self.successor(rank)

    def owner(self, block: int) -> int:
        """Rank of the node that owns a block."""
        return self.predecessor(block)

    @property
    def links(self) -> tuple[tuple[int, int], ...]:
        """Ranks at the two ends of each link: the sender and the receiver of its words."""
        return tuple((rank, self.successor(rank)) for rank in range(self.nodes))

    @property
    def incoming(self) -> tuple[int, ...]:
        """For each node, the number of the link that ends at it."""
        ends = [end for _, end in self.links]
        return tuple(ends.index(rank) for rank in range(self.nodes))


@dataclasses.dataclass(frozen=True)
class GridTopology:
    """Nodes with two ports, in R rows and C columns; node (r, c) has the number r · C + c.

    Port 0 of node (r, c) sends to (r, c + 1 mod C), and port 1 to (r + 1 mod R, c). Each link ends at the port with
    the same number.

    Parameters
    ----------
    rows, columns : int
        Number of rows and columns, 1 to :data:`SMALL_RING` each. A row or column with one node has no links.
    """

    rows: int
    columns: int

    def __post_init__(self):
        for name, count in (("Rows", self.rows), ("Columns", self.columns)):
            if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= SMALL_RING:
                raise ValueError(f"{name} must be between 1 and {SMALL_RING}, not {count!r}")

    @property
    def nodes(self) -> int:
        """Number of nodes in the grid."""
        return self.rows * self.columns

    @property
    def links(self) -> dict[tuple[int, int], int]:
        """Receiving node of each link, keyed by the link's sending node and port."""
        ends = {}
        for node in range(self.nodes):
            row, column = divmod(node, self.columns)
            if self.columns > 1:
                ends[node, 0] = row * self.columns + (column + 1) % self.columns
            if self.rows > 1:
                ends[node, 1] = (row + 1) % self.rows * self.columns + column
        return ends

    @property
    def wiring(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """Node and port at the two ends of each link: the sender and the receiver of its words."""
        return [((node, port), (end, port)) for (node, port), end in self.links.items()]


def predecessor(rank, size):
    """Rank of the predecessor of ``rank`` in a ring of ``size`` nodes, as an Amaranth value."""
    return Mux(rank == 0, size - 1, rank - 1)


def successor(rank, size):
    """Rank of the successor of ``rank`` in a ring of ``size`` nodes, as an Amaranth value."""
    return Mux(rank == size - 1, 0, rank + 1)


def is_predecessor(block, rank, size):
    """Whether ``block`` precedes ``rank`` in the ring; cheaper than computing the predecessor."""
    return (block == rank - 1) | ((rank == 0) & (block == size - 1))


def is_successor(block, rank, size):
    """Whether ``block`` follows ``rank`` in the ring; cheaper than computing the successor."""
    return (block == rank + 1) | ((rank == size - 1) & (block == 0))
