"""The command line of nodes that compute, on golden models."""

import contextlib
import json
import sys
from types import SimpleNamespace

import pytest

from host import cli
from host.transports.session import Elapsed
from tests.host.training.engine_ring import EngineRing


def test_nodes_that_compute(monkeypatch, capsys, tmp_path):
    """Nodes are made for the run, and table, report, timeline and picture say who has computed."""
    made = []

    @contextlib.contextmanager
    def session(config, *, nodes, **options):
        made.append(config)
        yield SimpleNamespace(ring=EngineRing(nodes), build_seconds={}, elapsed=Elapsed(), seconds=0.0, faults=0)

    monkeypatch.setattr(cli, "open_session", session)
    monkeypatch.setattr(sys, "argv", ["gradring", "train", "--compute", "node", "--steps", "2", "--nodes", "3",
                                      "--batch", "60", "--output", str(tmp_path)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    out, err = capsys.readouterr()
    assert (caught.value.code, err) == (0, "")
    (node,) = made
    assert (node.compute, node.queues, node.stand_in, node.activation_words) == (4, 2, False, 8192)
    assert "So are all losses and scores that they have computed." in out
    assert "compute: engine, 16 multiply-adds per cycle" in out
    rows = {name: value for name, value in (line.strip("│ ").split("│") for line in out.splitlines() if "│" in line)}
    assert {name.strip() for name in rows} >= {
        "cycles per step, compute on nodes", "… matrix products", "… functions of rows", "… lists of layers",
        "… ring", "… waiting"}
    result = json.loads((tmp_path / "report.json").read_text())
    assert (result["compute"], result["training"]["compute"], result["bit_exact"]) == ("engine", "node", True)
    # Four lists on each of three nodes, at ten cycles and one: the counters of the golden models.
    assert (result["cycles_gemm"], result["cycles_vector"]) == (240, 24)
    assert json.loads((tmp_path / "timeline.json").read_text())["otherData"]["compute"] == "engine"
    assert (tmp_path / "timeline.png").stat().st_size > 10_000
