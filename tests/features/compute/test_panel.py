# amaranth: UnusedElaboratable=no
import numpy as np
import pytest

from hdl.features.compute.panel import PanelBuffer, fill_layout, operand_layout, read_layout
from sim.golden.features.compute import panel as model
from sim.payload import pack, unpack
from sim.verilated.vectors import Feed
from tests.hdl.unit_bench import Drive, UnitBench, Want, offers
from tests.refusals import refused

#: Number of lanes, element width and number of blocks of the simulated buffers.
BUFFERS = ((4, 4, 4), (4, 1, 8), (8, 2, 2), (2, 2, 128))


def _fill(generator, lanes, blocks, *, whole):
    """Draw writes in random order, by rows or by columns: a whole panel, or a few rows and columns of its blocks."""
    block, row = (grid.ravel() for grid in np.indices((blocks, lanes)))
    transposed = (generator.random(blocks) < 0.5)[block]
    order = generator.permutation(len(block))
    if not whole:
        order = order[:generator.integers(1, len(order) + 1)]
        transposed = generator.random(len(block)) < 0.5
    elements = generator.integers(1 << 32, size=(len(order), lanes), dtype=np.uint32)
    return model.Fill(elements=elements, block=block[order], row=row[order], transposed=transposed[order])


def _read(generator, lanes, width, blocks, *, count):
    return model.Read(block=generator.integers(0, blocks, count), row=generator.integers(0, lanes, count),
                      part=generator.integers(0, lanes // width, count))


def _ends(parts):
    """Flags that mark the last beat of each part of a stream."""
    ends = np.zeros(sum(len(part.row) for part in parts), bool)
    ends[np.cumsum([len(part.row) for part in parts]) - 1] = True
    return ends


def _rows(layout, parts):
    names = [name for name in layout.members if name != "last"]
    return pack(layout, {"last": _ends(parts)} | {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def _fixed(lanes, width, blocks, fills, reads):
    return Drive({"fill": _rows(fill_layout(lanes, blocks), fills),
                  "read": _rows(read_layout(lanes, blocks, width), reads)}, (fills, reads))


def _drive(generator, lanes, width, blocks, panels=20):
    # The first two panels fill both halves; later panels overwrite parts of them.
    fills = [_fill(generator, lanes, blocks, whole=panel < 2) for panel in range(panels)]
    reads = [_read(generator, lanes, width, blocks, count=int(generator.integers(1, 3 * blocks * lanes)))
             for _ in fills]
    return _fixed(lanes, width, blocks, fills, reads)


def _model(unit, drawn, willing, ready):
    fills, reads = drawn
    golden = model.PanelBuffer(lanes=unit.lanes, width=unit.width, blocks=unit.blocks)
    want = golden.trace([len(fill.row) for fill in fills], [len(read.row) for read in reads],
                        willing=(willing["fill"], willing["read"]), ready=ready["o"])
    return Want(want.signals, {"o": pack(operand_layout(unit.width), {"elements": golden.operands(fills, reads)})},
                {"o": want.offered})


def _make(lanes, width, blocks):
    return PanelBuffer(lanes=lanes, width=width, blocks=blocks)


BENCH = UnitBench(_make, _model, _drive)
test_lockstep = BENCH.lockstep(BUFFERS, count=lambda lanes, width, blocks: 2_500 + 100 * blocks, least=8)
test_reset = BENCH.resets(BUFFERS[:1], (5, 20, 40, 43), count=1_000)
test_parameters = refused(PanelBuffer, {"lanes": 4}, [
    ({"lanes": 1}, "Lane count must be 2, 4 or 8, not 1"),
    ({"lanes": "4"}, "Lane count must be 2, 4 or 8, not '4'"),
    ({"width": 3}, "Width must be a power of two up to 4, not 3"),
    ({"width": 8}, "Width must be a power of two up to 4, not 8"),
    ({"width": 0}, "Width must be a power of two up to 4, not 0"),
    ({"blocks": 1}, "Block count must be a power of two of at least 2, not 1"),
    ({"blocks": 12}, "Block count must be a power of two of at least 2, not 12"),
])
test_offers_stand_for_all_time = offers(lambda: PanelBuffer(lanes=2, blocks=2), depth=2)


def test_default_width():
    assert PanelBuffer(lanes=4).width == 4
    assert PanelBuffer(lanes=4).blocks == 128
    assert PanelBuffer(lanes=8, width=2).lanes == 8


@pytest.mark.parametrize("buffer", BUFFERS)
def test_throughput(buffer):
    """One column is read per cycle, without pauses between panels, while one row is accepted per cycle."""
    generator = np.random.default_rng(1)
    lanes, width, blocks = buffer
    count = lanes * blocks
    fills = [_fill(generator, lanes, blocks, whole=True) for _ in range(4)]
    reads = [_read(generator, lanes, width, blocks, count=count + 4) for _ in fills]
    length = 6 * count + 60
    run = BENCH.check(buffer, count=length, drive=_fixed(*buffer, fills, reads))
    assert run.moves("fill")[:2 * count].tolist() == list(range(2 * count))
    assert run.moves("read").tolist() == list(range(count + 1, count + 1 + 4 * (count + 4)))
    assert run.moves().tolist() == (run.moves("read") + PanelBuffer.latency).tolist()


@pytest.mark.parametrize("transposed", [False, True])
def test_matrix(transposed):
    """A 16 by 16 matrix written by rows or by columns is read column by column."""
    buffer = lanes, width, blocks = 4, 4, 16
    matrix = np.arange(256, dtype=np.uint32).reshape(16, 16)
    unit = BENCH.unit(*buffer)
    outer, inner = (grid.ravel() for grid in np.indices((16, 4)))  # memory rows: 16 lines of four rows each
    stored = matrix if transposed else matrix.T
    groups, places = (inner, outer) if not transposed else (outer // lanes, inner * lanes)
    fill = model.Fill(elements=stored[outer[:, None], inner[:, None] * lanes + np.arange(lanes)],
                      block=groups + 4 * (places // lanes), row=outer % lanes,
                      transposed=np.full(len(outer), transposed))
    k, group = (grid.ravel() for grid in np.indices((16, 4)))
    read = model.Read(block=group + 4 * (k // lanes), row=k % lanes, part=np.zeros(len(k), int))
    unit.reset()
    trace = unit.lockstep(sources={"fill": Feed(_rows(fill_layout(lanes, blocks), [fill])),
                                   "read": Feed(_rows(read_layout(lanes, blocks, width), [read]))},
                          sinks={"o": True}, cycles=200)
    got = unpack(operand_layout(width), trace["o__payload"][trace["o__valid"] == 1])["elements"]
    np.testing.assert_array_equal(got.reshape(16, 16), matrix.T)
