# amaranth: UnusedElaboratable=no
"""Formats of matrix products in a sweep: jobs, rows and tables."""

import io

import pytest
from rich.console import Console

from boards.units import UNITS
from hdl.config.forms import from_dict
from hdl.features.compute.operands import OPERANDS
from hdl.registry import FEATURES, Codes, Entry
from host.features.compute.instructions import Array
from host.features.compute.lists import compile_lists
from host.labs.sweep import plan as sweep
from host.labs.sweep import worker
from host.labs.sweep.jobs import JobKind
from host.labs.sweep.page import tables
from host.labs.sweep.plan import SweepConfig
from host.models.digits import digits
from host.models.layer_shapes import layers_of
from host.training.record import Step, Training, TrainingConfig
from host.training.workloads import Classifier, WorkloadName
from tests.host.labs.sweep.results_of_plan import store_all
from tests.refusals import refused

DIGITS, TEXT = WorkloadName.DIGITS, WorkloadName.TEXT


test_errors = refused(SweepConfig, {}, [
    ({"compute_formats": ("mx9", "fp16")},
     f"Compute format must be one of {', '.join(OPERANDS)}, not 'fp16': did you mean bf16?"),
    ({"compute_formats": ()}, "Compute formats must be at least one, not none"),
    ({"compute_formats": ("mx9",), "workloads": (TEXT,)},
     "Compute formats are for workload digits, which must be among the workloads"),
])


@pytest.mark.parametrize(("options", "formats"), [
    ({}, list(OPERANDS)), ({"full": True, "nodes": (2,)}, list(OPERANDS)), ({"workloads": (TEXT,)}, []),
    ({"formats": ("mx9",)}, []), ({"formats": ("mx9",), "compute_formats": ("mx4", "bf16")}, ["bf16", "mx4"])])
def test_formats(options, formats):
    """All product formats are measured, unless options name only link formats or only the text workload."""
    assert SweepConfig(**options).products == formats


@pytest.mark.parametrize(("options", "kinds"), [
    ({}, [JobKind.COUNT, JobKind.PLACE]), ({"full": True}, [JobKind.PLACE] * 2), ({"synth": False}, [None] * 2),
    ({"compute_formats": ("fp32", "mx9")}, [JobKind.COUNT, JobKind.PLACE])])
def test_area(options, kinds):
    assert [SweepConfig(**options).area(name) for name in ("fp32", "mx9")] == kinds


def plan(**options):
    return sweep.plan(SweepConfig(formats=("zero_value",), workloads=(DIGITS,), **options))


