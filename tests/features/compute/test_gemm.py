# amaranth: UnusedElaboratable=no
import dataclasses
import functools

import numpy as np
import pytest

from hdl.features.compute.gemm import Gemm
from hdl.features.compute.multiply_accumulate import product_latency
from hdl.features.compute.operands import OPERANDS
from sim.golden.features.compute import gemm
from sim.golden.features.compute.gemm import GemmJob, Matrix
from sim.golden.features.compute.gemm_cycles import GemmCycles
from sim.streams import STALLS
from tests.features.compute.gemm_jobs import ROWS, draw_job
from tests.features.compute.memories import PLACES, Bench, pace
from tests.features.compute.terms import KINDS, draw
from tests.hdl.unit_bench import offers
from tests.refusals import refused

#: Number of rows, lanes, DSP blocks and blocks, ``scale_mask``, and operand format of the simulated units.
UNITS = ((1, 4, 1, 32, True, "bf16"), (4, 4, 4, 128, False, "fp32"), (2, 4, 1, 64, False, "mx9"),
         (1, 4, 1, 32, False, "nvfp4"))


@functools.cache
def _unit(rows, lanes, dsps, blocks, scale_mask, operands):
    component = Gemm(rows=rows, lanes=lanes, dsps=dsps, blocks=blocks, memory_rows=ROWS, scale_mask=scale_mask,
                     operands=operands)
    scalar = operands if OPERANDS[operands].terms == 1 else "fp32"
    golden = GemmCycles(rows=rows, lanes=lanes, blocks=blocks, product=product_latency(dsps, scalar),
                        scaling=product_latency(dsps), scale_mask=scale_mask, operands=operands)
    return Bench(component, rows=ROWS, lanes=lanes), golden


def check(unit_of, jobs, *, seed, kind="ordinary", stalls="none", rate=0.6):
    """Run jobs one by one; compare all memory contents and each job's cycles with the model."""
    bench, golden = _unit(*unit_of)
    generator = np.random.default_rng(seed)
    contents = [draw(generator, kind, ROWS, golden.lanes) for _ in range(PLACES)]
    bench.load(contents)
    for number, job in enumerate(jobs):
        paces, memory = pace(stalls, 40_000 if stalls != "none" else 1, seed=seed + 10 * number, rate=rate)
        wanted = dataclasses.replace(golden, memory=memory).cycles(job)
        legal = golden.legal(job)
        if legal:
            gemm.multiply(job, contents, operands=unit_of[-1])
        assert bench.run([job], paces, cycles=wanted + 50) == (
            [0], [wanted] * legal, [wanted] * (not legal)), f"{job}, {seed=}"
    for place_of, (got, want) in enumerate(zip(bench.contents(), contents, strict=True)):
        np.testing.assert_array_equal(got, want, f"memory {place_of}, {jobs}, {seed=}")


test_parameters = refused(Gemm, {"rows": 4, "lanes": 4, "memory_rows": 64}, [
    ({"rows": 3}, "Row count must be 1, 2 or 4, not 3"),
    ({"lanes": 2}, "Row count must be at most the lane count 2, not 4"),
    ({"dsps": 3}, "DSP block count must be 4, 2 or 1, not 3"),
    ({"blocks": 6}, "Block count must be a power of two between 2 and 512, not 6"),
    ({"operands": "fp8"},
     "Operands must be one of fp32, bf16, mx9, mx6, mx4, mxfp4_e2m1, mxfp4_e2m1_up, nvfp4, not 'fp8'"),
    ({"memory_rows": 1}, "Memory row count must be an integer of at least 2, not 1"),
])
test_offers_stand_for_all_time = offers(lambda: Gemm(rows=1, lanes=2, blocks=2, memory_rows=4), depth=2)


