# amaranth: UnusedElaboratable=no
"""Layers with centroid indices as weights, memory to memory: hdl/features/codebook_layers/centroid_layer.py."""

import functools

import numpy as np
import pytest

from hdl.features.codebook_layers.centroid_layer import CentroidLayer
from hdl.features.compute.layer_list import Place
from sim.golden import summation
from sim.golden.features.codebook_layers.centroid_product import pack_indices
from tests.features.codebook_layers.centroid_jobs import ROWS, draw_job, memories_of
from tests.features.compute.memories import LATENCY, Bench, pace
from tests.features.compute.terms import KINDS
from tests.refusals import refused

#: Number of lanes, centroids and DSP blocks of each simulated unit.
UNITS = ((4, 16, 4), (2, 4, 1))


@functools.cache
def _unit(lanes, centroids, dsps):
    unit = CentroidLayer(lanes=lanes, centroids=centroids, dsps=dsps, memory_rows=ROWS)
    return unit, Bench(unit, rows=ROWS, lanes=lanes, flags=("done", "multiplied"))


def _flat(memories):
    return {Place(number): memory.reshape(-1) for number, memory in enumerate(memories)}


def _run(parameters, jobs, memories, *, cycles, paces=None, note=""):
    """Run jobs, compare all memories, and return the jobs' start and end cycles."""
    _, bench = _unit(*parameters)
    bench.reset()
    bench.load(memories)
    begins, ends, multiplied = bench.run(jobs, paces, cycles=cycles)
    for job in jobs:
        job.instruction.run(_flat(memories))
    assert len(begins) == len(ends) == len(jobs), note
    for space, actual, wanted in zip(Place, bench.contents(), memories, strict=False):
        np.testing.assert_array_equal(actual, wanted, f"{space.name}, {note}")
    assert len(multiplied) == sum(job.instruction.multiplied for job in jobs), note
    return begins, ends


def _cycles(parameters, job):
    op = job.instruction
    return _unit(*parameters)[0].cycles(rows=op.x.rows, columns=op.x.columns, outputs=op.outputs,
                                        gradient=op.gradient, answer=LATENCY)


test_parameters = refused(CentroidLayer, {"lanes": 4, "memory_rows": 64}, [
    ({"centroids": 32}, "Centroid count must be 4, 8 or 16, not 32"),
    ({"lanes": 1}, "Lane count must be 2, 4 or 8, not 1"),
    ({"memory_rows": 1}, "Memory row count must be an integer of at least 2, not 1"),
])


@pytest.mark.parametrize("unit", UNITS)
def test_cycles(unit):
    """Jobs of all shapes are bit-exact, with the documented cycle count and k multiplications per output."""
    lanes, centroids, _ = unit
    generator = np.random.default_rng(lanes)
    shapes = [(1, 1, 1), (8, 8, lanes), (8, 2 * lanes, 2 * lanes), (9, 9, lanes + 1), (30, 64, 10), (7, 1, 3)]
    shapes += generator.integers(1, 25, (6, 3)).tolist()
    for seed, sizes in enumerate(shapes):
        for gradient in (False, True):
            job = draw_job(generator, lanes=lanes, centroids=centroids, gradient=gradient, sizes=sizes)
            want = _cycles(unit, job)
            (begin,), (end,) = _run(unit, [job], memories_of(generator, KINDS[seed % len(KINDS)], lanes=lanes),
                                    cycles=want + 10, note=f"{seed=}, {sizes}, {gradient=}")
            assert end - begin == want, f"{seed=}, {sizes}, {gradient=}"
            if sizes[0] % 8 == 0 and sizes[2] % lanes == 0:
                assert job.instruction.multiplied * lanes == sizes[0] * sizes[2] * centroids


@pytest.mark.parametrize("unit", UNITS)
def test_stalls(unit):
    """Consecutive jobs give the same bits regardless of memory stalls."""
    lanes, centroids, _ = unit
    for seed, (kind, rate) in enumerate((
            ("geometric", 0.5), ("geometric", 0.1), ("alternating", 0.5), ("freeze", 0.5)), start=1):
        generator = np.random.default_rng(seed)
        jobs = [draw_job(generator, lanes=lanes, centroids=centroids, most=12) for _ in range(5)]
        length = 60_000
        _run(unit, jobs, memories_of(generator, KINDS[seed % len(KINDS)], lanes=lanes), cycles=length,
             paces=pace(kind, length, seed=seed, rate=rate)[0], note=f"{seed=}")


def test_fixed_point():
    """If all sums are exact, the result is bit-identical to the dense product with the expanded matrix."""
    lanes, centroids, _ = UNITS[0]
    for seed in range(1, 4):
        generator = np.random.default_rng(seed)
        job = draw_job(generator, lanes=lanes, centroids=centroids, gradient=False, sizes=(16, 40, 12))
        op = job.instruction
        memories = [(generator.integers(-256, 256, (ROWS, lanes)) / 16).astype(np.float32).view(np.uint32)
                    for _ in range(3)]
        flat = _flat(memories)
        indices = generator.integers(0, centroids, (12, 40))
        flat[op.indices.place][op.indices.index()] = pack_indices(indices, lanes)
        start = None if op.start is None else op.start.read(flat)
        dense = summation.product(op.x.read(flat), op.table.read(flat)[0][indices].T, start)
        dense = np.where(dense < 0, np.float32(0), dense) if op.relu else dense
        if op.gate is not None:
            dense = np.where(op.gate.read(flat) > 0, dense, np.float32(0))
        _run(UNITS[0], [job], memories, cycles=6_000, note=f"{seed=}")
        np.testing.assert_array_equal(flat[op.target.place][op.target.index()], dense.view(np.uint32), f"{seed=}")


def test_begins_after_a_reset():
    """A product that starts while sums are being cleared waits until they are clear, and is correct."""
    lanes, centroids, _ = UNITS[0]
    generator = np.random.default_rng(2)
    job = draw_job(generator, lanes=lanes, centroids=centroids, gradient=False, sizes=(9, 10, 6))
    memories = memories_of(generator, "ordinary", lanes=lanes)
    _, bench = _unit(*UNITS[0])
    bench.load(memories)
    bench.reset()
    (begin,), (end,), _ = bench.run([job], cycles=2_000)
    job.instruction.run(_flat(memories))
    for actual, wanted in zip(bench.contents(), memories, strict=True):
        np.testing.assert_array_equal(actual, wanted)
    # The table arrives long before the sums are clear (8 * 16 cycles) and waits.
    assert _cycles(UNITS[0], job) + 8 * centroids - 10 < end - begin <= _cycles(UNITS[0], job) + 8 * centroids


def test_reset():
    """After a reset at any point of a job, the next job is correct once the sums have been cleared."""
    lanes, centroids, _ = UNITS[1]
    generator = np.random.default_rng(1)
    before, after = (draw_job(generator, lanes=lanes, centroids=centroids, most=12, gradient=True) for _ in range(2))
    memories = memories_of(generator, "ordinary", lanes=lanes)
    for cut in range(3, 200, 31):
        _, bench = _unit(*UNITS[1])
        bench.reset()
        bench.run([before], cycles=cut)
        _run(UNITS[1], [after], [memory.copy() for memory in memories], cycles=8_000, note=f"{cut=}")
