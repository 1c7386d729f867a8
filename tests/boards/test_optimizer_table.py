# amaranth: UnusedElaboratable=no
import json

import pytest

from boards import optimizer_table, synth, units
from boards.tools import SynthesisError


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Replace placement with a stub that reports a unit's number of lanes as its speed."""
    calls = []

    def measure(name, *, options, seeds, part, progress):
        calls.append((name, options["lanes"], seeds, part))
        figures = dict.fromkeys(("lut4", "ccu2c", "lut_ram", "ff", "dsp", "bram"), 7)
        return {"name": name, **figures, "seeds": seeds,
                "fmax_mhz": {"median": 100.0 + options["lanes"], "min": 90.0, "max": 110.0}}

    monkeypatch.setattr(optimizer_table, "measure", measure)
    monkeypatch.setattr(optimizer_table, "RESULTS", tmp_path)
    return calls


def test_rows(measured):
    part = synth.DEFAULT_PART
    rows = optimizer_table.measure_all(units=["SGD", "Adam"], lanes=[1, 4], seeds=2)
    assert [(row["rules"], row["lanes"]) for row in rows] == [("SGD", 1), ("SGD", 4), ("Adam", 1), ("Adam", 4)]
    assert [row["parameters_per_second"] for row in rows] == [101e6, 416e6, 101e6, 416e6]
    assert sorted(measured) == [("optimizer.adam", 1, 2, part), ("optimizer.adam", 4, 2, part),
                                ("optimizer.sgd", 1, 2, part), ("optimizer.sgd", 4, 2, part)]


def test_command(measured, capsys, tmp_path):
    assert optimizer_table.main(["--rules", "AdamW", "--lanes", "2", "--seeds", "1"]) == 0
    row = "| AdamW | 2 | 7 | 7 | 7 | 7 | 7 | 7 | 102 (90 to 110) | 1 | 204 |"
    assert capsys.readouterr().out.splitlines()[-1] == row
    rows = json.loads((tmp_path / "table" / "optimizer.json").read_text())["rows"]
    assert [(row["rules"], row["lanes"]) for row in rows] == [("AdamW", 2)]


def test_unknown_rules():
    with pytest.raises(SynthesisError, match=r"^Rules must be one of SGD; momentum; Adam; .*, not 'Lion'$"):
        optimizer_table.measure_all(units=["Lion"])


@pytest.mark.parametrize("lanes", ["3", "0"])
def test_lanes_that_do_not_exist(lanes, capsys):
    assert optimizer_table.main(["--rules", "SGD", "--lanes", lanes, "--seeds", "1"]) == 1
    assert capsys.readouterr().err == f"error: Lane count must be 1, 2, 4 or 8, not {lanes}\n"


def test_units_exist():
    assert set(optimizer_table.UNITS.values()) <= units.UNITS.keys()
