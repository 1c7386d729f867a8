"""Sums of integers have the same bits on a ring and on grids of any shape: docs/reproducible.md."""

import numpy as np
import pytest

from host.features.grid.grid import Part, Shape
from host.features.grid.reconfiguration import ReconfigurationPlan, Request
from sim.golden import ring as golden
from sim.golden.codecs import GRADIENT_CODECS
from tests.host.features.grid.golden_grid import Grid
from tests.host.features.grid.grids import open_grid
from tests.host.golden import GoldenRing
from tests.host.results import results
from tests.host.rings import CONFIGS, open_nodes, random
from tests.present import needs
from tests.refusals import refuses

needs("reproducible", what="A sum of integers")

RUN = ("train", "--gradients", "sum32", "--hidden", "none", "--batch", 200)


def values_of(nodes, length):
    """Random gradients over many binades, one vector for each node of a grid or rank of a ring."""
    generator = np.random.default_rng(nodes)
    values = random(generator, (nodes, length), density=0.8)
    return values * np.exp2(generator.integers(-30, 30, values.shape)).astype(np.float32)


def grid_plan(rows, columns, disabled=""):
    """Topology plan of a grid without the disabled parts."""
    requests = [Request(0, Part.parse(part)) for part in disabled.split()]
    return ReconfigurationPlan(rows, columns, requests, gradients="sum32").stages[0].plan


def sums(ring, values):
    """Run an all-reduce and return the bits of the sums on each node."""
    ring.memory.write_gradients(list(values))
    ring.collectives.all_reduce(values.shape[1])
    return ring.memory.read_gradients(values.shape[1]).view(np.uint32)


def grid_sums(grid, plan, values):
    """Return the bits of the sums on each active node of a grid, given the gradients of all nodes by node number."""
    grid.switch(plan)
    return sums(grid.ring(plan), values[list(plan.order)])


@pytest.mark.parametrize("name", ["sum32", "sum16"])
def test_golden(name):
    """Sums on golden nodes have the same bits on one ring and on grids, and in any order."""
    values, options = values_of(8, 700), {"gradient_codec": name}
    expected = sums(GoldenRing(8, **options), values)
    for rows, columns in ((2, 4), (4, 2), (1, 8)):
        got = grid_sums(Grid(rows, columns, **options), grid_plan(rows, columns), values)
        assert np.count_nonzero(got != expected) == 0, (rows, columns)
    assert np.count_nonzero(sums(GoldenRing(8, **options), values[::-1]) != expected) == 0


def test_gateware():
    """Sums on Verilated nodes have the golden ring's bits, even if nodes, cards or links of a grid are disabled."""
    config, values = CONFIGS["sums"], values_of(8, 1500)

    def total(nodes):
        result, _ = golden.all_reduce(golden.bits(values[list(nodes)]), segment=config.segment,
                                      gradient_codec=GRADIENT_CODECS[config.gradients])
        return result

    expected = total(range(8))
    with open_nodes(8, config=config, host_port=False) as (ring, _):
        assert np.count_nonzero(sums(ring, values) != expected) == 0
    for rows, columns, parts in ((2, 4, ("", "node5", "card1", "link2:1", "")), (4, 2, ("",))):
        with open_grid(rows, columns, config=config) as (grid, _):
            for disabled in parts:
                plan = grid_plan(rows, columns, disabled)
                got = grid_sums(grid, plan, values)
                assert np.count_nonzero(got != total(plan.active)) == 0, (rows, columns, disabled)


def test_run(succeed, nodes_of, tmp_path):
    """A run in flat rings of 8, 4, 8 and 7 nodes matches the golden model in each step."""
    nodes_of("sums")
    out = succeed(*RUN, "--topology", "2x4", "--threads", 1, "--steps", 6, "--disable", "card1@1,node5@4",
                  "--enable", "card1@3", "--output", tmp_path)
    assert "topology: 2 x 4 nodes\n  from step 1: 8 nodes, flat (sum32 sums integers in one ring)\n" in out
    assert "after each of 3 changes of the rings; every word sent before was received." in out
    report, _ = results(tmp_path)
    assert report["bit_exact"] is True
    assert [step["nodes"] for step in report["per_step"]] == [8, 4, 4, 8, 7, 7]
    assert [(change["shape"], change["heirs"]) for change in report["changes"]] == [("flat", [])] * 3
    assert report["levels"] == ["run to run", "any processor", "any cut", "any order and topology"]


def test_weights(succeed, nodes_of, tmp_path):
    """Trained weights have the same bits on a ring and on grids with the same number of golden nodes."""
    nodes_of("sums")
    weights = set()
    for options in (("--nodes", 8), *(("--topology", grid) for grid in ("2x4", "4x2"))):
        succeed(*RUN, *options, "--transport", "golden", "--steps", 3, "--output", tmp_path)
        report, _ = results(tmp_path)
        weights.add(report["weights_sha256"])
        assert report["levels"][-1] == "any order and topology"
    assert len(weights) == 1


def test_refused(run):
    """Two-dimensional sums of integers are rejected with a one-line message."""
    assert run(*RUN, "--topology", "2x4", "--shape", "grid") == (
        1, "", "error: Option --shape grid is for a run without --gradients sum32 or sum16, not sum32 (integers are "
               "summed on a single ring): leave it out\n")
    grid = Grid(2, 2, gradient_codec="sum32")
    refuses("Gradients of rings in two dimensions must be in a format that is rounded in every ring, not sum32: take "
            "--shape flat", grid.rings, grid.grid.plan(Shape.GRID))
