# amaranth: UnusedElaboratable=no
"""Matrix-vector products with centroid indices: hdl/features/codebook/gather_reduce.py."""

import numpy as np
import pytest

from hdl.features.codebook.format import Decoder
from hdl.features.codebook.gather_reduce import MatrixVector
from hdl.streams.stream import word_layout
from sim import formal
from sim.golden.features.codebook.centroid import CentroidTable
from sim.golden.features.codebook.gather_reduce import multiply, trace_product
from sim.payload import pack, unpack
from sim.verilated.vectors import Feed, Unit
from tests.features.codebook.test_format import gateware
from tests.hdl.compression import packets
from tests.hdl.unit_bench import Drive, UnitBench, Want, under_cocotb
from tests.loaded import Loaded
from tests.refusals import refuses

WIDTHS = ("input_width", "centroid_width", "accumulator_width")


def test_parameters():
    table = CentroidTable()
    refuses("Table must be a CentroidTable, not 16", MatrixVector, error=TypeError, table=16, lanes=4)
    refuses("Lane count must be 1, 2, 4 or 8, not 3", MatrixVector, table=gateware(table), lanes=3)
    for name, value, least, most in (("input", 19, 2, 18), ("centroid", 1, 2, 18), ("accumulator", 36, 18, 35)):
        refuses(f"{name.title()} width must be an integer between {least} and {most}, not {value}", MatrixVector,
                table=gateware(table), lanes=4, **{f"{name}_width": value})


def _make(centroids, lanes, *widths):
    return MatrixVector(table=gateware(CentroidTable(centroids=centroids)), lanes=lanes,
                        **dict(zip(WIDTHS, widths, strict=False)))


def _bits(values, shape):
    """Convert signed numbers to two's complement in the width of ``shape``."""
    return np.asarray(values, np.int64) & (1 << shape.width) - 1


def _lasts(vectors):
    return np.concatenate([np.arange(len(vector)) == len(vector) - 1 for vector in vectors])


def _tables(component, *tables):
    layout = component.table.payload.shape()
    return pack(layout, {"centroid": _bits(np.concatenate(tables), layout["centroid"].shape), "last": _lasts(tables)})


def _loaded(case, table, indices, inputs):
    """Load a table, then feed matrices of shape (lanes, columns) with their input vectors."""
    component, unit = BENCH.make(*case), BENCH.unit(*case)
    unit.load = _tables(component, table)
    layout = component.i.payload.shape()
    columns = pack(layout, {
        "input": _bits(np.concatenate(inputs), layout["input"].shape),
        "indices": np.concatenate([rows.T for rows in indices]), "last": _lasts(inputs)})
    # The expected sums are dense products with the expanded matrix.
    sums = np.array([np.asarray(table, np.int64)[rows] @ x for rows, x in zip(indices, inputs, strict=True)])
    return Drive({"i": columns} | unit.no_more(), (case[0], [len(x) for x in inputs], sums),
                 cycles=len(columns) + 2 * component.latency)


def _drive(generator, centroids, lanes, count=1_000):
    table = generator.integers(-1 << 15, 1 << 15, centroids)
    enough = centroids + MatrixVector.overhead
    lengths = [int(generator.choice([1, centroids - 1, enough - 1, enough, 100])) for _ in range(count)]
    inputs = [generator.integers(-1 << 15, 1 << 15, length) for length in lengths]
    indices = [generator.integers(0, generator.integers(1, centroids + 1), (lanes, length)) for length in lengths]
    return _loaded((centroids, lanes), table, indices, inputs)


def _model(unit, drawn, willing, ready):
    centroids, lengths, sums = drawn
    trace = trace_product(CentroidTable(centroids=centroids), lengths, willing=willing["i"], ready=ready["o"])
    layout = unit.o.payload.shape()
    want = Want.of(trace, pack(layout, _bits(sums, layout.elem_shape)))
    want.ports["multiplied"] = trace.multiplied
    return want


