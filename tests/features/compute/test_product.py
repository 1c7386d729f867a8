# amaranth: UnusedElaboratable=no
import dataclasses
import functools
import itertools

import numpy as np
import pytest

from hdl.features.compute.array import result_layout
from hdl.features.compute.loop_nest import job_layout, tile_layout
from hdl.features.compute.multiply_accumulate import product_latency
from hdl.features.compute.operands import OPERANDS
from hdl.features.compute.panel import fill_layout
from hdl.features.compute.product import MatrixProduct, initial_layout
from sim.arithmetic import functions
from sim.bench import product as bench
from sim.golden.features.compute import loop_nest, product
from sim.payload import pack, unpack
from sim.streams import stall_array
from sim.verilated.vectors import Feed, Unit
from tests.features.compute.terms import KINDS, draw
from tests.hdl.unit_bench import offers
from tests.refusals import refused

#: Number of rows, columns, DSP blocks and blocks, and the operand format, of the simulated units.
PRODUCTS = ((1, 4, 1, 32, "bf16"), (4, 4, 4, 128, "fp32"))
#: Storage orders of A and B: whether memory rows hold parts of matrix rows or of columns.
STORED = tuple(itertools.product((True, False), repeat=2))


@functools.cache
def _product(rows, columns, dsps, blocks, operands):
    component = MatrixProduct(rows=rows, columns=columns, dsps=dsps, blocks=blocks, operands=operands)
    golden = product.MatrixProduct(rows=rows, columns=columns, blocks=blocks,
                                   product=product_latency(dsps, operands), operands=operands)
    return component, Unit(component), golden


def _job(generator, golden, *, most):
    while True:
        sizes = dict(zip("mnk", generator.integers(1, most + 1, 3).tolist(), strict=True))
        job = loop_nest.Job(
            **sizes, tile=int(generator.integers(4)), row_tiles=int(generator.integers(3)),
            column_tiles=int(generator.integers(3)), rounds=int(generator.integers(6)),
            order=int(generator.integers(3)), resume=int(generator.integers(2)), common=int(generator.integers(2)))
        if golden.loops.legal(job):
            return job


def _fill_rows(layout, fills):
    ends = np.concatenate([np.arange(len(fill.row)) == len(fill.row) - 1 for fill in fills])
    return pack(layout, {"last": ends} | {
        name: np.concatenate([getattr(fill, name) for fill in fills]) for name in layout.members if name != "last"})


