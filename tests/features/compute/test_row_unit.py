# amaranth: UnusedElaboratable=no
"""Row functions for sequences, which read and write memories: hdl/features/compute/row_unit.py."""

import dataclasses
import functools

import numpy as np
import pytest

from hdl.features.compute.layer_list import RowFunction
from hdl.features.compute.row_unit import ROOT_INTERVAL, RowUnit
from sim.golden.features.compute import row_unit as model
from sim.golden.features.compute.row_cycles import RowCycles
from tests.features.compute.memories import Bench, compare_accesses, pace
from tests.features.compute.row_jobs import ROWS, RowJob, draw_job, memories_of
from tests.features.compute.terms import KINDS
from tests.refusals import refused

#: Number of lanes, maximum number of columns, and number of DSP blocks of the simulated units.
UNITS = ((4, 64, 4), (2, 16, 1))
#: Latency from a memory request to its answer, in cycles.
ANSWER = 5
_BEGUN = (RowFunction.NORM, RowFunction.NORM_BACK, RowFunction.GATHER)


@functools.cache
def _unit(lanes, columns, dsps):
    unit = RowUnit(lanes=lanes, memory_rows=ROWS, columns=columns, dsps=dsps)
    golden = RowCycles(lanes=lanes, latency=unit.latency, roots=unit.root_latency, interval=ROOT_INTERVAL,
                       answer=ANSWER)
    return unit, Bench(unit, rows=ROWS, lanes=lanes, watched=("request", "write"), latency=ANSWER), golden


def _run(parameters, jobs, memories, *, cycles, paces=None, note=""):
    """Run jobs; compare reads, writes, memories and ``bad``; return the model's runs and the cycles per job."""
    lanes, columns, _ = parameters
    _, bench, _ = _unit(*parameters)
    bench.reset()
    bench.load(memories)
    begins, ends, bad = bench.run(jobs, paces, cycles=cycles)
    assert len(begins) == len(ends) == len(jobs), note
    runs = [model.run(job.job, memories, columns=columns) for job in jobs]
    compare_accesses(bench.seen["request"], bench.seen["write"], [read for run in runs for read in run.reads],
                     [write for run in runs for write in run.writes], lanes=lanes, note=note)
    for index, (left, right) in enumerate(zip(bench.contents(), memories, strict=True)):
        np.testing.assert_array_equal(left, right, f"memory {index}, {note}")
    assert bad == [end for end, run in zip(ends, runs, strict=True) if run.bad], note
    return runs, [end - begin for begin, end in zip(begins, ends, strict=True)]


def _quiet(parameters, job, memories, *, note=""):
    """Run a job with memories that never stall, check the cycles against the model, and return them."""
    _, _, golden = _unit(*parameters)
    copies = [memory.copy() for memory in memories]
    want = golden.job(job.job, model.run(job.job, copies, columns=parameters[1]).blocks)
    _, (cycles,) = _run(parameters, [job], memories, cycles=want + 20, note=note)
    assert cycles == want, note
    return cycles


def _draw(generator, function, rows, columns, *, kind="ordinary", **options):
    """Draw a job for the first of the simulated units, together with its memories."""
    job = draw_job(generator, function, rows, columns, lanes=UNITS[0][0], **options)
    return job, memories_of(generator, kind, lanes=UNITS[0][0], jobs=[job])


test_parameters = refused(RowUnit, {"lanes": 4, "memory_rows": 64}, [
    ({"lanes": 1}, "Lane count must be 2, 4 or 8, not 1"),
    ({"lanes": 4.0}, "Lane count must be 2, 4 or 8, not 4.0"),
    ({"memory_rows": 1}, "Row count must be an integer of at least 2, not 1"),
    ({"columns": 4}, "Column count must be a power of two of at least 8, not 4"),
    ({"columns": 48}, "Column count must be a power of two of at least 8, not 48"),
    ({"dsps": 3}, "DSP block count must be 4, 2 or 1, not 3"),
])


