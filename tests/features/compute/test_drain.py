# amaranth: UnusedElaboratable=no
"""Unit that drains results to matrix C: hdl/features/compute/drain.py. test_gemm covers its cycles in a product."""

import dataclasses
import functools

import numpy as np
import pytest

from hdl.features.compute.access import write_layout
from hdl.features.compute.array import result_layout
from hdl.features.compute.drain import Drain
from hdl.features.compute.gemm_job import gemm_job_layout
from hdl.features.compute.loop_nest import tile_layout
from hdl.features.compute.multiply_accumulate import SLOTS
from sim.golden.features.compute import gemm
from sim.golden.features.compute.gemm import GemmJob, Matrix, ScaleMask
from sim.golden.features.compute.gemm_cycles import GemmCycles
from sim.payload import pack, unpack
from sim.streams import stall_array
from sim.verilated.vectors import Feed, Unit
from tests.features.compute.answers import Answered, answer
from tests.features.compute.gemm_jobs import ROWS, random_products, resets
from tests.features.compute.memories import arrays
from tests.features.compute.terms import KINDS, draw
from tests.hdl.unit_bench import packed

#: Number of rows and lanes of the simulated units, and latency from a request to its response in cycles.
UNITS = ((1, 4), (4, 8))
LATENCY = 3


@functools.cache
def _unit(rows, lanes):
    return Unit(Answered(Drain(rows=rows, lanes=lanes, memory_rows=ROWS), rows=ROWS, lanes=lanes, latency=LATENCY),
                name=f"Drain{rows}x{lanes}")


def _results(unit_of, job, generator, kind):
    """Draw the results of a job; return its tiles, and the fields of input rows and of expected writes."""
    rows, lanes = unit_of
    tiles = [tile for step in GemmCycles(rows=rows, lanes=lanes).loops.steps(job.loops)
             for tile, _ in step.tiles if tile is not None]
    inputs = {name: [] for name in result_layout(rows, lanes).members}
    written = {name: [] for name in write_layout(ROWS, lanes).members}
    for tile in tiles:
        groups, lines = SLOTS >> tile.tile, rows << tile.tile
        elements = gemm.summation.canonical(draw(generator, kind, lines, groups, lanes).view(np.float32))
        for line in range(lines):
            for group in range(groups):
                row, column = tile.m + line, tile.n + group * lanes
                bits = elements[line, group].view(np.uint32)
                for name, value in (("elements", bits), ("row", line), ("group", group),
                                    ("last", (line, group) == (lines - 1, groups - 1))):
                    inputs[name].append(value)
                if row >= job.m or column >= job.n:
                    continue
                if not tile.partial:
                    address = job.gate.row + row * job.gate.stride + column // lanes
                    gate = answer(job.gate.place, address, rows=ROWS, lanes=lanes).view(np.float32)
                    with np.errstate(invalid="ignore"):
                        bits = gemm.epilogue(bits.view(np.float32), ScaleMask(), relu=bool(job.relu),
                                             gate=gate if job.gated else None).view(np.uint32)
                keep = (1 << min(lanes, job.n - column)) - 1
                for name, value in (("place", job.c.place), ("elements", bits), ("keep", keep),
                                    ("row", job.c.row + row * job.c.stride + column // lanes)):
                    written[name].append(value)
    return tiles, *({name: np.array(values) for name, values in fields.items()} for fields in (inputs, written))


def _run(unit_of, job, *, kinds=("none",) * 4, seed):
    """Compare all writes with the expected rows of C, and check when tiles end; return the trace."""
    rows, lanes = unit_of
    tiles, inputs, written = _results(unit_of, job, np.random.default_rng(seed), KINDS[seed // 100 % len(KINDS)])
    count = len(inputs["row"])
    cycles = (24 if set(kinds) != {"none"} else 2) * count + 8 * len(tiles) + 300
    announced, willing, free, ready = (stall_array(name, cycles, seed=seed + n) for n, name in enumerate(kinds))
    heads = packed(tile_layout(), tiles)
    held = pack(gemm_job_layout(ROWS), arrays(job.fields()))
    trace = _unit(*unit_of).lockstep(
        sources={"tiles": Feed(heads, announced), "i": Feed(pack(result_layout(rows, lanes), inputs), willing)},
        sinks={"request": free, "write": ready}, seed=seed, inputs={"job": np.repeat(held, cycles, axis=0)})
    moves = np.flatnonzero(trace["write__valid"] & trace["write__ready"])
    got = unpack(write_layout(ROWS, lanes), trace["write__payload"][moves])
    for name, want in written.items():
        np.testing.assert_array_equal(got[name], want, f"{name}, {seed=}, {job}")
    # A tile ends after its last row has been accepted, and no later than when the next tile's last row is accepted.
    ends = np.flatnonzero(trace["drained"])
    taken = np.flatnonzero(trace["i__valid"] & trace["i__ready"])[inputs["last"].astype(bool)]
    assert len(ends) == len(taken) == len(tiles), f"{seed=}, {job}"
    assert (ends > taken).all(), f"{seed=}, {job}"
    assert (ends[:-1] <= taken[1:]).all(), f"{seed=}, {job}"
    assert np.flatnonzero(trace["complete"]).tolist() == [ends[-1]], f"{seed=}, {job}"
    return trace


@pytest.mark.parametrize("unit_of", UNITS)
def test_throughput(unit_of):
    """The drain writes one result row per cycle, after ``latency`` cycles; gate reads start as planned."""
    rows, lanes = unit_of
    _unit(*unit_of).reset()
    job = GemmJob(m=rows, n=32 * lanes, k=1, gated=1, column_tiles=2, a=Matrix(0, 0, 1), b=Matrix(1, 0, 32),
                  c=Matrix(2, 0, 32), gate=Matrix(1, 100, 33))
    trace = _run(unit_of, job, seed=1)
    asked = np.flatnonzero(trace["request__valid"])
    assert asked[0] == Drain.planned
    first = asked[0] + LATENCY + 1
    taken = np.flatnonzero(trace["i__valid"] & trace["i__ready"])
    assert taken[0] == first
    plain = _run(unit_of, dataclasses.replace(job, gated=0), seed=2)
    taken = np.flatnonzero(plain["i__valid"] & plain["i__ready"])
    assert taken.tolist() == list(range(Drain.planned, Drain.planned + 32 * rows))
    assert np.flatnonzero(plain["write__valid"]).tolist() == (taken + Drain.latency).tolist()


def _begin(generator, job, cut):
    """Stimuli for a job that is reset while gate reads are pending."""
    job = dataclasses.replace(job, gated=1)
    tiles, inputs, _ = _results(UNITS[0], job, generator, "ordinary")
    held = pack(gemm_job_layout(ROWS), arrays(job.fields()))
    return {"sources": {"tiles": Feed(packed(tile_layout(), tiles)),
                        "i": Feed(pack(result_layout(*UNITS[0]), inputs))},
            "sinks": {"request": True, "write": cut % 2 == 0}, "inputs": {"job": np.repeat(held, cut, axis=0)}}


test_writes = random_products(UNITS, _unit, _run, most=24)
test_reset = resets(UNITS[0], _unit, _run, _begin, most=12)
