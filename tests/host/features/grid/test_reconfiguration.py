"""Tests of grid reconfiguration plans: host/features/grid/reconfiguration.py."""


import numpy as np
import pytest

from hdl.config import NodeConfig, Weights
from hdl.features.grid.feature import Grid
from host.features.grid.grid import Part, Shape, Topology, TopologyError
from host.features.grid.reconfiguration import ReconfigurationPlan, Request, grid_size
from host.features.grid.switching import check_formats
from tests.present import needs
from tests.refusals import refuses


def reconfiguration_plan(text, rows=2, columns=4, shape=None, **options):
    """Create a plan from requests such as ``-card1@40 +card1@80``."""
    return ReconfigurationPlan(rows, columns, [
        Request.parse(word[1:], enable=word[0] == "+") for word in text.split()], shape, **options)


def test_stages():
    reconfiguration = reconfiguration_plan("+card1@80 -node5@120 -card1@40 -link2:1@100 +link2:1@110")
    assert [stage.step for stage in reconfiguration.stages] == [0, 40, 80, 100, 110, 120]
    assert [len(stage.plan.active) for stage in reconfiguration.stages] == [8, 4, 8, 8, 8, 7]
    assert [stage.plan.shape.value for stage in reconfiguration.stages] == [
        "grid", "flat", "grid", "flat", "grid", "flat"]
    assert list(map(str, reconfiguration.stages)) == [
        "8 nodes, grid", "4 nodes, flat", "8 nodes, grid",
        "8 nodes, flat (Column 2 must have all its links to be a ring, not without link2:1)", "8 nodes, grid",
        "7 nodes, flat (Rows of a sum in two dimensions must have enabled nodes in the same columns, not without "
        "node5)"]
    assert [reconfiguration.at(steps) for steps in (0, 39, 40, 79, 80, 119, 120, 999)] == [0, 0, 1, 1, 2, 4, 5, 5]
    assert reconfiguration.fewest == 4
    assert reconfiguration.texts() == ["disable card1@40", "enable card1@80",
                                       "disable link2:1@100", "enable link2:1@110",
                              "disable node5@120"]
    reconfiguration.check(121)


@pytest.mark.parametrize(("text", "shape", "expected"), [
    ("", None, ["grid"]), ("", Shape.FLAT, ["flat"]), ("-card0@0", None, ["flat"]),
    ("-card0@0", Shape.GRID, ["grid"]), ("-node1@0 -node5@0", None, ["grid"]), ("-node1@3", Shape.FLAT, ["flat"] * 2),
    ("-node1@0 -node2@0 -node3@0 -node5@0 -node6@0 -node7@0", None, ["flat"]),
])
def test_shapes(text, shape, expected):
    """Sums are two-dimensional by default if there are several rows and several columns."""
    assert [stage.plan.shape.value for stage in reconfiguration_plan(text, shape=shape).stages] == expected


def test_one_row():
    assert reconfiguration_plan("", 1, 4).stages[0].plan.rings == ((0, 1, 2, 3),)
    assert len(reconfiguration_plan("", 4, 1).stages[0].plan.order) == 4


def unringed(requests):
    """Return whether no flat ring is possible in a 2 x 3 grid after the given requests. (One is always possible if
    the row and column rings have all their links.)"""
    grid = Topology(2, 3)
    for request in requests:
        grid = grid.enable(request.part) if request.enable else grid.disable(request.part)
    try:
        return not grid.plan(Shape.FLAT).rings
    except TopologyError:
        return True


def test_random_courses():
    """A plan of random requests is either rejected, or its rings consist of all enabled nodes."""
    generator = np.random.default_rng(7)
    refused = 0
    for _ in range(60):
        grid, requests = Topology(2, 3), []
        links = (f"link{node}:{port}" for node in range(6) for port in (0, 1))
        parts = [*(f"node{node}" for node in range(6)), "card0", "card1", *links]
        for step in range(1, 8):
            part = Part.parse(parts[generator.integers(len(parts))])
            enable = part in grid.disabled
            grid = grid.enable(part) if enable else grid.disable(part)
            requests.append(Request(step, part, enable))
        order = [requests[n] for n in generator.permutation(len(requests))]
        if any(unringed(requests[:count]) for count in range(1, 8)):
            with pytest.raises(TopologyError, match=r"^After step [1-7], (dis|en)able (node|card|link)"):
                ReconfigurationPlan(2, 3, order)
            refused += 1
        else:
            reconfiguration = ReconfigurationPlan(2, 3, order)
            assert reconfiguration.requests == tuple(requests)
            assert reconfiguration.stages[-1].plan.active == grid.enabled_nodes
    assert 10 < refused < 55


@pytest.mark.parametrize("text", ["2x", "x4", "2X4", "2x4x2", "-2x4", " 2x4", "two by four"])
def test_sizes(text):
    message = f"Topology must be rows and columns like 2x4, not {text!r}"
    refuses(message, grid_size, text)
    assert grid_size("12x1") == (12, 1)


@pytest.mark.parametrize("text", ["card1", "card1@", "card1@-1", "card1@4.5", "@4", "card1 @4"])
def test_requests(text):
    with pytest.raises(ValueError, match=r"^(Request must be a part and a number of steps like card1@40|Part must)"):
        Request.parse(text)
    assert str(Request.parse("link5:0@60", enable=True)) == "enable link5:0"


def test_both_at_once():
    """Requests for the same step are executed together, in the given order."""
    reconfiguration = reconfiguration_plan("-card1@4 -node6@4 +card1@9")
    assert [len(stage.plan.active) for stage in reconfiguration.stages] == [8, 4, 7]
    refuses("After step 4, enable card1 and disable card1: card1 must be disabled to be enabled; nothing is",
            reconfiguration_plan, "+card1@4 -card1@4", error=TopologyError)


def test_weights_that_change_when_they_are_coded_twice():
    """If decoding and encoding a number again can change it, its codec is rejected for two-dimensional rings but
    accepted for a flat ring."""
    node = NodeConfig(topology=Grid(), weights=Weights(codec="nvfp4"))
    grid = reconfiguration_plan("").stages[0].plan
    assert grid.shape is Shape.GRID
    refuses("Weights of rings in two dimensions must be in a format that changes no number twice, not nvfp4: take "
            "--shape flat", check_formats, grid, node)
    check_formats(reconfiguration_plan("", shape=Shape.FLAT).stages[0].plan, node)
    check_formats(grid, NodeConfig(topology=Grid(), weights=Weights(codec="mx9")))


def test_sums_of_integers():
    """Sums of integers always use one flat ring, whatever parts are enabled, and never two dimensions."""
    needs("reproducible")
    reconfiguration = reconfiguration_plan("-card1@2 +card1@4 -node5@7 -link0:0@9", gradients="sum16")
    why = " (sum16 sums integers in one ring)"
    assert list(map(str, reconfiguration.stages)) == [
        f"8 nodes, flat{why}", "4 nodes, flat", f"8 nodes, flat{why}", f"7 nodes, flat{why}", f"7 nodes, flat{why}"]
    assert str(reconfiguration_plan("", shape=Shape.FLAT, gradients="sum16").stages[0]) == "8 nodes, flat"
    node = NodeConfig(topology=Grid(), gradients="sum16")
    for plan in (reconfiguration.stages[0].plan, Topology(2, 4).plan(Shape.HORIZONTAL)):
        check_formats(plan, node)
    refuses("Gradients of rings in two dimensions must be in a format that is rounded in every ring, not sum16: take "
            "--shape flat", check_formats, reconfiguration_plan("", shape=Shape.GRID).stages[0].plan, node)
