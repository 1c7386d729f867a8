# amaranth: UnusedElaboratable=no
"""Scale and mask of results, by the cycle: hdl/compute/scale_mask.py."""

import dataclasses
import functools
import re

import numpy as np
import pytest

from hdl.compute.array import result_layout
from hdl.compute.loop_nest import tile_layout
from hdl.compute.multiply_accumulate import SLOTS
from hdl.compute.scale_mask import ScaleMask, scale_mask_layout
from sim import formal
from sim.golden import gemm
from sim.golden import scale_mask as model
from sim.golden.masking import Mask
from sim.payload import pack, unpack
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Feed, Unit
from tests.hdl.compute.epilogues import draw_scale_mask
from tests.hdl.compute.memories import arrays
from tests.hdl.compute.terms import KINDS, draw

#: Rows, lanes and DSP blocks of the units that are simulated.
UNITS = ((2, 4, 1), (4, 8, 4))
#: Rows and columns of C.
SHAPE = (100, 200)
#: A product in front of the tests, neither scaled nor masked.
PLAIN = gemm.ScaleMask(scale=0x40000000, alternative=0x42280000, mask=Mask(triangle=True))


@functools.cache
def _unit(rows, lanes, dsps):
    component = ScaleMask(rows=rows, lanes=lanes, dsps=dsps)
    return component, Unit(component, name=f"ScaleMask{rows}x{lanes}")


@dataclasses.dataclass(frozen=True)
class Tile:
    """A tile of results: its place in C, its form, and its elements, which may be beyond the edges."""

    m: int
    n: int
    tile: int
    partial: int
    elements: np.ndarray


