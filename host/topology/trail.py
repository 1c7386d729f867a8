"""Search for a closed trail through given nodes of a directed network.

A trail may pass a node more than once, but goes over no link twice: each link has one source of words.
"""

from collections.abc import Collection, Mapping

__all__ = ["Link", "closed_trail", "reach"]

#: A link by the node that sends on it, and the number of its port there.
Link = tuple[int, int]


def reach(start: int, links: Mapping[Link, int]) -> set[int]:
    """Nodes to which words can come from a node, with itself."""
    found, open_ = {start}, [start]
    while open_:
        node = open_.pop()
        for (source, _), target in links.items():
            if source == node and target not in found:
                found.add(target)
                open_.append(target)
    return found


def closed_trail(links: Mapping[Link, int], nodes: Collection[int]) -> list[Link] | None:
    """Find a closed trail through all of the given nodes, with as few links as possible.

    It begins at the least of the nodes, and takes the lowest port wherever several trails are as short.

    Parameters
    ----------
    links : mapping
        Node to which each link leads.
    nodes : collection of int
        Nodes that must be passed; others may be.

    Returns
    -------
    list of Link, or None
        Links in the order of the trail; None if there is no such trail.
    """
    start = min(nodes)
    backward = {(target, number): source for number, ((source, _), target) in enumerate(links.items())}
    inner = reach(start, links) & reach(start, backward)
    if not inner.issuperset(nodes):
        return None
    inside = {link: target for link, target in links.items() if link[0] in inner and target in inner}
    for length in range(max(len(nodes), 1), len(inside) + 1):
        found = _Search(inside, frozenset(nodes), start, length).run()
        if found is not None:
            return found
    return None


class _Search:
    """Backtracking over the trails of one length."""

    def __init__(self, links: Mapping[Link, int], nodes: frozenset[int], start: int, length: int) -> None:
        self._leaving: dict[int, list[tuple[Link, int, int]]] = {}
        for number, (link, target) in enumerate(sorted(links.items())):
            self._leaving.setdefault(link[0], []).append((link, target, 1 << number))
        self._nodes = nodes
        self._start = start
        self._length = length
        self._dead: set[tuple[int, int]] = set()  # nodes and used links from which the trail cannot be closed

    def run(self) -> list[Link] | None:
        trail: list[Link] = []
        return trail if self._extend(trail, self._start, 0, self._nodes - {self._start}) else None

    def _extend(self, trail: list[Link], node: int, used: int, missing: frozenset[int]) -> bool:
        left = self._length - len(trail)
        if left == 0:
            return node == self._start and not missing
        # Each missing node takes a link, and the way back to the start another.
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
        """Whether the start or a missing node cannot be reached over links that are not used."""
        found, open_ = set(), [node]
        while open_:
            for _, target, bit in self._leaving.get(open_.pop(), ()):
                if not used & bit and target not in found:
                    found.add(target)
                    open_.append(target)
        return self._start not in found or not found.issuperset(missing)
