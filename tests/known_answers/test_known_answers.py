"""Known answers: runs on nodes that other tests build as well, the smallest circuits, and the draw of the rest."""

import copy
import json

import pytest

from tests.known_answers import circuits, compute, runs


@pytest.mark.parametrize("name", ["sim", "text", "density", "icebreaker"])
def test_runs(name, tmp_path):
    """Weights, cycles, words and choices of a run are as they were kept."""
    assert list(compute.differences(compute.kept()["runs"][name], compute.run(name, tmp_path))) == []


def test_circuit():
    """The circuit of the 16-bit node is as it was kept."""
    assert compute.board("icebreaker") == compute.kept()["boards"]["icebreaker"]


def test_complete():
    """Each run, board and drawn configuration has an answer, and there are no other ones."""
    kept = compute.kept()
    assert kept["runs"].keys() == runs.RUNS.keys()
    assert kept["boards"].keys() == circuits.board_nodes().keys()
    drawn = circuits.draw(circuits.COUNT)
    assert list(kept["configurations"]) == [json.dumps(options) for options in drawn]
    assert len({answer["rtlil"] for answer in kept["configurations"].values()}) > 45


def test_draw():
    """Each option of a node is drawn, and all draws are legal."""
    drawn = circuits.draw(circuits.COUNT)
    assert {name for options in drawn for name in options} >= set(circuits.VALUES)
    for options in drawn:
        circuits.node_config(options)


def test_differences():
    """Values that differ are named by their path, missing and additional ones too."""
    kept = compute.kept()["runs"]["sim"]
    other = copy.deepcopy(kept)
    other["steps"]["cycles"][1] += 1
    other["cycles"].pop("all")
    other["more"] = 1
    assert list(compute.differences(kept, other)) == [
        f"cycles.all: None, kept {kept['cycles']['all']}",
        f"steps.cycles[1]: {kept['steps']['cycles'][1] + 1}, kept {kept['steps']['cycles'][1]}",
        "more: 1, kept None"]


def test_renamed():
    """A circuit's digest depends on the order and the kinds of cells, and on none of our names."""
    text = "\n".join(["  wire width 2 \\sum", "  cell $add \\adder", "    parameter \\A_WIDTH 2",
                      "    connect \\A \\sum [1]", "  end", "  connect \\o \\sum"])
    assert circuits.renamed(text) == circuits.renamed(text.replace("sum", "total").replace("adder", "plus"))
    for before, after in (("$add", "$sub"), ("\\A_WIDTH", "\\B_WIDTH"), ("[1]", "[0]"),
                          ("connect \\A", "connect \\B"), ("  connect \\o \\sum", "  connect \\o \\o")):
        assert before in text
        assert circuits.renamed(text) != circuits.renamed(text.replace(before, after))
