# amaranth: UnusedElaboratable=no
"""Products with indices of centroids: hdl/features/codebook/gather_reduce.py."""

import functools

import cocotb
import numpy as np
import pytest
from amaranth.lib import data

from hdl.features.codebook import format as hardware
from hdl.features.codebook.format import Decoder
from hdl.features.codebook.gather_reduce import MatrixVector, column_layout
from hdl.streams.stream import word_layout
from sim import formal, regression
from sim.golden.features.codebook.centroid import CentroidTable
from sim.golden.features.codebook.gather_reduce import multiply, trace_product
from sim.payload import pack, unpack
from sim.streams import STALLS, Sink, Source, cycles, stall_array, stalls, start
from sim.verilated.vectors import Feed, Unit
from tests.hdl.compression import packets
from tests.refusals import refuses


def gateware(table):
    """The parameters of a model, for the units."""
    return hardware.CentroidTable(**vars(table))


@functools.cache
def _unit(centroids, lanes, **options):
    return Unit(MatrixVector(table=gateware(CentroidTable(centroids=centroids)), lanes=lanes, **options))


def test_parameters():
    table = CentroidTable()
    refuses("Table must be a CentroidTable, not 16", MatrixVector, error=TypeError, table=16, lanes=4)
    refuses("Lane count must be 1, 2, 4 or 8, not 3", MatrixVector, table=gateware(table), lanes=3)
    for name, value, least, most in (("input", 19, 2, 18), ("centroid", 1, 2, 18), ("accumulator", 36, 18, 35)):
        refuses(f"{name.title()} width must be an integer between {least} and {most}, not {value}", MatrixVector,
                table=gateware(table), lanes=4, **{f"{name}_width": value})


def _signed(values, width):
    given = values.astype(np.int64)
    return np.where(given >> (width - 1), given - (1 << width), given)


def _columns(layout, indices, inputs):
    """Matrices of (lanes, columns), and their vectors, as rows of a port."""
    width = layout["input"].shape.width
    return pack(layout, {
        "input": np.concatenate(inputs) & ((1 << width) - 1), "indices": np.concatenate([i.T for i in indices]),
        "last": np.concatenate([np.arange(len(x)) == len(x) - 1 for x in inputs])})


def _multiplier(centroids, lanes, table, **options):
    """A unit that has its table, and the layouts of its columns and results."""
    component = MatrixVector(table=gateware(CentroidTable(centroids=centroids)), lanes=lanes, **options)
    unit = _unit(centroids, lanes, **options)
    unit.reset()
    layout = component.table.payload.shape()
    width = layout["centroid"].shape.width
    rows = pack(layout, {"centroid": np.asarray(table) & ((1 << width) - 1),
                         "last": np.arange(centroids) == centroids - 1})
    # The sums are cleared at the same time.
    trace = unit.lockstep(sources={"table": Feed(rows)}, sinks={"o": True}, cycles=2 * centroids)
    assert not trace["error"].any()
    result = data.StructLayout({"sums": component.o.payload.shape()})
    return unit, component.i.payload.shape(), result, component


def _results(trace, layout, when):
    width = layout["sums"].shape.elem_shape.width
    lanes = layout["sums"].shape.length
    return _signed(unpack(layout, trace["o__payload"][when])["sums"].reshape(-1, lanes), width)


@pytest.mark.parametrize("sink", STALLS)
@pytest.mark.parametrize("source", STALLS)
@pytest.mark.parametrize(("centroids", "lanes"), [(16, 1), (4, 4), (64, 4), (16, 8)])
def test_product_lockstep(centroids, lanes, source, sink):
    """Every cycle, and results equal to the dense product with the expanded matrix."""
    count = 3_000
    for seed in range(2):
        generator = np.random.default_rng(seed)
        table = generator.integers(-1 << 15, 1 << 15, centroids)
        enough = centroids + MatrixVector.overhead
        lengths = [int(generator.choice([1, centroids - 1, enough - 1, enough, 100])) for _ in range(1_000)]
        inputs = [generator.integers(-1 << 15, 1 << 15, length) for length in lengths]
        indices = [generator.integers(0, generator.integers(1, centroids + 1), (lanes, length)) for length in lengths]
        willing, ready = stall_array(source, count, seed=seed), stall_array(sink, count, seed=seed + 1)
        unit, layout, result, _ = _multiplier(centroids, lanes, table)
        trace = unit.lockstep(sources={"i": Feed(_columns(layout, indices, inputs), willing)}, sinks={"o": ready})
        expected = trace_product(CentroidTable(centroids=centroids), lengths, willing=willing, ready=ready)
        for name in ("i_valid", "i_ready", "o_valid", "multiplied"):
            np.testing.assert_array_equal(trace[name.replace("_", "__", name != "multiplied")],
                                          getattr(expected, name), f"{name}, {seed=}")
        valid = expected.o_valid
        assert valid.sum() > 5
        dense = np.array([table[i] @ x for i, x in zip(indices, inputs, strict=True)])
        np.testing.assert_array_equal(_results(trace, result, valid), dense[expected.offered[valid]], f"{seed=}")


