"""Random jobs for matrix products, and generic tests that run such jobs on a unit."""

import numpy as np
import pytest

from sim.golden.features.compute import gemm
from sim.golden.features.compute.gemm import GemmJob, Matrix, ScaleMask
from sim.golden.features.compute.gemm_cycles import GemmCycles
from sim.streams import STALLS
from tests.features.compute.epilogues import draw_scale_mask
from tests.features.compute.memories import PLACES
from tests.hdl.unit_bench import sinks

#: Number of rows of each memory in these tests.
ROWS = 4096


def place(generator, lanes, *shapes):
    """Place matrices of shape (lines, length) at random positions in the memories, without overlap."""
    used = {number: 0 for number in range(PLACES)}
    matrices = []
    for lines, length in shapes:
        number = int(generator.choice([key for key, rows in used.items() if rows < ROWS // 2]))
        stride = -(-length // lanes) + int(generator.integers(3))
        row = used[number] + int(generator.integers(4))
        used[number] = row + lines * stride
        assert used[number] <= ROWS
        matrices.append(Matrix(number, row, stride))
    return matrices


def draw_job(generator, golden, *, most):
    """Draw a job with random sizes, legal factors, transposes, epilogues and addresses."""
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
            order=int(generator.integers(3)), **flags, a=a, b=b, c=c, start=start, gate=gate,
            scale_mask=draw_scale_mask(generator, m, n) if golden.scale_mask else ScaleMask())
        if golden.legal(job):
            return job


def model_of(rows, lanes, *_):
    return GemmCycles(rows=rows, lanes=lanes)


def random_products(units, unit, run, *, most, golden=model_of):
    """Create a test of random products with all orders and transposes, and stalls on all streams.

    ``unit`` creates a unit from its parameters; ``run`` checks a job on it, with stall patterns for its four streams.
    """
    @pytest.mark.parametrize("unit_of", units)
    @pytest.mark.parametrize("source", STALLS)
    def test(unit_of, source):
        for seed, sink in sinks(source):
            generator = np.random.default_rng(seed)
            unit(*unit_of).reset()
            for turn in range(3):
                kinds = source, STALLS[(seed + turn) % len(STALLS)], sink, STALLS[seed % len(STALLS)]
                run(unit_of, draw_job(generator, golden(*unit_of), most=most), kinds=kinds, seed=seed + 100 * turn)

    return test


def resets(unit_of, unit, run, begin, *, most, golden=model_of):
    """Create a test of resets in the middle of a job; ``begin`` returns the stimuli of a job."""
    def test():
        generator = np.random.default_rng(3)
        for cut in (1, 3, 5, 9, 20):
            before, after = (draw_job(generator, golden(*unit_of), most=most) for _ in range(2))
            unit(*unit_of).lockstep(cycles=cut, **begin(generator, before, cut))
            unit(*unit_of).reset()
            run(unit_of, after, seed=cut)

    return test