@pytest.mark.parametrize("function", RowFunction)
@pytest.mark.parametrize("unit", UNITS)
def test_cycles(unit, function):
    """Row functions have the right results, accesses and cycles for all shapes and numbers, in place or not."""
    lanes, columns, _ = unit
    generator = np.random.default_rng(int(function))
    shapes = [(1, 1), (1, columns), (8 * lanes, columns), (8 * lanes + 1, lanes + 1), (16, lanes), (40, 3),
              (17, columns // 2)]
    shapes += [(int(generator.integers(1, 41)), int(generator.integers(1, columns + 1))) for _ in range(9)]
    for number, (rows, width) in enumerate(shapes):
        note = f"{number=}, {function.name} of {rows} x {width}"
        job = draw_job(generator, function, rows, width, lanes=lanes, started=function in _BEGUN and number % 2 == 1,
                       wrong=0.3 * (number % 3 == 0), spread=(None, 3)[number % 2], in_place=number % 4 > 1)
        _quiet(unit, job, memories_of(generator, KINDS[number % len(KINDS)], lanes=lanes, jobs=[job]), note=note)


@pytest.mark.parametrize("unit", UNITS)
def test_stalls(unit):
    """Consecutive valid and invalid jobs give the same bits and accesses under any pattern of memory stalls."""
    lanes, columns, _ = unit
    for seed, (kind, rate) in enumerate((
            ("geometric", 0.5), ("geometric", 0.1), ("alternating", 0.5), ("freeze", 0.5)), start=1):
        generator = np.random.default_rng(seed)
        free = [0, 0, 0]
        jobs = [draw_job(generator, function, int(generator.integers(1, 41)),
                         int(generator.integers(1, min(columns, 24) + 1)), lanes=lanes, free=free, in_place=seed % 2,
                         started=function in _BEGUN and bool(generator.integers(2)), wrong=0.2, spread=6)
                for function in generator.permutation(list(RowFunction)).tolist()]
        jobs[3] = dataclasses.replace(jobs[3], job=dataclasses.replace(jobs[3].job, columns=columns + 1))
        length = 120_000
        memories = memories_of(generator, KINDS[seed % len(KINDS)], lanes=lanes, jobs=jobs)
        _run(unit, jobs, memories, cycles=length, paces=pace(kind, length, seed=seed, rate=rate)[0], note=f"{seed=}")


def test_speed():
    """Row functions on 16 rows of 32 columns, or 32 rows of 16, stay within the text model's cycle budget."""
    generator = np.random.default_rng(1)
    limits = {
        (RowFunction.ADD, 16, 32, True): 320, (RowFunction.SCALE, 16, 32, False): 210,
        (RowFunction.NORM, 16, 32, False): 1000, (RowFunction.NORM, 16, 32, True): 1000,
        (RowFunction.NORM_BACK, 16, 32, True): 1100, (RowFunction.SOFTMAX_BACK, 32, 16, False): 700,
        (RowFunction.GATHER, 16, 32, False): 300, (RowFunction.GATHER, 16, 32, True): 340,
        (RowFunction.SCATTER, 16, 32, False): 900, (RowFunction.CLEAR, 16, 32, False): 136}
    for (function, rows, columns, started), most in limits.items():
        job, memories = _draw(generator, function, rows, columns, started=started)
        cycles = _quiet(UNITS[0], job, memories, note=function.name)
        assert cycles <= most, function.name
        print(function.name, rows, columns, started, cycles)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 3e38, 1e-45, -1e-39, 0.0, -0.0])
