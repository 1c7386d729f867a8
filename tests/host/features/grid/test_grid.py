"""Grids in which nodes, cards and links are disabled and enabled again: host/features/grid/grid.py."""

import numpy as np
import pytest

from hdl.ring.topology import Source
from host.features.grid.grid import Kind, Part, Seat, Shape, Topology, TopologyError
from tests.refusals import refuses

BYPASS = {Source.BYPASS_0: 0, Source.BYPASS_1: 1}


def parts(text):
    return [Part.parse(word) for word in text.split()]


def follow(grid, plan, node, port):
    """Follow the words sent by a node on a port to the node and port that receive them; count the bypassed nodes on
    the way."""
    passed = 0
    while True:
        assert (node, port) in grid.enabled_links, f"words over a disabled link of node {node}"
        node, receives = grid.links[node, port], port
        if any(seat is not None and seat.size > 1 and seat.receives == receives
               for seat in plan.settings[node].seats):
            return node, receives, passed
        port = next(port for port, source in enumerate(plan.settings[node].outputs)
                    if BYPASS.get(source) == receives)
        passed += 1


def check(grid, plan):
    """Check that each ring member's words reach the next member and that no other port carries words."""
    settings = plan.settings
    assert plan.active == grid.enabled_nodes
    assert sum(seat is not None for setting in settings for seat in setting.seats) == sum(map(len, plan.rings))
    bypasses, engines = 0, 0
    rows = len({node // grid.columns for node in plan.active})
    first_column = {Shape.VERTICAL: 0, Shape.GRID: rows}.get(plan.shape, len(plan.rings))
    for number, ring in enumerate(plan.rings):
        which = int(number >= first_column)
        for rank, node in enumerate(ring):
            seat = settings[node].seats[which]
            assert (seat.rank, seat.size) == (rank, len(ring))
            if seat.size > 1:
                engines += 1
                assert settings[node].outputs[seat.sends] is Source.ENGINE
                other, receives, passed = follow(grid, plan, node, seat.sends)
                assert other == ring[(rank + 1) % len(ring)]
                assert settings[other].seats[which].receives == receives
                bypasses += passed
    sources = [source for setting in settings for source in setting.outputs]
    assert sources.count(Source.ENGINE) == engines
    assert sum(source in BYPASS for source in sources) == bypasses
    for node, setting in enumerate(settings):
        if node not in plan.active:
            assert Source.ENGINE not in setting.outputs
            assert setting.seats == (None, None)


def test_known_flat_ring():
    """In a 2 x 4 grid, the flat ring alternates between steps right and down, so nodes use two different ports."""
    plan = Topology(2, 4).plan(Shape.FLAT)
    assert [divmod(node, 4) for node in plan.rings[0]] == [
        (0, 0), (0, 1), (1, 1), (1, 2), (0, 2), (0, 3), (1, 3), (1, 0)]
    assert plan.settings[0].outputs == (Source.ENGINE, Source.OFF)
    assert plan.settings[0].seats == (Seat(receives=1, sends=0, rank=0, size=8), None)
    assert plan.settings[1].seats == (Seat(receives=0, sends=1, rank=1, size=8), None)
    check(Topology(2, 4), plan)


def test_bypass_where_no_cycle_is():
    """The flat ring of a 2 x 3 grid passes one node twice: as a member, and again in bypass through its other
    ports."""
    grid = Topology(2, 3)
    plan = grid.plan(Shape.FLAT)
    check(grid, plan)
    passed = [setting.outputs for setting in plan.settings if any(source in BYPASS for source in setting.outputs)]
    assert len(passed) == 1
    assert Source.ENGINE in passed[0]


@pytest.mark.parametrize(("disabled", "shape", "rings", "scale"), [
    ("", Shape.FLAT, ((0, 1, 3, 2),), 1 / 4),
    ("", Shape.HORIZONTAL, ((0, 1), (2, 3)), 1 / 2),
    ("", Shape.VERTICAL, ((0, 2), (1, 3)), 1 / 2),
    ("", Shape.GRID, ((0, 1), (2, 3), (0, 2), (1, 3)), 1 / 4),
    ("node3", Shape.FLAT, ((0, 1, 2),), 1 / 3),
    ("node3", Shape.HORIZONTAL, ((0, 1), (2,)), 1 / 2),
    ("card1", Shape.FLAT, ((0, 1),), 1 / 2),
    ("card1", Shape.GRID, ((0, 1), (0,), (1,)), 1 / 2),
    ("card0 node3", Shape.FLAT, ((2,),), 1),
    ("link0:0", Shape.FLAT, ((0, 2, 3, 1),), 1 / 4),
])
def test_two_by_two(disabled, shape, rings, scale):
    grid = Topology(2, 2).disable(*parts(disabled))
    plan = grid.plan(shape)
    assert plan.rings == rings
    assert plan.gradient_scale(rings[0][0]) == scale
    check(grid, plan)


def test_scale_of_rings_apart():
    """If each row is a separate ring, each node averages gradients over its own row only."""
    plan = Topology(2, 2).disable(Part(Kind.NODE, 3)).plan(Shape.HORIZONTAL)
    assert [plan.gradient_scale(node) for node in plan.active] == [1 / 2, 1 / 2, 1]


def test_disabled_twice():
    """A node that was itself disabled stays disabled when its card is enabled again."""
    grid = Topology(2, 2).disable(*parts("node3 card1"))
    assert grid.enabled_nodes == (0, 1)
    assert grid.enable(*parts("card1")).enabled_nodes == (0, 1, 2)
    assert grid.enable(*parts("card1 node3")) == Topology(2, 2)
    assert grid.enable(*parts("node0")) == grid


def test_random_grids():
    """On random grids with disabled parts, planning either succeeds with rings that route words correctly or is
    rejected."""
    generator = np.random.default_rng(22)
    formed = dict.fromkeys(Shape, 0)
    refused = dict.fromkeys(Shape, 0)
    for _ in range(400):
        rows, columns = (int(generator.integers(1, 5)) for _ in range(2))
        grid = Topology(rows, columns)
        every = [*(Part(Kind.NODE, node) for node in range(grid.nodes)),
                 *(Part(Kind.CARD, row) for row in range(rows)), *(Part(Kind.LINK, *link) for link in grid.links)]
        off = generator.choice(len(every), int(generator.integers(0, min(len(every), 6))), replace=False)
        grid = grid.disable(*(every[number] for number in off))
        for shape in Shape:
            try:
                plan = grid.plan(shape)
            except TopologyError:
                refused[shape] += 1
                continue
            formed[shape] += 1
            check(grid, plan)
    assert all(count >= 100 for count in formed.values()), formed
    assert all(count >= 50 for count in refused.values()), refused


@pytest.mark.parametrize(("disabled", "shape", "message"), [
    ("card0 card1", Shape.FLAT, "Grid must have an enabled node, not none: enable a node or a card"),
    ("link4:0", Shape.HORIZONTAL,
     "Row 1 must have all its links to be a ring, not without link4:0: enable them, disable all but one of row 1's "
     "nodes, or take a flat ring"),
    ("link0:1 link4:1", Shape.GRID,
     "Column 0 must have all its links to be a ring, not without link0:1 and link4:1: enable them, disable all but "
     "one of column 0's nodes, or take a flat ring"),
    ("node5", Shape.GRID,
     "Rows of a sum in two dimensions must have enabled nodes in the same columns, not without node5: enable them, "
     "disable the others of their rows or columns, or take a flat ring"),
    ("link5:0 link5:1", Shape.FLAT,
     "Enabled links must lead round through all enabled nodes, not without link5:0 and link5:1: enable link5:0 or "
     "link5:1, or disable node5"),
    ("link0:0 link0:1 link2:0 link2:1", Shape.FLAT,
     "Enabled links must lead round through all enabled nodes, not without link0:0, link0:1, link2:0 and link2:1: "
     "enable several of them, or disable several nodes"),
])
def test_refused(disabled, shape, message):
    """If links are missing, planning a flat ring raises an error with advice."""
    with pytest.raises(TopologyError) as caught:
        Topology(2, 4).disable(*parts(disabled)).plan(shape)
    assert str(caught.value) == message


def test_advice_helps():
    """Each way that the error suggests makes a flat ring possible."""
    grid = Topology(2, 4).disable(*parts("link5:0 link5:1"))
    for other in (*(grid.enable(part) for part in parts("link5:0 link5:1")), grid.disable(*parts("node5"))):
        check(other, other.plan(Shape.FLAT))


def test_too_many_nodes():
    """If a grid has more nodes than a ring can have, it can form row and column rings, but no flat ring."""
    grid = Topology(4, 5)
    check(grid, grid.plan(Shape.GRID))
    message = "Flat ring must have at most 16 nodes, not 20: disable some, or take a grid"
    with pytest.raises(TopologyError) as caught:
        grid.plan(Shape.FLAT)
    assert str(caught.value) == message
    check(grid.disable(*parts("card3")), grid.disable(*parts("card3")).plan(Shape.FLAT))


@pytest.mark.parametrize(("rows", "columns", "message"), [
    (0, 2, "Rows must be between 1 and 16, not 0"),
    (True, 2, "Rows must be between 1 and 16, not True"),
    (2, 17, "Columns must be between 1 and 16, not 17"),
])
def test_no_grid(rows, columns, message):
    refuses(message, Topology, rows, columns)


@pytest.mark.parametrize(("text", "message"), [
    ("node8", "Node must be below 8 on a 2 x 4 grid, not 8"),
    ("card2", "Card must be below 2 on a 2 x 4 grid, not 2"),
    ("link8:0", "Link must be one of the 2 x 4 grid, not link8:0"),
    ("link0:2", "Link must be one of the 2 x 4 grid, not link0:2"),
])
def test_no_part(text, message):
    for change in (Topology(2, 4).disable, Topology(2, 4).enable):
        refuses(message, change, Part.parse(text))


@pytest.mark.parametrize("text", ["node5", "card1", "link5:0"])
def test_text(text):
    assert str(Part.parse(text)) == text


def test_no_text():
    refuses("Part must be like node5, card1 or link5:0, not 'node'", Part.parse, "node")
