"""Grid of nodes with parts that can be disabled, and the rings formed by the enabled nodes.

Node (r, c) of an R x C grid has the number r · C + c. Its port 0 sends to (r, c + 1 mod C), and its port 1 to (r + 1
mod R, c). Each link ends at the port with the same number. A card is a row of nodes.

A node that is disabled, on its own or with its card, is in no ring. Words still pass through it over a bypass,
because links between other nodes lead through it. A disabled link carries no words.

Example
-------
::

    grid = Topology(2, 4)
    plan = grid.disable(Part.parse("card1")).plan(Shape.FLAT)
    plan.rings  # ((0, 1, 2, 3),)
"""

import dataclasses
import enum
import re
from collections.abc import Callable, Collection, Iterable, Mapping

from hdl.ring.topology import MAX_PORTS, SMALL_RING, GridTopology, Source

__all__ = ["Kind", "Link", "NodeSetting", "Part", "Plan", "Seat", "Shape", "Topology", "TopologyError",
           "closed_trail", "reach"]

#: A link, as its sending node and the number of the sending port.
Link = tuple[int, int]


class TopologyError(ValueError):
    """Raised when the enabled parts of a grid do not form the requested rings."""


class Shape(enum.Enum):
    """Shapes of rings that the nodes of a grid can form."""

    FLAT = "flat"  # one ring through all enabled nodes
    HORIZONTAL = "horizontal"  # one ring for each row, through ports 0
    VERTICAL = "vertical"  # one ring for each column, through ports 1
    GRID = "grid"  # rings of rows and rings of columns, used together for two-dimensional sums


class Kind(enum.Enum):
    """Kinds of grid parts that can be disabled."""

    NODE = "node"
    CARD = "card"
    LINK = "link"


@dataclasses.dataclass(frozen=True)
class Part:
    """A node or a card, identified by its number, or a link, identified by its sending node and port."""

    kind: Kind
    number: int
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> "Part":
        """Parse a part: ``node5``, ``card1``, or ``link5:0`` for the link from port 0 of node 5."""
        match = re.fullmatch(r"(node|card)(\d+)|(link)(\d+):(\d+)", text)
        if not match:
            raise ValueError(f"Part must be like node5, card1 or link5:0, not {text!r}")
        kind, number, link, node, port = match.groups()
        return cls(Kind.LINK, int(node), int(port)) if link else cls(Kind(kind), int(number))

    def __str__(self) -> str:
        return f"{self.kind.value}{self.number}" + (f":{self.port}" if self.kind is Kind.LINK else "")


@dataclasses.dataclass(frozen=True)
class Seat:
    """Position of a node in a ring: receiving and sending ports, rank, and size of the ring."""

    receives: int
    sends: int
    rank: int
    size: int


@dataclasses.dataclass(frozen=True)
class NodeSetting:
    """Setting of a node's switch."""

    outputs: tuple[Source, ...]  # source of the words that each port sends
    # the node's position in the ring that port 0 selects in a command (the flat ring, or the ring of the node's row)
    # and in the ring that port 1 selects (the ring of its column); None if it is in no such ring
    seats: tuple[Seat | None, ...]


@dataclasses.dataclass(frozen=True)
class Plan:
    """Rings formed by the enabled nodes, and the setting of each node."""

    shape: Shape
    # nodes of each ring in rank order; row rings precede column rings
    rings: tuple[tuple[int, ...], ...]
    settings: tuple[NodeSetting, ...]  # setting of every node of the grid, in order of node number

    @property
    def active(self) -> tuple[int, ...]:
        """Participating nodes, in order of number."""
        return tuple(sorted(set().union(*self.rings)))

    @property
    def order(self) -> tuple[int, ...]:
        """Nodes in driver order: by rank in a flat ring, by number in other shapes."""
        return self.rings[0] if self.shape is Shape.FLAT else self.active

    def gradient_scale(self, node: int) -> float:
        """Factor that converts a sum into a mean: one over the number of summed nodes."""
        if self.shape in (Shape.FLAT, Shape.GRID):
            return 1 / len(self.active)
        return 1 / next(len(ring) for ring in self.rings if node in ring)


