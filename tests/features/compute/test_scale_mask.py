# amaranth: UnusedElaboratable=no
"""Test scaling and masking of results, cycle by cycle: hdl/features/compute/scale_mask.py."""

import dataclasses
import types

import numpy as np
import pytest

from hdl.features.compute.array import result_layout
from hdl.features.compute.loop_nest import tile_layout
from hdl.features.compute.multiply_accumulate import SLOTS
from hdl.features.compute.scale_mask import ScaleMask, scale_mask_layout
from sim.golden.features.compute import gemm
from sim.golden.masking import Mask
from sim.golden.stream import Feed as Offers
from sim.golden.stream import Trace, first_from
from sim.payload import pack
from tests.features.compute.epilogues import draw_scale_mask
from tests.features.compute.memories import arrays
from tests.features.compute.terms import KINDS, draw
from tests.hdl.unit_bench import Drive, UnitBench, Want, numbers, offers, packed
from tests.refusals import refused

#: Number of rows, lanes and DSP blocks of the simulated units.
UNITS = ((2, 4, 1), (4, 8, 4))
#: Maximum number of result rows that the unit can hold.
ROWS = 17
#: Number of rows and columns of the result matrix C.
SHAPE = (100, 200)
#: An instruction with scaling and masking turned off, although the other fields are set.
PLAIN = gemm.ScaleMask(scale=0x40000000, alternative=0x42280000, mask=Mask(triangle=True))


@dataclasses.dataclass(frozen=True)
class Tile:
    """Tile of results: position in C, form, and elements, which may be partly outside C."""

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
    """Result rows of tiles, ordered by line and then by group: one array per field of a row."""
    values = {"elements": [], "row": [], "group": [], "last": []}
    for tile in tiles:
        elements = tile.elements.view(np.uint32).reshape(len(tile.elements), -1, lanes)
        lines, groups = elements.shape[:2]
        values["elements"].append(elements.reshape(-1, lanes))
        values["row"].append(np.arange(lines).repeat(groups))
        values["group"].append(np.tile(np.arange(groups), lines))
        values["last"].append(np.arange(lines * groups) == lines * groups - 1)
    return {name: np.concatenate(parts) for name, parts in values.items()}


def _want(tiles, scale_mask):
    """Expected output elements, in the same order as in :func:`_beats`."""
    for tile in tiles:
        lines, columns = tile.elements.shape
        mask = scale_mask.mask.generated(tile.m + lines, tile.n + columns)[tile.m:, tile.n:]
        applied = scale_mask if not tile.partial else dataclasses.replace(scale_mask, scaled=0, masked=0)
        scaled = gemm.epilogue(tile.elements, dataclasses.replace(applied, masked=0), relu=False, gate=None)
        yield np.where(mask | (not applied.masked), scaled.view(np.uint32), np.uint32(scale_mask.alternative))


def _trace(counts, *, latency, announced, willing, ready):
    """Expected handshakes of result rows in each cycle.

    A row is accepted if its tile was announced and the previous tile's last row was accepted, both in earlier cycles,
    and if fewer than :data:`ROWS` rows are in flight at the start of the cycle.
    """
    tiles, rows = Offers(len(counts), announced), Offers(sum(counts), willing)
    end = rows.end
    first_ready = first_from(ready)
    o_valid, offered = np.zeros(end, np.bool_), np.full(end, -1)
    departed: list[int] = []
    head, taken = 0, -1
    for count in counts:
        head = max(tiles.accept(0) + 1, taken + 1)
        for _ in range(count):
            number = len(departed)
            earliest = departed[number - ROWS] + 1 if number >= ROWS else 0
            taken = rows.accept(max(head, taken + 1, earliest))
            offer = min(max(taken + latency, departed[-1] + 1 if departed else 0), end)
            departed.append(first_ready[offer])
            o_valid[offer:departed[-1] + 1] = True
            offered[offer:departed[-1] + 1] = number
    return Trace(rows.valid, rows.ready, o_valid, offered)


