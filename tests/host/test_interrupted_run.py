"""Runs that signals interrupt resume from their checkpoints with the same results."""

import json
import os
import signal

import pytest

from host.run import steps
from host.training import trainer
from tests.host.results import report, results


@pytest.fixture
def signalled(monkeypatch):
    """Make the program receive a signal after a number of steps."""
    def call(number, step):
        def advance(run):
            do(run)
            if run.number == step:
                os.kill(os.getpid(), number)

        do = trainer.Trainer.advance
        monkeypatch.setattr(trainer.Trainer, "advance", advance)

    return call


def check_same(whole, broken):
    """Check that two runs have the same results, apart from wall-clock times."""
    assert results(whole) == results(broken)
    for file in whole.glob("timeline*"):
        assert file.read_bytes() == (broken / file.name).read_bytes()


class TestInterrupted:
    ARGUMENTS = ("train", "--nodes", 3, "--epochs", 2, "--hidden", "none", "--batch", 500, "--threads", 1)

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_goes_on(self, run, tmp_path, signalled, number, code):
        whole, broken = tmp_path / "whole", tmp_path / "broken"
        assert run(*self.ARGUMENTS, "--output", whole)[0] == 0
        signalled(number, 2)
        status, out, err = run(*self.ARGUMENTS, "--output", broken, "--resume")
        assert (status, err) == (code, "")
        lines = out.splitlines()
        assert lines[0].endswith("checkpoint.tar: there is none, so the run begins at its first step")
        assert lines[-1].endswith("checkpoint.tar holds 2 steps: the same command with --resume (make: RESUME=1) "
                                  "continues from there")
        assert lines[-1].startswith("interrupted; ")
        result = report(broken)
        assert (result["interrupted"], result["steps"], result["accuracy"]) == (True, 2, None)
        assert not (broken / "weights.npz").exists()
        assert run(*self.ARGUMENTS, "--output", broken, "--resume")[0] == 0
        check_same(whole, broken)
        assert report(whole)["interrupted"] is False

    def test_cycles_after_a_resume(self, run, tmp_path, signalled):
        """After a resume, only the first step may differ in cycles from an uninterrupted run, and only slightly."""
        arguments = ("train", "--nodes", 3, "--steps", 3, "--batch", 96, "--threads", 1)
        whole, broken = tmp_path / "whole", tmp_path / "broken"
        assert run(*arguments, "--output", whole)[0] == 0
        signalled(signal.SIGTERM, 1)
        assert run(*arguments, "--output", broken)[0] == 143
        assert run(*arguments, "--output", broken, "--resume")[0] == 0
        steps = [report(folder)["per_step"] for folder in (whole, broken)]
        for number, (before, after) in enumerate(zip(*steps, strict=True)):
            assert before.keys() == after.keys()
            for name, value in before.items():
                if number == 1 and name.endswith("cycles"):
                    assert abs(value - after[name]) <= 100
                else:
                    assert value == after[name], (number, name)
        assert (whole / "weights.npz").read_bytes() == (broken / "weights.npz").read_bytes()

    def test_refused(self, run, tmp_path):
        """Invalid requests are rejected with a one-line message before anything is built."""
        kept = tmp_path / "checkpoint.tar"
        kept.write_bytes(b"torn")
        code, out, err = run(*self.ARGUMENTS, "--output", tmp_path, "--resume")
        assert (code, out) == (1, "")
        assert err == (f"error: {kept} must be a whole checkpoint of this user: MALFORMED: file must begin with a "
                       f"header of tar; leave out --resume to begin anew\n")
        assert run(*self.ARGUMENTS, "--checkpoint", -1) == (
            1, "", "error: Steps between checkpoints must be between 0 and 1,000,000,000, not -1\n")

    def test_output_is_checked_first(self, run, tmp_path, monkeypatch):
        monkeypatch.setattr(steps, "open_session", None)
        (tmp_path / "taken").write_text("")
        assert run(*self.ARGUMENTS, "--output", tmp_path / "taken") == (
            1, "", f"error: Output must be a folder, not the file {tmp_path / 'taken'}\n")


