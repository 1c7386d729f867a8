"""Factors of matrix products: legal for every size up to the given one, and few cycles."""

import itertools

import numpy as np
import pytest

from host.compute.factors import Array, best_factors
from sim.golden.loop_nest import Job, LoopNest


def loops(array):
    return LoopNest(rows=array.rows, lanes=array.lanes, blocks=array.blocks)


@pytest.mark.parametrize("array", [Array(rows=4, lanes=4), Array(rows=1, lanes=4), Array(rows=2, lanes=8),
                                   Array(rows=1, lanes=2, blocks=8)], ids=str)
def test_are_legal(array):
    generator = np.random.default_rng(2)
    for m, k, n in [(1, 1, 1), (4095, 4095, 4095), *generator.integers(1, 70, (20, 3)).tolist()]:
        job = best_factors(array, m, k, n)
        strides = loops(array).strides(job)
        assert loops(array).legal(job)
        assert min(strides.values()) >= array.lanes
        assert loops(array).legal(Job(**{**vars(job), "m": 1, "n": 1, "k": 1}))


def test_beats_are_few():
    """No form of a tile has fewer beats, where all operands fit."""
    array = Array(rows=4, lanes=4)
    for m, k, n in itertools.product((10, 30, 64), repeat=3):
        least = min(loops(array).cycles(Job(m=m, n=n, k=k, tile=tile, rounds=6)) for tile in range(4))
        assert loops(array).cycles(best_factors(array, m, k, n)) == least


def test_no_room():
    with pytest.raises(ValueError, match=r"^Panels must have room for 4 terms of a tile, not 2 blocks$"):
        best_factors(Array(rows=4, lanes=4, blocks=2), 8, 8, 8)