class TestPlan:
    @pytest.mark.parametrize("nodes", [None, (2, 8)])
    def test_jobs(self, nodes):
        """Each product format has a build job, a run job for each ring size, and a synthesis job for its array."""
        sweep_plan = plan(nodes=nodes, compute_formats=tuple(OPERANDS))
        jobs = {job.name: job for job in sweep_plan.jobs}
        assert [(row.format, row.nodes) for row in sweep_plan.products] == [
            (name, count) for name in OPERANDS for count in nodes or (4,)]
        for row in sweep_plan.products:
            run = jobs[row.run]
            build, = run.needs
            node = from_dict(run.parameters["configuration"])
            assert jobs[build].parameters == {"configuration": run.parameters["configuration"]}
            assert (node.compute.operands, node.compute.rows * node.lanes) == (row.format, 16)
            assert run.parameters["nodes"] == row.nodes
            training = TrainingConfig(epochs=run.parameters["epochs"], **run.parameters["training"])
            assert (training.epochs, training.compute, training.compute_format, training.macs) == (
                3, "node", row.format, 16)
            seeds = {} if row.format == "fp32" else {"seeds": 1}
            assert jobs[row.array].parameters == {"unit": f"compute.operands_{row.format}", **seeds}
        assert len({job.parameters["configuration"]["compute"]["operands"] for job in sweep_plan.jobs
                    if job.name.startswith("build-products")}) == len(OPERANDS)

    def test_nodes_have_room(self):
        """However products are tiled, the activation memory has room for layers, lists and the largest share of two
        nodes."""
        job = plan(nodes=(2,), compute_formats=("mx9",)).jobs[-2]
        node, training = from_dict(job.parameters["configuration"]), TrainingConfig(**job.parameters["training"])
        task = Classifier(digits(), training.hidden, align=training.align)
        array = Array(rows=node.compute.rows, lanes=node.lanes, operands=node.compute.operands)
        factors = {"tile": 2, "row_tiles": 0, "column_tiles": 0, "rounds": 2, "order": 0}
        compile_lists(layers_of(task.widths), array=array, examples=-(-training.largest(task.examples) // 2),
                      words=node.compute.activations, factors=lambda *sizes, **options: factors)
        training.allocation(task.parameters.size).check(node, nodes=2)

    def test_others_are_as_without(self):
        """If product formats are added to a sweep, its jobs and rows for link formats stay the same."""
        without, extended = plan(synth=False), plan(synth=False, compute_formats=("mx9",))
        assert (without.products, extended.points) == ((), without.points)
        assert extended.jobs[:len(without.jobs)] == without.jobs
        assert [job.name for job in extended.jobs[len(without.jobs):]] == [
            "build-products-mx9", "run-products-mx9-n4-epochs3"]

    def test_every_array_has_a_unit(self):
        """For each operand format, there is an array of four rows and four columns."""
        for name in OPERANDS:
            _, arguments = UNITS[f"compute.operands_{name}"].call({})
            assert arguments == {"operands": name, "rows": 4, "columns": 4, "dsps": 4}

    def test_a_new_format(self, monkeypatch):
        monkeypatch.setitem(FEATURES, "bf16_too", Entry(
            module="hdl.features.bf16.feature", formats={"bf16_too": Codes(operands=8)}))
        assert SweepConfig().products[-1] == "bf16_too"


class TestRows:
    @pytest.fixture
    def planned(self):
        return plan(nodes=(2, 4), compute_formats=("bf16", "mx9"))

    def test_collected(self, planned, tmp_path):
        store_all(planned, tmp_path)
        rows = sweep.products(planned, tmp_path)
        assert [(row["compute_format"], row["nodes"], row["macs"]) for row in rows] == [
            ("bf16", 2, 16), ("bf16", 4, 16), ("mx9", 2, 16), ("mx9", 4, 16)]
        number = 1 + [job.name for job in planned.jobs].index("place-operands-mx9")
        fmax = 100 + number
        row = rows[2]
        assert (row["luts"], row["luts_per_mac"], row["fmax_mhz"]) == (160 * number, 10 * number, fmax)
        assert (row["macs_reached"], row["accuracy"], row["cycles_per_step"]) == (8, 0.9, 1234.5)
        assert row["gflops_peak"] == pytest.approx(2 * 16 * fmax / 1000)
        assert row["gflops"] == pytest.approx(row["gflops_peak"] / 2)
        assert row["gflops_peak_per_lut"] == pytest.approx(row["gflops_peak"] / row["luts"])
        assert row["gflops_per_lut"] == pytest.approx(row["gflops"] / row["luts"])

    def test_what_is_absent(self, planned, tmp_path):
        """A format has a row in the table only if it was run. It has an area, and a point in the picture, only if it
        was placed."""
        store_all(planned, tmp_path, without=("place-operands-mx9", "run-products-bf16-n2"))
        rows = sweep.products(planned, tmp_path)
        assert [(row["compute_format"], row["nodes"], row["luts"] is None) for row in rows] == [
            ("bf16", 4, False), ("mx9", 2, True), ("mx9", 4, True)]
        assert [row["gflops"] is None for row in rows] == [False, True, True]
        assert [len(table.rows) for table in tables([], rows)] == [3, 1]
        assert [len(table.rows) for table in tables([], rows[1:])] == [2]
        for name, few in (("area", rows), ("none", rows[1:])):
            assert sweep.write([], tmp_path / name, products=few)[1].stat().st_size > 10_000

    def test_counted(self, tmp_path):
        """If an array's logic cells were counted but the array was not placed, its row has the number of LUTs but no
        speed."""
        planned = plan(nodes=(4,), compute_formats=("fp32",))
        assert [job.name for job in planned.jobs if job.kind is JobKind.COUNT] == ["count-operands-fp32"]
        store_all(planned, tmp_path)
        row, = sweep.products(planned, tmp_path)
        assert (row["compute_format"], row["fmax_mhz"], row["gflops"], row["gflops_per_lut"]) == (
            "fp32", None, None, None)
        assert row["luts_per_mac"] > 0

    def test_tables(self, planned, tmp_path):
        """All tables fit in 80 columns, even if the name of a format is long."""
        store_all(planned, tmp_path)
        rows = [row | {"compute_format": "mxfp8_e4m3", "nodes": 16, "words": 123456, "cycles_per_step": 123456.7,
                       "cycles_products": 98765.4, "luts": 18334, "luts_per_mac": 1145.9, "dsp": 64}
                for row in sweep.products(planned, tmp_path)]
        console = Console(width=80, file=io.StringIO())
        for table in tables([], rows):
            console.print(table)
        shown = console.file.getvalue()
        assert "…" not in shown
        assert max(map(len, shown.splitlines())) <= 80
        assert shown.count("123,457") == shown.count("1,146") == len(rows)
        assert [line.split()[-1] for line in shown.splitlines() if "1,146" in line] == [
            f"{1000 * row['gflops_per_lut']:.3f}" for row in rows]


def test_figures_of_a_run():
    """Multiply-adds are counted for the largest share: 30 examples on one of 4 nodes, for batches of 119 or 120."""
    training = TrainingConfig(epochs=1, compute="node")
    outcome = Training(nodes=4, parameters=4810, steps=[
        Step(number=number, epoch=1, loss=1.0, cycles=0, bound=1, scatter_cycles=0, scatter_bound=0, words_sent=0,
             words_dense=0, density=[], gemm_cycles=100 + number, vector_cycles=number) for number in range(12)])
    assert worker._engine_figures(outcome, Classifier(digits(), training.hidden), training) == {
        "multiply_adds": 30 * (2 * 64 * 64 + 3 * 64 * 10), "cycles_products": 105.5, "cycles_functions": 5.5}


def test_macs_are_those_of_the_arrays():
    assert sweep.MACS == 4 * 4
