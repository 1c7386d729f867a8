# amaranth: UnusedElaboratable=no
import dataclasses
import functools
import itertools

import numpy as np
import pytest
from amaranth.hdl import Module, Shape
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.features.compute.loop_nest import (
    LoopNest,
    Order,
    beat_layout,
    extents,
    fits,
    job_layout,
    panel_layout,
    tile_layout,
)
from hdl.features.compute.operands import OPERANDS
from sim.golden.features.compute import loop_nest as model
from sim.payload import pack, unpack
from sim.verilated.vectors import Feed, Unit
from tests.hdl.unit_bench import Drive, UnitBench, Want, offers, packed
from tests.refusals import refused

#: Number of rows, lanes, blocks and terms of the simulated loop nests.
NESTS = ((1, 4, 32, 1), (4, 4, 128, 1), (2, 8, 16, 16))
#: Block lengths in terms of all operand formats, without duplicates.
TERMS = tuple(dict.fromkeys(form.terms for form in OPERANDS.values()))
STREAMS = ("panels", "tiles", "o")


def _golden(rows, lanes, blocks, terms):
    return model.LoopNest(rows=rows, lanes=lanes, blocks=blocks, terms=terms)


def _layouts(rows, lanes, blocks, _):
    return {"panels": panel_layout(), "tiles": tile_layout(), "o": beat_layout(rows, lanes, blocks)}


def _draw(generator, golden, *, most, legal=True):
    while True:
        sizes = dict(zip("mnk", generator.integers(1 if legal else 0, most + 1, 3).tolist(), strict=True))
        job = model.Job(
            **sizes, tile=int(generator.integers(4)), row_tiles=int(generator.integers(4)),
            column_tiles=int(generator.integers(4)), rounds=int(generator.integers(8)),
            order=int(generator.integers(3 if legal else 4)), **{
                name: int(generator.integers(2)) for name in ("resume", "common", "align_m", "align_k")})
        if golden.legal(job) or not legal:
            return job


def _fixed(nest, jobs):
    golden = _golden(*nest)
    cycles = 2 * sum(golden.cycles(job) for job in jobs if golden.legal(job)) + 400
    return Drive({"job": packed(job_layout(), jobs)}, (nest, jobs), cycles=cycles)


def _drive(generator, *nest, most=24):
    """Draw valid and invalid jobs of all kinds."""
    golden = _golden(*nest)
    return _fixed(nest, [_draw(generator, golden, most=most, legal=index % 3 != 1) for index in range(8)])


def _model(_, drawn, willing, ready):
    nest, jobs = drawn
    want = _golden(*nest).trace(jobs, willing=willing["job"], ready=ready)
    layouts, beats = _layouts(*nest), {"o": want.beats, "panels": want.panels, "tiles": want.tiles}
    rows = {name: packed(layout, beats[name]) for name, layout in layouts.items()}
    # The operand positions in beats of initial values are not compared.
    means = np.array([not beat.initial for beat in want.beats], np.uint64)
    bits = pack(layouts["o"], {
        name: ((1 << Shape.cast(shape).width) - 1) * (means if name in ("a", "b", "row", "part") else means * 0 + 1)
        for name, shape in layouts["o"].members.items()})
    return Want(want.signals, {**rows, "o": (rows["o"], bits)}, want.offered)


BENCH = UnitBench(lambda rows, lanes, blocks, terms: LoopNest(rows=rows, lanes=lanes, blocks=blocks, terms=terms),
                  _model, _drive, rate=0.6)
test_lockstep = BENCH.lockstep(NESTS)
test_reset = BENCH.resets(NESTS[:1], (2, 4, 5, 9, 60), drive=functools.partial(_drive, most=9))
test_parameters = refused(LoopNest, {"rows": 4, "lanes": 4}, [
    ({"rows": 3}, "Row count must be 1, 2 or 4, not 3"),
    ({"lanes": 1}, "Lane count must be 2, 4 or 8, not 1"),
    ({"lanes": 2}, "Row count must be at most the lane count 2, not 4"),
    ({"blocks": 1}, "Block count must be a power of two between 2 and 512, not 1"),
    ({"blocks": 12}, "Block count must be a power of two between 2 and 512, not 12"),
    ({"blocks": 1024}, "Block count must be a power of two between 2 and 512, not 1024"),
])
test_offers_stand_for_all_time = offers(lambda: LoopNest(rows=1, lanes=2, blocks=2), depth=3)


def test_orders():
    assert [order.name.lower() for order in Order] == list(model.ORDERS)


@pytest.mark.parametrize("nest", NESTS)
def test_closed_form(nest):
    """Random shapes up to 70, with all legal factors, take the beats of the closed form, without pauses."""
    unit, golden = BENCH.unit(*nest), _golden(*nest)
    generator = np.random.default_rng(1)
    for _ in range(500):
        job = _draw(generator, golden, most=70)
        beats = golden.cycles(job)
        unit.reset()
        ports = unit.lockstep(sources={"job": Feed(packed(job_layout(), [job]))}, sinks=dict.fromkeys(STREAMS, True),
                              cycles=beats + LoopNest.latency + 20)
        offered = np.flatnonzero(ports["o__valid"])
        assert offered[0] == LoopNest.latency, job
        assert len(offered) == offered[-1] - offered[0] + 1 == beats, job
        final = unpack(_layouts(*nest)["o"], ports["o__payload"][offered])["final"]
        assert np.flatnonzero(final).tolist() == [beats - 1], job