@dataclasses.dataclass(frozen=True)
class Topology:
    """A grid of nodes, with its disabled parts."""

    # number of rows and of columns, each from 1 to :data:`~hdl.ring.topology.SMALL_RING`
    rows: int
    columns: int
    # If a node is disabled both on its own and with its card, it stays disabled when the card is enabled.
    disabled: frozenset[Part] = frozenset()

    def __post_init__(self) -> None:
        GridTopology(self.rows, self.columns)
        self._check(self.disabled)

    @property
    def nodes(self) -> int:
        """Number of nodes in the whole grid."""
        return self.rows * self.columns

    @property
    def links(self) -> dict[Link, int]:
        """Receiving node of each link in the whole grid. Rows and columns of one node have no links."""
        ends: dict[Link, int] = GridTopology(self.rows, self.columns).links
        return ends

    @property
    def enabled_nodes(self) -> tuple[int, ...]:
        """Enabled nodes, sorted by number."""
        return tuple(node for node in range(self.nodes) if Part(Kind.NODE, node) not in self.disabled
                     and Part(Kind.CARD, node // self.columns) not in self.disabled)

    @property
    def enabled_links(self) -> dict[Link, int]:
        """Receiving node of each enabled link."""
        return {link: end for link, end in self.links.items() if Part(Kind.LINK, *link) not in self.disabled}

    def disable(self, *parts: Part) -> "Topology":
        """Return the grid with these parts disabled."""
        return dataclasses.replace(self, disabled=self.disabled | set(parts))

    def enable(self, *parts: Part) -> "Topology":
        """Return the grid with these parts enabled."""
        self._check(parts)
        return dataclasses.replace(self, disabled=self.disabled - set(parts))

    def _check(self, parts: Iterable[Part]) -> None:
        links = self.links
        for part in parts:
            count = {Kind.NODE: self.nodes, Kind.CARD: self.rows}.get(part.kind)
            if count is None:
                if (part.number, part.port) not in links:
                    raise ValueError(f"Link must be one of the {self.rows} x {self.columns} grid, not {part}")
            elif not 0 <= part.number < count:
                raise ValueError(f"{part.kind.value.capitalize()} must be below {count} on a {self.rows} x "
                                 f"{self.columns} grid, not {part.number}")

    # Rings.

    def plan(self, shape: Shape) -> Plan:
        """Plan the rings of the enabled nodes. Raises ``TopologyError`` if a node would not be in a ring, or if a
        ring would be too large for its nodes."""
        if not self.enabled_nodes:
            raise TopologyError("Grid must have an enabled node, not none: enable a node or a card")
        outputs = {(node, port): Source.OFF for node in range(self.nodes) for port in range(MAX_PORTS)}
        seats: dict[tuple[int, int], Seat] = {}
        rings: list[tuple[int, ...]] = []
        if shape is Shape.FLAT:
            rings.append(self._flat(outputs, seats))
        if shape is Shape.GRID:
            self._check_rectangle()
        if shape in (Shape.HORIZONTAL, Shape.GRID):
            for row in range(self.rows):
                line = range(row * self.columns, (row + 1) * self.columns)
                rings += self._straight(line, 0, f"row {row}", outputs, seats)
        if shape in (Shape.VERTICAL, Shape.GRID):
            for column in range(self.columns):
                line = range(column, self.nodes, self.columns)
                rings += self._straight(line, 1, f"column {column}", outputs, seats)
        settings = tuple(NodeSetting(tuple(outputs[node, port] for port in range(MAX_PORTS)),
                                     tuple(seats.get((node, number)) for number in range(MAX_PORTS)))
                         for node in range(self.nodes))
        return Plan(shape, tuple(rings), settings)

    def _straight(self, line: range, port: int, name: str, outputs: dict[Link, Source],
                  seats: dict[tuple[int, int], Seat]) -> list[tuple[int, ...]]:
        """Return the ring of the enabled nodes of a row or column, or no ring if no node is enabled."""
        ring = tuple(node for node in line if node in self.enabled_nodes)
        for rank, node in enumerate(ring):
            seats[node, port] = Seat(port, port, rank, len(ring))
        if len(ring) > 1:
            if lacking := [(node, port) for node in line if (node, port) not in self.enabled_links]:
                raise TopologyError(f"{name.capitalize()} must have all its links to be a ring, not without "
                                    f"{_names(lacking)}: enable them, disable all but one of {name}'s nodes, or take "
                                    f"a flat ring")
            for node in line:
                outputs[node, port] = Source.ENGINE if node in ring else (Source.BYPASS_0, Source.BYPASS_1)[port]
        return [ring] if ring else []

    def _check_rectangle(self) -> None:
        """Raise ``TopologyError`` unless the enabled nodes of all rows are in the same columns."""
        rows, columns = ({divmod(node, self.columns)[axis] for node in self.enabled_nodes} for axis in (0, 1))
        missing = [node for node in range(self.nodes) if node not in self.enabled_nodes
                   and node // self.columns in rows and node % self.columns in columns]
        if missing:
            raise TopologyError(f"Rows of a sum in two dimensions must have enabled nodes in the same columns, not "
                                f"without {_names(missing)}: enable them, disable the others of their rows or "
                                f"columns, or take a flat ring")

    def _flat(self, outputs: dict[Link, Source], seats: dict[tuple[int, int], Seat]) -> tuple[int, ...]:
        """Return one ring through all enabled nodes."""
        there = self.enabled_nodes
        if len(there) > SMALL_RING:
            raise TopologyError(f"Flat ring must have at most {SMALL_RING} nodes, not {len(there)}: disable some, or "
                                f"take a grid")
        if len(there) == 1:
            seats[there[0], 0] = Seat(0, 0, 0, 1)
            return there
        trail = self._trail()
        if trail is None:
            raise TopologyError(f"Enabled links must lead round through all enabled nodes, not without "
                                f"{_names(self._links_off())}: {self._advice()}")
        ring: list[int] = []
        ports: list[tuple[int, int]] = []  # receiving and sending port of each node
        receives = trail[-1][1]  # a link connects ports with the same number
        for node, sends in trail:
            if node in there and node not in ring:
                outputs[node, sends] = Source.ENGINE
                ring.append(node)
                ports.append((receives, sends))
            else:
                outputs[node, sends] = (Source.BYPASS_0, Source.BYPASS_1)[receives]
            receives = sends
        for rank, node in enumerate(ring):
            seats[node, 0] = Seat(*ports[rank], rank, len(ring))
        return tuple(ring)

    def _trail(self) -> list[Link] | None:
        """Find a closed trail through all enabled nodes; a single node needs no links."""
        return closed_trail(self.enabled_links, self.enabled_nodes) if len(self.enabled_nodes) > 1 else []

    def _links_off(self) -> list[Link]:
        return sorted(set(self.links) - set(self.enabled_links))

    def _advice(self) -> str:
        """Advise which links to enable or nodes to disable; any one of them would make a flat ring possible."""
        def helps(make: Callable[[Part], Topology], parts: Iterable[Part]) -> list[Part]:
            return [part for part in parts if make(part)._trail() is not None]

        ways = []
        if links := helps(self.enable, (Part(Kind.LINK, *link) for link in self._links_off())):
            ways.append(f"enable {' or '.join(map(str, links))}")
        if nodes := helps(self.disable, (Part(Kind.NODE, node) for node in self.enabled_nodes)):
            ways.append(f"disable {' or '.join(map(str, nodes))}")
        return ", or ".join(ways) or "enable several of them, or disable several nodes"


def _names(parts: Iterable[int | Link]) -> str:
    names = [f"link{part[0]}:{part[1]}" if isinstance(part, tuple) else f"node{part}" for part in parts]
    return " and ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} and {names[-1]}"


# Closed trails.

def reach(start: int, links: Mapping[Link, int]) -> set[int]:
    """Return all nodes that words from a node can reach, including itself."""
    reached, open_ = {start}, [start]
    while open_:
        node = open_.pop()
        for (source, _), target in links.items():
            if source == node and target not in reached:
                reached.add(target)
                open_.append(target)
    return reached


def closed_trail(links: Mapping[Link, int], nodes: Collection[int]) -> list[Link] | None:
    """Find the shortest closed trail through all given nodes, as links in order; None if there is none.

    ``links`` maps each link to its receiving node. A trail may pass through other nodes, and through a node more than
    once, but uses each link only once, since a link has one source of words. The trail starts at the lowest of the
    given nodes; among equally short trails, the one with the lowest port is returned.
    """
    start = min(nodes)
    backward = {(target, number): source for number, ((source, _), target) in enumerate(links.items())}
    inner = reach(start, links) & reach(start, backward)
    if not inner.issuperset(nodes):
        return None
    inside = {link: target for link, target in links.items() if link[0] in inner and target in inner}
    for length in range(max(len(nodes), 1), len(inside) + 1):
        trail = _Search(inside, frozenset(nodes), start, length).run()
        if trail is not None:
            return trail
    return None


class _Search:
    """Backtracking search for a closed trail of a given length, which uses no link twice."""

    def __init__(self, links: Mapping[Link, int], nodes: frozenset[int], start: int, length: int) -> None:
        self._leaving: dict[int, list[tuple[Link, int, int]]] = {}
        for number, (link, target) in enumerate(sorted(links.items())):
            self._leaving.setdefault(link[0], []).append((link, target, 1 << number))
        self._nodes = nodes
        self._start = start
        self._length = length
        self._dead: set[tuple[int, int]] = set()  # pairs (node, used links) that no trail can complete

    def run(self) -> list[Link] | None:
        trail: list[Link] = []
        return trail if self._extend(trail, self._start, 0, self._nodes - {self._start}) else None

    def _extend(self, trail: list[Link], node: int, used: int, missing: frozenset[int]) -> bool:
        left = self._length - len(trail)
        if left == 0:
            return node == self._start and not missing
        # Each missing node requires one more link, and so does returning to the start.
        if len(missing) + (1 if missing or node != self._start else 0) > left or (node, used) in self._dead:
            return False
        if self._lost(node, used, missing):
            self._dead.add((node, used))
            return False
        for link, target, bit in self._leaving.get(node, ()):
            if not used & bit:
                trail.append(link)
                if self._extend(trail, target, used | bit, missing - {target}):
                    return True
                trail.pop()
        self._dead.add((node, used))
        return False

    def _lost(self, node: int, used: int, missing: frozenset[int]) -> bool:
        """Whether the start, or a missing node, cannot be reached from ``node`` over unused links."""
        reached, open_ = set(), [node]
        while open_:
            for _, target, bit in self._leaving.get(open_.pop(), ()):
                if not used & bit and target not in reached:
                    reached.add(target)
                    open_.append(target)
        return not reached >= missing | {self._start}
