# amaranth: UnusedElaboratable=no
import functools

import ml_dtypes
import numpy as np
import pytest

from hdl.features.compute.array import TILES, MacArray, result_layout
from hdl.features.compute.multiply_accumulate import SLOTS
from sim.golden.features.compute import mac_array as model
from sim.payload import pack
from sim.verilated.native import Arithmetic
from sim.verilated.vectors import Unit
from tests.features.compute.terms import KINDS, draw, rows_of, tile_of
from tests.hdl.unit_bench import Drive, UnitBench, Want, offers, under_cocotb
from tests.refusals import refused

#: (rows, columns, DSP blocks, operand format) of the simulated arrays.
ARRAYS = ((1, 4, 1, "fp32"), (2, 8, 2, "fp32"), (4, 4, 4, "fp32"), (2, 4, 1, "bf16"))
NAN = 0x7FC0_0000


@functools.cache
def _golden(rows, columns, dsps, operands, _=None):
    product = MacArray(rows=rows, columns=columns, dsps=dsps, operands=operands).product_latency
    return model.MacArray(rows=rows, columns=columns, product=product, operands=operands)


def _bfloat16(x):
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def _tiles(generator, rows, columns, *, count, longest=5, bubbles=0.2):
    return model.concatenate([
        tile_of(generator, KINDS[number % len(KINDS)], rows=rows, columns=columns,
                rounds=int(generator.integers(0, longest + 1)), initial=generator.random() < 0.3,
                tile=int(generator.integers(TILES)), bubbles=bubbles) for number in range(count)])


def _fixed(array, beats):
    return Drive({"i": rows_of(beats)}, (array, beats), cycles=4 * len(beats) + 400)


def _drive(generator, *array, count=60):
    """Draw tiles of all shapes and lengths, with and without initial values."""
    return _fixed(array, _tiles(generator, *array[:2], count=count))


def _model(_, drawn, willing, ready):
    array, beats = drawn
    golden = _golden(*array)
    return Want.of(golden.trace(beats.last, willing=willing["i"], ready=ready["o"]),
                   pack(result_layout(*array[:2]), vars(golden.results(beats))))


def _make(rows, columns, dsps, operands, _=None):
    return MacArray(rows=rows, columns=columns, dsps=dsps, operands=operands)


#: The "native" cases simulate arithmetic with the processor's floating-point unit; cycles and bits are the same.
BENCH = UnitBench(_make, _model, _drive, rate=0.8, simulate=lambda component, *case: Unit(
    component, arithmetic=Arithmetic.NATIVE if len(case) > 4 else Arithmetic.GATEWARE))
test_lockstep = BENCH.lockstep(ARRAYS, least=100)
test_native_units = BENCH.random([(4, 4, 4, "fp32", "native")])
test_parameters = refused(MacArray, {"rows": 4, "columns": 4}, [
    ({"rows": 0}, "Row count must be 1, 2 or 4, not 0"),
    ({"rows": 3}, "Row count must be 1, 2 or 4, not 3"),
    ({"rows": "4"}, "Row count must be 1, 2 or 4, not '4'"),
    ({"columns": 1}, "Column count must be 2, 4 or 8, not 1"),
    ({"columns": 4.0}, "Column count must be 2, 4 or 8, not 4.0"),
    ({"dsps": 3}, "DSP block count must be 4, 2 or 1, not 3"),
    ({"operands": "fp16"}, "Operands must be one of fp32, bf16, not 'fp16'"),
])
test_offers_stand_for_all_time = offers(lambda: MacArray(rows=1, columns=2), depth=2)


@pytest.mark.parametrize("array", ARRAYS)
def test_throughput(array):
    """Tiles with the shortest sums run back to back without bubbles, with exactly the documented latency."""
    component = BENCH.make(*array)
    generator = np.random.default_rng(1)
    beats = model.concatenate([
        tile_of(generator, "ordinary", rows=component.rows, columns=component.columns, rounds=component.shortest,
                initial=False, tile=number % TILES) for number in range(12)])
    run = BENCH.check(array, drive=_fixed(array, beats))
    assert run.moves("i").tolist() == list(range(len(beats)))
    assert run.moves()[0] == component.shortest * SLOTS - 1 + component.latency
    assert len(run.moves()) == 12 * SLOTS * component.rows
    shorter = model.concatenate([
        tile_of(generator, "ordinary", rows=component.rows, columns=component.columns,
                rounds=component.shortest - 1, initial=False, tile=0) for _ in range(12)])
    assert not BENCH.check(array, drive=_fixed(array, shorter)).trace["i__ready"][:len(shorter)].all()


