# amaranth: UnusedElaboratable=no
"""The `gradring lab sweep` command: its options, and its exit code after failures."""

import functools
import json
import re

import pytest

from host.labs.sweep import execution
from host.labs.sweep import plan as sweep
from host.labs.sweep.jobs import Ended, Job, JobKind
from host.labs.sweep.plan import SweepConfig
from host.training.workloads import WorkloadName
from tests.host.labs.sweep.results_of_plan import store_all

RUN = Job(kind=JobKind.RUN, name="run", parameters={"nodes": 2}, needs=("build",))


@pytest.fixture
def run(program, tmp_path):
    """Return a function that runs the command and returns exit code, stdout and stderr."""
    return functools.partial(program, "lab", "sweep", "--output", tmp_path)


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

    @pytest.mark.parametrize(("options", "message"), [
        (("--workload", "text"), "Option --compute-formats is for workload digits, not text: leave it out"),
        ((), "Compute format must be one of fp32, bf16, mx9, mx6, mx4, mxfp4_e2m1, mxfp4_e2m1_up, nvfp4, not 'mx5': "
             "did you mean mx9 or mx6 or mx4?")])
    def test_compute_formats(self, run, options, message):
        assert run("--compute-formats", "mx9,mx5", *options)[::2] == (1, f"error: {message}\n")

    def test_formats_of_products(self, run, tmp_path):
        """Formats of products have rows and tables of their own, and are included in every result of the sweep."""
        config = SweepConfig(formats=("zero_value",), nodes=(2,), workloads=(WorkloadName.DIGITS,),
                             compute_formats=("fp32", "mx9"))
        store_all(sweep.plan(config), tmp_path / "jobs")
        code, out, _ = run("--formats", "zero_value", "--nodes", 2, "--workload", "digits", "--compute-formats",
                           "mx9,fp32")
        assert code == 0
        assert out.startswith("rows: 3; jobs to do: 0\n")
        assert max(map(len, out.splitlines()[:-1])) <= 80
        assert re.search(r"^ *mx9 +2 .* 8\.00 *$", out, re.MULTILINE)
        written = json.loads((tmp_path / "sweep.json").read_text())
        assert [row["compute_format"] for row in written["compute"]] == ["fp32", "mx9"]
        assert len(written["rows"]) == 1
        assert "reached/LUT" in (tmp_path / "sweep.html").read_text()

    def test_failures_end_with_1(self, run, monkeypatch, tmp_path):
        """Failures of jobs are printed after the rows that are available, and the exit code is 1."""
        monkeypatch.setattr(sweep, "GRADIENT_CODECS", ("zero_value",))
        config = SweepConfig(formats=("mx9",), nodes=(2,), workloads=(WorkloadName.DIGITS,))
        plan = sweep.plan(config)
        store_all(plan, tmp_path / "jobs", without=("run-digits-mx9",))
        monkeypatch.setattr(execution, "execute", lambda jobs, folder, **options: [Ended(RUN, 0.0, "it went wrong")])
        code, out, _ = run("--formats", "mx9", "--nodes", 2, "--workload", "digits")
        assert code == 1
        assert out.startswith("rows: 2; jobs to do: 1, ")
        assert re.search(r"^raw +zero_value +2 ", out, re.MULTILINE)
        assert max(map(len, out.splitlines()[1:-2])) <= 80
        assert out.endswith("failed: run: it went wrong\n")
        assert len(json.loads((tmp_path / "sweep.json").read_text())["rows"]) == 1