def spans_of(path):
    """Check a Chrome trace file, and return the node, queue, name, start and end of each span."""
    content = json.loads(path.read_text())
    assert set(content) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert content["displayTimeUnit"] in ("ms", "ns")
    assert content["otherData"]["compute"] == "modelled"
    names, spans = {}, []
    for event in content["traceEvents"]:
        assert all(type(event[name]) is int and event[name] >= 0 for name in ("pid", "tid"))
        if event["ph"] == "M":
            assert set(event) == {"ph", "name", "pid", "tid", "args"}
            assert names.setdefault((event["name"], event["pid"], event["tid"]), event["args"]["name"])
        else:
            assert (event["ph"], set(event)) == ("X", {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"})
            assert all(type(event[name]) is int and event[name] >= 0 for name in ("ts", "dur"))
            assert event["cat"] == names["thread_name", event["pid"], event["tid"]]
            assert names["process_name", event["pid"], 0] == f"node {event['pid']}"
            spans.append((event["pid"], event["tid"], event["name"], event["ts"], event["ts"] + event["dur"]))
    return spans


class TestOverlap:
    ARGUMENTS = ("train", "--nodes", 3, "--hidden", "8x3", "--batch", 48, "--steps", 3, "--weights", "centroid16",
                 "--gradients", "raw", "--threads", 1, "--macs", 4)
    SCHEDULES = ("none", "strict", "layers", "chunks:2")

    @pytest.fixture(autouse=True)
    def nodes(self, nodes_of):
        nodes_of("centroid")

    def test_all(self, run, succeed, tmp_path, signalled):
        """All schedules of a run, one after another, give the same results if their runs are interrupted and
        resumed."""
        whole, broken = tmp_path / "whole", tmp_path / "broken"
        out = succeed(*self.ARGUMENTS, "--overlap", "all", "--output", whole)
        result = report(whole)
        assert (result["compute"], result["bit_exact"], result["interrupted"]) == ("modelled", True, False)
        assert [row["schedule"] for row in result["schedules"]] == [*self.SCHEDULES]
        assert "Cycles of a step, by schedule; compute: modelled, 4 multiply-adds per cycle" in out.splitlines()
        for row in result["schedules"]:
            name, serial = row["schedule"], result["schedules"][0]["cycles"]
            assert (row["overlap"], row["bit_exact"], row["search"], row["macs"]) == (name, True, [], 4)
            assert row["bound"] <= row["cycles"] <= 1.03 * row["modelled_cycles"]
            cells = [name, f"{row['cycles']:,.0f}", f"{row['cycles'] / serial:.3f}",
                     f"{row['cycles'] / row['modelled_cycles']:.3f}", f"{row['compute_cycles']:,.0f}",
                     f"{row['communicate_cycles']:,.0f}", f"{row['bound']:,.0f}"]
            assert cells in [line.split() for line in out.splitlines()]
            file = f"timeline-{name.replace(':', '-')}"
            assert spans_of(whole / f"{file}.json") == [(*span[:3], *span[3:5]) for span in row["timeline"]]
            assert (whole / f"{file}.png").stat().st_size > 10_000
            assert str(whole / f"{file}.png") in out

        signalled(signal.SIGTERM, 2)
        for number, name in enumerate(self.SCHEDULES, start=1):
            assert run(*self.ARGUMENTS, "--overlap", "all", "--output", broken, "--resume")[::2] == (143, "")
            rows = report(broken)["schedules"]
            assert [row["overlap"] for row in rows] == [*self.SCHEDULES[:number]]
            assert (rows[-1]["schedule"], rows[-1]["bit_exact"]) == (name, None)
        assert run(*self.ARGUMENTS, "--overlap", "all", "--output", broken, "--resume")[::2] == (0, "")
        check_same(whole, broken)

    def test_search(self, run, succeed, tmp_path, signalled):
        """A search that is interrupted after the first chunk size resumes with the second one."""
        whole, broken = tmp_path / "whole", tmp_path / "broken"
        out = succeed(*self.ARGUMENTS, "--overlap", "search", "--output", whole)
        row, = report(whole)["schedules"]
        assert out.splitlines()[-len(row["search"]) - 1:-1] == row["search"]
        assert [line.partition("  ")[0] for line in row["search"][:2]] == ["chunks:1", "chunks:2"]
        assert row["search"][-1].startswith(f"chosen: {row['schedule']} ")
        signalled(signal.SIGINT, 1)
        assert run(*self.ARGUMENTS, "--overlap", "search", "--output", broken)[::2] == (130, "")
        stopped, = report(broken)["schedules"]
        assert (stopped["schedule"], stopped["search"]) == ("chunks:1", row["search"][:1])
        assert run(*self.ARGUMENTS, "--overlap", "search", "--output", broken, "--resume")[::2] == (0, "")
        check_same(whole, broken)

    def test_nodes_that_compute(self, run, tmp_path, signalled):
        """After an interruption, runs of compute nodes resume, and the recorded cycles of earlier steps are kept."""
        whole, broken = tmp_path / "whole", tmp_path / "broken"
        arguments = ("train", "--nodes", 3, "--hidden", "8", "--batch", 24, "--steps", 4, "--weights", "centroid16",
                     "--gradients", "raw", "--threads", 1, "--macs", 4, "--compute", "node",
                     "--compute-format", "bf16", "--overlap", "layers")
        assert run(*arguments, "--output", whole)[::2] == (0, "")
        signalled(signal.SIGINT, 2)
        assert run(*arguments, "--output", broken)[::2] == (130, "")
        assert run(*arguments, "--output", broken, "--resume")[::2] == (0, "")
        steps = report(whole)["per_step"]
        assert len(steps) == 4
        assert all(0 < step["vector_cycles"] < step["gemm_cycles"] < step["cycles"] for step in steps)
        check_same(whole, broken)
