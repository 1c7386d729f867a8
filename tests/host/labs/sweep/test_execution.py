# amaranth: UnusedElaboratable=no
"""Execution of a sweep: failures, processes that die, and restarts after a kill or an interruption."""

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

from hdl.config import NodeConfig
from host.labs.sweep import execution
from host.labs.sweep import jobs as sweep_jobs
from host.labs.sweep.jobs import Job, JobKind, load, store
from sim.verilated.processes import is_alive
from tests.host.rings import library
from tests.refusals import refuses

TIMEOUT = 240

RUN = Job(kind=JobKind.RUN, name="run", parameters={"nodes": 2}, needs=("build",))


def children(process):
    path = Path(f"/proc/{process}/task/{process}/children")
    return [int(number) for number in path.read_text().split()] if path.exists() else []


def wait(condition, message):
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, message
        time.sleep(0.02)


def unplaced(number):
    """A placement job that fails immediately because its unit does not exist."""
    return Job(kind=JobKind.PLACE, name=f"place-{number}", parameters={"unit": f"nothing.{number}", "seeds": 1})


class TestExecute:
    def test_failures_are_told_and_the_others_go_on(self, tmp_path):
        build = Job(kind=JobKind.BUILD, name="build-odd", parameters={"configuration": {"lanes": 3}})
        run = Job(kind=JobKind.RUN, name="run-odd", parameters={}, needs=("build-odd",))
        wrong = Job(kind=JobKind.RUN, name="run-wrong", parameters={})
        good = Job(kind=JobKind.PLACE, name="place-good", parameters={"unit": "stream.skid_buffer", "seeds": 1})
        counted = Job(kind=JobKind.COUNT, name="count-good", parameters={"unit": "stream.skid_buffer"})
        told, states = [], []
        failures = execution.execute([build, run, unplaced(0), wrong, good, counted], tmp_path, processes=2,
                                      ended=lambda done: told.append((done.job.name, done.error)),
                                      tick=states.append)
        messages = {failure.job.name: failure.error for failure in failures}
        assert list(messages) == [name for name, error in told if error is not None]
        assert messages.keys() == {"build-odd", "run-odd", "place-0", "run-wrong"}
        assert messages["build-odd"] == "NodeConfig.lanes must be 1, 2, 4 or 8, not 3"
        assert messages["run-odd"] == "build-odd has failed"
        assert re.fullmatch(r"Unit must be one of .*, not 'nothing\.0'", messages["place-0"])
        assert messages["run-wrong"] == "KeyError: 'configuration'"
        assert ("place-good", None) in told
        assert load(tmp_path, good)["ff"] == load(tmp_path, counted)["ff"] == 68
        assert "fmax_mhz" not in load(tmp_path, counted)
        assert (states[0].done, states[0].total) == (0, 6)
        assert all(0 <= state.done <= 6 and state.left >= 0 and len(state.running) <= 2 for state in states)
        # No results of failed jobs are kept.
        jobs = [build, run, unplaced(0), wrong]
        assert execution.pending([*jobs, good, counted], tmp_path) == jobs

    def test_a_process_that_dies(self, tmp_path):
        killed = []

        def kill(state):
            if not killed:
                killed.extend(children(os.getpid()))
                if not killed:
                    pytest.skip("needs /proc to find the process")
                for process in killed:
                    os.kill(process, signal.SIGKILL)

        failures = execution.execute([unplaced(0), unplaced(1)], tmp_path, processes=1, tick=kill)
        assert [failure.job.name for failure in failures] == ["place-0", "place-1"]
        assert failures[0].error == "The process that did it has ended by SIGKILL"
        assert failures[1].error.startswith("Unit must be one of ")
        assert not [process for process in children(os.getpid()) if is_alive(process)]

    def test_sources_that_change_meanwhile(self, tmp_path, monkeypatch):
        sources = sweep_jobs.sources
        monkeypatch.setattr(sweep_jobs, "sources", lambda kind: sources(kind) + "older")
        failure, = execution.execute([unplaced(0)], tmp_path, processes=1)
        assert failure.error == "Sources have changed since the sweep began; start it again"

    def test_nothing_to_do(self, tmp_path):
        store(tmp_path, RUN, {}, 1.0)
        assert execution.execute([RUN], tmp_path, ended=lambda *_: pytest.fail("a job was done again")) == []

    def test_number_of_processes(self, tmp_path):
        refuses("Jobs at a time must be at least 1, not 0", execution.execute, [RUN], tmp_path, processes=0)


def test_estimate(tmp_path):
    """The estimate of a job is the duration of an earlier run, even with other sources; cached results do not
    count."""
    job = Job(kind=JobKind.RUN, name="run", parameters={"nodes": 2}, estimate=10.0)
    assert execution.estimate([job], tmp_path, 1) == pytest.approx(10)
    other = dataclasses.replace(job, parameters={"nodes": 3})
    store(tmp_path, other, {}, 30.0)
    assert execution.estimate([job], tmp_path, 1) == pytest.approx(30)
    store(tmp_path, other, {}, 0.1)
    assert execution.estimate([job], tmp_path, 1) == pytest.approx(10)


#: Script that runs the program with default nodes, which other tests build too, and with fewer gradient codecs. It
#: can be interrupted even if the tests cannot, for example when they run in the background of a shell.
PROGRAM = """
import signal
from hdl.config import NodeConfig
from host import cli
from host.labs.sweep import plan as sweep
from host.training.workloads import WorkloadName
signal.signal(signal.SIGINT, signal.default_int_handler)
sweep.NODE[WorkloadName.DIGITS] = NodeConfig()
sweep.GRADIENT_CODECS = ("zero_value",)
cli.main()
"""


def test_resume_after_a_kill_and_an_interruption(tmp_path):
    """Each start of a sweep runs only the remaining jobs, and no process outlives the sweep."""
    output = tmp_path / "sweep"
    jobs = output / "jobs"
    command = [sys.executable, "-c", PROGRAM, "lab", "sweep", "--formats", "raw", "--workload", "digits",
               "--nodes", "2,3,4,5,6,7,8", "--epochs", "1", "--jobs", "1", "--no-synth", "--output", str(output)]
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
        """Send a signal when ``count`` runs have ended, and return the output of the process."""
        wait(lambda: len(finished()) >= count or process.poll() is not None, "no run has ended")
        workers = children(process.pid)
        process.send_signal(number)
        out, _ = process.communicate(timeout=240)
        wait(lambda: not any(map(is_alive, workers)), "a process has outlived the sweep")
        return out

    library(NodeConfig())
    runs = [f"run-digits-raw+zero_value-n{nodes}" for nodes in range(2, 9)]
    kept = {}
    for number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)):
        with started() as process:
            out = end(process, len(kept) + 1, number)
        assert process.returncode == code, out
        done = finished()
        assert set(runs) > done.keys() > kept.keys()
        assert done.items() >= kept.items()
        kept = done
        assert not (output / "sweep.json").exists()
    with started() as process:
        out, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, out
    done = finished()
    assert done.keys() == set(runs)
    assert done.items() >= kept.items()
    lines = [line.split()[3] for line in out.splitlines() if re.match(r" *\d+ of ", line)]
    assert [line.partition("-epochs")[0] for line in lines if line.startswith("run")] == [
        run for run in runs if run not in kept]
    rows = json.loads((output / "sweep.json").read_text())["rows"]
    assert [row["nodes"] for row in rows] == list(range(2, 9))
    assert all(row["bit_exact"] is True and row["steps"] == 12 and row["words_ratio"] == 1 for row in rows)
    assert (output / "sweep.png").stat().st_size > 10_000
