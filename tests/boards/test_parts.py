"""Test the cell counts of each part of a design, on a handmade netlist."""

import json

import pytest

from boards.parts import count_parts, part_lines
from boards.tools import ECP5

SCOPES = "board.node_0", "board.node_0.engine", "board.link", "board"

#: Cells: name, type, input nets and output nets.
CELLS = [
    ("$1", "LUT4", [10, 11], [20]),
    ("$2", "LUT4", [20, 21], [22]),  # output net without a name, feeding a cell that drives a named net
    ("$3", "LUT4", [22], [23]),
    ("$4", "CCU2C", [20], [24]),
    ("$5", "LUT4", [24], [25]),
    ("$6", "TRELLIS_FF", [25], [26]),
    ("$7", "LUT4", [26], [27]),
    ("$8", "TRELLIS_DPR16X4", [27], [28]),
    ("$9", "EHXPLLL", [], [29]),
]

#: Nets of each signal; if a net has two names, the name in the inner module takes precedence.
SIGNALS = {
    "board.node_0.engine.sum": [20],
    "board.node_0.engine.i__payload.last": [23], "board.node_0.i__payload.last": [23],
    "board.node_0.count": [25], "board.node_0.engine.product": [24], "board.link.bits": [26], "left": [27],
    "board.node_0.engine.word": [28], "pll.clock": [29],
}


def netlist_of(path):
    cells = {name: {"type": "$scopeinfo", "port_directions": {}, "connections": {}} for name in SCOPES}
    for name, kind, reads, drives in CELLS:
        cells[name] = {"type": kind, "port_directions": {"I": "input", "O": "output"},
                       "connections": {"I": [*reads, "0"], "O": drives}}
    nets = {name: {"hide_name": 0, "bits": bits} for name, bits in SIGNALS.items()}
    nets["$hidden.board.link"] = {"hide_name": 1, "bits": [22]}
    path.write_text(json.dumps({"modules": {"top": {"cells": cells, "netnames": nets}}}))


@pytest.fixture
def counts(tmp_path):
    netlist_of(tmp_path / "top.json")
    return count_parts(tmp_path / "top.json", "top", ECP5)


def test_counts(counts):
    # Fields of a record do not count as parts, and the count of a part includes its subparts.
    assert set(counts) == {"", *SCOPES}
    assert [counts[path]["lut4"] for path in ("", "board", "board.node_0", "board.node_0.engine", "board.link")] == [
        5, 4, 4, 3, 0]
    assert (counts["board.node_0"]["ccu2c"], counts["board.link"]["ff"], counts[""]["lut_ram"]) == (1, 1, 1)
    assert [counts[path]["lut4_occupied"] for path in ("", "board.node_0", "board.node_0.engine")] == [
        5 + 2 + 6, 4 + 2 + 6, 3 + 2 + 6]


def test_lines(counts):
    assert part_lines(counts, "lut4") == [
        "        4   80.0%  board",
        "        4   80.0%    node_0",
        "        3   60.0%      engine"]
    assert part_lines(counts, "lut4_occupied", whole="board.node_0", least=0.95) == [
        "       12  100.0%    node_0"]
    assert part_lines(counts, "lut4", whole="board.link", least=0) == []
