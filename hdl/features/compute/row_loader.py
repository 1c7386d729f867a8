"""Reader of labelled rows, which outputs one element at a time with the largest element of its row."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.compute.access import request_layout, response_layout
from hdl.features.compute.jobs import vector_job_layout
from hdl.features.compute.layer_list import VectorProgram
from hdl.features.compute.loop_nest import SIZE_BITS
from hdl.floating.format import FP32

__all__ = ["RowLoader", "loaded_layout"]


def loaded_layout():
    """Payload of an element, in column order.

    The ``last`` element of a row carries the row's ``label`` and its ``largest`` element, the first one if several
    are equal. A NaN is the largest element only if it is the first element of its row.
    """
    return data.StructLayout({"element": FP32.width, "largest": FP32.width, "label": 32, "last": 1})


class RowLoader(wiring.Component):
    """Read the rows of a job, each with its label.

    Requests are made row by row, one per cycle: the label, then the elements. Responses come in this order. A row
    takes one cycle for its label and one per element; each element is offered :attr:`latency` cycles after it was
    taken. A SOFTMAX has no labels; its first response is accepted one cycle later than in other jobs, or at any time
    after that. The three stages after the responses move together when the output is free, so ``response.ready``
    depends combinationally on ``o.ready``. ``job.ready`` is a function of registers.

    Parameters
    ----------
    lanes : int
        Number of elements in a memory row: 2, 4 or 8.
    memory_rows : int
        Number of rows in the largest memory.
    sequences : bool
        Whether a job can be a SOFTMAX.
    owner_bits : int
        Width of a buffer number in bits; 0 without buffer tags.

    Members
    -------
    job : In(stream of vector_job_layout(memory_rows, lanes, owner_bits))
        Sizes are at least 1.
    request : Out(stream of request_layout(memory_rows, owner_bits))
    response : In(stream of response_layout(lanes))
    o : Out(stream of loaded_layout())
    """

    latency = 3

    def __init__(self, *, lanes, memory_rows, sequences=False, owner_bits=0):
        if not isinstance(lanes, int) or lanes not in (2, 4, 8):
            raise ValueError(f"Lane count must be 2, 4 or 8, not {lanes!r}")
        if not isinstance(memory_rows, int) or memory_rows < 2:
            raise ValueError(f"Row count must be an integer of at least 2, not {memory_rows!r}")
        self._lanes = lanes
        self._memory_rows = memory_rows
        self._sequences = sequences
        super().__init__({
            "job": In(stream.Signature(vector_job_layout(memory_rows, lanes, owner_bits))),
            "request": Out(stream.Signature(request_layout(memory_rows, owner_bits))),
            "response": In(stream.Signature(response_layout(lanes))),
            "o": Out(stream.Signature(loaded_layout())),
        })

    def elaborate(self, platform):
        m = Module()
        job = Signal(self.job.payload.shape(), reset_less=True)
        asking = Signal()
        answering = Signal()
        begin = Signal()
        m.d.comb += [self.job.ready.eq(~asking & ~answering), begin.eq(self.job.valid & self.job.ready)]
        with m.If(begin):
            m.d.sync += [job.eq(self.job.payload), asking.eq(1), answering.eq(1)]
        self._elaborate_requests(m, job, begin, asking)
        self._elaborate_elements(m, job, begin, answering)
        return m

    def _elaborate_requests(self, m, job, begin, asking):
        """Request the memory rows for all rows of the matrix."""
        lane_bits = self._lanes.bit_length() - 1
        job_in = self.job.payload
        source_row = Signal(range(self._memory_rows), reset_less=True)  # memory row of the elements
        start = Signal.like(source_row)
        label = Signal(len(source_row) + lane_bits, reset_less=True)  # address of the label
        labels = Signal()  # a label is requested next
        left = Signal(SIZE_BITS, reset_less=True)
        columns = Signal(SIZE_BITS, reset_less=True)
        ends = Signal()
        m.d.comb += ends.eq(columns <= self._lanes)
        following = start + job.stride_source
        with m.If(self.request.ready | ~self.request.valid):
            m.d.sync += [
                self.request.valid.eq(asking),
                self.request.p.place.eq(Mux(labels, job.labels.place, job.source.place)),
                self.request.p.row.eq(Mux(labels, label[lane_bits:], source_row)),
            ]
            with m.If(asking):
                m.d.sync += [labels.eq(0), columns.eq(Mux(labels, job.columns, columns - self._lanes))]
                with m.If(labels):
                    m.d.sync += [label.eq(label + job.stride_labels), source_row.eq(start)]
                with m.Else():
                    m.d.sync += source_row.eq(source_row + 1)
                    with m.If(ends):
                        m.d.sync += [labels.eq(1), start.eq(following), left.eq(left - 1)]
                        if self._sequences:
                            with m.If(job.function == VectorProgram.SOFTMAX):
                                m.d.sync += [labels.eq(0), source_row.eq(following), columns.eq(job.columns)]
                        with m.If(left == 1):
                            m.d.sync += asking.eq(0)
        with m.If(begin):
            m.d.sync += [labels.eq(1), start.eq(job_in.source.row), left.eq(job_in.rows),
                         label.eq(Cat(job_in.labels_lane, job_in.labels.row))]
            if self._sequences:
                with m.If(job_in.function == VectorProgram.SOFTMAX):
                    m.d.sync += [labels.eq(0), source_row.eq(job_in.source.row), columns.eq(job_in.columns)]

    def _elaborate_elements(self, m, job, begin, answering):
        """Take each row's label and elements, find the largest element, and output them."""
        lane_bits = self._lanes.bit_length() - 1
        elements = self.response.p.elements
        labels = Signal()
        label = Signal(32, reset_less=True)
        lane = Signal(lane_bits, reset_less=True)
        column = Signal(SIZE_BITS, reset_less=True)
        left = Signal(SIZE_BITS, reset_less=True)
        move = Signal()
        last = Signal()
        full = Signal()  # the last element of its memory row
        edge = Signal(SIZE_BITS, reset_less=True)  # valid once the first label has been taken
        m.d.sync += edge.eq(job.columns - 1)
        begins = Signal()  # the cycle before the first element of a softmax (it has no labels)
        if self._sequences:
            m.d.comb += begins.eq(labels & (job.function == VectorProgram.SOFTMAX))
        m.d.comb += [
            move.eq(self.o.ready | ~self.o.valid),
            last.eq(column == edge),
            full.eq(column[:lane_bits].all()),
            self.response.ready.eq(move & answering & ~begins & (labels | full | last)),
        ]

        # Each response provides either one element or the label.
        fetched = data.StructLayout({"element": FP32.width, "label": 32, "first": 1, "last": 1})
        taken = Signal(fetched, reset_less=True)
        taken_valid = Signal()
        with m.If(move):
            m.d.sync += [
                taken_valid.eq(answering & self.response.valid & ~labels),
                taken.element.eq(elements[column[:lane_bits]]),
                taken.label.eq(label), taken.first.eq(column == 0), taken.last.eq(last)]
            with m.If(answering & ~begins & self.response.valid):
                with m.If(labels):
                    m.d.sync += [label.eq(elements[lane]), labels.eq(0), column.eq(0)]
                    m.d.sync += lane.eq(lane + job.stride_labels[:lane_bits])
                with m.Else():
                    m.d.sync += column.eq(column + 1)
                    with m.If(last):
                        m.d.sync += [labels.eq(1), left.eq(left - 1)]
                        if self._sequences:
                            with m.If(job.function == VectorProgram.SOFTMAX):
                                m.d.sync += [labels.eq(0), column.eq(0)]
                        with m.If(left == 1):
                            m.d.sync += answering.eq(0)
        with m.If(begins):
            m.d.sync += [labels.eq(0), column.eq(0)]
        with m.If(begin):
            m.d.sync += [labels.eq(1), left.eq(self.job.p.rows), lane.eq(self.job.p.labels_lane)]

        # Keys sort like the numbers; both zeros have the same key. A NaN is neither above nor below a number.
        element = data.View(FP32.layout, taken.element)
        key = Signal(FP32.width)
        nan = Signal()
        top = 1 << (FP32.width - 1)
        m.d.comb += [
            nan.eq(element.exponent.all() & element.fraction.any()),
            key.eq(Mux(element.sign, ~taken.element, taken.element | top)),
        ]
        with m.If(~taken.element[:-1].any()):
            m.d.comb += key.eq(top)
        keyed = Signal(fetched, reset_less=True)
        keyed_valid = Signal()
        keyed_key = Signal(FP32.width, reset_less=True)
        keyed_nan = Signal(reset_less=True)
        largest = Signal(FP32.width, reset_less=True)
        largest_key = Signal(FP32.width, reset_less=True)
        # At the last element of a row, the largest element so far is the row's largest.
        offered = Signal(fetched, reset_less=True)
        m.d.comb += [self.o.p.element.eq(offered.element), self.o.p.largest.eq(largest),
                     self.o.p.label.eq(offered.label), self.o.p.last.eq(offered.last)]
        with m.If(move):
            m.d.sync += [
                keyed_valid.eq(taken_valid), keyed.eq(taken), keyed_nan.eq(nan), keyed_key.eq(key),
                self.o.valid.eq(keyed_valid), offered.eq(keyed)]
            with m.If(keyed_valid & (keyed.first | (~keyed_nan & (keyed_key > largest_key)))):
                m.d.sync += [largest.eq(keyed.element), largest_key.eq(keyed_key | keyed_nan.replicate(FP32.width))]
