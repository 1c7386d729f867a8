"""Job list of the MASK command: memory layout of a job, and a reader that checks each job."""

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, exact_log2

from hdl.masking.mask import COUNT_BITS, INDEX_BITS, KINDS, job_layout
from hdl.streams.stream import beat_layout

__all__ = ["MASK_JOB_WORDS", "JobReader", "checked_job_layout", "mask_job_layout"]

MASK_JOB_WORDS = 8
"""Number of words of a job in the weight memory (:func:`mask_job_layout`)."""

_FIELDS = ("length_rows", "length_columns", "first_row", "end_row", "first_column", "end_column", "width")


def mask_job_layout():
    """Layout of a MASK job in eight words: a batch of matrices in memory and their mask.

    ``kinds`` has one bit per kind of mask, in the order of :data:`hdl.masking.mask.KINDS`; see that module for the
    other fields. ``elements`` is the number of memory elements that the job occupies: every row of a matrix begins in
    a new memory row, so it equals count * rows * ceil(columns / lanes) * lanes.
    """
    return data.StructLayout({
        "kinds": 7, "reserved": 9, "count": 16,
        "rows": 16, "columns": 16,
        "elements": 32,
        "diagonal": signed(32),
        "length_rows": 16, "length_columns": 16,
        "first_row": 16, "end_row": 16,
        "first_column": 16, "end_column": 16,
        "width": 16, "reserved_end": 16,
    })


def checked_job_layout(elements):
    """Layout of a checked job: the job for the mask circuit, and its number of elements (at most ``elements``)."""
    return data.StructLayout({"job": job_layout(INDEX_BITS), "elements": range(elements + 1)})


