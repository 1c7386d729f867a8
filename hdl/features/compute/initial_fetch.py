# amaranth: UnusedElaboratable=no
# The constructor creates the submodules because their layouts are needed even without elaboration.
"""Fetch the initial values of a tile's sums: matrix elements or partial results."""

from amaranth.hdl import C, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.compute.access import place_shape, request_layout, response_layout
from hdl.features.compute.gemm_job import gemm_job_layout
from hdl.features.compute.loop_nest import SIZE_BITS, tile_layout
from hdl.features.compute.multiply_accumulate import SLOTS
from hdl.features.compute.product import initial_layout
from hdl.features.compute.row_fetch import RowFetch
from hdl.features.compute.row_sequence import RowSequence
from hdl.streams.stream import connect_stream, step_count

__all__ = ["InitialFetch"]


class InitialFetch(wiring.Component):
    """Read the initial values of tiles that request them, in the order the array uses them.

    Rows are ordered by row of units, then by slot; a row that is common to all rows (stride 0) is repeated for each
    slot. Beyond the edge of the matrix nothing is read, and the values are zero.

    A repeated tile starts from its own earlier results in C. It is read once fewer tiles are unfinished than the
    previous panel had, because its earlier results are then complete. A tile is finished when all its results are in
    memory.

    Tiles are taken before the array needs their values, as long as there is room for the values, and are passed to
    the drain at the same time. The first row of a tile is requested :attr:`planned` cycles after the tile is
    announced. Responses never wait.

    Parameters
    ----------
    rows, lanes : int
        Number of rows of the array, and of elements per memory row.
    memory_rows : int
        Rows of the largest memory.
    ahead : int
        Maximum number of tiles that are accepted and not finished.
    owner_bits : int
        Bits of a buffer number; 0 without buffer tags.

    Members
    -------
    job : In(gemm_job_layout(memory_rows, owner_bits))
        Held while tiles arrive.
    tiles : In(stream of tile_layout())
    drained : In(1)
        The last result of a tile is written.
    settled : In(1)
        All results written in earlier cycles are in the memory.
    request : Out(stream of request_layout(memory_rows, owner_bits))
    response : In(stream of response_layout(lanes))
        Always ready.
    o : Out(stream of initial_layout(lanes))
    """

    #: Latency in cycles from the offer of a tile to its first request.
    planned = 3

    def __init__(self, *, rows, lanes, memory_rows, ahead=31, owner_bits=0):
        self._rows = rows
        self._lanes = lanes
        self._ahead = ahead
        self._walk = RowSequence(rows=memory_rows, most=SLOTS, lanes=lanes, tag=place_shape(owner_bits))
        self._fetch = RowFetch(rows=memory_rows, answer=response_layout(lanes), owner_bits=owner_bits)
        super().__init__({
            "job": In(gemm_job_layout(memory_rows, owner_bits)),
            "tiles": In(stream.Signature(tile_layout())),
            "drained": In(1),
            "settled": In(1),
            "request": Out(stream.Signature(request_layout(memory_rows, owner_bits))),
            "response": In(stream.Signature(response_layout(lanes), always_ready=True)),
            "o": Out(stream.Signature(initial_layout(lanes))),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.walk = walk = self._walk
        m.submodules.fetch = fetch = self._fetch
        safe = self._elaborate_order(m)
        self._elaborate_plan(m, walk, safe)
        step = walk.o.payload
        connect_stream(m, self.response, fetch.response)
        connect_stream(m, fetch.request, self.request)
        m.d.comb += [
            fetch.i.valid.eq(walk.o.valid), walk.o.ready.eq(fetch.i.ready),
            fetch.i.p.place.eq(step.tag), fetch.i.p.row.eq(step.row), fetch.i.p.read.eq(step.keep.any()),
            self.o.valid.eq(fetch.o.valid), fetch.o.ready.eq(self.o.ready),
            self.o.p.elements.eq(fetch.o.p.answer.elements),
        ]
        return m

    def _elaborate_order(self, m):
        """Count tiles; return whether the offered tile may be read."""
        tile = self.tiles.payload
        unfinished, drained = Signal(range(self._ahead + 1)), Signal(range(self._ahead + 1))
        finished, taken = Signal(), Signal()
        # Number of tiles per panel; saturates at the maximum number of unfinished tiles.
        count, before = Signal(range(self._ahead + 1)), Signal(range(self._ahead + 1))
        most = Mux(tile.opens, count, before)
        m.d.comb += [finished.eq(self.settled & (drained != 0)), taken.eq(self.tiles.valid & self.tiles.ready)]
        step_count(m, unfinished, up=taken, down=finished)
        step_count(m, drained, up=self.drained, down=finished)
        with m.If(taken):
            m.d.sync += count.eq(Mux(tile.opens, 1, Mux(count == self._ahead, count, count + 1)))
            with m.If(tile.opens):
                m.d.sync += before.eq(count)
        return (unfinished != self._ahead) & (~tile.again | (unfinished < most))

    def _elaborate_plan(self, m, walk, safe):
        """Plan the row sequences of a tile, one per row of units, in three steps: wait, add, offer."""
        job, tile = self.job, self.tiles.payload
        row_bits, lane_bits = self._rows.bit_length() - 1, self._lanes.bit_length() - 1
        matrix = data.View(job.c.shape(), Mux(tile.again, job.c, job.start))
        common = Signal()
        product, offset = (Signal(len(walk.i.p.row), name=name, reset_less=True) for name in ("product", "offset"))
        left = {name: Signal(SIZE_BITS, name=f"left_{name}", reset_less=True) for name in ("m", "n")}
        planned = Signal(walk.i.payload.shape(), reset_less=True)
        number = Signal(range(self._rows)) if row_bits else C(0, 1)
        lines = Signal(SIZE_BITS)
        m.d.comb += [
            common.eq(~tile.again & (job.start.stride == 0)),
            walk.i.payload.eq(planned),
            # If the number of matrix rows is not a multiple of the rows of units, the first rows of units have one
            # more line than the others.
            lines.eq((left["m"] + (self._rows - 1) - number) >> row_bits),
            walk.i.p.lines.eq(Mux(common, ~0, lines)),
        ]
        with m.FSM():
            with m.State("Wait"):
                m.d.sync += [
                    product.eq(tile.m * matrix.stride), offset.eq(matrix.row + (tile.n >> lane_bits)),
                    left["m"].eq(job.m - tile.m), left["n"].eq(job.n - tile.n)]
                with m.If(self.tiles.valid & safe):
                    m.d.comb += self.tiles.ready.eq(~tile.initial)
                    with m.If(tile.initial):
                        m.next = "Add"
            with m.State("Add"):
                m.d.sync += [
                    planned.row.eq(product + offset), planned.pitch.eq(matrix.stride << row_bits),
                    planned.line.eq((1 << tile.tile) - 1), planned.group.eq((SLOTS >> tile.tile) - 1),
                    planned.edge.eq((left["n"] - 1) >> lane_bits), planned.mask.eq(~0),
                    planned.tag.eq(matrix.place)]
                m.next = "Offer"
            with m.State("Offer"):
                ends = common if not row_bits else common | (number == self._rows - 1)
                m.d.comb += walk.i.valid.eq(1)
                with m.If(walk.i.ready):
                    m.d.sync += planned.row.eq(planned.row + matrix.stride)
                    if row_bits:
                        m.d.sync += number.eq(number + 1)
                    with m.If(ends if row_bits else C(1)):
                        m.d.comb += self.tiles.ready.eq(1)
                        if row_bits:
                            m.d.sync += number.eq(0)
                        m.next = "Wait"
