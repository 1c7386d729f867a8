"""The command `gradring migrate`: a job that is moved, its report, and what is refused."""

import json

import pytest

from host.commands import migrate as command
from tests.host import rings


def test_run(run, monkeypatch, tmp_path):
    monkeypatch.setattr(command, "node_of_job", lambda **options: rings.CONFIGS["mx9"])
    key = tmp_path / "key"
    key.write_bytes(b"secret of the operator, 32 bytes")
    code, out, err = run("migrate", "--nodes", 2, "--steps", 4, "--after", 2, "--optimizer", "adam", "--weights",
                         "mx9", "--gradients", "mx9", "--key", key, "--output", tmp_path / "out")
    assert (code, err) == (0, "")
    assert "moved after step 2 of 4 · final weights, state and losses have the bits of the run that stayed" in out
    text = (tmp_path / "out" / "migrate.json").read_text()
    found = json.loads(text)
    assert found["same"] is True
    assert 0 < found["cycles"] == sum(found[name] for name in ("read", "load", "read_back", "start"))
    assert found["cycles"] <= found["bound"]
    assert json.loads((tmp_path / "out" / "ledger.json").read_text()) == {"owner": "target", "sequence": 1}
    assert (tmp_path / "out" / "target" / "checkpoint.tar").exists()
    assert not (tmp_path / "out" / "source" / "checkpoint.tar").exists()
    assert "secret" not in out + text


@pytest.mark.parametrize(("options", "message"), [
    (("--after", 25), "Steps before the move must be between 0 and 24, not 25"),
    (("--optimizer", "sgd"), "Optimizer of a job to be moved must be momentum or adam, not 'sgd'"),
    (("--transport", "pysim"), "Target must be verilated or board, not 'pysim'"),
    (("--weights", "centroid16"), "Codec of weights must have no codebook here, not be 'centroid16'"),
    (("--gradients", "table32"), "Codec of gradients must be one of "),
    (("--key", "none"), "No such file or directory"),
])
def test_refused(run, options, message, tmp_path):
    code, _, err = run("migrate", *options, "--output", tmp_path / "out")
    assert code == 1
    assert message in err
