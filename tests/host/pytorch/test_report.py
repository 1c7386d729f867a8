"""Reports of PyTorch scripts: reproducibility levels of their sums."""

import numpy as np
import pytest

from host.jobs.figures import Figures
from host.pytorch.jobs import Operation, Options
from host.pytorch.norms import norms_of, outliers_of
from host.pytorch.report import build_report, write_report
from tests.present import needs

ALL = ["run to run", "any processor", "any cut", "any order and topology"]


class Jobs:
    """Stub of a script's jobs, which use one ring."""

    cycles, build_seconds = 5, 0.0

    def __init__(self, sums, nonfinite=(), unequal=(), norms=()):
        self.nonfinite, self.nonfinite_operations = list(nonfinite), len(nonfinite)
        self.unequal_weights = list(unequal)
        figures = Figures(elements=10, commands=1, cycles=5)
        self.operations = [Operation(kind="all_reduce", job=0, figures=figures)] * sums
        self.operations += [Operation(kind="step", job=0, figures=figures, norms=row) for row in norms]

    def __len__(self):
        return 1


def report_of(*, gloo=None, backends=("gradring",), sums=1, nonfinite=(), unequal=(), norms=(), **options):
    return build_report(Options(nodes=2, **options), Jobs(sums, nonfinite, unequal, norms), gloo=gloo or {},
                        backends=[backends] * 2, slow=[0, 0], seconds=1.0)


@pytest.mark.parametrize(("options", "count"), [
    ({}, 4), ({"density": 0.5, "gradients": "zero_value"}, 2), ({"gradients": "raw"}, 3),
    ({"gloo": {"allreduce": (3, 24, 0), "broadcast": (2, 16, 0)}}, 4),
    ({"gloo": {"allreduce": (3, 24, 0), "reduce_scatter": (2, 16, 1)}}, 0),
    ({"backends": ("gradring", "gloo")}, 4), ({"backends": ("gradring", "mpi")}, 0), ({"sums": 0}, 0)])
def test_levels(tmp_path, options, count):
    """A report names levels of reproducibility only if all floating-point sums went over the ring; otherwise, its
    page gives the reason."""
    needs("reproducible", what="A format of integers")
    report = report_of(**{"gradients": "sum32", **options})
    assert report["levels"] == ALL[:count]
    page = write_report(report, tmp_path)[-1].read_text()
    assert ("Sums have the same bits: " in page) is bool(count)
    assert ("since gloo has added floating-point numbers: reduce_scatter." in page) is (
        "reduce_scatter" in options.get("gloo", ()))


def test_nonfinite(tmp_path):
    """The table names the first gradient that is not finite, and the report contains all that were recorded."""
    rows = [{"rank": rank, "operation": 3, "step": step, "backward_pass": 2, "parameter": "fc.weight",
             "indices": (3, 40), "value": "inf", "count": 1} for rank, step in ((1, 0), (0, 5))]
    for nonfinite, where in ((rows, "backward pass 2"), (rows[::-1], "step 5")):
        report = report_of(nonfinite=nonfinite)
        page = write_report(report, tmp_path)[-1].read_text()
        rank = nonfinite[0]["rank"]
        assert f"inf in rank {rank}&#39;s gradient of fc.weight at (3, 40), {where}" in page
        assert report["nonfinite_operations"] == 2
        assert report["nonfinite"] == nonfinite
    assert "not finite" not in write_report(report_of(), tmp_path)[-1].read_text()


def test_unequal_weights(tmp_path):
    rows = [{"ranks": ranks, "parameter": "fc.weight", "backward_pass": number} for ranks, number in (
        ([1], 51), ([0, 1], None))]
    for unequal, text in ((rows, "rank 1 differ from the others&#39;, first in fc.weight, backward pass 51<"),
                          (rows[1:], "ranks 0, 1 differ from the others&#39;, first in fc.weight<")):
        report = report_of(unequal=unequal)
        assert f"weights of {text}" in write_report(report, tmp_path)[-1].read_text()
        assert report["unequal_weights"] == unequal


def test_norms(tmp_path):
    """If three or more ranks report norms, ranks with norms far above the median are named."""
    norms = [(1.0, 2.0, 3.0), (1.0, 20.0, 2.0), (0.0, None, 5.0), (3.0, 40.0, 2.0), (1e-9, 1e-9, 2e-8),
             (1.0, None, None)]
    report = report_of(norms=norms)
    assert [row["norms"] for row in report["per_operation"]] == [(), *norms]
    *_, page = write_report(report, tmp_path)
    assert "gradients of rank 1, norms above 10 times the median" in page.read_text()
    assert outliers_of(report["per_operation"]) == {1: [5], 2: [6]}
    assert outliers_of([{"norms": (1.0, 100.0)}, {"norms": ()}, {"norms": (0.0, 0.0, 1.0)}]) == {}


def test_norms_of_vectors():
    vectors = np.array([[3, 4], [np.inf, 0], [np.nan, 1], [0, 0], [3e30, 4e30], [3e-30, 4e-30]], np.float32)
    norms = norms_of(vectors, scale=2)
    assert norms[:4] == (10.0, None, None, 0.0)
    assert norms[4:] == pytest.approx((1e31, 1e-29))
