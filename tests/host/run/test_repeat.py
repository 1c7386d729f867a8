"""Runs described by a file, and runs repeated from the report of an earlier run."""

import copy
import json
import tomllib

import numpy as np
import pytest

from host.cli import translated
from host.run.repeat import check_report, comparison, digest
from host.run.spec import SpecError, read

REPORT = {"per_step": [{"loss": 0.5, "cycles": 100, "words_sent": 7}, {"loss": 0.25, "cycles": 90, "words_sent": 7}],
          "weights_sha256": "ab", "training": {"seed": 0}}
EQUAL = ["losses of 2 steps: equal to those of the report", "cycles of 2 steps: equal to those of the report",
         "words of 2 steps: equal to those of the report", "weights: bits equal to those of the report"]


def test_comparison():
    """A comparison reports each kind of figure that differs, with the first step in which it does."""
    assert comparison(REPORT, copy.deepcopy(REPORT)) == EQUAL
    for name, line in (("loss", 0), ("cycles", 1), ("words_sent", 2)):
        other = copy.deepcopy(REPORT)
        other["per_step"][1][name] += 1
        what = EQUAL[line].partition(":")[0]
        expected = [*EQUAL]
        expected[line] = f"{what}: OTHER than in the report, from step 2 on"
        assert comparison(REPORT, other) == expected
    assert comparison(REPORT, {**REPORT, "weights_sha256": "cd"})[3] == (
        "weights: bits OTHER than those of the report")
    short = {**REPORT, "per_step": REPORT["per_step"][:1], "weights_sha256": None}
    assert comparison(short, REPORT) == [
        "losses of 1 steps: equal to those of the report", "cycles of 1 steps: equal to those of the report",
        "words of 1 steps: equal to those of the report",
        "weights: not compared, since the report is of a run that was interrupted"]
    jobs = [{**REPORT, "training": {"seed": seed}, "weights_sha256": str(seed)} for seed in (4, 5)]
    assert comparison(jobs[1], jobs) == EQUAL
    assert digest() != digest(None) is None


def test_other_reports(tmp_path):
    path = tmp_path / "report.json"
    path.write_text('{"run": {}}')
    reports = "gradring.training or gradring.quorum or gradring.streaming"
    with pytest.raises(SpecError, match=rf"report\.json must be a report {reports}, not damaged or another file: "):
        check_report(path)


def test_report_again(run, succeed, nodes_of, tmp_path):
    """A report and its run.toml describe the same run, which options may modify."""
    nodes_of("default")
    first, folder = tmp_path / "first", ("--output", tmp_path / "second")
    assert run("train", "--nodes", 2, "--steps", 2, "--hidden", "none", "--batch", 200, "--set", "workload.seed=3",
               "--threads", 1, "--output", first)[0] == 0
    content = json.loads((first / "report.json").read_text())
    assert content["run"]["workload"] == {"seed": 3, "steps": 2, "batch": 200}
    assert tomllib.loads((first / "run.toml").read_text()) == content["run"]
    assert read(first / "run.toml") == read(first / "report.json")
    out = succeed("train", first / "report.json", *folder)
    assert "losses of 2 steps: equal to those of the report\ncycles of 2 steps: equal" in out
    assert "weights: bits equal to those of the report" in out
    out = succeed("train", first / "report.json", "--seed", 4, *folder)
    assert "losses of 2 steps: OTHER than in the report, from step 1 on" in out
    assert "weights: bits OTHER than those of the report" in out
    code, out, err = run("train", first / "run.toml", "--set", "optimizer.momentm=0.5", *folder)
    assert (code, out) == (1, "")
    assert err.endswith("not 'momentm': did you mean momentum or moments?\n")
    # If the output folder is the report's own folder, the earlier report is moved to previous/.
    out = succeed("train", first / "report.json", "--output", first)
    assert "cycles of 2 steps: equal to those of the report" in out
    assert json.loads((first / "previous" / "report.json").read_text()) == content


def test_digest_without_padding(succeed, tmp_path):
    """The digest covers the weights of weights.npz, which do not include a schedule's padding. With two nodes, sums
    do not depend on padding either."""
    sums = []
    for name, options in (("whole", ()), ("layers", ("--overlap", "layers"))):
        succeed("train", "--transport", "golden", "--nodes", 2, "--steps", 2, "--hidden", 17, "--weights", "bf16",
                "--output", tmp_path / name, *options)
        sums.append(json.loads((tmp_path / name / "report.json").read_text())["weights_sha256"])
        with np.load(tmp_path / name / "weights.npz") as archive:
            assert archive["parameters"].size == 65 * 17 + 18 * 10
            assert sums[-1] == digest(archive["parameters"])
    assert sums[0] == sums[1]


def test_old_spelling(run, tmp_path, capsys):
    """Command lines as in the previous release work, but print a warning."""
    code, out, err = run("relay-nodes", "--sets=3", "--rate", -1, "--output", tmp_path)
    assert (code, out) == (1, "")
    warning, error = err.splitlines()
    assert warning == (f"warning: gradring relay-nodes --sets=3 --rate -1 --output {tmp_path} has old spellings: "
                       f"write "
                       f"gradring train --schedule streaming --steps=3 --learning-rate -1 --output {tmp_path}")
    assert error == "error: Learning rate must be between 0 and 1,000,000,000, not -1.0"
    assert translated(["train", "--late", "fold", "--overlap=stale:2", "--lambda", "0.5"]) == [
        "train", "--stale-gradients", "apply-late", "--overlap=delayed:2", "--staleness-factor", "0.5"]
    assert "warning: " in capsys.readouterr().err
    assert translated(["lab", "relay", "--nodes", "2"]) == ["lab", "streaming", "--nodes", "2"]
    assert capsys.readouterr().err == (
        "warning: gradring lab relay --nodes 2 has old spellings: write gradring lab streaming --nodes 2\n")
    same = ["train", "--overlap", "layers", "--output", "stale:2"]
    assert (translated(same), capsys.readouterr().err) == (same, "")