@pytest.mark.parametrize("tile", range(TILES))
@pytest.mark.parametrize("array", ARRAYS)
def test_matrix_product(array, tile):
    """A tile of a matrix product is bit-identical to numpy's sums in order of k, starting from C or from zero."""
    rows, columns, _, operands = array
    generator = np.random.default_rng(tile)
    m, n, k = rows << tile, columns * (SLOTS >> tile), 33
    a, b, c = (draw(generator, "ordinary", *shape).view(np.float32) for shape in ((m, k), (k, n), (m, n)))
    terms = _bfloat16 if operands == "bf16" else np.asarray
    for begin in (c, np.zeros((m, n), np.float32)):
        want = begin.copy()
        for index in range(k):
            want += terms(a[:, index, None]) * terms(b[index])
        row_group, column_group = np.divmod(np.arange(SLOTS), SLOTS >> tile)
        at_rows = row_group[:, None] * rows + np.arange(rows)
        at_columns = column_group[:, None] * columns + np.arange(columns)
        starts = rows if begin is c else 0
        count = starts + k
        values = {"a": np.zeros((count, SLOTS, rows), np.uint32), "b": np.zeros((count, SLOTS, columns), np.uint32)}
        taken = np.ones((count, SLOTS, rows), bool)
        for row in range(starts):
            values["b"][row] = begin[at_rows[:, row, None], at_columns].view(np.uint32)
            taken[row] = np.arange(rows) == row
        for index in range(k):
            values["a"][starts + index] = a[at_rows, index].view(np.uint32)
            values["b"][starts + index] = b[index, at_columns].view(np.uint32)
        numbers = np.arange(count).repeat(SLOTS)
        beats = model.Beats(
            a=values["a"].reshape(-1, rows), b=values["b"].reshape(-1, columns), rows=taken.reshape(-1, rows),
            initial=numbers < starts, first=numbers == 0, last=numbers == count - 1,
            tile=np.full(count * SLOTS, tile))
        BENCH.check(array, drive=_fixed(array, beats))
        results = _golden(*array).results(beats).elements
        np.testing.assert_array_equal(results.reshape(m, n), want.view(np.uint32))


@pytest.mark.parametrize(("terms", "initial", "want"), [
    ([1e8, 1, -1e8], None, 0x0000_0000),
    ([1e8, -1e8, 1], None, 0x3F80_0000),
    ([-0.0, -0.0], None, 0x0000_0000),
    ([-0.0, -0.0], -0.0, 0x8000_0000),
    ([], -0.0, 0x8000_0000),
    ([], None, 0x0000_0000),
    ([], float("nan"), NAN),
    ([1e38, 3e38, 1e38], None, 0x7F80_0000),
    ([float("inf"), float("-inf")], None, NAN),
    ([float("nan")], None, NAN),
    ([2.0 ** -149], None, 0x0000_0001),
    ([2.0 ** -126, -(2.0 ** -149)], None, 0x007F_FFFF),
    ([-1.5], 1.5, 0x0000_0000),
])
def test_known_answers(terms, initial, want):
    """Sums of known terms are correct, with and without bubbles between the terms."""
    rows, columns, *_ = array = ARRAYS[2]
    starts = [] if initial is None else [initial] * rows
    for spread in (1, 3):
        values = [value for term in (*starts, *terms) for value in (term, *[None] * (spread - 1))] or [None]
        count = len(values)
        numbers = np.arange(count).repeat(SLOTS)
        encodings = np.array([0.0 if value is None else value for value in values], np.float32).view(np.uint32)
        taken = np.array([value is not None for value in values])[:, None].repeat(rows, axis=1)
        opening = len(starts) * spread
        taken[:opening] &= (np.arange(opening) // spread)[:, None] == np.arange(rows)
        factors = np.where(numbers < opening, np.uint32(0x7FC0_0001), np.uint32(0x3F80_0000))
        beats = model.Beats(
            a=factors[:, None].repeat(rows, axis=1), b=encodings[numbers][:, None].repeat(columns, axis=1),
            rows=taken[numbers], initial=numbers < opening, first=numbers == 0, last=numbers == count - 1,
            tile=np.zeros(count * SLOTS, int))
        run = BENCH.check(array, drive=_fixed(array, beats))
        assert len(run.moves()) == SLOTS * rows
        results = _golden(*array).results(beats).elements
        assert {int(bits) for bits in results.ravel()} == {want}, f"{spread=}"


@pytest.mark.parametrize("cut", [13, 61, 90])
def test_reset(cut):
    """After a reset in the middle of a round, or while results are output, the next tiles are correct."""
    golden = model.MacArray(rows=2, columns=2)
    beats = _tiles(np.random.default_rng(1), 2, 2, count=8, longest=2)
    under_cocotb(MacArray(rows=2, columns=2), "geometric", {"i": rows_of(beats)},
                 {"o": pack(result_layout(2, 2), vars(golden.results(beats)))}, cut=cut)
