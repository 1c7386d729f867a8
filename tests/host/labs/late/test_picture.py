"""Picture of training runs with late gradients."""

import json

from host.labs.late.lab import SCHEMA
from host.reports.style import smoothed


def test_picture(tmp_path, run):
    runs = [{"skew": skew, "late": late, "seed": 0, "cycles": [100, 200, 300], "losses": [2.0, None, 1.0],
             "measured": [[300, 0.5]]} for skew in (0, 0.9) for late in ("apply-late", "drop")]
    (tmp_path / "late.json").write_text(json.dumps(SCHEMA.report({"compute": "modelled", "runs": runs})))
    assert run("lab", "late", "--draw", tmp_path) == (0, f"{tmp_path / 'late.png'}\n", "")
    assert (tmp_path / "late.png").read_bytes().startswith(b"\x89PNG")


def test_smoothed():
    nan = float("nan")
    assert smoothed([nan, 2.0, nan, 4.0], 2) == [0.0, 2.0, 2.0, 4.0]
