# amaranth: UnusedElaboratable=no
import dataclasses
import functools

import numpy as np
import pytest

from hdl.features.block_operands.block_former import BANKS, block_layout, opening_layout
from hdl.features.block_operands.block_sums import BlockSums
from hdl.features.compute.array import TILES, result_layout
from hdl.features.compute.multiply_accumulate import SLOTS
from hdl.features.compute.operands import operands_of
from sim.golden import floating
from sim.golden import operands as golden
from sim.golden.features.compute import mac_array
from sim.payload import pack, unpack
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Unit

#: Number of rows, number of columns, and format of the simulated units.
SUMS = ((2, 4, "mx9"), (2, 4, "mxfp4_e2m1"), (2, 4, "nvfp4"))
#: Sum of the exponents of two blocks for which a total of 1 represents 1.0, keyed by format.
ONE = {"mx9": 254 + 14, "mxfp4_e2m1": 254 + 6, "nvfp4": 254 + 2}
NAN, LARGEST = 0x7FC0_0000, 0x7F7F_FFFF


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tile:
    """Input of a tile: dot products of its blocks, of shape (blocks, slots, units), and initial values."""

    totals: np.ndarray
    exponents: np.ndarray
    nans: np.ndarray
    form: int = 0
    initial: np.ndarray | None = None
    common: bool = False


@functools.cache
def _sums(rows, columns, name):
    component = BlockSums(rows=rows, columns=columns, codec=operands_of(name).codec)
    return component, Unit(component), golden.operands_of(name).block


def _numbers(name, tile):
    """Convert a tile's dot products to binary32."""
    exact = np.ldexp(tile.totals.astype(float), tile.exponents - ONE[name])
    with np.errstate(over="ignore"):
        rounded = np.where(np.abs(exact) < 2.0**-126, np.copysign(0.0, exact), exact).astype(np.float32)
    return np.where(tile.nans, np.float32(np.nan), rounded).view(np.uint32)


def _results(sums, tile):
    """Expected results of a tile, as arrays of elements, rows and groups in output order."""
    rows, columns, _ = sums
    total = np.zeros((SLOTS, rows * columns), np.uint32) if tile.initial is None else tile.initial
    for number in _numbers(sums[2], tile):
        total = floating.add(number, total)
    row, group, slot = mac_array.MacArray(rows=rows, columns=columns).order(tile.form)
    return total.reshape(SLOTS, rows, columns)[slot, row % rows], row, group


def _run(sums, tiles, *, ready, pause=0, spare=1000):
    """Run the unit on the dot products of all tiles; return the trace and the start cycles of the blocks."""
    rows, columns, _ = sums
    component, unit, model = _sums(*sums)
    cycles, before = SLOTS * model.block, rows * SLOTS + 1
    count = sum(before + len(tile.totals) * (cycles + pause) for tile in tiles) + spare
    inputs = {name: np.zeros(count, np.int64) for name in ("start", "total", "exponent", "nan", "begins")}
    block = {name: np.zeros(count, np.int64) for name in block_layout().members}
    opening = {name: np.zeros(count, np.int64) for name in opening_layout(rows, columns).members}
    opening["elements"] = np.zeros((count, columns), np.int64)
    now, starts = 0, []
    for number, tile in enumerate(tiles):
        inputs["begins"][now] = 1
        if tile.initial is not None:
            part = slice(now, now + SLOTS * (1 if tile.common else rows))
            values = tile.initial.reshape(SLOTS, rows, columns).swapaxes(0, 1).reshape(-1, columns)
            opening["elements"][part] = values[:part.stop - now]
            opening["slot"][part] = np.arange(part.stop - now) % SLOTS
            opening["row"][part] = np.arange(part.stop - now) // SLOTS
            opening["valid"][part], opening["bank"][part] = 1, number % BANKS
        now += before
        for index in range(len(tile.totals)):
            inputs["start"][now] = 1
            starts.append(now)
            marks = {"bank": number % BANKS, "begins": index == 0, "ends": index == len(tile.totals) - 1,
                     "initial": tile.initial is not None, "common": tile.common, "tile": tile.form}
            for name, value in marks.items():
                block[name][now:] = value
            positions = now + np.arange(SLOTS)[:, None] * model.block + np.arange(rows * columns)
            for name, values in (("total", tile.totals), ("exponent", tile.exponents), ("nan", tile.nans)):
                inputs[name][positions] = values[index]
            now += cycles + pause
    inputs["total"] &= (1 << len(component.total)) - 1
    unit.reset()
    trace = unit.lockstep(sources={}, sinks={"o": ready}, cycles=count, inputs={
        **inputs, "block": pack(block_layout(), block), "opening": pack(opening_layout(rows, columns), opening)})
    return trace, starts


def _check(sums, tiles, trace, *, seed):
    """Compare all results with the model, in order; return the cycles of their transfers."""
    taken = np.flatnonzero(trace["o__valid"] & trace["o__ready"])
    got = unpack(result_layout(*sums[:2]), trace["o__payload"][taken])
    wanted = zip(*(_results(sums, tile) for tile in tiles), strict=True)
    elements, row, group = (np.concatenate(part) for part in wanted)
    for name, want in (("elements", elements), ("row", row), ("group", group)):
        np.testing.assert_array_equal(got[name], want, f"{name}, {seed=}")
    each = SLOTS * sums[0]
    np.testing.assert_array_equal(np.flatnonzero(got["last"]), np.arange(len(tiles)) * each + each - 1)
    return taken


