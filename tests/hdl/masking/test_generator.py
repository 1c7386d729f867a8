# amaranth: UnusedElaboratable=no
import dataclasses
import functools

import numpy as np
import pytest

from hdl.masking.generator import MaskGenerator
from hdl.masking.mask import KINDS, job_layout, mask_beat_layout, mask_layout
from sim.golden import masking as model
from sim.verilated.vectors import Feed
from tests.hdl.masking import cycles as masking_cycles
from tests.hdl.masking import masks
from tests.hdl.unit_bench import Drive, UnitBench, Want, offers
from tests.refusals import refused_values
from tests.traces import moved


def _drive(generator, lanes, count=400):
    jobs = masks.jobs(generator, count, limit=int(generator.choice([4, 12])), empty=0.1)
    return Drive({"jobs": masks.job_rows(jobs)}, jobs)


def _model(unit, jobs, willing, ready):
    trace = masking_cycles.trace_generator(jobs, lanes=unit.lanes, willing=willing["jobs"], ready=ready["o"])
    return Want.of(trace, masks.mask_rows(model.mask_beats(jobs, unit.lanes)))


def _make(lanes, index_bits=masks.INDEX_BITS):
    return MaskGenerator(lanes=lanes, index_bits=index_bits)


BENCH = UnitBench(_make, _model, _drive)
LANES = [(lanes,) for lanes in masks.LANES]
test_lockstep = BENCH.lockstep(LANES, count=2_500, seeds=2, least=300)
test_reset_in_a_job = BENCH.resets(LANES, range(1, 9), count=1_000, drive=functools.partial(_drive, count=10))
test_offers_stand_for_all_time = offers(lambda: MaskGenerator(lanes=2, index_bits=5), depth=2)
test_lanes, test_layout_of_lanes = (
    refused_values(make, {}, "lanes", [0, 3, 32, 4.0, "4", None], "Lane count must be 1, 2, 4, 8 or 16")
    for make in (MaskGenerator, mask_beat_layout))
test_index_bits, test_layout_of_index_bits, test_job_layout_of_index_bits = (
    refused_values(make, base, "index_bits", [0, 4, 17, 8.0, "8", None], "Index width must be 5 to 16 bits")
    for make, base in ((MaskGenerator, {"lanes": 4}), (mask_layout, {}), (job_layout, {})))


def _run(lanes, jobs, *, cycles, index_bits=masks.INDEX_BITS):
    unit = BENCH.unit(lanes, index_bits)
    unit.reset()
    return unit.lockstep(sources={"jobs": Feed(masks.job_rows(jobs, index_bits))}, sinks={"o": True}, cycles=cycles)


# --- every kind of mask


@pytest.mark.parametrize("lanes", masks.LANES)
def test_kinds(lanes):
    """Every combination of mask kinds works with every size, at a throughput of one beat per cycle."""
    generator = np.random.default_rng(lanes)
    jobs = [model.Job(rows=rows, columns=columns, mask=masks.mask(generator, enables, rows, columns))
            for enables in masks.COMBINATIONS if not enables["external"] for rows, columns in masks.SIZES]
    want = masks.mask_rows(model.mask_beats(jobs, lanes))
    when, got = moved(_run(lanes, jobs, cycles=len(want) + 50))
    np.testing.assert_array_equal(got, want)
    assert when.tolist() == list(range(MaskGenerator.latency, MaskGenerator.latency + len(want)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lanes", masks.LANES)
def test_every_bound(lanes, kind):
    """Each kind of mask is correct when used on its own, for all relevant bounds in a small matrix."""
    rows, columns = 3, 19
    bounds = range(columns + 2)
    if kind.startswith("triangle"):
        settings = [{"diagonal": value} for value in (*range(-rows - 1, columns + 2), -256, 255)]
    elif kind == "padding":
        settings = [{"length_rows": r, "length_columns": c} for r in range(rows + 2) for c in (*bounds, 255)]
    elif kind.startswith("rectangle"):
        settings = [{"first_row": 1, "end_row": 2, "first_column": first, "end_column": end}
                    for first in bounds for end in (*bounds, 255)]
    else:
        settings = [{"width": width} for width in (*bounds, 255)]
    jobs = [model.Job(rows=rows, columns=columns, mask=model.Mask(**{kind: True}, **setting)) for setting in settings]
    want = masks.mask_rows(model.mask_beats(jobs, lanes))
    _, got = moved(_run(lanes, jobs, cycles=len(want) + 50))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("lanes", [4, 16])
def test_largest_matrix(lanes):
    """The largest matrix with 5-bit indices works, with all bounds at their limits."""
    extremes = {"diagonal": (-32, -31, 0, 30, 31), "width": (0, 30, 31), "length_columns": (0, 31)}
    jobs = []
    for name, values in extremes.items():
        for value in values:
            for kind in KINDS[:-1]:
                settings = {"length_rows": 31, "length_columns": 31, "end_row": 31, "end_column": 31, name: value}
                jobs.append(model.Job(rows=31, columns=31, mask=model.Mask(**{kind: True}, **settings)))
    want = masks.mask_rows(model.mask_beats(jobs, lanes))
    _, got = moved(_run(lanes, jobs, cycles=len(want) + 50, index_bits=5))
    np.testing.assert_array_equal(got, want)


def test_golden_fields():
    """The golden model's mask has the same fields as the layout, in the same order."""
    assert [field.name for field in dataclasses.fields(model.Mask)] == [name for name, _ in mask_layout(8)]
