# amaranth: UnusedElaboratable=no
# The constructor creates the parts, since their layouts are needed even without elaboration.
"""Fetch operands: read the panels announced by the loop nest into the panel buffers."""

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.compute.access import memory_of, request_layout, response_layout
from hdl.features.compute.array import ONE
from hdl.features.compute.gemm_job import gemm_job_layout
from hdl.features.compute.layer_list import Place
from hdl.features.compute.loop_nest import SIZE_BITS, panel_layout
from hdl.features.compute.multiply_accumulate import SLOTS
from hdl.features.compute.panel import fill_layout
from hdl.features.compute.row_fetch import RowFetch
from hdl.features.compute.row_sequence import RowSequence
from hdl.streams.stream import connect_stream

__all__ = ["OperandFetch"]


class OperandFetch(wiring.Component):
    """Read the announced panels of A and B into the panel buffers.

    For each announcement, A is read before B. Panels are read line by line, and lines from left to right, as far as
    rows, columns and terms exist. A memory row is a row of a block if lines run along k, otherwise a column. For an
    ONES operand, the same rows are output, filled with 1.0, without reading memory.

    Latency is :attr:`planned` cycles from announcing a panel to requesting its first row; then one row is requested
    per cycle while the next panel is planned. A row is sent to its buffer in the cycle after its response. Responses
    never wait.

    Parameters
    ----------
    rows : int
        Number of rows in the array: 1, 2 or 4.
    lanes : int
        Number of elements per memory row: 2, 4 or 8.
    blocks : int
        Number of blocks per panel.
    memory_rows : int
        Number of rows in the largest memory.
    owner_bits : int
        Width of a buffer number in bits; 0 without buffer tags.

    Members
    -------
    job : In(gemm_job_layout(memory_rows, owner_bits))
        Must be held while panels arrive.
    panels : In(stream of panel_layout())
    request : Out(stream of request_layout(memory_rows, owner_bits))
    response : In(stream of response_layout(lanes))
        Always ready.
    fill_a, fill_b : Out(stream of fill_layout(lanes, blocks))
    """

    #: Latency in cycles from offering a panel to its first request.
    planned = 4

    def __init__(self, *, rows, lanes, blocks, memory_rows, owner_bits=0):
        self._rows = rows
        self._lanes = lanes
        self._blocks = blocks
        self._tag = data.StructLayout({
            "b": 1, "block": range(blocks), "row": range(lanes), "transposed": 1, "ones": 1, "last": 1})
        self._walk = RowSequence(rows=memory_rows, most=blocks * lanes, lanes=lanes, tag=1)
        self._fetch = RowFetch(rows=memory_rows, answer=response_layout(lanes), tag=self._tag, owner_bits=owner_bits)
        fill = stream.Signature(fill_layout(lanes, blocks))
        super().__init__({
            "job": In(gemm_job_layout(memory_rows, owner_bits)),
            "panels": In(stream.Signature(panel_layout())),
            "request": Out(stream.Signature(request_layout(memory_rows, owner_bits))),
            "response": In(stream.Signature(response_layout(lanes), always_ready=True)),
            "fill_a": Out(fill),
            "fill_b": Out(fill),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.walk = walk = self._walk
        m.submodules.fetch = fetch = self._fetch
        self._elaborate_plan(m, walk)
        self._elaborate_requests(m, walk, fetch)
        self._elaborate_fills(m, fetch)
        return m

    def _elaborate_plan(self, m, walk):
        """Plan each panel's row sequence in four steps: choose, multiply, add, offer."""
        job, panel = self.job, self.panels.payload
        row_bits, lane_bits = self._rows.bit_length() - 1, self._lanes.bit_length() - 1
        slot_bits = SLOTS.bit_length() - 1
        # Number of rows, columns and terms of a panel. They are stable long before a job's first panel arrives.
        logs = {"m": job.tile + job.row_tiles + row_bits,
                "n": slot_bits - job.tile + job.column_tiles + lane_bits, "k": job.rounds}
        sizes = {name: Signal(SIZE_BITS + 1, name=f"size_{name}", reset_less=True) for name in logs}
        for name, log in logs.items():
            bits = Signal(5, name=f"bits_{name}")
            m.d.comb += bits.eq(log)
            with m.If(bits > SIZE_BITS):
                m.d.sync += sizes[name].eq(1 << SIZE_BITS)
            with m.Else():
                m.d.sync += sizes[name].eq(1 << bits[:4])

        side = Signal()
        chosen = Signal()
        matrix = Mux(side, job.b, job.a)
        matrix = data.View(job.a.shape(), matrix)
        along_k = Mux(side, job.transpose_b, ~job.transpose_a)
        extent = {name: Signal(SIZE_BITS, name=f"extent_{name}", reset_less=True) for name in ("x", "k")}  # minus one
        outer, inner = (Signal(SIZE_BITS, name=f"{name}_origin", reset_less=True) for name in ("line", "group"))
        product = Signal(len(walk.i.p.row), reset_less=True)
        offset = Signal(len(walk.i.p.row), reset_less=True)
        planned = Signal(walk.i.payload.shape(), reset_less=True)
        m.d.comb += [walk.i.payload.eq(planned), chosen.eq(Mux(side, panel.b, panel.a))]

        def last(name, size, origin, most):
            left = job[name] - origin
            value = Signal(SIZE_BITS + 1, name=f"last_{most}")
            m.d.comb += value.eq(Mux(left > size, size, left) - 1)
            return value[:SIZE_BITS]

        of_a, of_b = last("m", sizes["m"], panel.m, "a"), last("n", sizes["n"], panel.n, "b")
        with m.FSM():
            with m.State("Choose"):
                origin = Mux(side, panel.n, panel.m)
                m.d.sync += [
                    extent["x"].eq(Mux(side, of_b, of_a)), extent["k"].eq(last("k", sizes["k"], panel.k, "k")),
                    outer.eq(Mux(along_k, origin, panel.k)), inner.eq(Mux(along_k, panel.k, origin))]
                with m.If(self.panels.valid):
                    m.next = "Multiply"
                    with m.If(~chosen):
                        m.d.sync += side.eq(1)
                        m.next = "Choose"
            with m.State("Multiply"):
                m.d.sync += [product.eq(outer * matrix.stride), offset.eq(matrix.row + (inner >> lane_bits))]
                m.next = "Add"
            with m.State("Add"):
                m.d.sync += [
                    planned.row.eq(product + offset), planned.pitch.eq(matrix.stride), planned.tag.eq(side),
                    planned.line.eq(Mux(along_k, extent["x"], extent["k"])),
                    planned.group.eq(Mux(along_k, extent["k"], extent["x"]) >> lane_bits)]
                m.next = "Offer"
            with m.State("Offer"):
                m.d.comb += walk.i.valid.eq(1)
                with m.If(walk.i.ready):
                    m.next = "Choose"
                    m.d.sync += side.eq(~side & panel.b)
                    m.d.comb += self.panels.ready.eq(side | ~panel.b)

    def _elaborate_requests(self, m, walk, fetch):
        """Request a sequence's rows, with their positions in the panel."""
        job, step = self.job, walk.o.payload
        lane_bits, block_bits = self._lanes.bit_length() - 1, self._blocks.bit_length() - 1
        matrix = Mux(step.tag, job.b.place, job.a.place)
        transposed = Mux(step.tag, job.transpose_b, ~job.transpose_a)
        line, group = (Signal(block_bits, name=name) for name in ("line_group", "group"))
        tag = fetch.i.p.tag
        m.d.comb += [
            line.eq(step.line >> lane_bits), group.eq(step.group),
            fetch.i.valid.eq(walk.o.valid), walk.o.ready.eq(fetch.i.ready),
            fetch.i.p.place.eq(matrix), fetch.i.p.row.eq(step.row), fetch.i.p.read.eq(~tag.ones),
            tag.b.eq(step.tag), tag.transposed.eq(transposed), tag.ones.eq(memory_of(matrix) == Place.ONES.value),
            tag.row.eq(step.line), tag.last.eq(step.last),
            tag.block.eq(Mux(transposed, line | Cat(group)[::-1], group | Cat(line)[::-1])),
        ]

    def _elaborate_fills(self, m, fetch):
        """Forward the rows to the buffers of both panels."""
        connect_stream(m, self.response, fetch.response)
        connect_stream(m, fetch.request, self.request)
        fetched, tag = fetch.o.payload, fetch.o.p.tag
        elements = Signal(data.ArrayLayout(unsigned(32), self._lanes))
        for lane in range(self._lanes):
            m.d.comb += elements[lane].eq(Mux(tag.ones, ONE, fetched.answer.elements[lane]))
        m.d.comb += fetch.o.ready.eq(Mux(tag.b, self.fill_b.ready, self.fill_a.ready))
        for fill, own in ((self.fill_a, ~tag.b), (self.fill_b, tag.b)):
            m.d.comb += [fill.valid.eq(fetch.o.valid & own), fill.p.elements.eq(elements)]
            m.d.comb += [fill.p[name].eq(tag[name]) for name in ("block", "row", "transposed", "last")]
