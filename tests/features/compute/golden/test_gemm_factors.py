import itertools

import numpy as np
import pytest

from sim.golden.features.compute import gemm_factors
from sim.golden.features.compute.gemm import GemmJob, Matrix
from sim.golden.features.compute.gemm_cycles import GemmCycles
from sim.golden.features.compute.gemm_estimate import bound
from tests.refusals import refuses

MODEL = GemmCycles(rows=2, lanes=4, blocks=16)


def _jobs(count, most):
    generator = np.random.default_rng(1)
    for _ in range(count):
        m, n, k = generator.integers(1, most + 1, 3).tolist()
        flags = dict(zip(("transpose_a", "transpose_b", "initial", "relu", "gated"),
                         generator.integers(2, size=5).tolist(), strict=True))
        yield GemmJob(m=m, n=n, k=k, **flags, a=Matrix(int(generator.integers(4)), 0, 20), b=Matrix(1, 0, 20),
                      c=Matrix(2, 0, 20), start=Matrix(1, 0, 20 * int(generator.integers(2))))


def test_bound():
    """For any choice of tiling factors, the modelled cycles are at least the lower bound."""
    for job in _jobs(8, 24):
        candidates = list(gemm_factors.candidates(MODEL, job))
        assert candidates
        for candidate in candidates[::7]:
            assert bound(MODEL, candidate) <= MODEL.cycles(candidate), candidate


def test_best():
    """The chosen tiling factors match an exhaustive search over all legal factors."""
    for job in _jobs(3, 9):
        best = gemm_factors.best_factors(MODEL, job)
        every = []
        for tile, row_tiles, column_tiles, rounds, order in itertools.product(range(4), range(4), range(4), range(6),
                                                                              range(3)):
            fields = {**job.__dict__, "tile": tile, "row_tiles": row_tiles, "column_tiles": column_tiles,
                      "rounds": rounds, "order": order}
            if MODEL.legal(GemmJob(**fields)):
                every.append(MODEL.cycles(GemmJob(**fields)))
        assert MODEL.cycles(best) == min(every), job


@pytest.mark.parametrize("sizes", [(0, 1, 1), (4, 4, 0), (1, 4096, 1)])
def test_sizes(sizes):
    message = "Sizes of a product must be from 1 to 4095, not {}, {} and {}".format(*sizes)
    refuses(message, gemm_factors.best_factors, MODEL, GemmJob(**dict(zip("mnk", sizes, strict=True))))


def test_training_step():
    """In a step of the digits perceptron, the 16 units are busy in over 85 % of the products' cycles."""
    model = GemmCycles(rows=4, lanes=4)
    jobs = gemm_factors.training_step(30, (64, 64, 10), 4)
    assert list(jobs) == ["forward 0", "forward 1", "weights 1", "bias 1", "inputs 1", "weights 0", "bias 0"]
    cycles = [model.cycles(gemm_factors.best_factors(model, job)) for job in jobs.values()]
    useful = sum(job.m * job.n * job.k for job in jobs.values())
    assert useful / (16 * sum(cycles)) > 0.85
