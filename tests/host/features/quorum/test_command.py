"""The command `gradring train` with a straggler: late gradients, signals and resumed runs."""

import itertools
import json
import os
import re
import shutil
import signal
import threading
import time

import pytest

from host.features.quorum import run as quorum
from host.run import files
from host.training import checkpoint, trainer

#: About nine updates of a 64-8-10 perceptron, in which the last worker takes three times as long as the rest.
RUN = ("train", "--straggler", "3:3", "--skew", 0.9, "--hidden", 8, "--batch", 4, "--macs", 1, "--cycles", 80_000,
       "--checkpoint", 5, "--seed", 3, "--threads", 1)


@pytest.fixture
def report(run, nodes_of, tmp_path):
    """Function that runs the command and returns its report and its output."""
    nodes_of("wide")

    def call(*options, folder=tmp_path / "run"):
        code, out, err = run(*RUN, *options, "--output", folder)
        assert (code, err) == (0, "")
        assert (folder / "report.png").stat().st_size > 10_000
        content = json.loads((folder / "report.json").read_text())
        ends = [0, *(update["cycle"] for update in content["updates"])]
        longest = max(after - before for before, after in itertools.pairwise(ends))
        assert abs(content["cycles"] - content["settings"]["cycles"]) <= longest  # met to within one update
        return content, out

    return call


def bits(content):
    """Results in a report that must be reproducible: updates (without cycles), statuses of gradients, and
    accuracy."""
    rounds = [{name: value for name, value in update.items() if name != "cycle"} for update in content["updates"]]
    return rounds, content["workers"], content["accuracy"]


def test_ways(report):
    """Late gradients may be applied, awaited or dropped; applying them with a factor of 0 equals dropping them."""
    fold, out = report("--staleness-factor", 0.5)
    assert "apply-late, lambda 0.5: updates are closed by 3 of 4 gradients; skew 0.9\n" in out
    assert "compute: modelled; quorum updates and sums: gateware\n" in out
    assert fold["gradients"]["applied_late"] > 0
    assert all(update["on_time"] == [0, 1, 2] for update in fold["updates"])
    assert sum(3 in update["applied_late"] for update in fold["updates"]) == fold["workers"][3]["applied_late"]
    computed = 0  # first update for which the straggler can have computed its next late gradient
    for update in fold["updates"]:
        assert len(update["ages"]) == len(update["applied_late"])
        assert all(1 <= age <= update["number"] - computed for age in update["ages"])
        computed = update["number"] - update["ages"][0] + 1 if update["ages"] else computed
    ages = [age for update in fold["updates"] for age in update["ages"]]
    assert f"  {min(ages)} to {max(ages)}  " in out.split("at ages", 1)[1]
    for worker in fold["workers"]:
        assert worker["computed"] == (sum(worker[status] for status in ("applied", "applied_late", "dropped"))
                                      + len(worker["pending"]))
    wait, out = report("--stale-gradients", "wait")
    assert "wait: updates are closed by 4 of 4 gradients; skew 0.9\n" in out
    assert all(update["on_time"] == [0, 1, 2, 3] for update in wait["updates"])
    assert len(fold["updates"]) > 1.5 * len(wait["updates"])
    drop, out = report("--stale-gradients", "drop")
    assert "worker 3 was never in time, and " in out
    assert drop["gradients"]["applied_late"] == 0
    assert sum(3 in update["dropped"] for update in drop["updates"]) == drop["workers"][3]["dropped"] > 0
    assert bits(report("--staleness-factor", 0)[0]) == bits(drop)
    assert bits(drop) != bits(fold)


def test_straggler_of_any_factor(report):
    """However slow the straggler is, neither updates closed by a quorum nor the end of the run wait for it."""
    runs = {factor: report("--straggler", f"3:{factor}", "--stale-gradients", "drop", "--cycles", 45_000)
            for factor in (1, 4, 30, 1000)}
    plain = runs[1][0]
    for factor, (content, _) in runs.items():
        assert len(content["updates"]) == len(plain["updates"]) >= 6
        assert content["cycles"] <= 1.05 * plain["cycles"], factor
        worker = content["workers"][3]
        assert (factor >= 30) == (worker["computed"] == 0 and worker["abandoned"] == 2)  # one in each block
    assert bits(runs[30][0])[0] == bits(runs[1000][0])[0]
    assert all(update["on_time"] == [0, 1, 2] for update in runs[1000][0]["updates"])
    assert ("worker 3 was never in time, and its computation was abandoned: apply them late, wait longer"
            in runs[1000][1])


def test_signal_in_a_block(run, nodes_of, tmp_path, monkeypatch):
    """A signal ends the run within seconds, even during a block that takes minutes to simulate. The report then
    covers only the blocks before it."""
    nodes_of("wide")
    monkeypatch.setattr(files, "GRACE", 0.1)
    sent = []

    def send():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)

    def call(*options):
        code, out, err = run(*RUN, *options, "--stale-gradients", "wait", "--output", tmp_path)
        assert (code, err) == (143, "")
        assert time.monotonic() - sent.pop() < 10
        return out

    session = trainer.Trainer.advance

    def advance(late):
        if late.number == blocks:
            timer = threading.Timer(0.5, send)
            timer.start()
        session(late)

    monkeypatch.setattr(trainer.Trainer, "advance", advance)
    blocks = 0
    assert call("--straggler", "3:1000", "--cycles", 8_000_000).endswith(
        "interrupted; there is no checkpoint yet, so that the next run begins at its first step\n")
    assert not (tmp_path / "report.json").exists()
    blocks = 1
    out = call("--straggler", "3:40", "--cycles", 2_000_000, "--checkpoint", 1)
    assert out.endswith("checkpoint.tar holds 1 step: the same command with --resume (make: RESUME=1) continues from "
                        "there\n")
    content = json.loads((tmp_path / "report.json").read_text())
    assert (content["interrupted"], len(content["updates"]), content["gradients"]["computed"]) == (True, 1, 4)


