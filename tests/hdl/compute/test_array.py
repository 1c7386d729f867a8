# amaranth: UnusedElaboratable=no
import functools
import re

import cocotb
import ml_dtypes
import numpy as np
import pytest

from hdl.compute.array import TILES, MacArray, result_layout, term_layout
from hdl.compute.multiply_accumulate import SLOTS
from sim import formal, regression
from sim.golden import mac_array as model
from sim.payload import unpack
from sim.streams import STALLS, Monitor, Sink, Source, cycles, stall_array, stalls, start
from sim.verilated.native import Arithmetic
from sim.verilated.vectors import Feed, Unit
from tests.hdl.compute.terms import KINDS, check_ports, draw, rows_of, tile_of

#: Rows, columns, DSP blocks and operands of the arrays that are simulated.
ARRAYS = ((1, 4, 1, "fp32"), (2, 8, 2, "fp32"), (4, 4, 4, "fp32"), (2, 4, 1, "bf16"))
NAN = 0x7FC0_0000


@functools.cache
def _array(rows, columns, dsps, operands, arithmetic=Arithmetic.GATEWARE):
    component = MacArray(rows=rows, columns=columns, dsps=dsps, operands=operands)
    unit = Unit(component, arithmetic=arithmetic)
    return component, unit, model.MacArray(
        rows=rows, columns=columns, product=component.product_latency, operands=operands)


def _bfloat16(x):
    """Numbers rounded by an independent library."""
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def _tiles(generator, rows, columns, *, count, longest=5, bubbles=0.2):
    return model.concatenate([
        tile_of(generator, KINDS[number % len(KINDS)], rows=rows, columns=columns,
                rounds=int(generator.integers(0, longest + 1)), initial=generator.random() < 0.3,
                tile=int(generator.integers(TILES)), bubbles=bubbles) for number in range(count)])


def _check(array, beats, source, sink, *, seed, spare=4):
    """Compare every cycle of every port with the model, and return the ports."""
    _, unit, golden = _array(*array)
    length = spare * len(beats) + 400
    willing, ready = (stall_array(kind, length, seed=seed + n, rate=rate)
                      for n, (kind, rate) in enumerate(((source, 0.9), (sink, 0.5))))
    unit.reset()
    trace = unit.lockstep(sources={"i": Feed(rows_of(beats), willing)}, sinks={"o": ready}, seed=seed)
    want = golden.trace(beats.last, willing=willing, ready=ready)
    results = golden.results(beats)
    check_ports(trace, want, results, array[:2], seed=seed)
    return trace, want, results


