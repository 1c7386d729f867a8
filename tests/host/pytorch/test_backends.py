"""Scripts that select a backend by name, and all PyTorch collectives on a simulated ring."""

import json
import os

import pytest

from gradring import names
from tests.host.pytorch.commands import SCRIPTS, launch

pytest.importorskip("torch")

NAMED = "the script asked for {} by name: leave the name out, or say gradring"


def test_collectives(tmp_path):
    """Every collective of this PyTorch version gives the same results and errors as gloo, for every type, and the
    script has a case for each of them."""
    launch("-n", 3, "--timeout", 100, "--output", tmp_path, SCRIPTS / "collectives.py", tmp_path)
    for rank in range(3):
        result = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert not result["differences"]
        assert not result["unknown"]
        assert result["cases"] > 90
        assert result["types"] > 40
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["operations"] > 20
    assert report["gloo"]["allreduce"]["calls"] > 1000


def test_gloo_by_name(tmp_path):
    """The launcher reports data that gloo carries, including DDP's; with ``--require-ring``, this is an error."""
    printed, errors = launch("-n", 1, "--require-ring", "--output", tmp_path, SCRIPTS / "by_name.py", "gloo",
                             expect=1)
    assert printed.count(NAMED.format("gloo")) == 1
    assert errors == f"error: No sum went over the ring: {NAMED.format('gloo')}\n"
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["backends"] == ["gloo"]
    assert report["gloo"]["allreduce"] == {"calls": 1, "bytes": 4 * 105, "sums": 1}
    assert report["levels"] == []
    assert "over gloo: allreduce, 1 calls" in printed
    assert "init_process_group" not in printed


def test_replaced(tmp_path, monkeypatch):
    """If a script names another backend, the ring replaces it, even if the script has modules with the same names as
    this repository's packages."""
    for name in names.PACKAGES:
        (tmp_path / f"{name}.py").write_text("WHO = 'script'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    script = tmp_path / "script.py"
    script.write_text("import sim, hdl, host, boards\nassert {sim.WHO, hdl.WHO, host.WHO, boards.WHO} == {'script'}\n"
                      + (SCRIPTS / "by_name.py").read_text())
    printed, errors = launch("-n", 1, "--replace", "gloo", "--require-ring", "--output", tmp_path / "report", script,
                             "cpu:gloo")
    assert "by name" not in printed + errors
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    elements = 128 + 5  # 5 biases, and 100 weights padded to 128
    assert (report["backends"], report["operations"], report["elements"]) == (["gradring"], 1, elements)


def test_backends_that_are_not_there(tmp_path):
    """Each backend that is not available is rejected with a one-line message that suggests a remedy."""
    names = ["nccl", "ucc", "cpu:gloo,cuda:nccl", "mpi"]
    printed, errors = launch("-n", 1, "--output", tmp_path, SCRIPTS / "not_there.py", *names, expect=1)
    texts = [f"Backend must be gradring for the ring, not {name}, which is not available: leave the name out of "
             f"init_process_group(), or say gradring" for name in names]
    for name, text in zip(names, texts, strict=True):
        assert f"{name}: {text}\n" in printed
    assert errors.rstrip().splitlines()[-1] == (
        f"error: Rank 0 has ended by ValueError: {texts[-1]}; the others cannot go on without it")