def _fixed(unit_of, tiles, scale_mask):
    rows, lanes, _ = unit_of
    epilogue, = numbers(pack(scale_mask_layout(), arrays(gemm.scale_mask_fields(scale_mask))))
    heads = [types.SimpleNamespace(**vars(tile), initial=0, again=1, opens=0) for tile in tiles]
    beats = _beats(tiles, lanes, rows)
    elements = np.concatenate([parts.reshape(-1, lanes) for parts in _want(tiles, scale_mask)])
    layout = result_layout(rows, lanes)
    counts = [tile.elements.size // lanes for tile in tiles]
    return Drive({"tiles": packed(tile_layout(), heads), "i": pack(layout, beats)},
                 (counts, pack(layout, beats | {"elements": elements})), {"epilogue": epilogue},
                 cycles=8 * sum(counts) + 500)


def _drive(generator, *unit_of):
    """Draw tiles of all forms, partial and final, that contain all kinds of numbers."""
    tiles = list(_tiles(generator, *unit_of[:2], 8, KINDS[generator.integers(len(KINDS))]))
    return _fixed(unit_of, tiles, draw_scale_mask(generator, *SHAPE))


def _model(unit, drawn, willing, ready):
    counts, rows = drawn
    return Want.of(_trace(counts, latency=unit.latency, announced=willing["tiles"], willing=willing["i"],
                          ready=ready["o"]), rows)


BENCH = UnitBench(lambda rows, lanes, dsps: ScaleMask(rows=rows, lanes=lanes, dsps=dsps), _model, _drive,
                  name=lambda rows, lanes, _: f"ScaleMask{rows}x{lanes}")
test_lockstep = BENCH.lockstep(UNITS, seeds=3, least=SLOTS)
test_reset = BENCH.resets(UNITS[:1], (1, 2, 3, 9, 13, 30))
test_parameters = refused(ScaleMask, {"rows": 4, "lanes": 4}, [
    ({"rows": 3}, "Row count must be 1, 2 or 4, not 3"),
    ({"lanes": 3}, "Column count must be 2, 4 or 8, not 3"),
    ({"dsps": 3}, "DSP block count must be 4, 2 or 1, not 3"),
])
test_offers_stand_for_all_time = offers(lambda: ScaleMask(rows=1, lanes=2), depth=2)


@pytest.mark.parametrize("unit_of", UNITS)
def test_throughput(unit_of):
    """The unit accepts one result row per cycle, and its latency is ``latency`` cycles."""
    run = BENCH.check(unit_of, drive=_fixed(unit_of, list(_tiles(np.random.default_rng(1), *unit_of[:2], 6)), PLAIN))
    count = len(run.drive.beats["i"])
    assert run.moves("i").tolist() == list(range(1, 1 + count))
    assert run.moves().tolist() == (run.moves("i") + BENCH.make(*unit_of).latency).tolist()


@pytest.mark.parametrize("unit_of", UNITS)
def test_known_answers(unit_of):
    """Known answers: causal mask j <= i, rounded and subnormal products, and unchanged partial results."""
    rows, lanes, _ = unit_of
    ones = np.ones((rows, lanes * SLOTS), np.float32)
    causal = gemm.ScaleMask(masked=1, alternative=0xC61C4000, mask=Mask(triangle=True))
    BENCH.check(unit_of, drive=_fixed(unit_of, [Tile(m=lanes, n=0, tile=0, partial=0, elements=ones)], causal))
    masked = next(_want([Tile(m=lanes, n=0, tile=0, partial=0, elements=ones)], causal))
    assert [int((row == 0x3F800000).sum()) for row in masked] == [lanes + 1 + i for i in range(rows)]
    assert set(masked[masked != 0x3F800000].tolist()) == {0xC61C4000}  # the encoding of -10,000
    for scale, element, want in ((0x3EAAAAAB, 0x40400000, 0x3F800000), (0x00800000, 0x3F000000, 0x00400000),
                                 (0x7F800000, 0x00000000, 0x7FC00000), (0xBF800000, 0x00000000, 0x80000000),
                                 (0xFFC12345, 0x3F800000, 0x7FC00000)):
        tile = Tile(m=0, n=0, tile=0, partial=0, elements=np.full_like(ones, 0).view(np.uint32) + np.uint32(element))
        tile = dataclasses.replace(tile, elements=tile.elements.view(np.float32))
        scaled = gemm.ScaleMask(scaled=1, scale=scale)
        assert set(next(_want([tile], scaled)).ravel().tolist()) == {want}, hex(scale)
        BENCH.check(unit_of, drive=_fixed(unit_of, [tile, dataclasses.replace(tile, partial=1)], scaled))