@pytest.mark.parametrize(("centroids", "lanes"), [(16, 1), (4, 4), (64, 4), (16, 8)])
def test_product_throughput(centroids, lanes):
    """No bubble between rows of k + overhead columns, k multiplications per output, and the latency of the last."""
    length = centroids + MatrixVector.overhead
    generator = np.random.default_rng(1)
    table = generator.integers(-1 << 15, 1 << 15, centroids)
    inputs = [generator.integers(-1 << 15, 1 << 15, length) for _ in range(50)]
    indices = [generator.integers(0, centroids, (lanes, length)) for _ in range(50)]
    unit, layout, result, component = _multiplier(centroids, lanes, table)
    trace = unit.lockstep(sources={"i": Feed(_columns(layout, indices, inputs))}, sinks={"o": True},
                          cycles=50 * length + 2 * component.latency)
    accepted = np.flatnonzero(trace["i__valid"] & trace["i__ready"])
    assert accepted.tolist() == list(range(50 * length))
    when = np.flatnonzero(trace["o__valid"] & trace["o__ready"])
    assert (when - accepted[length - 1::length] == component.latency).all()
    assert trace["multiplied"].sum() == 50 * centroids
    dense = np.array([table[i] @ x for i, x in zip(indices, inputs, strict=True)])
    np.testing.assert_array_equal(_results(trace, result, when), dense)


@pytest.mark.parametrize("options", [
    {"input_width": 18, "centroid_width": 18, "accumulator_width": 35},
    {"input_width": 8, "centroid_width": 18, "accumulator_width": 24},
])
def test_product_extremes(options):
    """The largest numbers of both signs, which fill the sums to their last bit."""
    inputs, centroids, sums = options.values()
    low, high = -(1 << (inputs - 1)), (1 << (inputs - 1)) - 1
    length = (1 << (sums - 1)) // -low if sums < 30 else 5_000
    table = np.array([-(1 << (centroids - 1)), (1 << (centroids - 1)) - 1, 0, -1])
    vectors = [np.full(length, value) for value in (low, high, low, high)]
    indices = [np.full((4, length), index) for index in (0, 0, 1, 1)]
    unit, layout, result, _ = _multiplier(4, 4, table, **options)
    trace = unit.lockstep(sources={"i": Feed(_columns(layout, indices, vectors))}, sinks={"o": True},
                          cycles=4 * length + 50)
    got = _results(trace, result, np.flatnonzero(trace["o__valid"] & trace["o__ready"]))
    want = [[int(table[i[0, 0]]) * int(x[0]) * length] * 4 for i, x in zip(indices, vectors, strict=True)]
    assert got.tolist() == want


def test_product_from_a_packet():
    """Table and indices out of a decoder: a matrix of 8 rows, of which one centroid is not used."""
    generator = np.random.default_rng(1)
    table = CentroidTable()
    matrix = generator.integers(0, 15, (8, 40))
    centroids = generator.integers(-1 << 15, 1 << 15, 16)
    words = table.encode(matrix.T.reshape(-1), centroids.astype(np.uint32))
    unit = Unit(Decoder(table=gateware(table), lanes=8, expand=False), name="CentroidDecoder")
    unit.reset()
    trace = unit.lockstep(sources={"i": Feed(packets.beats([words], 1))}, sinks={"o": True, "table": True},
                          cycles=300)
    (indices,), _, _ = packets.taken(trace, 8, width=4)
    given = unpack(word_layout(), trace["table__payload"][trace["table__valid"] == 1])["data"]
    inputs = generator.integers(-1 << 15, 1 << 15, 40)
    multiplier, layout, result, _ = _multiplier(16, 8, given)
    trace = multiplier.lockstep(
        sources={"i": Feed(_columns(layout, [indices.reshape(-1, 8).T], [inputs]))}, sinks={"o": True}, cycles=100)
    got = _results(trace, result, np.flatnonzero(trace["o__valid"]))
    assert got.tolist() == [(centroids[matrix] @ inputs).tolist()]
    assert got[0].tolist() == multiply(matrix, centroids, inputs).tolist()


