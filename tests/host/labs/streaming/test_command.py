"""Tests of the command `gradring lab streaming`."""

import json

import pytest

from host.features.streaming import node_run
from host.labs.streaming import experiment
from sim.verilated.native import Arithmetic
from tests.host import rings


def test_results_and_replay(run, succeed, tmp_path):
    out = succeed("lab", "streaming", "--seeds", 1, "--epochs", 1, "--output", tmp_path)
    assert "accuracies: golden nodes, which have the bits of gateware; cycles and stalls: modelled\n" in out
    content = json.loads((tmp_path / "streaming.json").read_text())
    assert [row["stall"][2] for row in content["stalls"]] == [0, 0, 0]
    assert len(content["cases"]) == 6
    assert (tmp_path / "streaming.png").stat().st_size > 10_000
    log = tmp_path / "edits.json"
    code, out, _ = run("lab", "streaming", "--replay", log)
    assert code == 0
    assert out.endswith("the same run\n")
    changed = json.loads(log.read_text())
    log.write_text(json.dumps({**changed, "digest": "0" * 64}))
    code, out, _ = run("lab", "streaming", "--replay", log)
    assert code == 1
    assert out.endswith("ANOTHER run\n")


def test_nodes(succeed, monkeypatch, tmp_path):
    """Losses, weights and edits of two simulated workers and a server are the same as on golden nodes."""
    worker, server = rings.MIXED["relay"][0], rings.MIXED["relay"][-1]
    monkeypatch.setattr(experiment, "streaming_nodes", lambda **sizes: node_run.StreamingNodes(
        worker, server, node_run.worker_of(worker)))
    monkeypatch.setattr(experiment, "WORKERS", 2)
    monkeypatch.setattr(experiment, "CASES", experiment.CASES[:2])
    learned = experiment.learn_on_nodes
    monkeypatch.setattr(experiment, "learn_on_nodes", lambda *arguments, **options: learned(
        *arguments, **options, arithmetic=Arithmetic.GATEWARE))
    out = succeed("lab", "streaming", "--seeds", 1, "--epochs", 1, "--nodes", "--output", tmp_path)
    content = json.loads((tmp_path / "streaming.json").read_text())
    [row] = content["nodes"]
    assert (row["name"], row["sets"], row["bit_exact"]) == ("64-10, a plateau adds a layer", 30, True)
    assert round(100 * row["accuracy"], 4) == content["cases"][1]["accuracies"][0]
    assert f"{100 * row['accuracy']:.2f}" in out


@pytest.mark.parametrize(("content", "message"), [
    (None, "Log of edits must be a file that `gradring lab streaming` has written, not "),
    ("{", "Log of edits must be a file that `gradring lab streaming` has written, not "),
    ("{}", "Log of edits must have start, workers, seed, sets, edits, losses, digest, and ")])
def test_wrong_logs(run, tmp_path, content, message):
    path = tmp_path / "edits.json"
    if content is not None:
        path.write_text(content)
    code, _, err = run("lab", "streaming", "--replay", path)
    assert code == 1
    assert err.startswith(f"error: {message}")
