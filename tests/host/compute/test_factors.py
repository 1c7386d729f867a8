"""Factors of matrix products: legal for every number of examples up to the given one, and few cycles."""

import dataclasses

import pytest

from host.compute.factors import Array, best_factors
from sim.golden.gemm import GemmJob, Matrix

ARRAY = Array(rows=4, lanes=4)
ACTIVATIONS = Matrix(2, 0, 16)


@pytest.mark.parametrize("array", [ARRAY, Array(rows=1, lanes=4), Array(rows=2, lanes=8),
                                   Array(rows=1, lanes=2, blocks=8)], ids=str)
@pytest.mark.parametrize(("sizes", "name"), [((11, 8, 12), "m"), ((12, 11, 8), "k")])
def test_are_legal_for_fewer_examples(array, sizes, name):
    factors = best_factors(array, sizes, transpose_a=name == "k", transpose_b=name == "m", starts=name == "m")
    m, k, n = sizes
    job = GemmJob(m=m, k=k, n=n, transpose_a=int(name == "k"), transpose_b=int(name == "m"), **factors)
    for examples in range(1, 12):
        assert array.model.legal(dataclasses.replace(job, **{name: examples}))


def test_cycles():
    """The largest products of the digits keep nine tenths of the units busy."""
    shared = {"a": ACTIVATIONS, "b": ACTIVATIONS, "c": ACTIVATIONS}
    forward = best_factors(ARRAY, (30, 64, 64), transpose_b=True, starts=True)
    backward = best_factors(ARRAY, (64, 30, 64), transpose_a=True)
    jobs = [GemmJob(m=30, k=64, n=64, transpose_b=1, initial=1, start=Matrix(1, 0, 0), **shared, **forward),
            GemmJob(m=64, k=30, n=64, transpose_a=1, **shared, **backward)]
    assert all(30 * 64 * 64 / 16 / ARRAY.model.cycles(job) > 0.9 for job in jobs)
