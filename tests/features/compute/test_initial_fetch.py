# amaranth: UnusedElaboratable=no
"""Fetch of the initial values of tiles: hdl/features/compute/initial_fetch.py; test_gemm covers its cycles."""

import dataclasses
import functools

import numpy as np
import pytest

from hdl.features.compute.gemm_job import gemm_job_layout
from hdl.features.compute.initial_fetch import InitialFetch
from hdl.features.compute.loop_nest import tile_layout
from hdl.features.compute.multiply_accumulate import SLOTS
from hdl.features.compute.product import initial_layout
from sim.golden.features.compute.gemm import GemmJob, Matrix
from sim.golden.features.compute.product import MatrixProduct
from sim.payload import pack, unpack
from sim.streams import stall_array
from sim.verilated.vectors import Feed, Unit
from tests.features.compute.answers import Answered, answer
from tests.features.compute.gemm_jobs import ROWS, random_products, resets
from tests.features.compute.memories import arrays
from tests.hdl.unit_bench import packed

#: Rows and lanes of the simulated units, and the number of unfinished tiles that they support.
UNITS = ((1, 4, 31), (4, 8, 3))
#: Latency from a request to its response, and from a tile to its last result, in cycles.
LATENCY, DRAIN = 3, 60


@functools.cache
def _unit(rows, lanes, ahead):
    fetch = InitialFetch(rows=rows, lanes=lanes, memory_rows=ROWS, ahead=ahead)
    loops = {"drained": (lambda unit: unit.tiles.valid & unit.tiles.ready, DRAIN)}
    return Unit(Answered(fetch, rows=ROWS, lanes=lanes, latency=LATENCY, loops=loops),
                name=f"InitialFetch{rows}x{lanes}")


