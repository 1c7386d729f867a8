"""Tests of closed trails through all nodes of a grid: host/features/grid/grid.py."""

import itertools

import numpy as np
import pytest

from host.features.grid.grid import Topology, closed_trail, reach


def check(links, nodes, trail):
    """Check that the trail is closed, uses no link twice and visits all nodes."""
    assert len(set(trail)) == len(trail)
    for link, following in itertools.pairwise([*trail, trail[0]]):
        assert links[link] == following[0]
    assert {node for node, _ in trail} >= set(nodes)


@pytest.mark.parametrize(("rows", "columns", "bypasses"), [
    (1, 4, 0), (4, 1, 0), (2, 2, 0), (2, 4, 0), (2, 6, 0), (2, 8, 0), (3, 3, 0), (4, 4, 0),
    (2, 3, 1), (3, 2, 1), (2, 5, 1), (3, 4, 1), (4, 3, 1), (3, 5, 1), (5, 3, 1), (4, 5, 1),
])
def test_whole_grids(rows, columns, bypasses):
    """Every grid has a closed trail through all nodes, although some must visit one node twice."""
    grid = Topology(rows, columns)
    trail = closed_trail(grid.links, range(grid.nodes))
    check(grid.links, range(grid.nodes), trail)
    assert len(trail) == grid.nodes + bypasses


@pytest.mark.parametrize(("rows", "columns", "avoidable"), [(2, 4, True), (4, 4, True), (2, 3, False)])
def test_one_link_avoided(rows, columns, avoidable):
    """In grids of 2 x 4 and 4 x 4 nodes, a cycle through all nodes can avoid any one link. In a grid of 2 x 3 nodes,
    it cannot."""
    grid = Topology(rows, columns)
    for avoided in grid.links:
        links = {link: end for link, end in grid.links.items() if link != avoided}
        trail = closed_trail(links, range(grid.nodes))
        assert (trail is not None and len(trail) == grid.nodes) == avoidable, avoided
        if trail is not None:
            check(links, range(grid.nodes), trail)


def shortest(links, nodes):
    """Return the length of the shortest closed trail, by breadth-first search, or 0 if none exists."""
    start = min(nodes)
    layer = {(start, frozenset())}
    for length in range(1, len(links) + 1):
        layer = {(links[link], used | {link}) for node, used in layer for link in links
                 if link[0] == node and link not in used}
        if any(node == start and {source for source, _ in used} >= set(nodes) for node, used in layer):
            return length
    return 0


def test_random_networks():
    """In random networks of up to six nodes, closed trails are as short as possible. Some networks have no closed
    trail."""
    generator = np.random.default_rng(5)
    none = 0
    for number in range(200):
        size = int(generator.integers(2, 7))
        links = {(node, port): int(generator.integers(size)) for node in range(size) for port in range(2)
                 if generator.random() < 0.75}
        nodes = sorted(generator.choice(size, int(generator.integers(1, size + 1)), replace=False).tolist())
        trail = closed_trail(links, nodes)
        expected = shortest(links, nodes)
        none += expected == 0
        assert (len(trail) if trail else 0) == expected, number
        if trail:
            check(links, nodes, trail)
    assert 40 < none < 180


def test_reach():
    links = {(0, 0): 1, (1, 0): 2, (3, 0): 0}
    assert reach(0, links) == {0, 1, 2}
    assert reach(2, links) == {2}
    assert reach(3, links) == {0, 1, 2, 3}
