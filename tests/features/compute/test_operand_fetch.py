# amaranth: UnusedElaboratable=no
"""Fetch of operand rows: hdl/features/compute/operand_fetch.py. test_gemm tests its cycles in a product."""

import dataclasses
import functools

import numpy as np
import pytest

from hdl.features.compute.access import request_layout
from hdl.features.compute.gemm_job import gemm_job_layout
from hdl.features.compute.loop_nest import panel_layout
from hdl.features.compute.operand_fetch import OperandFetch
from hdl.features.compute.panel import fill_layout
from sim.golden.features.compute import gemm
from sim.golden.features.compute.gemm import GemmJob, Matrix
from sim.golden.features.compute.gemm_cycles import GemmCycles
from sim.golden.features.compute.product import MatrixProduct
from sim.payload import pack, unpack
from sim.streams import stall_array
from sim.verilated.vectors import Feed, Unit
from tests.features.compute.answers import Answered, answer
from tests.features.compute.gemm_jobs import ROWS, random_products, resets
from tests.features.compute.memories import arrays
from tests.hdl.unit_bench import packed

#: Rows, lanes and blocks of the simulated units, and request-to-answer latency in cycles.
UNITS = ((1, 4, 32), (4, 8, 128))
LATENCY = 3
#: Minimum latency in cycles from the acceptance of a job to the offer of its first panel.
FIRST = 5


@functools.cache
def _unit(rows, lanes, blocks):
    fetch = OperandFetch(rows=rows, lanes=lanes, blocks=blocks, memory_rows=ROWS)
    return Unit(Answered(fetch, rows=ROWS, lanes=lanes, latency=LATENCY), name=f"OperandFetch{rows}x{lanes}")


def _memory(lanes):
    space, row = np.indices((4, ROWS))
    return answer(space, row, rows=ROWS, lanes=lanes)


def _want(unit_of, job):
    """Panels of a job, expected rows of A and B, and masks of the elements inside the matrices."""
    rows, lanes, blocks = unit_of
    golden = MatrixProduct(rows=rows, columns=lanes, blocks=blocks)
    memories = _memory(lanes)
    sides = []
    for transpose, matrix, shape in ((job.transpose_a, job.a, (job.m, job.k)),
                                     (job.transpose_b, job.b, (job.k, job.n))):
        stored = gemm.read(memories, matrix, *(shape[::-1] if transpose else shape)).view(np.uint32)
        sides.append(stored.T if transpose else stored)
    by_rows = not job.transpose_a, not job.transpose_b
    fills, exist = (golden.fills(job.loops, *operands, by_rows=by_rows)
                    for operands in (sides, [np.ones_like(side) for side in sides]))
    panels = [step.panel for step in golden.loops.steps(job.loops) if step.panel is not None]
    return panels, fills, exist


def _run(unit_of, job, *, kinds=("none",) * 4, seed):
    """Compare all rows written to the A and B panels with the model; return the trace of all ports."""
    _, lanes, blocks = unit_of
    panels, fills, exist = _want(unit_of, job)
    count = sum(len(fill.row) for side in fills.values() for fill in side)
    cycles = (20 if set(kinds) != {"none"} else 1) * count + 8 * len(panels) + 300
    announced, free, ready_a, ready_b = (stall_array(kind, cycles, seed=seed + n) for n, kind in enumerate(kinds))
    announced[:FIRST] = False
    heads = packed(panel_layout(), panels)
    held = pack(gemm_job_layout(ROWS), arrays(job.fields()))
    trace = _unit(*unit_of).lockstep(
        sources={"panels": Feed(heads, announced)}, inputs={"job": np.repeat(held, cycles, axis=0)},
        sinks={"request": free, "fill_a": ready_a, "fill_b": ready_b}, seed=seed)
    for side, panels_of in fills.items():
        moves = np.flatnonzero(trace[f"fill_{side}__valid"] & trace[f"fill_{side}__ready"])
        got = unpack(fill_layout(lanes, blocks), trace[f"fill_{side}__payload"][moves])
        for name in ("block", "row", "transposed"):
            want = np.concatenate([np.zeros(0, int), *(getattr(fill, name) for fill in panels_of)])
            np.testing.assert_array_equal(got[name], want, f"{side}, {name}, {seed=}, {job}")
        last = np.concatenate([np.zeros(0, bool), *(np.arange(len(fill.row)) == len(fill.row) - 1
                                                    for fill in panels_of)])
        np.testing.assert_array_equal(got["last"], last, f"{side}, last, {seed=}, {job}")
        elements, real = (np.concatenate([np.zeros((0, lanes), np.uint32), *(fill.elements for fill in of[side])])
                          for of in (fills, exist))
        np.testing.assert_array_equal(got["elements"] * real, elements, f"{side}, {seed=}, {job}")
    return trace


@pytest.mark.parametrize("unit_of", UNITS)
def test_throughput(unit_of):
    """Row requests start ``planned`` cycles after a panel is announced, at one per cycle; then the rows are written.
    """
    _unit(*unit_of).reset()
    job = GemmJob(m=8, n=8 * unit_of[1], k=16, tile=0, row_tiles=3, rounds=3, a=Matrix(0, 5, 7), b=Matrix(1, 9, 11),
                  c=Matrix(2, 0, 8))
    trace = _run(unit_of, job, seed=1)
    asked = np.flatnonzero(trace["request__valid"])
    assert asked[0] == FIRST + OperandFetch.planned
    got = unpack(request_layout(ROWS), trace["request__payload"][asked])
    assert (got["place"][0], got["row"][0]) == (0, 5)
    # The first panel of A is read without gaps until reads of B are interleaved.
    of_a = np.flatnonzero(got["place"] == 0)
    first = of_a[:np.flatnonzero(np.diff(of_a, append=len(asked) + 2) > 1)[0] + 1]
    assert np.diff(asked[first]).tolist() == [1] * (len(first) - 1)
    filled = np.flatnonzero(trace["fill_a__valid"])[:len(first)]
    assert (filled - asked[first]).tolist() == [LATENCY + 1] * len(first)


def test_ones():
    """The operand ONES is 1.0 everywhere and is not read from memory."""
    unit_of = UNITS[0]
    _unit(*unit_of).reset()
    base = GemmJob(m=6, n=7, k=5, rounds=2, a=Matrix(0, 3, 2), b=Matrix(1, 3, 4), c=Matrix(2, 0, 2))
    for transposed in (0, 1):
        for side, other in (("a", 1), ("b", 0)):
            job = dataclasses.replace(base, **{side: Matrix(gemm.ONES), f"transpose_{side}": transposed,
                                               "row_tiles": 2})
            trace = _run(unit_of, job, seed=2)
            asked = trace["request__payload"][np.flatnonzero(trace["request__valid"])]
            assert set(unpack(request_layout(ROWS), asked)["place"].tolist()) == {other}


def _begin(generator, job, cut):
    """Stimuli for a job that is reset while rows of a panel are pending."""
    held = pack(gemm_job_layout(ROWS), arrays(job.fields()))
    return {"sources": {"panels": Feed(packed(panel_layout(), _want(UNITS[0], job)[0]))},
            "sinks": {"request": True, "fill_a": cut % 2 == 0, "fill_b": True},
            "inputs": {"job": np.repeat(held, cut, axis=0)}}


def _cycles(rows, lanes, blocks):
    return GemmCycles(rows=rows, lanes=lanes, blocks=blocks)


test_rows = random_products(UNITS, _unit, _run, most=40, golden=_cycles)
test_reset = resets(UNITS[0], _unit, _run, _begin, most=20, golden=_cycles)
