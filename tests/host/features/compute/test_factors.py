"""Tiling factors of matrix products are legal for any number of examples up to the maximum."""

import dataclasses

import pytest

from host.features.compute.instructions import Array, best_factors
from sim.golden.features.compute.gemm import GemmJob

ARRAY = Array(rows=4, lanes=4)


@pytest.mark.parametrize("array", [ARRAY, Array(rows=1, lanes=4), Array(rows=2, lanes=8),
                                   Array(rows=1, lanes=2, blocks=8)], ids=str)
@pytest.mark.parametrize(("sizes", "name"), [((11, 8, 12), "m"), ((12, 11, 8), "k")])
def test_are_legal_for_fewer_examples(array, sizes, name):
    factors = best_factors(array, sizes, transpose_a=name == "k", transpose_b=name == "m", starts=name == "m")
    m, k, n = sizes
    job = GemmJob(m=m, k=k, n=n, transpose_a=int(name == "k"), transpose_b=int(name == "m"), **factors)
    for examples in range(1, 12):
        assert array.model.legal(dataclasses.replace(job, **{name: examples}))


def test_large_products():
    """The cycles of a product that runs for millions of cycles are computed without simulating each one."""
    job = GemmJob(m=160, k=128, n=104, **best_factors(ARRAY, (160, 128, 104)))
    assert ARRAY.model.legal(job)
    assert ARRAY.model.loops.cycles(job.loops) < 1.1 * 160 * 128 * 104 / 16