def test_special_numbers(special):
    """Special numbers are handled at every position of a row, and in rows that contain nothing else."""
    lanes = UNITS[0][0]
    generator = np.random.default_rng(1)
    for function in (RowFunction.ADD, RowFunction.SCALE, RowFunction.NORM, RowFunction.NORM_BACK,
                     RowFunction.SOFTMAX_BACK):
        job, memories = _draw(generator, function, 8, 6, started=function != RowFunction.SCALE and function in _BEGUN)
        rows = np.concatenate([np.where(np.eye(6, dtype=bool), np.float32(special), np.float32(0.5)),
                               np.full((1, 6), special), np.full((1, 6), -special)]).astype(np.float32)
        for row, elements in enumerate(rows.view(np.uint32)):
            for column, element in enumerate(elements.tolist()):
                space, first = job.job.x
                memories[space][first + row * job.job.stride_x + column // lanes, column % lanes] = element
        _quiet(UNITS[0], job, memories, note=f"{function.name}, {special}")


def test_equal_rows():
    """Rows of equal elements have zero variance, so the deviation is the square root of epsilon."""
    generator = np.random.default_rng(1)
    job, memories = _draw(generator, RowFunction.NORM, 5, 8, started=False)
    fields = job.job
    for row in range(5):
        memories[fields.x[0]][fields.x[1] + row * fields.stride_x:][:2] = np.float32(row - 2).view(np.uint32)
    job = dataclasses.replace(job, job=dataclasses.replace(fields, factor=0x3E00_0000))
    _quiet(UNITS[0], job, memories)
    reciprocals = memories[fields.deviation[0]][fields.deviation[1]:][:2].reshape(-1)[:5].view(np.float32)
    np.testing.assert_array_equal(reciprocals, np.float32(1) / np.sqrt(np.float32(1e-5)))
    for row in range(5):
        normal = memories[fields.second[0]][fields.second[1] + row * fields.stride_second:][:2].view(np.float32)
        np.testing.assert_array_equal(normal, np.zeros((2, 4), np.float32))


def test_equal_numbers():
    """Sixteen rows with equal row numbers are added to the table row one at a time."""
    generator = np.random.default_rng(1)
    job, memories = _draw(generator, RowFunction.SCATTER, 16, 32, started=False, spread=1, kind="cancelling")
    assert _quiet(UNITS[0], job, memories) == 1514


def test_numbers_of_a_table():
    """Row numbers up to the last table row are valid; larger ones are reported, and do not affect the next job."""
    generator = np.random.default_rng(1)
    for function in (RowFunction.GATHER, RowFunction.SCATTER):
        for started in (False, True)[:1 + (function == RowFunction.GATHER)]:
            free = [0, 0, 0]
            jobs = [draw_job(generator, function, 6, 5, lanes=4, started=started, free=free) for _ in range(3)]
            count = jobs[0].job.count
            wrong = np.array([count, count - 1, 0, (1 << 32) - 1, 1 << 12, count - 1])
            jobs = [jobs[0], RowJob(job=dataclasses.replace(jobs[1].job, count=count), numbers=wrong), jobs[2]]
            memories = memories_of(generator, "ordinary", lanes=4, jobs=jobs)
            runs, _ = _run(UNITS[0], jobs, memories, cycles=4_000, note=f"{function.name}, {started}")
            assert [run.bad for run in runs] == [False, True, False]
    for function in (RowFunction.GATHER, RowFunction.SCATTER):
        job, memories = _draw(generator, function, 20, 9, started=False, wrong=1.0)
        _quiet(UNITS[0], job, memories, note=function.name)


def test_refused_jobs():
    """Jobs with a zero size, too many columns or an unknown function are rejected without memory accesses."""
    unit, _, golden = _unit(*UNITS[1])
    assert unit.checked == golden.CHECKED
    generator = np.random.default_rng(1)
    for rows, columns, function in ((0, 3, 0), (3, 0, 2), (3, 17, 0), (3, 4095, 7), (3, 3, 8), (3, 3, 255)):
        job = draw_job(generator, RowFunction.ADD, 3, 3, lanes=2)
        job = dataclasses.replace(job, job=dataclasses.replace(
            job.job, rows=rows, columns=columns, function=function))
        _quiet(UNITS[1], job, memories_of(generator, "ordinary", lanes=2))


def test_long_sequence():
    """A job can have the maximum number of rows, which form consecutive blocks."""
    generator = np.random.default_rng(1)
    job, memories = _draw(generator, RowFunction.SCALE, 800, 3, started=False)
    assert _quiet(UNITS[0], job, memories) < 800 + 25 * 90
    memories = memories_of(generator, "ordinary", lanes=4)
    clear = dataclasses.replace(job.job, function=int(RowFunction.CLEAR), rows=4095, stride_target=1, target=(1, 0))
    _quiet(UNITS[0], dataclasses.replace(job, job=clear), memories)


@pytest.mark.parametrize("unit", UNITS)
def test_reset(unit):
    """A reset at any point in a job does not affect the next job."""
    lanes, _, _ = unit
    _, bench, golden = _unit(*unit)
    generator = np.random.default_rng(1)
    for function in (RowFunction.NORM, RowFunction.SCATTER, RowFunction.GATHER):
        free = [0, 0, 0]
        first, second = (draw_job(generator, function, rows, 8, lanes=lanes, started=function != RowFunction.SCATTER,
                                  free=free, wrong=0.5) for rows in (20, 5))
        memories = memories_of(generator, "ordinary", lanes=lanes, jobs=[first, second])
        end = golden.job(first.job, model.run(first.job, [memory.copy() for memory in memories],
                                              columns=unit[1]).blocks)
        for cut in np.linspace(2, end - 2, 12).astype(int).tolist():
            bench.reset()
            bench.load(memories)
            bench.run([first], cycles=cut)
            _quiet(unit, second, [memory.copy() for memory in memories], note=f"{function.name}, {cut=}")
