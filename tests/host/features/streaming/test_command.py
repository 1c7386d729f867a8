"""Layer streaming with `gradring train`: a run on simulated nodes, its report, signals, and rejected options."""

import os
import signal
import time

import pytest

from host.features.streaming import node_run, steps
from host.labs.streaming import experiment
from host.models.digits import digits
from host.run import files
from host.training import checkpoint
from tests.host import rings
from tests.host.results import report


def have_small_nodes(monkeypatch):
    """Make training runs use nodes with small memories."""
    worker, server = rings.MIXED["relay"][0], rings.MIXED["relay"][-1]
    monkeypatch.setattr(steps, "streaming_nodes", lambda *, windows, **sizes: node_run.StreamingNodes(
        worker, server, node_run.worker_of(worker, windows=windows)))


def test_run(train, monkeypatch):
    """The number of microbatches is adjusted after the first set, and nodes match the golden bits."""
    have_small_nodes(monkeypatch)
    out, result = train("--schedule", "streaming", "--hidden", "32", "--nodes", 2, "--microbatch", 8, "--steps", 2,
                        "--format", "mx4,mx9", "--underflow")
    assert "nodes have the bits of golden ones · edit 1, from set 1 on: microbatches" in out
    assert result["bit_exact"] is True
    assert result["widths"] == [64, 32, 10]
    assert result["start"]["formats"] == ["mx4", "mx9"]
    assert result["sets"] == len(result["per_step"]) == len(result["losses"]) == 2
    assert result["per_step"][1]["microbatches"] == result["per_step"][0]["chosen"] == result["edits"][0]["value"]
    assert all(0 <= step["stall"] < 1 and step["cycles"] < step["with_host"] for step in result["per_step"])


OPTIONS = ("--hidden", "8", "--nodes", 2, "--microbatch", 4, "--format", "mx4", "--plateau", "--underflow")


@pytest.fixture
def signalled(monkeypatch):
    """Use small nodes, and send signals at the end of a set, or during a set just before the nodes run."""
    have_small_nodes(monkeypatch)
    record, carry_out = node_run.NodeRun.record, node_run.NodeRun._carry_out

    def ask(*numbers, at, within=False):
        def send(run, sets):
            if len(run.reports) == sets:
                for number in numbers:
                    os.kill(os.getpid(), number)

        def recorded(self, report):
            record(self, report)
            if not within:
                send(self, at)

        def carried_out(self, *arguments):
            if within:
                send(self, at - 1)
            return carry_out(self, *arguments)

        monkeypatch.setattr(node_run.NodeRun, "record", recorded)
        monkeypatch.setattr(node_run.NodeRun, "_carry_out", carried_out)

    return ask


def test_goes_on(run, succeed, signalled, tmp_path):
    """A run that is interrupted in its second set completes this set, and can be resumed with a different speed of
    the far memory. Replaying its log on golden nodes gives the same digest. A checkpoint with other options is
    rejected."""
    options = (*OPTIONS, "--output", tmp_path)
    signalled(signal.SIGTERM, at=2, within=True)
    code, out, err = run("train", "--schedule", "streaming", "--steps", 3, *options)
    assert (code, err) == (143, "")
    assert "checkpoint.tar holds 2 steps: the same command with --resume (make: RESUME=1) continues from there" in out
    result = report(tmp_path)
    assert (result["interrupted"], result["sets"], len(result["per_step"]), result["bit_exact"]) == (True, 2, 2, True)
    assert experiment.replay_log(digits(), result).digest == result["digest"]
    signalled(signal.SIGTERM, at=3)  # the run is complete, so it cannot be interrupted
    out = succeed("train", "--schedule", "streaming", "--steps", 3, "--resume", "--server-far", 1, "--checkpoint", 3,
                  *options)
    assert "the run continues from there" in out
    result = report(tmp_path)
    assert (result["interrupted"], result["bit_exact"]) == (False, True)
    assert [step["set"] for step in result["per_step"]] == [0, 1, 2]
    assert result["edits"][0]["kind"] == "microbatches"
    assert experiment.replay_log(digits(), result).digest == result["digest"]
    code, _, err = run("train", "--schedule", "streaming", "--steps", 3, "--resume", "--seed", 1, *options)
    assert code == 1
    assert "must be of a run with the same options and versions, not with workload.seed 0 (here 1)" in err