@pytest.mark.parametrize(("parameters", "message"), [
    ({"rows": 0}, "Row count must be 1, 2 or 4, not 0"),
    ({"rows": 3}, "Row count must be 1, 2 or 4, not 3"),
    ({"rows": "4"}, "Row count must be 1, 2 or 4, not '4'"),
    ({"columns": 1}, "Column count must be 2, 4 or 8, not 1"),
    ({"columns": 4.0}, "Column count must be 2, 4 or 8, not 4.0"),
    ({"dsps": 3}, "DSP block count must be 4, 2 or 1, not 3"),
    ({"operands": "fp16"}, "Operands must be one of fp32, bf16, not 'fp16'"),
])
def test_parameters(parameters, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        MacArray(**{"rows": 4, "columns": 4, **parameters})


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("source", STALLS)
def test_lockstep(array, source):
    """Tiles of all forms and lengths, with and without initial values: every cycle under stalls on both sides."""
    for number, sink in enumerate(STALLS):
        seed = 1 + number + len(STALLS) * STALLS.index(source)
        print(f"seed {seed}")
        beats = _tiles(np.random.default_rng(seed), *array[:2], count=60)
        _, want, results = _check(array, beats, source, sink, seed=seed)
        assert want.offered.max() > len(results.row) // 3


@pytest.mark.parametrize("source", STALLS)
def test_native_units(source):
    """Units that are simulated by the processor's own arithmetic change no cycle and no bit, nor do their bubbles."""
    seed = 90 + STALLS.index(source)
    beats = _tiles(np.random.default_rng(seed), 4, 4, count=60)
    _check((4, 4, 4, "fp32", Arithmetic.NATIVE), beats, source, "geometric", seed=seed)


@pytest.mark.parametrize("array", ARRAYS)
def test_throughput(array):
    """Tiles of the shortest sums follow each other without a bubble, and the latency is exact."""
    component, _, _ = _array(*array)
    generator = np.random.default_rng(1)
    beats = model.concatenate([
        tile_of(generator, "ordinary", rows=component.rows, columns=component.columns, rounds=component.shortest,
                initial=False, tile=number % TILES) for number in range(12)])
    trace, want, results = _check(array, beats, "none", "none", seed=1)
    taken = np.flatnonzero(trace["i__valid"] & trace["i__ready"])
    assert taken.tolist() == list(range(len(beats)))
    first = np.flatnonzero(want.offered == 0)[0]
    assert first == component.shortest * SLOTS - 1 + component.latency
    assert len(results.row) == 12 * SLOTS * component.rows == np.count_nonzero(trace["o__valid"])
    shorter = model.concatenate([
        tile_of(generator, "ordinary", rows=component.rows, columns=component.columns,
                rounds=component.shortest - 1, initial=False, tile=0) for _ in range(12)])
    trace, _, _ = _check(array, shorter, "none", "none", seed=1)
    assert not trace["i__ready"][:len(shorter)].all()


@pytest.mark.parametrize("tile", range(TILES))
@pytest.mark.parametrize("array", ARRAYS)
def test_matrix_product(array, tile):
    """A tile of a matrix product has the bits of numpy's sums in order of k, from C or from zero."""
    rows, columns, _, operands = array
    generator = np.random.default_rng(tile)
    m, n, k = rows << tile, columns * (SLOTS >> tile), 33
    a, b, c = (draw(generator, "ordinary", *shape).view(np.float32) for shape in ((m, k), (k, n), (m, n)))
    terms = _bfloat16 if operands == "bf16" else np.asarray
    _, unit, golden = _array(*array)
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
        unit.reset()
        trace = unit.lockstep(sources={"i": Feed(rows_of(beats))}, sinks={"o": True}, cycles=count * SLOTS + 100)
        rows_out = unpack(result_layout(rows, columns), trace["o__payload"][trace["o__valid"] == 1])["elements"]
        np.testing.assert_array_equal(rows_out.reshape(m, n), want.view(np.uint32))
        np.testing.assert_array_equal(golden.results(beats).elements, rows_out)


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
    """Sums of terms times one, k ascending, alone and with rounds of bubbles between all terms."""
    rows, columns, *_ = array = ARRAYS[2]
    _, unit, _ = _array(*array)
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
        unit.reset()
        trace = unit.lockstep(sources={"i": Feed(rows_of(beats))}, sinks={"o": True}, cycles=count * SLOTS + 100)
        got = unpack(result_layout(rows, columns), trace["o__payload"][trace["o__valid"] == 1])["elements"]
        assert got.shape == (SLOTS * rows, columns)
        assert {int(bits) for bits in got.ravel()} == {want}, f"{spread=}"


def test_offers_stand_for_all_time():
    """The rule of streams holds for the offers, whatever the arithmetic gives."""
    formal.prove(formal.Offers(MacArray(rows=1, columns=2)), depth=2)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def accumulates_after_a_reset(dut):
    """A reset in the middle of a round, and of results, leaves nothing of them."""
    parameters = regression.parameters()
    layouts = term_layout(2, 2), result_layout(2, 2)
    await start(dut)
    source = Source(dut, "i", layouts[0])
    before = cocotb.start_soon(source.send(parameters["before"]))
    await cycles(dut, parameters["cut"])
    before.cancel()
    dut.rst.value = 1
    dut.i__valid.value = 0
    await cycles(dut, 2)
    dut.rst.value = 0
    monitor = Monitor(dut, "o", layouts[1])
    source = Source(dut, "i", layouts[0], stalls=stalls("geometric", seed=1, rate=0.9))
    sink = Sink(dut, "o", layouts[1], stalls=stalls("geometric", seed=2))
    cocotb.start_soon(source.send(parameters["i"]))
    assert await sink.receive(len(parameters["o"])) == parameters["o"]
    await cycles(dut, 100)
    assert len(monitor.beats) == len(parameters["o"])


def test_reset():
    generator = np.random.default_rng(1)
    golden = model.MacArray(rows=2, columns=2)
    before, beats = (_tiles(generator, 2, 2, count=count, longest=2) for count in (8, 5))

    def listed(beats):
        return [{"a": [int(bits) for bits in beats.a[n]], "b": [int(bits) for bits in beats.b[n]],
                 "rows": int(beats.rows[n] @ (1, 2)), "initial": int(beats.initial[n]), "first": int(beats.first[n]),
                 "last": int(beats.last[n]), "tile": int(beats.tile[n])} for n in range(len(beats))]

    results = golden.results(beats)
    want = [{"elements": [int(bits) for bits in results.elements[n]], "row": int(results.row[n]),
             "group": int(results.group[n]), "last": int(results.last[n])} for n in range(len(results.row))]
    component = MacArray(rows=2, columns=2)
    for cut in (13, 61, 90):
        regression.run(component, module=__name__, parameters={
            "before": listed(before), "cut": cut, "i": listed(beats), "o": want})