class JobReader(wiring.Component):
    """Read the jobs of a list in memory one after another, and offer each valid job.

    A job is invalid

    - if it has no rows, columns or matrices, or if a field has more bits than the circuit's indices;
    - if ``elements`` is not count * rows * ceil(columns / lanes) * lanes, or exceeds the rest of ``length``;
    - if it is external and needs more than the rest of ``words``;
    - if the list ends before the job.

    Reserved bits are ignored, and fields of disabled kinds are checked only for their width. Products are computed by
    shifting and adding for as long as a factor has bits left.

    A job is offered :meth:`latency` cycles after its first beat, and the reader begins the next job one cycle later.
    ``i.ready`` depends only on registers, and ``o`` consists of registers.

    Parameters
    ----------
    lanes : int
        Number of elements per beat: 1, 2, 4 or 8.
    elements, words : int
        Maximum number of data elements, and of words of external masks.

    Members
    -------
    start : In(1)
        Begins a list. Only the first pulse after reset has an effect.
    length : In(range(elements + 1))
        Total number of data elements of the jobs; taken with ``start``.
    words : In(range(words + 1))
        Number of words of external masks in memory; taken with ``start``.
    empty : In(1)
        The list is empty and has no beats; taken with ``start``.
    i : In(stream of beat_layout(lanes))
        Beats of the list; the last one has ``last``, and ends a job.
    o : Out(stream of checked_job_layout(elements))
    external : Out(1)
        High in the cycle before an external job is offered, or before its last check rejects it.
    complete : Out(1)
        The jobs taken from ``o`` make up ``length``, and no further job is offered.
    bad : Out(1)
        The next job is invalid, and no further job is offered.
    """

    def __init__(self, *, lanes, elements, words):
        self._lanes = lanes
        self._elements = elements
        self._words = words
        super().__init__({
            "start": In(1),
            "length": In(range(elements + 1)),
            "words": In(range(words + 1)),
            "empty": In(1),
            "i": In(stream.Signature(beat_layout(lanes))),
            "o": Out(stream.Signature(checked_job_layout(elements))),
            "external": Out(1),
            "complete": Out(1),
            "bad": Out(1),
        })

    @staticmethod
    def latency(rows, columns, *, lanes):
        """Return the latency for a job with the given numbers of rows and columns."""
        return 8 // lanes + rows.bit_length() + columns.bit_length() + 2

    def elaborate(self, platform):
        m = Module()
        lanes = self._lanes
        lane_bits = exact_log2(lanes)
        # All valid numbers in the following code fit in this width.
        width = max(COUNT_BITS, bits_for(self._elements))

        job = Signal(mask_job_layout())
        beats_in = 8 // lanes
        beat = Signal(range(max(beats_in, 2)))
        ended = Signal()
        left = Signal.like(self.length)
        words_left = Signal.like(self.words)

        # Both products add the same shifted addend. A job is invalid if a bit that it needs has been shifted out.
        addend = Signal(width)
        lost = Signal()
        factor, beat_factor = Signal(INDEX_BITS), Signal(INDEX_BITS)
        product, beat_product = Signal(width), Signal(width)
        sums = Signal(width + 1), Signal(width + 1)
        excessive = Signal()
        final = Signal()

        zero = ~(job.rows.any() & job.columns.any() & job.count.any())
        halves = (job.rows, job.columns, *(job[name] for name in _FIELDS))
        wide = Cat(half[INDEX_BITS:].any() for half in halves).any() | (
            job.diagonal.as_unsigned()[INDEX_BITS:] != job.diagonal[-1].replicate(32 - INDEX_BITS))
        needed = Signal(width - 4)
        external = job.kinds[KINDS.index("external")]
        taken = job.elements[:len(left)]
        unequal = job.elements != beat_product.shift_left(lane_bits)
        offered = self.o.payload.job
        m.d.comb += [
            sums[0].eq(product + Mux(factor[0], addend, 0)),
            sums[1].eq(beat_product + Mux(beat_factor[0], addend, 0)),
            final.eq(factor[1:] == 0),
            needed.eq(Mux(external, product[5:] + product[:5].any(), 0)),
            self.o.payload.elements.eq(taken),
            offered.rows.eq(job.rows),
            offered.columns.eq(job.columns),
            offered.count.eq(job.count),
            offered.mask.diagonal.eq(job.diagonal),
            *(offered.mask[name].eq(job[name]) for name in _FIELDS),
            *(offered.mask[name].eq(kind) for name, kind in zip(KINDS, job.kinds, strict=True)),
        ]

        def multiply():
            """Add the next multiple to the products."""
            m.d.sync += [
                product.eq(sums[0]),
                beat_product.eq(sums[1]),
                addend.eq(addend.shift_left(1)),
                lost.eq(lost | addend[-1]),
                factor.eq(factor >> 1),
                beat_factor.eq(beat_factor >> 1),
                excessive.eq(excessive | sums[0][-1] | sums[1][-1] | (lost & (factor[0] | beat_factor[0]))),
            ]

        with m.FSM():
            with m.State("Idle"):
                with m.If(self.start):
                    m.d.sync += [left.eq(self.length), words_left.eq(self.words), ended.eq(self.empty)]
                    m.next = "Fetch"

            with m.State("Fetch"):
                m.d.comb += [self.complete.eq(left == 0), self.i.ready.eq(~ended & (left != 0))]
                with m.If(ended & (left != 0)):
                    m.next = "Bad"
                with m.Elif(self.i.valid & self.i.ready):
                    m.d.sync += [
                        job.eq(Cat(job.as_value()[32 * lanes:], self.i.payload.elements)),
                        beat.eq(Mux(beat == beats_in - 1, 0, beat + 1)),
                    ]
                    with m.If(beat == beats_in - 1):
                        m.d.sync += ended.eq(self.i.payload.last)
                        m.next = "Check"

            with m.State("Check"):
                m.d.sync += [
                    addend.eq(job.count), lost.eq(0), excessive.eq(0), product.eq(0), beat_product.eq(0),
                    factor.eq(job.rows), beat_factor.eq(0),
                ]
                m.next = "Rows"
                with m.If(zero | wide):
                    m.next = "Bad"

            with m.State("Rows"):
                multiply()
                with m.If(final):
                    m.d.sync += [
                        addend.eq(sums[0]), lost.eq(0), product.eq(0), factor.eq(job.columns),
                        beat_factor.eq((job.columns + (lanes - 1)) >> lane_bits),
                    ]
                    m.next = "Columns"

            with m.State("Columns"):
                multiply()
                with m.If(final):
                    m.next = "Compare"

            with m.State("Compare"):
                m.d.comb += self.external.eq(external)
                m.next = "Offer"
                with m.If(excessive | unequal | (job.elements > left) | (needed > words_left)):
                    m.next = "Bad"

            with m.State("Offer"):
                m.d.comb += self.o.valid.eq(1)
                with m.If(self.o.ready):
                    m.d.sync += [left.eq(left - taken), words_left.eq(words_left - needed)]
                    m.next = "Fetch"

            with m.State("Bad"):
                m.d.comb += self.bad.eq(1)

        return m
