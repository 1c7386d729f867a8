# amaranth: UnusedElaboratable=no
# The constructor creates the parts, since their latencies are needed even without elaboration.
"""Matrix products of operands in memory: C = epilogue(start + A · B)."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from hdl.features.compute.access import unit_members
from hdl.features.compute.drain import Drain
from hdl.features.compute.feature import FP32
from hdl.features.compute.gemm_job import gemm_job_layout
from hdl.features.compute.initial_fetch import InitialFetch
from hdl.features.compute.loop_nest import tile_layout
from hdl.features.compute.operand_fetch import OperandFetch
from hdl.features.compute.product import MatrixProduct
from hdl.features.compute.scale_mask import ScaleMask
from hdl.streams.stream import Queue, connect_stream

__all__ = ["Gemm"]

#: Maximum number of tiles that have been announced but not yet drained.
_TILES = 17
#: Maximum number of rows that have been requested but not yet received.
_REQUESTS = 33


class Gemm(wiring.Component):
    """Multiply matrices in memory and write the product to memory.

    A job is accepted when none is running, and ends with a one-cycle ``done`` when all of C is in memory. If its
    panels do not fit, nothing is written, and it ends with a one-cycle ``bad``, :attr:`checked` cycles after it was
    accepted. Panels do not fit if one needs more than ``blocks`` blocks, or if several panels along the direction of
    memory rows are shorter than a row. Bases and strides are not checked.

    At most one row is requested per cycle, in this priority: initial values, the gate, operands. Responses arrive in
    the order of the requests, at any later time, and are always accepted.

    Parameters
    ----------
    rows : int
        Number of rows of units: 1, 2 or 4.
    lanes : int
        Number of columns of units, and of elements in a memory row: 2, 4 or 8, and at least ``rows``.
    dsps : int
        Number of DSP blocks each unit may use: 4, 2 or 1.
    blocks : int
        Number of ``lanes`` by ``lanes`` blocks in a panel: a power of two between 2 and 512.
    memory_rows : int
        Number of rows in the largest memory, at least 2.
    scale_mask : bool
        Whether results can be scaled and masked; if not, the job's ``scale_mask`` has no effect.
    operands : str
        Multiplication format of the operands: a key of :data:`~hdl.features.compute.operands.OPERANDS`.
    owner_bits : int
        Width of a buffer number in bits; 0 without buffer tags.

    Members
    -------
    job : In(stream of gemm_job_layout(memory_rows, owner_bits))
    request : Out(stream of request_layout(memory_rows, owner_bits))
    response : In(stream of response_layout(lanes))
    write : Out(stream of write_layout(memory_rows, lanes, owner_bits))
    settled : In(1)
        Whether all writes accepted in earlier cycles are in memory.
    done : Out(1)
        C is in memory.
    bad : Out(1)
        The job is rejected.
    """

    #: Latency in cycles from the acceptance of a job to ``bad``.
    checked = 4

    def __init__(self, *, rows, lanes, dsps=4, blocks=128, memory_rows, scale_mask=False, operands=FP32,
                 owner_bits=0):
        if not isinstance(memory_rows, int) or memory_rows < 2:
            raise ValueError(f"Memory row count must be an integer of at least 2, not {memory_rows!r}")
        self._product = MatrixProduct(rows=rows, columns=lanes, dsps=dsps, blocks=blocks, operands=operands)
        self._operands = OperandFetch(
            rows=rows, lanes=lanes, blocks=blocks, memory_rows=memory_rows, owner_bits=owner_bits)
        self._initial = InitialFetch(rows=rows, lanes=lanes, memory_rows=memory_rows, owner_bits=owner_bits)
        self._drain = Drain(rows=rows, lanes=lanes, memory_rows=memory_rows, owner_bits=owner_bits)
        self._scale_mask = ScaleMask(rows=rows, lanes=lanes, dsps=dsps) if scale_mask else None
        self._job = gemm_job_layout(memory_rows, owner_bits)
        super().__init__({
            **unit_members(self._job, lanes=lanes, memory_rows=memory_rows, owner_bits=owner_bits), "bad": Out(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.product = product = self._product
        m.submodules.operands = operands = self._operands
        m.submodules.initial = initial = self._initial
        m.submodules.drain = drain = self._drain
        self._elaborate_job(m)
        self._elaborate_tiles(m)
        self._elaborate_requests(m, (initial, drain, operands))
        for source, sink in ((product.panels, operands.panels), (operands.fill_a, product.fill_a),
                             (operands.fill_b, product.fill_b), (initial.o, product.initial),
                             (drain.write, self.write)):
            connect_stream(m, source, sink)
        results = product.o
        if self._scale_mask is not None:
            m.submodules.scale_mask = scale_mask = self._scale_mask
            m.d.comb += scale_mask.epilogue.eq(operands.job.scale_mask)
            connect_stream(m, results, scale_mask.i)
            results = scale_mask.o
        connect_stream(m, results, drain.i)
        m.d.comb += [initial.drained.eq(drain.drained), initial.settled.eq(self.settled)]
        return m

    def _elaborate_job(self, m):
        """Hold the job until its product has been written."""
        product, requested = self._product, self.job.payload
        job = Signal(self._job, reset_less=True)
        asked = product.job.payload
        m.d.comb += [part.job.eq(job) for part in (self._operands, self._initial, self._drain)]
        m.d.comb += [asked[name].eq(requested[name])
                     for name in ("m", "n", "k", "tile", "row_tiles", "column_tiles", "rounds", "order")]
        m.d.comb += [
            asked.resume.eq(requested.initial), asked.common.eq(requested.start.stride == 0),
            asked.align_m.eq(requested.transpose_a), asked.align_k.eq(~requested.transpose_a | requested.transpose_b)]
        m.d.sync += [self.done.eq(0), self.bad.eq(0)]
        with m.FSM():
            with m.State("Idle"):
                m.d.comb += [product.job.valid.eq(self.job.valid), self.job.ready.eq(product.job.ready)]
                m.d.sync += job.eq(requested)
                with m.If(self.job.valid & self.job.ready):
                    m.next = "Run"
            with m.State("Run"):
                with m.If(product.bad):
                    m.d.sync += self.bad.eq(1)
                    m.next = "Idle"
                with m.If(self._drain.complete):
                    m.next = "Settle"
            with m.State("Settle"):
                with m.If(self.settled):
                    m.d.sync += self.done.eq(1)
                    m.next = "Idle"

    def _elaborate_tiles(self, m):
        """When a tile's initial values are requested, announce it to the stages that process its results."""
        tiles = self._product.tiles
        m.submodules.tiles = queue = Queue(shape=tile_layout(), depth=_TILES)
        sinks = [self._initial.tiles, queue.i, *([] if self._scale_mask is None else [self._scale_mask.tiles])]
        m.d.comb += tiles.ready.eq(Cat(sink.ready for sink in sinks).all())
        for sink in sinks:
            ready = Cat(peer.ready for peer in sinks if peer is not sink)
            m.d.comb += [sink.valid.eq(tiles.valid & ready.all()), sink.payload.eq(tiles.payload)]
        connect_stream(m, queue.o, self._drain.tiles)

    def _elaborate_requests(self, m, parts):
        """Arbitrate the parts' requests by priority, and route the responses back."""
        m.submodules.owners = owners = Queue(shape=2, depth=_REQUESTS)
        request = Signal(self.request.payload.shape(), reset_less=True)
        free = Signal()
        m.d.comb += [
            self.request.payload.eq(request), free.eq((~self.request.valid | self.request.ready) & owners.i.ready),
            self.response.ready.eq(1), owners.o.ready.eq(self.response.valid)]
        with m.If(self.request.ready):
            m.d.sync += self.request.valid.eq(0)
        taken = ~free
        for number, part in enumerate(parts):
            m.d.comb += [
                part.request.ready.eq(~taken), part.response.payload.eq(self.response.payload),
                part.response.valid.eq(self.response.valid & (owners.o.payload == number))]
            with m.If(part.request.valid & ~taken):
                m.d.comb += [owners.i.valid.eq(1), owners.i.payload.eq(number)]
                m.d.sync += [self.request.valid.eq(1), request.eq(part.request.payload)]
            taken = taken | part.request.valid
