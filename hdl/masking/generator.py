"""Generator of mask bits from the row and column indices of elements."""

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.masking.comparator import MaskComparator
from hdl.masking.mask import MAX_LANES, check_index_bits, job_layout, mask_beat_layout
from hdl.streams.stream import check_lanes, connect_stream

__all__ = ["MaskGenerator"]


class MaskGenerator(wiring.Component):
    """Generate the mask bits of a job's matrices row by row, for every kind of mask except ``external``.

    The first beat of a job is offered :attr:`latency` cycles after the job was taken; throughput is one beat per
    cycle, also across rows, matrices and jobs. A job without rows, columns or matrices generates no beats.
    ``jobs.ready`` depends combinationally on ``o.ready``.

    Parameters
    ----------
    lanes : int
        Number of elements in a beat: 1, 2, 4, 8 or 16.
    index_bits : int
        Width of an index, 5 to 16: a matrix has at most 2 ** index_bits - 1 rows and columns.

    Members
    -------
    jobs : In(stream of job_layout(index_bits))
    o : Out(stream of mask_beat_layout(lanes))
    """

    latency = 1 + MaskComparator.latency

    def __init__(self, *, lanes, index_bits=12):
        check_lanes(lanes, most=MAX_LANES)
        check_index_bits(index_bits)
        self._lanes = lanes
        self._index_bits = index_bits
        super().__init__({
            "jobs": In(stream.Signature(job_layout(index_bits))),
            "o": Out(stream.Signature(mask_beat_layout(lanes))),
        })

    @property
    def lanes(self):
        return self._lanes

    @property
    def index_bits(self):
        return self._index_bits

    def elaborate(self, platform):
        m = Module()
        lanes, bits = self._lanes, self._index_bits
        lane_bits = (lanes - 1).bit_length()  # number of low bits of a column index, which select the lane
        job = self.jobs.payload

        # First stage: the job and the position in it. Flags for the last beat, row and matrix are registers that are
        # set one beat ahead, by comparison with the second-to-last beat, row and matrix.
        mask = Signal.like(job.mask)
        active = Signal()
        row = Signal(bits)
        row_last_but_one = Signal(bits)
        row_only = Signal()
        row_last = Signal()
        beat = Signal(bits - lane_bits)
        beat_last_but_one = Signal(bits - lane_bits)
        beat_only = Signal()
        beat_last = Signal()
        tail = Signal(max(lane_bits, 1))  # number of lanes in the last beat of a row; 0 means all lanes
        left = Signal.like(job.count)
        matrix_last = Signal()
        last = Signal()
        move = Signal()  # a beat is generated at this position
        moves = Signal()  # the comparator accepts a position
        column_last_but_one = Signal(bits)
        m.d.comb += [
            last.eq(beat_last & row_last & matrix_last),
            move.eq(active & moves),
            self.jobs.ready.eq(~active | (moves & last)),
            column_last_but_one.eq(job.columns - (1 + lanes)),
        ]
        with m.If(move):
            m.d.sync += [beat.eq(beat + 1), beat_last.eq(beat == beat_last_but_one)]
            with m.If(beat_last):
                m.d.sync += [
                    beat.eq(0), beat_last.eq(beat_only),
                    row.eq(row + 1), row_last.eq(row == row_last_but_one),
                ]
                with m.If(row_last):
                    m.d.sync += [row.eq(0), row_last.eq(row_only), left.eq(left - 1), matrix_last.eq(left == 2)]
        with m.If(self.jobs.ready):
            m.d.sync += [
                active.eq(self.jobs.valid & job.rows.any() & job.columns.any() & job.count.any()),
                mask.eq(job.mask),
                row.eq(0),
                row_last_but_one.eq(job.rows - 2),
                row_only.eq(job.rows == 1),
                row_last.eq(job.rows == 1),
                beat.eq(0),
                beat_last_but_one.eq(column_last_but_one[lane_bits:]),
                beat_only.eq(job.columns <= lanes),
                beat_last.eq(job.columns <= lanes),
                tail.eq(job.columns[:lane_bits]),
                left.eq(job.count),
                matrix_last.eq(job.count == 1),
            ]

        # The remaining stages compare the position with the mask bounds.
        m.submodules.comparator = comparator = MaskComparator(lanes=lanes, index_bits=bits)
        position = comparator.i.payload
        connect_stream(m, comparator.o, self.o)
        m.d.comb += [
            moves.eq(comparator.i.ready),
            comparator.mask.eq(mask),
            comparator.i.valid.eq(active),
            position.row.eq(row),
            position.beat.eq(beat),
            position.row_end.eq(beat_last),
            position.last.eq(last),
            *(position.keep[lane].eq(~beat_last | (tail == 0) | (tail > lane)) for lane in range(lanes)),
        ]
        return m
