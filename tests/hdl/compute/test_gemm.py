# amaranth: UnusedElaboratable=no
import functools
import re

import numpy as np
import pytest

from hdl.compute.gemm import Gemm
from hdl.compute.multiply_accumulate import product_latency
from sim import formal
from sim.golden import gemm
from sim.golden.gemm import GemmJob, Matrix
from sim.golden.gemm_cycles import GemmCycles
from sim.streams import STALLS
from tests.hdl.compute.memories import PLACES, Bench, pace
from tests.hdl.compute.terms import KINDS, draw

#: Rows, lanes, DSP blocks and blocks of the units that are simulated, and rows of their memories.
UNITS = ((1, 4, 1, 32), (4, 4, 4, 128))
ROWS = 4096


@functools.cache
def _unit(rows, lanes, dsps, blocks):
    component = Gemm(rows=rows, lanes=lanes, dsps=dsps, blocks=blocks, memory_rows=ROWS)
    golden = GemmCycles(rows=rows, lanes=lanes, blocks=blocks, product=product_latency(dsps))
    return Bench(component, rows=ROWS, lanes=lanes), golden


def place(generator, lanes, *shapes):
    """Matrices of these (lines, length) anywhere in the memories, none of which overlaps another one."""
    used = {number: 0 for number in range(3)}
    found = []
    for lines, length in shapes:
        number = int(generator.choice([key for key, rows in used.items() if rows < ROWS // 2]))
        stride = -(-length // lanes) + int(generator.integers(3))
        row = used[number] + int(generator.integers(4))
        used[number] = row + lines * stride
        assert used[number] <= ROWS
        found.append(Matrix(number, row, stride))
    return found


def draw_job(generator, golden, *, most):
    """A job with random sizes, legal factors, transposes, epilogues and places."""
    m, n, k = generator.integers(1, most + 1, 3).tolist()
    flags = dict(zip(("transpose_a", "transpose_b", "initial", "relu", "gated"),
                     generator.integers(2, size=5).tolist(), strict=True))
    a, b, c, start, gate = place(
        generator, golden.lanes, (k, m) if flags["transpose_a"] else (m, k),
        (n, k) if flags["transpose_b"] else (k, n), (m, n), (m, n), (m, n))
    kind = int(generator.integers(6))
    if kind == 0:
        start = Matrix(start.place, start.row, 0)
    elif kind == 1:
        start = c
    elif kind == 2:
        a = Matrix(gemm.ONES)
    elif kind == 3:
        b = Matrix(gemm.ONES)
    while True:
        job = GemmJob(
            m=m, n=n, k=k, tile=int(generator.integers(4)), row_tiles=int(generator.integers(6)),
            column_tiles=int(generator.integers(6)), rounds=int(generator.integers(10)),
            order=int(generator.integers(3)), **flags, a=a, b=b, c=c, start=start, gate=gate)
        if golden.legal(job):
            return job


def check(unit_of, jobs, *, seed, kind="ordinary", stalls="none"):
    """Run jobs one after the other: all words of all memories, and the cycles of each job, are those of the model."""
    bench, golden = _unit(*unit_of)
    generator = np.random.default_rng(seed)
    contents = [draw(generator, kind, ROWS, golden.lanes) for _ in range(PLACES)]
    bench.load(contents)
    for number, job in enumerate(jobs):
        given, memory = pace(stalls, 60_000 if stalls != "none" else 1, seed=seed + number)
        wanted = GemmCycles(**{**golden.__dict__, "memory": memory}).cycles(job)
        if golden.legal(job):
            gemm.multiply(job, contents)
        done, bad = bench.run(job, given, cycles=wanted + 50)
        assert (done, bad) == ((wanted, None) if golden.legal(job) else (None, wanted)), f"{job}, {seed=}"
    for place_of, (got, want) in enumerate(zip(bench.contents(), contents, strict=True)):
        np.testing.assert_array_equal(got, want, f"memory {place_of}, {jobs}, {seed=}")


@pytest.mark.parametrize(("parameters", "message"), [
    ({"rows": 3}, "Row count must be 1, 2 or 4, not 3"),
    ({"lanes": 2}, "Row count must be at most the lane count 2, not 4"),
    ({"dsps": 3}, "DSP block count must be 4, 2 or 1, not 3"),
    ({"blocks": 6}, "Block count must be a power of two between 2 and 512, not 6"),
    ({"memory_rows": 1}, "Memory row count must be an integer of at least 2, not 1"),
])
def test_parameters(parameters, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Gemm(**{"rows": 4, "lanes": 4, "memory_rows": 64, **parameters})


@pytest.mark.parametrize("unit_of", UNITS)
def test_products(unit_of):
    for seed in range(1, 13):
        print(f"seed {seed}")
        generator = np.random.default_rng(seed)
        _, golden = _unit(*unit_of)
        jobs = [draw_job(generator, golden, most=(5, 12, 25, 40)[seed % 4]) for _ in range(4)]
        check(unit_of, jobs, seed=seed, kind=KINDS[seed % len(KINDS)])