def _random(generator, sums, blocks, *, initial=False, common=False):
    rows, columns, _ = sums
    component, _, _ = _sums(*sums)
    shape, bound = (blocks, SLOTS, rows * columns), 1 << len(component.total) - 2
    values = (generator.standard_normal((SLOTS, rows, columns)) * 4).astype(np.float32).view(np.uint32)
    if common:
        values = np.repeat(values[:, :1], rows, axis=1)
    spread = generator.integers(-6, 7, shape) * generator.choice([1, 30], shape)
    return Tile(
        totals=generator.integers(-bound, bound, shape) * (generator.random(shape) < 0.9),
        exponents=np.clip(ONE[sums[2]] - 16 + spread, 0, 508),
        nans=generator.random(shape) < 0.002, form=int(generator.integers(TILES)),
        initial=values.reshape(SLOTS, -1) if initial else None, common=common)


@pytest.mark.parametrize("sums", SUMS)
def test_edges(sums):
    """Totals that become zero, infinity, NaN or an extreme number when converted are added to -0.0 correctly."""
    rows, columns, name = sums
    ref = ONE[name]
    minus, infinite = 1 << 31, 0x7F80_0000
    cases = [
        (1, ref, False, 127 << 23), (-3, ref, False, 0xC040_0000),
        (1, ref - 126, False, 1 << 23), (-1, ref - 126, False, minus | 1 << 23),
        (1, ref - 127, False, 0), (-1, ref - 127, False, minus), (-1, 0, False, minus),
        (3, ref - 128, False, 0), (3, ref - 127, False, 3 << 22),  # 0.75 * 2^-126 and 1.5 * 2^-126
        (1, ref + 127, False, 254 << 23), (1, ref + 128, False, infinite), (-1, ref + 128, False, minus | infinite),
        (255, ref + 120, False, 0x7F7F_0000), (-2, ref + 127, False, minus | infinite), (5, 508, False, infinite),
        (0, 0, False, 0), (0, 508, False, 0), (0, 508, True, NAN), (-7, 255 + 1, True, NAN)]
    shape = (1, SLOTS, rows * columns)
    total, exponent, nan, want = (np.resize(np.array(part), shape) for part in zip(*cases, strict=True))
    tile = Tile(totals=total, exponents=exponent, nans=nan, initial=np.full(shape[1:], minus, np.uint32))
    trace, _ = _run(sums, [tile], ready=True)
    _check(sums, [tile], trace, seed=0)
    got = unpack(result_layout(rows, columns), trace["o__payload"][trace["o__valid"] == 1])
    assert {int(ref) for ref in got["elements"].ravel()} == {ref for *_, ref in cases}
    row, _group, slot = mac_array.MacArray(rows=rows, columns=columns).order(0)
    np.testing.assert_array_equal(got["elements"], want.reshape(SLOTS, rows, columns)[slot, row % rows])


@pytest.mark.parametrize("sums", SUMS)
@pytest.mark.parametrize("sink", STALLS)
def test_sums(sums, sink):
    """Tiles of every form are correct with no, individual or shared initial values and with output stalls."""
    seed = 1 + STALLS.index(sink)
    print(f"seed {seed}")
    generator = np.random.default_rng(seed)
    tiles = [_random(generator, sums, blocks, initial=initial, common=common) for blocks, initial, common in (
        (1, False, False), (3, True, False), (2, True, True), (4, False, False))]
    ready = stall_array(sink, 6000, seed=seed)
    trace, _ = _run(sums, tiles, ready=ready, pause=seed, spare=4000)
    _check(sums, tiles, trace, seed=seed)


@pytest.mark.parametrize("sums", SUMS)
def test_pace(sums):
    """Results of a tile start a fixed time after its last block starts, one row per ``columns`` cycles."""
    rows, columns, _ = sums
    component, _, _ = _sums(*sums)
    tiles = [_random(np.random.default_rng(7), sums, 1) for _ in range(BANKS + 2)]
    trace, starts = _run(sums, tiles, ready=True)
    taken = _check(sums, tiles, trace, seed=7)
    first = component.latency + columns + 2
    assert taken.tolist() == [start + first + columns * row for start in starts for row in range(SLOTS * rows)]


@pytest.mark.parametrize("sums", SUMS)
def test_room(sums):
    """``room`` falls when ``BANKS`` tiles have begun, and rises as soon as one of these tiles has been read."""
    tiles = [_random(np.random.default_rng(8), sums, 1) for _ in range(BANKS)]
    begun = np.zeros(3000, bool)
    begun[2000:] = True  # the output is ready from this cycle on
    trace, _starts = _run(sums, tiles, ready=begun, spare=3000)
    begins = np.flatnonzero(trace["begins"])
    room = trace["room"].astype(bool)
    assert room[:begins[-1] + 1].all()
    assert not room[begins[-1] + 1:2000].any()
    taken = _check(sums, tiles, trace, seed=8)
    back = begins[-1] + 1 + np.flatnonzero(room[begins[-1] + 1:])[0]
    assert taken[0] == 2000
    assert 2000 < back < taken[len(taken) // BANKS]
    assert room[back:].all()
