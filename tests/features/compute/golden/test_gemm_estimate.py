"""Test cycle estimates of matrix products: single steps, their sum, and the shortcut for repeated panels."""

import dataclasses

import numpy as np
import pytest

from sim.golden.features.compute.gemm import GemmJob, Matrix
from sim.golden.features.compute.gemm_cycles import GemmCycles
from sim.golden.features.compute.gemm_estimate import bound, estimate, loads

MODEL = GemmCycles(rows=4, lanes=4)


def jobs(count, seed):
    """Draw legal jobs in all orders and with all transposes."""
    generator = np.random.default_rng(seed)
    drawn = []
    while len(drawn) < count:
        m, k, n = (int(size) for size in generator.integers(1, 90, 3))
        job = GemmJob(
            m=m, k=k, n=n, a=Matrix(2, 0, 32), b=Matrix(1, 0, 32), c=Matrix(0, 0, 32), start=Matrix(1, 0, 0),
            **{name: int(generator.integers(2)) for name in ("transpose_a", "transpose_b", "initial")},
            **{name: int(generator.integers(end)) for name, end in (
                ("tile", 4), ("row_tiles", 3), ("column_tiles", 3), ("rounds", 7), ("order", 3))})
        if MODEL.legal(job):
            drawn.append(job)
    return drawn


def test_steps():
    """The beats and loads of each step in the estimate match the loop nest."""
    for job in jobs(150, 1):
        outlines = list(MODEL.loops.outline(job.loops))
        expected = [tuple(len(rows) for rows in MODEL.loads(job, step)) for step in outlines]
        assert [(step.a, step.b) for step in loads(MODEL, job)] == expected, job
        assert sum(step.beats for step in loads(MODEL, job)) == MODEL.loops.cycles(job.loops), job


def test_panels_left_out():
    """The estimate, which counts repeated panels once, almost always equals the sum over all steps."""
    errors = [abs(estimate(MODEL, job) / bound(MODEL, job) - 1) for job in jobs(150, 2)]
    # Repeats of a panel may differ in time if loads limit some steps and beats limit others.
    assert max(errors) < 0.1
    assert sum(error > 0 for error in errors) < 5


@pytest.mark.parametrize(("rounds", "least"), [(2, 0.94), (3, 0.96), (4, 0.99)])
def test_against_model(rounds, least):
    """Products of power-of-two sizes take at most a few percent more cycles than estimated, fewer with long panels.
    """
    job = GemmJob(m=64, k=64, n=64, a=Matrix(2, 0, 16), b=Matrix(1, 0, 16), c=Matrix(0, 0, 16), rounds=rounds)
    for tile in range(4):
        for row_tiles in range(0, 5 - tile, 2):
            candidate = dataclasses.replace(job, tile=tile, row_tiles=row_tiles)
            assert least < estimate(MODEL, candidate) / MODEL.cycles(candidate) <= 1, candidate