def test_deadline(report):
    """A deadline closes updates even if fewer gradients than the quorum have arrived."""
    content, out = report("--quorum", 4, "--deadline", 2000, "--cycles", 42_000)
    assert "updates are closed by 4 of 4 gradients, or 2,000 cycles; skew 0.9\n" in out
    assert len(content["updates"]) >= 4
    assert all(update["on_time"] == [0, 1, 2] for update in content["updates"])


@pytest.mark.parametrize("faults", [(), ("--faults", 1e-4)])
def test_resume(report, run, tmp_path, monkeypatch, faults):
    """A run that is resumed after a block, while gradients are still pending, has the same bits."""
    save, kept = checkpoint.save, []

    def keep(path, identity, content):
        save(path, identity, content)
        kept.append((len(content["fates"]), sum(map(len, content["pending"]))))
        shutil.copy(path, tmp_path / str(len(content["fates"])))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", keep)
        whole, _ = report(*faults)
    assert not faults or whole["faults"]["count"] > 0
    going = [(done, pending) for done, pending in kept if pending and done < len(whole["updates"])]
    assert going
    done, _ = going[0]
    folder = tmp_path / "from"
    folder.mkdir()
    shutil.copy(tmp_path / str(done), folder / checkpoint.NAME)
    with monkeypatch.context() as patch:  # the checkpoint comes from a version with different gradient counters
        patch.setattr(quorum, "COUNTERS", ("GRADIENTS_FOLDED",))
        code, _, err = run(*RUN, *faults, "--resume", "--output", folder)
        assert code == 1
        assert re.fullmatch(r"error: .*checkpoint\.tar .*counters.*\n", err), err
    again, out = report(*faults, "--resume", folder=folder)
    assert "checkpoint.tar: the run continues from there\n" in out
    assert bits(again) == bits(whole)
    # The host polls the nodes every 16 simulated cycles, and each new process starts at cycle zero.
    lengths = [[after["cycle"] - before["cycle"] for before, after in itertools.pairwise(outcome["updates"])]
               for outcome in (whole, again)]
    assert lengths[0][:done - 1] == lengths[1][:done - 1]
    assert faults or all(abs(before - after) <= 100 for before, after in zip(*lengths, strict=True))


def test_switch_out(run, tmp_path, monkeypatch):
    """If workers may leave the ring, nodes have two ports and form one row of a grid."""
    def show(config, *, nodes, grid, **options):
        raise ValueError(f"{config.topology.ports} ports, {nodes} nodes, {grid}")

    monkeypatch.setattr(quorum, "open_session", show)
    for options, expected in (((), "1 ports, 5 nodes, None"), (("--switch-out",), "2 ports, 5 nodes, (1, 5)")):
        code, _, err = run("train", "--straggler", "1:4", "--nodes", 5, *options, "--output", tmp_path)
        assert (code, err) == (1, f"error: {expected}\n")


@pytest.mark.parametrize(("options", "message"), [
    (("--switch-out",), "Option --switch-out is for a run with --straggler: leave it out"),
    (("--quorum", 3), "Option --quorum is for a run with --straggler: leave it out"),
    (("--staleness-factor", 0.5), "Option --staleness-factor is for a run with --straggler: leave it out"),
    (("--straggler", "3:2", "--epochs", 2), "Option --epochs is for a run without --straggler: leave it out"),
    (("--straggler", "3:2", "--fault-seed", 2),
     "Option --fault-seed is for a run with --faults (there are no faults to generate): leave it out"),
    (("--straggler", "3"), "Straggler must be a worker and its factor, as in 3:4.5, not '3'"),
    (("--straggler", "3:2,3:4"), "Stragglers must be different workers, not 3 twice"),
    (("--straggler", "4:2"), "Straggler must be a worker, 0 to 3, not 4"),
    (("--straggler", "3:0.5"), "Factor of a straggler must be between 1 and 1,000, not 0.5"),
    (("--straggler", "3:2", "--quorum", 5), "Quorum must be between 1 and the workers, 4, not 5"),
    (("--straggler", "3:2", "--staleness-factor", 2), "Staleness factor must be between 0 and 1, not 2.0"),
    (("--straggler", "3:2", "--skew", -1), "Skew must be between 0 and 1, not -1.0"),
    (("--straggler", "3:2", "--deadline", -1), "Deadline must be between 0 and 4,294,967,295, not -1"),
    *(((("--straggler", "3:2", "--stale-gradients", way, f"--{option}", 1)),
       f"Option --{option} is for --stale-gradients {ways}, not {way} ({reason}): leave it out")
      for way, option, ways, reason in (
          ("wait", "quorum", "apply-late or drop", "every update includes all workers"),
          ("wait", "staleness-factor", "apply-late", "no stale gradient is added"),
          ("wait", "deadline", "apply-late or drop", "every update includes all workers"),
          ("drop", "staleness-factor", "apply-late", "no stale gradient is added"))),
    (("--straggler", "0:2", "--nodes", 1),
     "Nodes (--nodes) of a run with --straggler must be between 2 and 16, not 1"),
    (("--straggler", "3:2", "--link-latency", 481), "Link latency must be between 1 and 480, not 481"),
])
def test_errors(run, tmp_path, options, message):
    assert run("train", *options, "--output", tmp_path) == (1, "", f"error: {message}\n")