def test_utilisation():
    """A 256 by 256 by 256 product uses all 16 units in every cycle, except when reloading partial sums."""
    golden = model.LoopNest(rows=4, lanes=4)
    inside = model.Job(m=256, n=256, k=256, tile=2, row_tiles=1, column_tiles=2, rounds=6)
    held = dataclasses.replace(inside, row_tiles=0, column_tiles=0)
    assert golden.legal(inside)
    assert golden.cycles(held) == 256 ** 3 // 16
    assert golden.cycles(inside) == 256 ** 3 // 16 * (256 + 3 * 4) // 256


def test_refusals():
    """Jobs with a zero size, unknown order, or invalid panels raise ``bad`` and output nothing."""
    nest = NESTS[1]
    golden = _golden(*nest)
    good = model.Job(m=5, n=5, k=5, tile=1, rounds=2)
    bad = [dataclasses.replace(good, **change) for change in (
        {"m": 0}, {"n": 0}, {"k": 0}, {"order": 3}, {"rounds": 9}, {"row_tiles": 7}, {"column_tiles": 6},
        {"rounds": 15}, {"row_tiles": 4, "rounds": 6}, {"align_k": 1, "rounds": 1}, {"align_k": 1, "rounds": 0})]
    assert golden.legal(good)
    assert not any(golden.legal(job) for job in bad)
    run = BENCH.check(nest, drive=_fixed(nest, [*bad, good]))
    assert np.count_nonzero(run.trace["bad"]) == len(bad)
    assert len(run.moves()) == golden.cycles(good)


class Rule(wiring.Component):
    """Unit with one output per block length: whether a job is legal for an array of 2 by 4 units and 16 blocks."""

    def __init__(self):
        super().__init__({"job": In(job_layout()), **{f"legal_{terms}": Out(1) for terms in TERMS}})

    def elaborate(self, platform):
        m = Module()
        for terms in TERMS:
            m.d.comb += getattr(self, f"legal_{terms}").eq(fits(
                self.job, extents(self.job, rows=2, lanes=4), lanes=4, blocks=16, terms=terms))
        return m


def test_legal_jobs():
    """Gateware and model agree on which jobs are legal, for all block lengths and factors."""
    jobs = [model.Job(m=m, n=20, k=k, tile=tile, row_tiles=row_tiles, column_tiles=column_tiles, rounds=rounds,
                      order=order, align_m=align_m, align_k=align_k)
            for (m, k), tile, row_tiles, column_tiles, rounds, order, (align_m, align_k) in itertools.product(
                ((3, 7), (9, 16), (33, 17), (4, 64)), range(4), range(3), range(3), range(7), range(4),
                ((0, 0), (0, 1), (1, 1)))]
    verdicts = Unit(Rule()).run({"job": packed(job_layout(), jobs)})
    for terms in TERMS:
        golden = model.LoopNest(rows=2, lanes=4, blocks=16, terms=terms)
        legal = np.array([golden.legal(job) for job in jobs])
        assert 0 < np.count_nonzero(legal) < len(jobs)
        np.testing.assert_array_equal(verdicts[f"legal_{terms}"].astype(bool), legal, f"{terms=}")


def test_alignment():
    """With several panels along memory rows, each panel must start at a multiple of the number of lanes."""
    nest = NESTS[0]
    golden = _golden(*nest)
    good = model.Job(m=4, n=5, k=4, tile=1, rounds=1, row_tiles=1, align_m=1)
    jobs = [dataclasses.replace(good, **change) for change in (
        {}, {"row_tiles": 0}, {"row_tiles": 0, "m": 2}, {"row_tiles": 0, "m": 3}, {"tile": 0, "row_tiles": 0, "m": 1},
        {"align_k": 1}, {"align_k": 1, "k": 3}, {"align_k": 1, "k": 2}, {"align_k": 1, "rounds": 0},
        {"align_k": 1, "rounds": 0, "k": 1}, {"align_k": 1, "rounds": 2})]
    assert [golden.legal(job) for job in jobs] == [True, False, True, False, True, False, False, True, False, True,
                                                   True]
    BENCH.check(nest, drive=_fixed(nest, jobs))


def test_common():
    """Common initial values take one round of a tile; partial results take one round per row of units."""
    golden = model.LoopNest(rows=4, lanes=4)
    job = model.Job(m=32, n=16, k=40, tile=2, column_tiles=1, rounds=4, resume=1)
    assert golden.cycles(job) == 8 * 4 * (40 + 4 * 3)
    assert golden.cycles(dataclasses.replace(job, common=1)) == 8 * 4 * (40 + 4 * 2 + 1)
