"""Tests of the command `gradring lab estimate`."""

import functools
import json
import re
from fractions import Fraction

import pytest

from host.labs.estimate import machine
from host.labs.estimate.machine import Machine
from host.labs.estimate.program import NETWORKS
from tests.host.rings import CONFIGS, library


@pytest.fixture
def run(program, monkeypatch, tmp_path):
    """Run the program; return its exit code, standard output and standard error."""
    monkeypatch.setattr(machine, "built", lambda chosen, announce=None: library(chosen.node))
    node = CONFIGS["engines"]
    monkeypatch.setattr(machine, "EXECUTION", Machine(name="e", node=node))
    monkeypatch.setattr(machine, "TARGETS", tuple(
        Machine(name=name, node=node, link=Fraction(1, 2), latency=latency)
        for name, latency in (("near", 16), ("far", 400))))
    monkeypatch.setattr(machine, "RATIOS", ((8, 16),))
    monkeypatch.setitem(NETWORKS, 256, (8, 16, 5))
    return functools.partial(program, "lab", "estimate", "--output", tmp_path)


def test_run(run, tmp_path):
    code, out, err = run("--targets", "near", "--lengths", 256, "--examples", 4)
    assert code == 0, err
    assert len(re.findall("^near ", out, re.MULTILINE)) == len(re.findall("^8 to 16 MACs ", out, re.MULTILINE)) == 3
    assert "|--" not in out
    assert re.search(r"^2 of 2 programs are within their bars", out, re.MULTILINE)
    assert "compute of ratios: modelled" in out
    written = json.loads((tmp_path / "estimate.json").read_text())
    assert [len(written[kind]) for kind in ("targets", "ratios")] == [2, 2]
    assert (tmp_path / "estimate.png").exists()


@pytest.mark.parametrize(("arguments", "message"), [
    (("--targets", "nearer"), "Target must be one of near; far, not 'nearer': did you mean near?"),
    (("--targets", "far"), "Latency of far must be 16 to 271 cycles, which links can be delayed to, not 400"),
    (("--targets", "near", "--lengths", "1024"), "Nodes of e must have room for 512 elements of state to run K = "
                                                 "1,024, serial, not for 512"),
    (("--examples", 0), "Examples must be between 1 and 64, not 0"),
    (("--lengths", "257"), "Length must be one of 256; 1024; 4832, not '257': did you mean 256?"),
])
def test_refused(run, tmp_path, arguments, message):
    """Invalid arguments are rejected before anything is built or written."""
    code, _, err = run(*arguments)
    assert code == 1
    assert err.startswith("error: ")
    if "state" not in message:
        assert err == f"error: {message}\n"
    assert not list(tmp_path.iterdir())
