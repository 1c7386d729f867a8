"""The command `gradring relay-nodes`: a run on simulated nodes, its report, and what is refused."""

import json
import os
import signal

import pytest

from host.models.digits import digits
from host.relay import experiment, node_run
from tests.host import rings


def test_run(run, monkeypatch, tmp_path):
    """The first set leads to the number of microbatches of the others; nodes have the golden bits."""
    worker, server = rings.MIXED["relay"][0], rings.MIXED["relay"][-1]
    monkeypatch.setattr(node_run, "worker_node", lambda **options: worker)
    monkeypatch.setattr(node_run, "server_node", lambda **options: server)
    code, out, err = run("relay-nodes", "--hidden", "32", "--nodes", 2, "--microbatch", 8, "--sets", 2, "--format",
                         "mx4,mx9", "--underflow", "--output", tmp_path)
    assert (code, err) == (0, "")
    assert "nodes have the bits of golden ones · edit 1, from set 1 on: microbatches" in out
    found = json.loads((tmp_path / "relay-nodes.json").read_text())
    assert found["same"] is True
    assert found["widths"] == [64, 32, 10]
    assert found["start"]["formats"] == ["mx4", "mx9"]
    assert found["sets"] == len(found["times"]) == len(found["losses"]) == 2
    assert found["times"][1]["microbatches"] == found["times"][0]["chosen"] == found["edits"][0]["value"]
    assert all(0 <= one["stall"] < 1 and one["cycles"] < one["with_host"] for one in found["times"])


def test_goes_on(run, monkeypatch, tmp_path):
    """A run that is interrupted in its second set keeps the first one, and goes on with far memories of another
    pace; its log leads to its digest on golden nodes. A checkpoint of a run with other options is refused."""
    worker, server = rings.MIXED["relay"][0], rings.MIXED["relay"][-1]
    monkeypatch.setattr(node_run, "worker_node", lambda **options: worker)
    monkeypatch.setattr(node_run, "server_node", lambda **options: server)
    options = ("--hidden", "8", "--nodes", 2, "--microbatch", 4, "--format", "mx4", "--plateau", "--underflow",
               "--output", tmp_path)
    step = node_run.NodeRun.step

    def interrupted(self):
        report = step(self)
        if len(self.reports) == 2:  # in the second set
            os.kill(os.getpid(), signal.SIGTERM)
        return report

    with monkeypatch.context() as patch:
        patch.setattr(node_run.NodeRun, "step", interrupted)
        code, out, err = run("relay-nodes", "--sets", 3, *options)
    assert (code, err) == (143, "")
    assert "checkpoint.tar holds 1 sets: the same command with --resume (make: RESUME=1) goes on from there" in out
    code, out, err = run("relay-nodes", "--sets", 3, "--resume", "--far", 1, "--checkpoint", 3, *options)
    assert (code, err) == (0, "")
    assert "the run goes on from there" in out
    found = json.loads((tmp_path / "relay-nodes.json").read_text())
    assert found["same"] is True
    assert [one["set"] for one in found["times"]] == [0, 1, 2]
    assert found["edits"][0]["kind"] == "microbatches"
    assert experiment.replay_log(digits(), found).digest == found["digest"]
    code, _, err = run("relay-nodes", "--sets", 3, "--resume", "--seed", 1, *options)
    assert code == 1
    assert "must be of a run with the same options and versions, not with seed 0 (here 1)" in err


@pytest.mark.parametrize(("options", "message"), [
    (("--hidden", "64y"), "Widths of hidden layers must be numbers, or a number x a count as in 32x9, of at most "
                          "1,000 layers, with commas between them, not '64y'"),
    (("--hidden", "32", "--format", "mx5"), "Format must be one of raw, mx4, mx6, mx9, not 'mx5'"),
    (("--hidden", "32", "--format", "raw,mx4,mx4"), "Formats must be one for each of 2 layers, not 3"),
    (("--far", "0"), "Rate of the server's far memory must be above 0 and at most 4 words per cycle, not '0'"),
    (("--far", "fast"), "Rate of the server's far memory must be words per cycle, such as 4 or 1/2, not 'fast'"),
    (("--worker-far", "5"), "Rate of the workers' far memories must be above 0 and at most 4 words per cycle, not "
                            "'5'"),
    (("--microbatch", 5000), "Microbatch must be of 1 to 4,095 examples, not 5000"),
    (("--window", 96), "Last layer must fit into a window of 96 words, since its loss needs all outputs, not take "
                       "672"),
    (("--nodes", 16), "Workers must be between 1 and 15, not 16"),
])
def test_refused(run, options, message, tmp_path):
    code, _, err = run("relay-nodes", *options, "--output", tmp_path / "out")
    assert code == 1
    assert message in err
    assert not (tmp_path / "out").exists()