@pytest.mark.parametrize("unit_of", UNITS)
def test_products(unit_of):
    """Random products of all kinds of numbers have exact results and take the modelled number of cycles."""
    _, golden = _unit(*unit_of)
    for seed in range(1, 9):
        print(f"seed {seed}")
        generator = np.random.default_rng(seed)
        jobs = [draw_job(generator, golden, most=(5, 12, 25, 40)[seed % 4]) for _ in range(5)]
        check(unit_of, jobs, seed=seed, kind=KINDS[seed // 2 % len(KINDS)])


@pytest.mark.parametrize("stalls", STALLS[1:])
@pytest.mark.parametrize("unit_of", UNITS)
def test_stalls(unit_of, stalls):
    """Products are correct under any stalls of the requests, responses, writes and commits of the memories."""
    _, golden = _unit(*unit_of)
    for seed in range(11, 14):
        print(f"seed {seed}")
        generator = np.random.default_rng(seed)
        jobs = [draw_job(generator, golden, most=20) for _ in range(4)]
        check(unit_of, jobs, seed=seed, stalls=stalls)


def test_partial_results():
    """Partial results are read back only once they are in memory, even with slow writes or repeated tiles."""
    unit_of = UNITS[0]
    base = GemmJob(m=9, n=20, k=17, a=Matrix(0, 0, 5), b=Matrix(1, 0, 5), c=Matrix(2, 1, 6))
    for number, changes in enumerate((
            {"order": 2, "m": 1, "n": 4, "tile": 3}, {"order": 2, "tile": 1}, {"row_tiles": 1},
            {"order": 2, "tile": 1, "column_tiles": 1, "rounds": 3}, {"order": 1, "column_tiles": 1})):
        jobs = [dataclasses.replace(base, **{"rounds": 2, **changes})]
        check(unit_of, jobs, seed=20 + number, stalls="geometric", rate=0.25)


def test_writes_without_a_pause():
    """Products are correct even if writes never pause and the number of unfinished tiles reaches its limit."""
    for seed, unit_of in enumerate(UNITS, start=1):
        rows = unit_of[0]
        jobs = [GemmJob(m=16 * rows, n=144, k=k, tile=1, column_tiles=1, rounds=2, order=2, a=Matrix(0, 0, 2),
                        b=Matrix(1, 0, 36), c=Matrix(2, 0, 36), initial=initial, start=Matrix(0, 1000, 36))
                for k, initial in ((rows, 0), (4, 1), (8, 0))]
        check(unit_of, jobs, seed=seed)


def test_edges_of_numbers():
    """ReLU and gating handle numbers around zero, infinities and NaN correctly."""
    unit_of = UNITS[1]
    bench, golden = _unit(*unit_of)
    corners = np.array([0, 0x80000000, 1, 0x80000001, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001, 0x3f800000,
                        0xbf800000, 0x007fffff, 0x807fffff], np.uint32)
    contents = [np.zeros((ROWS, 4), np.uint32) for _ in range(PLACES)]
    contents[0][:3] = corners.reshape(3, 4)  # a matrix with a single row of 12 elements, multiplied by 1.0
    contents[1][:3] = np.roll(corners, 5).reshape(3, 4)
    bench.load(contents)
    for number, (relu, gated) in enumerate(((1, 0), (0, 1), (1, 1))):
        job = GemmJob(m=1, n=12, k=1, rounds=2, relu=relu, gated=gated, a=Matrix(gemm.ONES), b=Matrix(0, 0, 3),
                      c=Matrix(2, 8 * number, 3), gate=Matrix(1, 0, 3))
        gemm.multiply(job, contents, operands=unit_of[-1])
        bench.run([job], cycles=golden.cycles(job) + 10)
    for got, want in zip(bench.contents(), contents, strict=True):
        np.testing.assert_array_equal(got, want)
    assert contents[2][:3].ravel().tolist() == [0, 0, 1, 0, 0x7f800000, 0, 0x7fc00000, 0x7fc00000, 0x3f800000, 0,
                                                0x007fffff, 0]
    gate = np.roll(corners, 5)
    above = np.isin(gate, [1, 0x7f800000, 0x3f800000, 0x007fffff])
    # Adding -0.0 to the initial +0.0 gives +0.0.
    product = np.where(corners == 0x80000000, 0, np.where(corners == 0xffc00001, 0x7fc00000, corners))
    np.testing.assert_array_equal(contents[2][8:11].ravel(), np.where(above, product, 0))


@pytest.mark.parametrize("unit_of", UNITS)
def test_refusals(unit_of):
    """Jobs with misaligned or oversized panels raise ``bad`` and write nothing; the next job runs."""
    _, golden = _unit(*unit_of)
    parts = golden.loops.terms == 1
    good = GemmJob(m=9, n=6, k=9, tile=1, rounds=2 if parts else 4, row_tiles=2, a=Matrix(0, 0, 3),
                   b=Matrix(1, 0, 3), c=Matrix(2, 0, 2))
    bad = [dataclasses.replace(good, **change) for change in (
        {"m": 0}, {"order": 3}, {"rounds": 14}, {"rounds": 1}, {"rounds": 0, "transpose_b": 1},
        {"rounds": 1, "transpose_a": 1, "transpose_b": 1})]
    assert golden.legal(good)
    assert golden.legal(dataclasses.replace(good, rounds=1, transpose_a=1)) == parts
    assert golden.legal(dataclasses.replace(good, rounds=3)) == parts  # nine terms fit into a single block
    assert golden.legal(dataclasses.replace(good, rounds=3, row_tiles=0))
    assert not any(golden.legal(job) for job in bad)
    check(unit_of, [job for refused in bad for job in (refused, good)], seed=1)


def test_jobs_in_turn():
    """The next job is accepted in the cycle in which ``done`` or ``bad`` ends the current job."""
    unit_of = UNITS[0]
    bench, golden = _unit(*unit_of)
    generator = np.random.default_rng(1)
    contents = [draw(generator, "ordinary", ROWS, 4) for _ in range(PLACES)]
    bench.load(contents)
    jobs = [draw_job(generator, golden, most=12) for _ in range(6)]
    jobs[2] = dataclasses.replace(jobs[2], order=3)
    ends = np.cumsum([golden.cycles(job) for job in jobs]).tolist()
    accepted, done, bad = bench.run(jobs, cycles=ends[-1] + 20)
    assert accepted == [0, *ends[:-1]]
    assert (done, bad) == (ends[:2] + ends[3:], [ends[2]])


def test_reset():
    """After a reset in the middle of a product, perhaps with some rows of C written, the next product is correct."""
    unit_of = UNITS[0]
    bench, golden = _unit(*unit_of)
    generator = np.random.default_rng(1)
    job = GemmJob(m=9, n=20, k=9, tile=1, rounds=2, row_tiles=1, order=2, initial=1, gated=1, a=Matrix(0, 0, 3),
                  b=Matrix(1, 0, 5), c=Matrix(2, 0, 5), start=Matrix(0, 100, 5), gate=Matrix(1, 100, 5))
    for cut in (1, 5, 12, 20, 60, 300, golden.cycles(job) - 1):
        bench.reset()
        bench.run([job], cycles=cut)
        bench.reset()
        check(unit_of, [draw_job(generator, golden, most=9) for _ in range(2)], seed=cut)