def _run(unit_of, jobs, *, seed, kind="ordinary", stored=(True, True), rates=None, cycles=None):
    """Run jobs, compare tiles and results with the model, and return the cycles of the result rows."""
    _, unit, golden = _product(*unit_of)
    rows, columns, _, blocks, _ = unit_of
    generator = np.random.default_rng(seed)
    fills, tiles, initials, results = {"a": [], "b": []}, [], [], []
    for job in jobs:
        a, b, c = (draw(generator, kind, *shape) for shape in ((job.m, job.k), (job.k, job.n), (job.m, job.n)))
        if job.common:
            c = np.tile(c[:1], (job.m, 1))
        for name, panels in golden.fills(job, a, b, by_rows=stored).items():
            fills[name] += panels
        announced, begun, ended = golden.tiles(job, a, b, c)
        tiles += announced
        initials.append(begun)
        results.append(ended)
    layouts = {"job": job_layout(), "initial": initial_layout(columns)}
    beats = {"job": pack(layouts["job"], {name: np.array([getattr(job, name) for job in jobs])
                                          for name in layouts["job"].members}),
             "initial": pack(layouts["initial"], {"elements": np.concatenate(initials)})}
    beats |= {f"fill_{name}": _fill_rows(fill_layout(columns, blocks), panels) for name, panels in fills.items()}
    if cycles is None:
        work = sum(map(golden.loops.cycles, jobs)) + sum(map(len, beats.values()))
        cycles = 10 * work + 1_000
    names = [*beats, "panels", "tiles", "o"]
    willing = {name: stall_array("geometric" if rates else "none", cycles, seed=seed + index, rate=rates or 1.0)
               for index, name in enumerate(names)}
    unit.reset()
    trace = unit.lockstep(sources={name: Feed(payload, willing[name]) for name, payload in beats.items()},
                          sinks={name: willing[name] for name in names[len(beats):]}, seed=seed)
    assert not trace["bad"].any()
    moved = {name: np.flatnonzero(trace[f"{name}__valid"] & trace[f"{name}__ready"]) for name in names}
    assert {name: len(moved[name]) for name in beats} == {name: len(payload) for name, payload in beats.items()}
    got = unpack(tile_layout(), trace["tiles__payload"][moved["tiles"]])
    for name in tile_layout().members:
        assert got[name].tolist() == [getattr(tile, name) for tile in tiles], f"{name}, {seed=}"
    got = unpack(result_layout(rows, columns), trace["o__payload"][moved["o"]])
    want = np.concatenate(results)
    assert got["elements"].shape == want.shape, f"{seed=}"
    # Rows and columns outside the matrix are not compared.
    index = 0
    for job, ended in zip(jobs, results, strict=True):
        for tile in tiles[index // (8 * rows):(index + len(ended)) // (8 * rows)]:
            part = slice(index, index + 8 * rows)
            row = tile.m + got["row"][part].astype(int)
            column = tile.n + got["group"][part, None].astype(int) * columns + np.arange(columns)
            inside = (row[:, None] < job.m) & (column < job.n)
            np.testing.assert_array_equal(np.where(inside, got["elements"][part], 0),
                                          np.where(inside, want[part], 0), f"{job}, {tile}, {seed=}")
            index += 8 * rows
    return moved["o"]


test_parameters = refused(MatrixProduct, {"rows": 4, "columns": 4}, [
    ({"rows": 3}, "Row count must be 1, 2 or 4, not 3"),
    ({"columns": 2}, "Row count must be at most the lane count 2, not 4"),
    ({"dsps": 3}, "DSP block count must be 4, 2 or 1, not 3"),
    ({"blocks": 6}, "Block count must be a power of two between 2 and 512, not 6"),
])
test_offers_stand_for_all_time = offers(lambda: MatrixProduct(rows=1, columns=2, blocks=2), depth=2)


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("unit_of", PRODUCTS)
def test_products(unit_of, stored):
    """Back-to-back jobs of random shapes, factors and orders match the model for all combinations of transposes."""
    _, _, golden = _product(*unit_of)
    for number, kind in enumerate(KINDS):
        seed = 1 + number + len(KINDS) * STORED.index(stored)
        print(f"seed {seed}")
        generator = np.random.default_rng(seed)
        jobs = [_job(generator, golden, most=25) for _ in range(4)]
        _run(unit_of, jobs, seed=seed, kind=kind, stored=stored, rates=(None, 0.9, 0.6, 0.8)[number])


@pytest.mark.parametrize("unit_of", PRODUCTS)
def test_cycles(unit_of):
    """If its operands arrive in time, a matrix product takes exactly the cycles given by the closed form."""
    _, _, golden = _product(*unit_of)
    rows, columns, *_ = unit_of
    generator = np.random.default_rng(1)
    jobs = [loop_nest.Job(m=4 * rows, n=4 * columns, k=33, tile=1, row_tiles=1, rounds=5, order=1),
            loop_nest.Job(m=4 * rows + 1, n=8 * columns, k=39, tile=1, rounds=3),
            loop_nest.Job(m=2 * rows, n=8 * columns, k=5, tile=0, row_tiles=1, rounds=3)]
    for job in jobs:
        a, b = (draw(generator, "ordinary", *shape) for shape in ((job.m, job.k), (job.k, job.n)))
        filled = max(len(panels[0].row) for panels in golden.fills(job, a, b, by_rows=(True, True)).values())
        taken = _run(unit_of, [job], seed=1)
        assert taken[-1] + 1 == golden.cycles(job, filled=filled), job


def test_reset():
    """A reset in the middle of a product does not affect the next product."""
    unit_of = PRODUCTS[0]
    _, unit, golden = _product(*unit_of)
    generator = np.random.default_rng(1)
    for cut in (9, 20, 60, 150):
        job = loop_nest.Job(m=5, n=20, k=6, tile=1, rounds=3)
        a, b = (draw(generator, "ordinary", *shape) for shape in ((job.m, job.k), (job.k, job.n)))
        fills = golden.fills(job, a, b, by_rows=(True, True))
        layout = job_layout()
        unit.lockstep(
            sources={"job": Feed(pack(layout, {name: np.array([getattr(job, name)]) for name in layout.members})),
                     **{f"fill_{name}": Feed(_fill_rows(fill_layout(4, 32), panels))
                        for name, panels in fills.items()}},
            sinks={"panels": True, "tiles": True, "o": cut % 20 != 0}, cycles=cut)
        _run(unit_of, [_job(generator, golden, most=9) for _ in range(2)], seed=cut)


@pytest.mark.parametrize("operands", OPERANDS)
def test_orders_and_factors_change_no_bit(operands):
    """Products are bit-identical for all orders, factors and array sizes."""
    outcomes = set()
    several = max(4, OPERANDS[operands].terms.bit_length() - 1)  # each part of k must consist of whole blocks
    for rows in (1, 4):
        golden = product.MatrixProduct(rows=rows, columns=4, operands=operands)
        generator = np.random.default_rng(1)
        job = loop_nest.Job(m=9, n=10, k=35, resume=1)
        a, b, c = (draw(generator, "ordinary", *shape) for shape in ((9, 35), (35, 10), (9, 10)))
        for order, rounds, tile in itertools.product(range(3), (1, several), range(4)):
            chosen = dataclasses.replace(job, order=order, rounds=rounds, tile=tile)
            if not golden.loops.legal(chosen):  # parts of k would split operand blocks
                assert OPERANDS[operands].terms > 1
                assert (order, rounds) == (2, 1)
                continue
            tiles, _, results = golden.tiles(chosen, a, b, c)
            whole = np.zeros((64, 64), np.uint32)
            rows, groups, _ = golden.array.order(tile)
            for number, corner in enumerate(tiles):
                part = results[number * len(rows):(number + 1) * len(rows)]
                whole[corner.m + rows[:, None], corner.n + groups[:, None] * 4 + np.arange(4)] = part
            outcomes.add(whole[:9, :10].tobytes())
    want = functions.product(*(x.view(np.float32) for x in (a, b, c)), operands=operands)
    assert outcomes == {want.tobytes()}


def test_bench(monkeypatch):
    """The benchmark reports the lower bound on cycles, and a plausible ratio of measured cycles to this bound."""
    monkeypatch.setattr(bench, "JOBS", (loop_nest.Job(m=32, n=16, k=40, tile=2, rounds=4),))
    row, = bench.rows()
    assert row["bound"] == 32 * 16 * 40 // 16
    assert 1 < row["ratio"] < 1.2