CASES = [(16, 1), (4, 4), (64, 4), (16, 8)]
BENCH = UnitBench(_make, _model, _drive, simulate=lambda component, *_: Loaded(component, stream="table"))
test_lockstep = BENCH.lockstep(CASES, count=3_000, seeds=2, least=6)
test_reset = BENCH.resets([(16, 8)], (1, 9, 25, 60), count=1_000)


@pytest.mark.parametrize("case", CASES)
def test_throughput(case):
    """Rows of k + overhead columns run back to back, each with k multiplications and the stated latency."""
    centroids, lanes = case
    length = centroids + MatrixVector.overhead
    generator = np.random.default_rng(1)
    run = BENCH.check(case, drive=_loaded(
        case, generator.integers(-1 << 15, 1 << 15, centroids),
        list(generator.integers(0, centroids, (50, lanes, length))),
        list(generator.integers(-1 << 15, 1 << 15, (50, length)))))
    accepted = run.moves("i")
    assert accepted.tolist() == list(range(50 * length))
    assert (run.moves() - accepted[length - 1::length] == BENCH.make(*case).latency).all()
    assert run.trace["multiplied"].sum() == 50 * centroids


@pytest.mark.parametrize("widths", [(18, 18, 35), (8, 18, 24)])
def test_extremes(widths):
    """Extreme inputs and centroids of both signs do not overflow the longest sum."""
    inputs, centroids, sums = widths
    low, high = -(1 << (inputs - 1)), (1 << (inputs - 1)) - 1
    length = (1 << (sums - 1)) // -low if sums < 30 else 5_000
    table = np.array([-(1 << (centroids - 1)), (1 << (centroids - 1)) - 1, 0, -1])
    run = BENCH.check((4, 4, *widths), drive=_loaded(
        (4, 4, *widths), table, [np.full((4, length), index) for index in (0, 0, 1, 1)],
        [np.full(length, value) for value in (low, high, low, high)]))
    assert len(run.moves()) == 4


def test_product_from_a_packet():
    """A table and indices from a decoder give the correct product for 8 rows and one unused centroid."""
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
    elements = unpack(word_layout(), trace["table__payload"][trace["table__valid"] == 1])["data"].view(np.int32)
    inputs = generator.integers(-1 << 15, 1 << 15, 40)
    assert (matrix == indices.reshape(-1, 8).T).all()
    BENCH.check((16, 8), drive=_loaded((16, 8), elements, [matrix], [inputs]))
    assert multiply(matrix, centroids, inputs).tolist() == (elements.astype(int)[matrix] @ inputs).tolist()


@pytest.mark.parametrize("length", [3, 17])
def test_wrong_tables(length):
    """Tables with a wrong length are reported; after a reset, the sums are cleared within 16 cycles."""
    unit = BENCH.unit(16, 8)
    unit.load = None
    unit.reset()
    trace = unit.lockstep(sources={"table": Feed(_tables(BENCH.make(16, 8), np.arange(length), np.arange(16)))},
                          sinks={"o": True}, cycles=60)
    assert trace["error"].sum() == 1 + (length > 16)
    unit.reset()
    assert np.flatnonzero(unit.lockstep(sources={}, sinks={"o": True}, cycles=20)["i__ready"])[0] == 16


def test_first_offers_stand():
    """Outputs stay valid until accepted.

    The first output is valid in cycle 15: after 4 cycles to clear the sums, 1 for the column, and the latency.
    """
    unit = MatrixVector(table=gateware(CentroidTable(centroids=4)), lanes=1, input_width=2, centroid_width=2,
                        accumulator_width=18)
    assert 4 + 1 + unit.latency == 15
    formal.prove(formal.Offers(unit), depth=22, mode="bmc")


@pytest.mark.parametrize("kind", ["none", "geometric"])
def test_cocotb(kind):
    """Run a matrix-vector unit under cocotb, with a reset in the middle of a matrix."""
    component, drive = BENCH.make(16, 4), _drive(np.random.default_rng(1), 16, 4, count=5)
    layout = component.o.payload.shape()
    under_cocotb(component, kind, {"table": BENCH.unit(16, 4).load, "i": drive.beats["i"]},
                 {"o": pack(layout, _bits(drive.drawn[2], layout.elem_shape))})
