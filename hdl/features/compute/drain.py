# amaranth: UnusedElaboratable=no
# The constructor creates the parts because their layouts are needed even without elaboration.
"""Drain of a matrix product: writes results of the array to rows of C."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.compute.access import request_layout, response_layout, write_layout
from hdl.features.compute.array import result_layout
from hdl.features.compute.gemm_job import gemm_job_layout
from hdl.features.compute.loop_nest import SIZE_BITS, tile_layout
from hdl.features.compute.multiply_accumulate import SLOTS
from hdl.features.compute.row_fetch import RowFetch
from hdl.features.compute.row_sequence import RowSequence
from hdl.floating.format import FP32
from hdl.streams.stream import connect_stream

__all__ = ["Drain", "above_zero"]

#: Capacity of the gate buffer in rows: enough for one tile with four rows of units.
_GATES = 33


def above_zero(element):
    """Whether an encoding represents a positive number."""
    magnitude = element[:FP32.width - 1]
    infinity = ((1 << FP32.exponent_bits) - 1) << FP32.fraction_bits
    return ~element[-1] & magnitude.any() & (magnitude <= infinity)


class Drain(wiring.Component):
    """Write results to their rows of C, with the epilogue of the product.

    Results beyond the edge of C are dropped. Final results pass the epilogue: ``relu`` turns negative numbers and
    -0.0 into +0.0; ``gated`` sets elements to +0.0 if the gate's is not positive. NaNs from the array are canonical
    and kept. Rows of the gate are read as soon as a tile is announced; only their flags are kept.

    One result row is taken per cycle if ``write`` is free and the gate has arrived; it is offered one cycle later.
    ``write`` is a register; ``i.ready`` depends combinationally on ``write.ready``. Responses never wait.

    Parameters
    ----------
    rows, lanes : int
        Number of rows and columns of the array.
    memory_rows : int
        Number of rows of the largest memory.
    owner_bits : int
        Width of a buffer number in bits; 0 without buffer tags.

    Members
    -------
    job : In(gemm_job_layout(memory_rows, owner_bits))
        Held while tiles arrive.
    tiles : In(stream of tile_layout())
    i : In(stream of result_layout(rows, lanes))
    request : Out(stream of request_layout(memory_rows, owner_bits))
    response : In(stream of response_layout(lanes))
        Always ready.
    write : Out(stream of write_layout(memory_rows, lanes, owner_bits))
    drained : Out(1)
        The last row of a tile has been accepted, or is beyond the edge.
    complete : Out(1)
        High together with ``drained`` if the row is also the last row of C.
    """

    #: Latency in cycles from when a tile is offered until its first request.
    planned = 3
    #: Latency in cycles from when a result row is ready until it is written.
    latency = 1

    def __init__(self, *, rows, lanes, memory_rows, owner_bits=0):
        self._rows = rows
        self._lanes = lanes
        most = SLOTS * rows
        self._walk = RowSequence(rows=memory_rows, most=most, lanes=lanes, tag=data.StructLayout(
            {"partial": 1, "final": 1}))
        self._gate_sequence = RowSequence(rows=memory_rows, most=most, lanes=lanes)
        self._gate = RowFetch(rows=memory_rows, answer=lanes, depth=_GATES, owner_bits=owner_bits)
        super().__init__({
            "job": In(gemm_job_layout(memory_rows, owner_bits)),
            "tiles": In(stream.Signature(tile_layout())),
            "i": In(stream.Signature(result_layout(rows, lanes))),
            "request": Out(stream.Signature(request_layout(memory_rows, owner_bits))),
            "response": In(stream.Signature(response_layout(lanes), always_ready=True)),
            "write": Out(stream.Signature(write_layout(memory_rows, lanes, owner_bits))),
            "drained": Out(1),
            "complete": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.walk = walk = self._walk
        m.submodules.gate_sequence = gate_sequence = self._gate_sequence
        m.submodules.gate = gate = self._gate
        self._elaborate_plan(m, walk, gate_sequence)
        step = gate_sequence.o.payload
        connect_stream(m, gate.request, self.request)
        m.d.comb += [
            gate.i.valid.eq(gate_sequence.o.valid), gate_sequence.o.ready.eq(gate.i.ready),
            gate.i.p.place.eq(self.job.gate.place), gate.i.p.row.eq(step.row), gate.i.p.read.eq(step.keep.any()),
            gate.response.valid.eq(self.response.valid),
        ]
        for lane in range(self._lanes):
            m.d.comb += gate.response.payload[lane].eq(above_zero(self.response.p.elements[lane]))
        self._elaborate_write(m, walk, gate)
        return m

    def _elaborate_plan(self, m, walk, gate_sequence):
        """Plan a tile's row sequences in C and, for a final tile, in the gate. It takes three steps: multiply, add,
        offer."""
        job, tile = self.job, self.tiles.payload
        lane_bits = self._lanes.bit_length() - 1
        left = {name: Signal(SIZE_BITS, name=f"left_{name}", reset_less=True) for name in ("m", "n")}
        offered, gate_offered = Signal(), Signal()
        walks = ((walk, job.c, offered), (gate_sequence, job.gate, gate_offered))
        groups = SLOTS >> tile.tile
        with m.If(walk.i.ready):
            m.d.sync += offered.eq(0)
        with m.If(gate_sequence.i.ready):
            m.d.sync += gate_offered.eq(0)
        starts = Signal()
        for target, matrix, offer in walks:
            payload = target.i.payload
            product, offset = (Signal(len(payload.row), name=name, reset_less=True) for name in ("product", "offset"))
            planned = Signal(payload.shape(), name="planned", reset_less=True)
            m.d.sync += [product.eq(tile.m * matrix.stride), offset.eq(matrix.row + (tile.n >> lane_bits))]
            m.d.comb += [payload.eq(planned), target.i.valid.eq(offer)]
            with m.If(starts):
                m.d.sync += [
                    planned.row.eq(product + offset), planned.pitch.eq(matrix.stride),
                    planned.line.eq((self._rows << tile.tile) - 1), planned.group.eq(groups - 1),
                    planned.lines.eq(left["m"]), planned.edge.eq((left["n"] - 1) >> lane_bits),
                    *(planned.mask[lane].eq((left["n"] - 1)[:lane_bits] >= lane) for lane in range(self._lanes))]
                if target is walk:
                    # Whatever the order of the loops, the last tile contains the last row and column of C, and
                    # completes their sums.
                    ends_m = left["m"] <= self._rows << tile.tile
                    ends_n = left["n"] <= (groups << lane_bits)
                    m.d.sync += [planned.tag.partial.eq(tile.partial),
                                 planned.tag.final.eq(ends_m & ends_n & ~tile.partial)]
        m.d.sync += [left["m"].eq(job.m - tile.m), left["n"].eq(job.n - tile.n)]
        with m.FSM():
            with m.State("Multiply"):
                with m.If(self.tiles.valid):
                    m.next = "Add"
            with m.State("Add"):
                # Only registers are used, to avoid a path from the write port to the tile queue.
                m.d.comb += starts.eq(~offered & ~gate_offered)
                with m.If(starts):
                    m.d.comb += self.tiles.ready.eq(1)
                    m.d.sync += [offered.eq(1), gate_offered.eq(job.gated & ~tile.partial)]
                    m.next = "Multiply"

    def _elaborate_write(self, m, walk, gate):
        """Combine results with their row addresses and gates, apply the epilogue, and write them."""
        job, step = self.job, walk.o.payload
        final, gated = Signal(), Signal()
        free, take = Signal(), Signal()
        ending, ending_all = Signal(), Signal()
        m.d.comb += [
            final.eq(~step.tag.partial), gated.eq(job.gated & final),
            free.eq(~self.write.valid | self.write.ready),
            take.eq(free & self.i.valid & walk.o.valid & (~gated | gate.o.valid)),
            self.i.ready.eq(take), walk.o.ready.eq(take), gate.o.ready.eq(take & gated),
            self.drained.eq(free & ending), self.complete.eq(free & ending & ending_all),
        ]
        written = Signal(self.write.payload.shape(), reset_less=True)
        m.d.comb += self.write.payload.eq(written)
        with m.If(free):
            m.d.sync += [
                self.write.valid.eq(take & step.keep.any()), ending.eq(take & self.i.p.last),
                ending_all.eq(step.tag.final), written.place.eq(job.c.place), written.row.eq(step.row),
                written.keep.eq(step.keep)]
            for lane in range(self._lanes):
                element = self.i.p.elements[lane]
                zero = (final & job.relu & element[-1]) | (gated & ~gate.o.p.answer[lane])
                m.d.sync += written.elements[lane].eq(Mux(zero, 0, element))
