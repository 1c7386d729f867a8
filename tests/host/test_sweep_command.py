# amaranth: UnusedElaboratable=no
"""The command `gradring sweep`: its options, and the exit code after failures."""

import json
import re
import sys

import pytest

from host import cli
from host.sweep import execution
from host.sweep import plan as sweep
from host.sweep.execution import Failure
from host.sweep.jobs import Job, JobKind
from host.sweep.plan import SweepConfig
from host.training.workloads import WorkloadName
from tests.host.sweep.results_of_plan import store_all

RUN = Job(kind=JobKind.RUN, name="run", parameters={"nodes": 2}, needs=("build",))


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
        """Failures are printed after the rows that there are."""
        monkeypatch.setattr(sweep, "GRADIENT_CODECS", ("zero_value",))
        config = SweepConfig(formats=("mx9",), nodes=(2,), workloads=(WorkloadName.DIGITS,))
        plan = sweep.plan(config)
        store_all(plan, tmp_path / "jobs", without=("run-digits-mx9",))
        monkeypatch.setattr(execution, "execute", lambda jobs, folder, **options: [Failure(RUN, "it went wrong")])
        code, out, _ = run("--formats", "mx9", "--nodes", 2, "--workload", "digits")
        assert code == 1
        assert out.startswith("rows: 2; jobs to do: 1, ")
        assert " raw      zero_value  2 " in out
        assert max(map(len, out.splitlines()[1:-2])) <= 80
        assert out.endswith("failed: run: it went wrong\n")
        assert len(json.loads((tmp_path / "sweep.json").read_text())["rows"]) == 1