def _values(unit_of, job):
    """Return the tiles of the golden product, each with its initial values and a mask of valid elements.

    The golden product runs on distinct numbers that identify the matrix element of each initial value.
    """
    rows, lanes, _ = unit_of
    lines = -(-job.m // (rows << job.tile)) * (rows << job.tile)
    left, right = 2 * np.arange(lines, dtype=np.float32) + 1, np.float32(2) ** np.arange(job.n, dtype=np.float32)
    numbers = np.outer(left, right)
    a, b = np.zeros((lines, job.k), np.float32), np.zeros((job.k, job.n), np.float32)
    if not job.initial:
        a[:, 0], b[0] = left, right
    tiles, initials, _ = MatrixProduct(rows=rows, columns=lanes).tiles(
        dataclasses.replace(job.loops, m=lines), *(values.view(np.uint32) for values in (a, b, numbers)))
    order = np.argsort(numbers.ravel())
    left, values = initials.view(np.float32), []
    for tile in tiles:
        matrix = job.c if tile.again else job.start
        common = not tile.again and not matrix.stride
        count = tile.initial * SLOTS * (1 if common else rows)
        part, left = left[:count], left[count:]
        index = order[np.searchsorted(numbers.ravel()[order], part)]
        line, column = np.divmod(index, job.n)
        inside = (part != 0) & (common | (line < job.m))
        row = matrix.row + line * matrix.stride + column // lanes
        elements = answer(matrix.place, row, rows=ROWS, lanes=lanes)
        values.append((np.take_along_axis(elements, column[..., None] % lanes, 2)[..., 0], inside))
    return tiles, values


def _run(unit_of, job, *, kinds=("none",) * 4, seed):
    """Compare all initial values with the model and check the read cycles; return the trace of all ports."""
    _, lanes, ahead = unit_of
    tiles, values = _values(unit_of, job)
    count = sum(len(inside) for _, inside in values)
    cycles = (20 if set(kinds) != {"none"} else 2) * count + (DRAIN + 80) * len(tiles) + 300
    announced, settled, free, ready = (stall_array(kind, cycles, seed=seed + n) for n, kind in enumerate(kinds))
    heads = packed(tile_layout(), tiles)
    held = pack(gemm_job_layout(ROWS), arrays(job.fields()))
    trace = _unit(*unit_of).lockstep(
        sources={"tiles": Feed(heads, announced)}, sinks={"request": free, "o": ready}, seed=seed,
        inputs={"job": np.repeat(held, cycles, axis=0), "settled": settled.astype(np.uint8)})
    moves = np.flatnonzero(trace["o__valid"] & trace["o__ready"])
    got = unpack(initial_layout(lanes), trace["o__payload"][moves])["elements"]
    want, inside = (np.concatenate(parts) for parts in zip(*values, strict=True))
    np.testing.assert_array_equal(np.where(inside, got, 0), np.where(inside, want, 0), f"{seed=}, {job}")
    assert not got[~inside.any(axis=1)].any(), f"{seed=}, {job}"

    # One tile finishes per cycle, once all writes of that tile are in memory.
    taken = np.flatnonzero(trace["tiles__valid"] & trace["tiles__ready"])
    assert len(taken) == len(tiles), f"{seed=}, {job}"
    finished = []
    for cycle in taken:
        first = max(cycle + DRAIN + 1, finished[-1] + 1 if finished else 0)
        finished.append(first + int(np.argmax(settled[first:])))
    for number, cycle in enumerate(taken):
        assert np.count_nonzero(taken[:number + 1] <= cycle) - np.count_nonzero(np.array(finished) < cycle) <= ahead
    asked = np.flatnonzero(trace["request__valid"] & trace["request__ready"])
    done, used = {}, 0
    for number, (tile, (_, inside)) in enumerate(zip(tiles, values, strict=True)):
        reads = np.count_nonzero(inside.any(axis=1))
        if tile.again and reads:
            assert asked[used] > finished[done[tile.m, tile.n]], f"tile {number}, {seed=}, {job}"
        used += reads
        done[tile.m, tile.n] = number
    assert used == len(asked), f"{seed=}, {job}"
    return trace


test_values = random_products(UNITS, _unit, _run, most=24)


@pytest.mark.parametrize("unit_of", UNITS)
def test_partial_results(unit_of):
    """A repeated tile waits until its earlier results are in memory, even if other tiles come in between."""
    rows, lanes, _ = unit_of
    for seed, (size, order, row_tiles) in enumerate(((1, 2, 0), (5, 2, 0), (5, 0, 2), (40, 2, 1)), start=1):
        _unit(*unit_of).reset()
        job = GemmJob(m=rows * size, n=8 * lanes, k=12, rounds=2, order=order, row_tiles=row_tiles, a=Matrix(0, 0, 3),
                      b=Matrix(1, 0, 8), c=Matrix(2, 7, 9))
        _run(unit_of, job, kinds=("none", "geometric", "none", "none"), seed=seed)


@pytest.mark.parametrize("unit_of", UNITS)
def test_throughput(unit_of):
    """The first row of a tile is requested ``planned`` cycles after the tile is announced; one row per cycle follows.
    """
    rows, lanes, _ = unit_of
    _unit(*unit_of).reset()
    job = GemmJob(m=rows, n=8 * lanes, k=1, initial=1, a=Matrix(0, 0, 1), b=Matrix(1, 0, 8), c=Matrix(2, 0, 8),
                  start=Matrix(1, 100, 9))
    trace = _run(unit_of, job, seed=1)
    asked = np.flatnonzero(trace["request__valid"])
    assert asked.tolist() == list(range(InitialFetch.planned, InitialFetch.planned + SLOTS * rows))
    assert np.flatnonzero(trace["o__valid"]).tolist() == (asked + LATENCY + 1).tolist()


def _begin(generator, job, cut):
    """Stimuli for a job that is reset while rows are pending."""
    held = pack(gemm_job_layout(ROWS), arrays(job.fields()))
    return {"sources": {"tiles": Feed(packed(tile_layout(), _values(UNITS[0], job)[0]))},
            "sinks": {"request": True, "o": cut % 2 == 0},
            "inputs": {"job": np.repeat(held, cut, axis=0), "settled": 1}}


test_reset = resets(UNITS[0], _unit, _run, _begin, most=12)