@pytest.mark.parametrize("length", [3, 17])
def test_product_wrong_tables(length):
    unit = _unit(16, 8)
    unit.reset()
    layout = MatrixVector(table=gateware(CentroidTable()), lanes=8).table.payload.shape()
    last = np.concatenate([np.arange(length) == length - 1, np.arange(16) == 15])
    trace = unit.lockstep(sources={"table": Feed(pack(layout, {"centroid": np.arange(length + 16), "last": last}))},
                          sinks={"o": True}, cycles=60)
    assert trace["error"].sum() == 1 + (length > 16)


@pytest.mark.parametrize("given", [1, 9, 25, 60])
def test_reset(given):
    """Sums of a matrix that was not finished are cleared."""
    unit, layout, result, _ = _multiplier(16, 8, np.arange(16))
    generator = np.random.default_rng(given)
    indices, inputs = [generator.integers(0, 16, (8, 20))], [generator.integers(-9, 9, 20)]
    unit.lockstep(sources={"i": Feed(_columns(layout, indices * 5, inputs * 5))}, sinks={"o": True}, cycles=given)
    unit.reset()
    trace = unit.lockstep(sources={"i": Feed(_columns(layout, indices, inputs))}, sinks={"o": True}, cycles=100)
    got = _results(trace, result, np.flatnonzero(trace["o__valid"]))
    assert got.tolist() == [multiply(indices[0], np.arange(16), inputs[0]).tolist()]
    assert np.flatnonzero(trace["i__ready"])[0] == 16


def test_first_offers_stand():
    """The first result of one column comes in cycle 15: 4 for the sums, 1 for the column, and the latency."""
    unit = MatrixVector(table=gateware(CentroidTable(centroids=4)), lanes=1, input_width=2, centroid_width=2,
                        accumulator_width=18)
    assert 4 + 1 + unit.latency == 15
    formal.prove(formal.Offers(unit), depth=22, mode="bmc")


# --- under cocotb, after a reset in the middle of a matrix


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def multiplies(dut):
    parameters = regression.parameters()
    await start(dut)
    dut.i__payload.value = 0
    dut.i__valid.value = 1
    await cycles(dut, 30)
    dut.rst.value = 1
    dut.i__valid.value = 0
    await cycles(dut, 1)
    dut.rst.value = 0
    unit = MatrixVector(table=gateware(CentroidTable()), lanes=4)
    kinds = {name: getattr(unit, name).payload.shape() for name in ("table", "i", "o")}
    table = Source(dut, "table", kinds["table"], stalls=stalls(parameters["stalls"], seed=1))
    columns = Source(dut, "i", kinds["i"], stalls=stalls(parameters["stalls"], seed=2))
    sink = Sink(dut, "o", kinds["o"], stalls=stalls(parameters["stalls"], seed=3))
    await table.send(parameters["table"])
    cocotb.start_soon(columns.send(parameters["columns"]))
    assert await sink.receive(len(parameters["sums"])) == parameters["sums"]


@pytest.mark.parametrize("kind", ["none", "geometric"])
def test_cocotb(kind):
    generator = np.random.default_rng(1)
    table = generator.integers(-1 << 15, 1 << 15, 16)
    matrices = [generator.integers(0, 16, (4, 30)) for _ in range(3)]
    inputs = [generator.integers(-1 << 15, 1 << 15, 30) for _ in range(3)]
    regression.run(MatrixVector(table=gateware(CentroidTable()), lanes=4), module=__name__, parameters={
        "stalls": kind,
        "table": [{"centroid": int(value) & 0xFFFF, "last": int(place == 15)} for place, value in enumerate(table)],
        "columns": [{"input": int(x) & 0xFFFF, "indices": column.tolist(), "last": int(place == 29)}
                    for matrix, vector in zip(matrices, inputs, strict=True)
                    for place, (column, x) in enumerate(zip(matrix.T, vector, strict=True))],
        "sums": [[int(y) & (1 << 48) - 1 for y in multiply(matrix, table, vector)]
                 for matrix, vector in zip(matrices, inputs, strict=True)]})


def test_column_layout():
    layout = column_layout(2, 4, 16)
    assert [name for name, _ in layout] == ["input", "indices", "last"]
    assert layout.size == 16 + 2 * 4 + 1