def _tiles(generator, rows, lanes, count, kind="ordinary"):
    for _ in range(count):
        form = int(generator.integers(4))
        shape = rows << form, lanes * (SLOTS >> form)
        yield Tile(m=int(generator.integers(0, SHAPE[0])), n=lanes * int(generator.integers(0, SHAPE[1] // lanes)),
                   tile=form, partial=int(generator.random() < 0.3),
                   elements=gemm.summation.canonical(draw(generator, kind, *shape).view(np.float32)))


def _beats(tiles, lanes, rows):
    """Results of tiles, row by row and group by group."""
    values = {"elements": [], "row": [], "group": [], "last": []}
    for tile in tiles:
        found = tile.elements.view(np.uint32).reshape(len(tile.elements), -1, lanes)
        lines, groups = found.shape[:2]
        values["elements"].append(found.reshape(-1, lanes))
        values["row"].append(np.arange(lines).repeat(groups))
        values["group"].append(np.tile(np.arange(groups), lines))
        values["last"].append(np.arange(lines * groups) == lines * groups - 1)
    return {name: np.concatenate(parts) for name, parts in values.items()}


def _want(tiles, given):
    """Elements that leave, in the order of :func:`_beats`."""
    for tile in tiles:
        lines, columns = tile.elements.shape
        mask = given.mask.generated(tile.m + lines, tile.n + columns)[tile.m:, tile.n:]
        applied = given if not tile.partial else dataclasses.replace(given, scaled=0, masked=0)
        scaled = gemm.epilogue(tile.elements, dataclasses.replace(applied, masked=0), relu=False, gate=None)
        yield np.where(mask | (not applied.masked), scaled.view(np.uint32), np.uint32(given.alternative))


def _run(unit_of, tiles, given, *, kinds=("none", "none", "none"), seed):
    """Compare every cycle of every port with the model, and return the handshakes."""
    rows, lanes, _ = unit_of
    component, unit = _unit(*unit_of)
    beats = _beats(tiles, lanes, rows)
    cycles = 8 * len(beats["row"]) + 500 if set(kinds) != {"none"} else len(beats["row"]) + 60
    announced, willing, ready = (stall_array(kind, cycles, seed=seed + n) for n, kind in enumerate(kinds))
    fields = {name: np.array([getattr(tile, name) for tile in tiles]) for name in ("m", "n", "tile", "partial")}
    noise = np.random.default_rng(seed).integers(2, size=(3, len(tiles)))
    heads = pack(tile_layout(), fields | dict(zip(("initial", "again", "opens"), noise, strict=True)))
    epilogue = pack(scale_mask_layout(), arrays(gemm.scale_mask_fields(given)))
    trace = unit.lockstep(
        sources={"tiles": Feed(heads, announced), "i": Feed(pack(result_layout(rows, lanes), beats), willing)},
        sinks={"o": ready}, seed=seed, inputs={"epilogue": np.repeat(epilogue, cycles, axis=0)})
    want = model.trace([tile.elements.size // lanes for tile in tiles], latency=component.latency,
                       announced=announced, willing=willing, ready=ready)
    for port in ("i_valid", "i_ready", "o_valid"):
        np.testing.assert_array_equal(trace[port.replace("_", "__")], getattr(want, port), f"{port}, {seed=}")
    offers = np.flatnonzero(want.o_valid)
    got = unpack(result_layout(rows, lanes), trace["o__payload"][offers])
    elements = np.concatenate([found.reshape(-1, lanes) for found in _want(tiles, given)])
    for name, expected in (beats | {"elements": elements}).items():
        np.testing.assert_array_equal(got[name], expected[want.offered[offers]], f"{name}, {seed=}, {given}")
    return want


@pytest.mark.parametrize(("parameters", "message"), [
    ({"rows": 3}, "Row count must be 1, 2 or 4, not 3"),
    ({"lanes": 3}, "Column count must be 2, 4 or 8, not 3"),
    ({"dsps": 3}, "DSP block count must be 4, 2 or 1, not 3"),
])
def test_parameters(parameters, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ScaleMask(**{"rows": 4, "lanes": 4, **parameters})


@pytest.mark.parametrize("unit_of", UNITS)
@pytest.mark.parametrize("source", STALLS)
def test_lockstep(unit_of, source):
    """Tiles of all forms, partial and final, of all kinds of numbers, under stalls on all sides."""
    for number, sink in enumerate(STALLS):
        for trial in range(3):
            seed = 1 + trial + 4 * (number + len(STALLS) * STALLS.index(source))
            print(f"seed {seed}")
            generator = np.random.default_rng(seed)
            _unit(*unit_of)[1].reset()
            tiles = list(_tiles(generator, *unit_of[:2], 8, KINDS[seed % len(KINDS)]))
            kinds = (STALLS[(number + trial) % len(STALLS)], source, sink)
            want = _run(unit_of, tiles, draw_scale_mask(generator, *SHAPE), kinds=kinds, seed=seed)
            assert want.offered.max() >= SLOTS * unit_of[0] - 1


@pytest.mark.parametrize("unit_of", UNITS)
def test_throughput(unit_of):
    """A row of results per cycle, each offered ``latency`` cycles after it is taken."""
    component, unit = _unit(*unit_of)
    unit.reset()
    tiles = list(_tiles(np.random.default_rng(1), *unit_of[:2], 6))
    want = _run(unit_of, tiles, PLAIN, seed=1)
    count = sum(tile.elements.size for tile in tiles) // unit_of[1]
    taken = np.flatnonzero(want.i_valid & want.i_ready)
    assert taken.tolist() == list(range(1, 1 + count))
    assert np.flatnonzero(want.o_valid).tolist() == (taken + component.latency).tolist()


@pytest.mark.parametrize("unit_of", UNITS)
def test_known_answers(unit_of):
    """The causal mask's boundary j <= i, products that are rounded, canonical, and subnormal, and what passes."""
    rows, lanes, _ = unit_of
    _, unit = _unit(*unit_of)
    one = np.ones((rows, lanes * SLOTS), np.float32)
    causal = gemm.ScaleMask(masked=1, alternative=0xC61C4000, mask=Mask(triangle=True))
    unit.reset()
    _run(unit_of, [Tile(m=lanes, n=0, tile=0, partial=0, elements=one)], causal, seed=2)
    found = next(_want([Tile(m=lanes, n=0, tile=0, partial=0, elements=one)], causal))
    assert [int((row == 0x3F800000).sum()) for row in found] == [lanes + 1 + i for i in range(rows)]
    assert set(found[found != 0x3F800000].tolist()) == {0xC61C4000}  # -10,000
    for scale, element, want in ((0x3EAAAAAB, 0x40400000, 0x3F800000), (0x00800000, 0x3F000000, 0x00400000),
                                 (0x7F800000, 0x00000000, 0x7FC00000), (0xBF800000, 0x00000000, 0x80000000),
                                 (0xFFC12345, 0x3F800000, 0x7FC00000)):
        tile = Tile(m=0, n=0, tile=0, partial=0, elements=np.full_like(one, 0).view(np.uint32) + np.uint32(element))
        tile = dataclasses.replace(tile, elements=tile.elements.view(np.float32))
        scaled = gemm.ScaleMask(scaled=1, scale=scale)
        assert set(next(_want([tile], scaled)).ravel().tolist()) == {want}, hex(scale)
        _run(unit_of, [tile, dataclasses.replace(tile, partial=1)], scaled, seed=3)


def test_reset():
    """A reset leaves nothing of the rows on their way, nor of a tile."""
    unit_of = UNITS[0]
    generator = np.random.default_rng(5)
    rows, lanes, _ = unit_of
    _, unit = _unit(*unit_of)
    for cut in (1, 2, 3, 9, 13, 30):
        tiles = list(_tiles(generator, rows, lanes, 2))
        heads = pack(tile_layout(), {name: np.array([getattr(tile, name, 0) for tile in tiles])
                                     for name in tile_layout().members})
        unit.lockstep(sources={"tiles": Feed(heads), "i": Feed(pack(result_layout(rows, lanes),
                                                                   _beats(tiles, lanes, rows)))},
                      sinks={"o": cut % 2 == 0}, cycles=cut)
        unit.reset()
        _run(unit_of, list(_tiles(generator, rows, lanes, 3)), draw_scale_mask(generator, *SHAPE), seed=cut)


def test_offers_stand_for_all_time():
    formal.prove(formal.Offers(ScaleMask(rows=1, lanes=2)), depth=2)
