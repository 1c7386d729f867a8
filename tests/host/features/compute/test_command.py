"""The command `gradring train` with compute nodes, on golden nodes."""

import contextlib
import json
import re
from types import SimpleNamespace

import pytest

from hdl.features.compute.feature import Compute
from host.run import steps
from host.transports.session import Elapsed
from tests.host.golden import GoldenRing


@pytest.fixture
def rates():
    """Rates of far memory of all sessions that a test opens."""
    return []


@pytest.fixture
def run(program, monkeypatch, tmp_path, rates):
    """Train on golden nodes with the given options; return the node configuration, output and report."""
    def run(*options):
        made = []

        @contextlib.contextmanager
        def session(config, *, nodes, **arguments):
            made.append(config)
            rates.append(arguments.get("far_rate"))
            ring = GoldenRing(nodes, config=config)
            yield SimpleNamespace(ring=ring, build_seconds={}, elapsed=Elapsed(), seconds=0.0, faults=0)

        monkeypatch.setattr(steps, "open_session", session)
        code, out, err = program("train", "--compute", "node", *options, "--output", tmp_path)
        assert (code, err) == (0, "")
        return made[0], out, json.loads((tmp_path / "report.json").read_text())

    return run


def rows_of(out):
    """Rows of the printed table, by label."""
    return dict(re.findall(r"^(\S.*?) {2,}(\S.*?) *$", out, re.MULTILINE))


def test_nodes_that_compute(run, tmp_path):
    """The engine has the size that the run needs, the output says that nodes compute, and no cycles of lists are
    shown."""
    node, out, result = run("--steps", 2, "--nodes", 3, "--batch", 60)
    assert (node.compute, node.queues, node.stub) == (Compute(rows=4, buffer_tags=True), 2, None)
    assert "So are all losses and scores that they have computed." in out
    assert "compute: engine, 16 multiply-adds per cycle" in out
    assert set(rows_of(out)) >= {
        "cycles per step, compute on nodes", "… matrix products", "… functions of rows", "… lists of layers",
        "… ring", "… waiting"}
    assert (result["compute"], result["training"]["compute"], result["bit_exact"]) == ("engine", "node", True)
    assert result["cycles_gemm"] is result["cycles_vector"] is result["cycles_compute"] is None
    assert rows_of(out)["… matrix products"] == "not modelled"
    assert not (tmp_path / "timeline.json").exists()


def test_text(run):
    """Nodes have functions for sequences, and the output shows the held-out loss and the memory plan."""
    node, out, result = run("--workload", "text", "--steps", 2, "--nodes", 2, "--batch", 4, "--learning-rate", 0.02)
    assert node.compute == Compute(rows=4, activations=32_768, scale_mask=True, sequences=True, buffer_tags=True)
    assert "So are all losses that they have computed." in out
    rows = rows_of(out)
    assert (rows["cycles per step's layers"], rows["… matrix products"]) == ("not modelled", "not modelled")
    assert "elements through masks" not in rows
    (line,) = result["notes"]
    assert line.startswith("activations: planned, 18,528 words")
    assert line in out
    assert (result["compute"], result["workload"], result["bit_exact"]) == ("engine", "text", True)
    assert result["loss_per_interval"][0] > result["below_bigram"]


def test_text_with_far_memory(run, rates):
    """Nodes have far memory with the requested rate; the report has the memory plan and the number of sequences."""
    node, out, result = run("--workload", "text", "--steps", 1, "--nodes", 2, "--batch", 4, "--activations", 6144,
                            "--far", "1/8", "--memory", "mixed")
    assert (node.queues, node.far_words, node.compute.activations, rates) == (3, 8192, 8192, [1 / 8])
    assert result["training"]["far"] == {"activations": 6144, "rate": 1 / 8, "kind": "mixed"}
    plan, sequences = result["notes"]
    assert plan.startswith("activations: planned, 5,")
    assert sequences == "sequences: 2, one behind the other"
    assert plan in out
    assert sequences in out
    assert result["bit_exact"]
