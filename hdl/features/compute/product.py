# amaranth: UnusedElaboratable=no
# The constructor creates the parts because their latencies are needed even without elaboration.
"""Matrix product unit, made of loop nest, panel buffers and MAC array."""

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.compute.array import TILES, result_layout
from hdl.features.compute.arrays import make_array
from hdl.features.compute.feature import FP32 as BINARY32
from hdl.features.compute.loop_nest import LoopNest, beat_layout, job_layout, panel_layout, tile_layout
from hdl.features.compute.operands import operands_of
from hdl.features.compute.panel import PanelBuffer, fill_layout
from hdl.floating.format import FP32
from hdl.streams.stream import Queue, SkidBuffer, connect_stream

__all__ = ["MatrixProduct", "initial_layout"]

#: Capacity in beats of the queue between loop nest and array; must exceed the number of stages of a panel buffer.
_BEATS = 17


def initial_layout(columns):
    """Payload of initial values: one element of C per column, for one row and slot."""
    return data.StructLayout({"elements": data.ArrayLayout(unsigned(FP32.width), columns)})


class MatrixProduct(wiring.Component):
    """Multiply matrices that are transferred as memory rows.

    A :class:`~hdl.features.compute.loop_nest.LoopNest` steps through a job and announces the panels to load and the
    tiles that begin. Operands arrive through ``fill_a`` and ``fill_b``, and initial values, for tiles that request
    them, through ``initial``. Results leave in the order in which tiles were announced. Initial values are ordered by
    row of units and then by slot, so that row r of a tile's row group g is row g · ``rows`` + r of the tile; values
    common to all rows are sent once per slot.

    Beats wait for panels, initial values and space for results; waiting does not affect results. If operands arrive
    in time and sums have at least :attr:`shortest` terms, the units are busy in every cycle. Outputs ``panels``,
    ``tiles`` and ``o`` come directly from the parts. ``fill_a.ready``, ``fill_b.ready`` and ``initial.ready`` depend
    on registers only.

    Parameters
    ----------
    rows : int
        Number of rows of units: 1, 2 or 4.
    columns : int
        Number of columns of units, and of elements per memory row: 2, 4 or 8, and at least ``rows``.
    dsps : int
        DSP blocks per unit: 4, 2 or 1.
    blocks : int
        Number of blocks of ``columns`` by ``columns`` elements in a panel: a power of two from 2 to 512.
    operands : str
        Multiplication format of the operands: a name of :data:`~hdl.features.compute.operands.OPERANDS`.

    Members
    -------
    job : In(stream of job_layout())
    panels : Out(stream of panel_layout())
    tiles : Out(stream of tile_layout())
    fill_a, fill_b : In(stream of fill_layout(columns, blocks))
    initial : In(stream of initial_layout(columns))
    o : Out(stream of result_layout(rows, columns))
    bad : Out(1)
        The job is rejected.
    """

    def __init__(self, *, rows, columns, dsps=4, blocks=128, operands=BINARY32):
        self._loops = LoopNest(rows=rows, lanes=columns, blocks=blocks, terms=operands_of(operands).terms)
        self._array = make_array(operands, rows=rows, columns=columns, dsps=dsps)
        self._panels = {"a": PanelBuffer(lanes=columns, width=rows, blocks=blocks),
                        "b": PanelBuffer(lanes=columns, blocks=blocks)}
        self._beat = beat_layout(rows, columns, blocks)
        super().__init__({
            "job": In(stream.Signature(job_layout())),
            "panels": Out(stream.Signature(panel_layout())),
            "tiles": Out(stream.Signature(tile_layout())),
            **{f"fill_{name}": In(stream.Signature(fill_layout(columns, blocks))) for name in self._panels},
            "initial": In(stream.Signature(initial_layout(columns))),
            "o": Out(stream.Signature(result_layout(rows, columns))),
            "bad": Out(1),
        })

    @property
    def shortest(self):
        """Minimum number of terms per sum that keeps the units busy in every cycle."""
        return self._array.shortest

    @property
    def latency(self):
        """Latency in cycles from the first read of a product to its first results, not counting one cycle per
        beat."""
        return PanelBuffer.latency + self._array.latency - 1

    def elaborate(self, platform):
        m = Module()
        m.submodules.loops = loops = self._loops
        m.submodules.panel_a = panel_a = self._panels["a"]
        m.submodules.panel_b = panel_b = self._panels["b"]
        m.submodules.array = array = self._array
        marks = data.StructLayout({
            "rows": array.rows, "initial": 1, "first": 1, "last": 1, "tile": range(TILES)})
        m.submodules.beats = beats = Queue(shape=marks, depth=_BEATS)
        # A register here breaks the path from the array through the panels to the loop nest's next step.
        m.submodules.held = held = SkidBuffer(shape=self._beat)
        for source, sink in ((self.job, loops.job), (loops.panels, self.panels), (loops.tiles, self.tiles),
                             (loops.o, held.i), (self.fill_a, panel_a.fill), (self.fill_b, panel_b.fill),
                             (array.o, self.o)):
            connect_stream(m, source, sink)
        m.d.comb += self.bad.eq(loops.bad)

        # A beat goes to the queue of marks and either to both panel buffers or to neither.
        beat = held.o.payload
        free = Signal()
        asks = Signal()
        m.d.comb += [
            free.eq(beat.initial | (panel_a.read.ready & panel_b.read.ready)),
            held.o.ready.eq(free & beats.i.ready),
            beats.i.valid.eq(held.o.valid & free),
            asks.eq(held.o.valid & beats.i.ready & ~beat.initial),
            panel_a.read.valid.eq(asks & panel_b.read.ready),
            panel_b.read.valid.eq(asks & panel_a.read.ready),
            panel_a.read.p.block.eq(beat.a), panel_a.read.p.row.eq(beat.row), panel_a.read.p.last.eq(beat.release_a),
            panel_b.read.p.block.eq(beat.b), panel_b.read.p.row.eq(beat.row), panel_b.read.p.last.eq(beat.release_b),
            *(beats.i.p[name].eq(beat[name]) for name in ("initial", "first", "last", "tile")),
        ]
        if "part" in self._beat.members:
            m.d.comb += panel_a.read.p.part.eq(beat.part)
        everyone = (1 << array.rows) - 1
        m.d.comb += beats.i.p.rows.eq(everyone)
        if array.rows > 1:
            with m.If(beat.initial & ~beat.common):
                m.d.comb += beats.i.p.rows.eq(1 << beat.initial_row)

        # Rejoin marks and operands before the array.
        marked = beats.o.payload
        there = Signal()
        moves = Signal()
        m.d.comb += [
            there.eq(Mux(marked.initial, self.initial.valid, panel_a.o.valid & panel_b.o.valid)),
            array.i.valid.eq(beats.o.valid & there),
            moves.eq(array.i.valid & array.i.ready),
            beats.o.ready.eq(array.i.ready & there),
            self.initial.ready.eq(array.i.ready & beats.o.valid & marked.initial),
            panel_a.o.ready.eq(moves & ~marked.initial),
            panel_b.o.ready.eq(moves & ~marked.initial),
            array.i.p.a.eq(panel_a.o.p.elements),
            array.i.p.b.eq(Mux(marked.initial, self.initial.p.elements, panel_b.o.p.elements)),
            *(array.i.p[name].eq(marked[name]) for name in marks.members),
        ]
        return m