@pytest.mark.parametrize(("sets", "line"), [
    (1, "interrupted; there is no checkpoint yet, so that the next run begins at its first step"),
    (2, "checkpoint.tar holds 1 step: the same command with --resume (make: RESUME=1) continues from there"),
])
def test_second_signal(run, signalled, tmp_path, sets, line):
    """A second signal aborts the current set; report and checkpoint cover the sets before it."""
    signalled(signal.SIGINT, signal.SIGTERM, at=sets, within=True)
    code, out, err = run("train", "--schedule", "streaming", "--steps", 3, *OPTIONS, "--output", tmp_path)
    assert (code, err) == (143, "")
    assert line in out
    assert [(tmp_path / name).exists() for name in ("report.json", "checkpoint.tar")] == [sets > 1] * 2
    if sets > 1:
        assert (report(tmp_path)["interrupted"], report(tmp_path)["sets"]) == (True, 1)


def test_grace(run, signalled, monkeypatch, tmp_path):
    """After a signal, a set that takes longer than the grace period is aborted."""
    monkeypatch.setattr(files, "GRACE", 0.01)
    monkeypatch.setattr(node_run.NodeRun, "compare", lambda self: time.sleep(600))
    signalled(signal.SIGINT, at=1, within=True)
    begun = time.monotonic()
    code, out, err = run("train", "--schedule", "streaming", "--steps", 1, *OPTIONS, "--output", tmp_path)
    assert (code, err) == (130, "")
    assert out.endswith("interrupted; there is no checkpoint yet, so that the next run begins at its first step\n")
    assert time.monotonic() < begun + 500  # building the ring may take minutes


@pytest.mark.parametrize(("interval", "files"), [(0, 0), (2, 1), (1, 2)])
def test_checkpoints(run, signalled, monkeypatch, tmp_path, interval, files):
    """Checkpoints are written only at the requested intervals."""
    made, packed = [], checkpoint.packed
    monkeypatch.setattr(checkpoint, "packed",
                        lambda *arguments, **options: made.append(packed(*arguments, **options)) or made[-1])
    assert run("train", "--schedule", "streaming", "--steps", 2, "--checkpoint", interval, *OPTIONS, "--output",
               tmp_path)[0] == 0
    assert len(made) == files
    assert (tmp_path / "checkpoint.tar").exists() is bool(files)


@pytest.mark.parametrize(("options", "message"), [
    (("--hidden", "64y"), "Widths of hidden layers must be numbers, or a number x a count as in 32x9, of at most "
                          "1,000 layers, with commas between them, not '64y'"),
    (("--hidden", "32", "--format", "mx5"), "Format must be one of raw, mx4, mx6, mx9, not 'mx5'"),
    (("--hidden", "32", "--format", "raw,mx4,mx4"), "Formats must be one for each of 2 layers, not 3"),
    (("--server-far", "0"), "Rate of the server's far memory must be above 0 and at most 4 words per cycle, not '0'"),
    (("--server-far", "fast"), "Rate of the server's far memory must be words per cycle, such as 4 or 1/2, not "
                               "'fast'"),
    (("--worker-far", "5"), "Rate of the workers' far memories must be above 0 and at most 4 words per cycle, not "
                            "'5'"),
    (("--microbatch", 5000), "Microbatch must be of 1 to 4,095 examples, not 5000"),
    (("--window", 96), "Last layer must fit into a window of 96 words, since its loss needs all outputs, not take "
                       "672"),
    (("--nodes", 16), "Workers must be between 1 and 15, not 16"),
])
def test_refused(run, options, message, tmp_path):
    code, _, err = run("train", "--schedule", "streaming", *options, "--output", tmp_path / "out")
    assert code == 1
    assert message in err
    assert not (tmp_path / "out").exists()
