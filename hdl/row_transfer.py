"""Row transfers between a memory and streams: :class:`RowReader` and :class:`RowWriter`."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.group import GROUP
from hdl.memory import READ_LATENCY, job_layout, read_signature, write_signature
from hdl.streams.stream import Queue, beat_layout, connect_stream

__all__ = ["LATE_READER", "RowReader", "RowWriter"]

#: Options of a reader for a memory that responds late, with a throughput of one row per 4 cycles at a response
#: latency of 60 cycles. The queue takes no more LUT memory than a queue of nine rows.
LATE_READER = {"late": True, "depth": 17}


def _pitch_members(rows, lanes, strided):
    """Return the additional signature members of a component that supports strided jobs."""
    return {"pitch": In(range(rows * lanes // GROUP))} if strided else {}


def _following(row, lanes, pitch):
    """Return the next row of a job; with a ``pitch``, successive groups are ``pitch`` groups apart."""
    if pitch is None:
        return row + 1
    inside = (GROUP // lanes).bit_length() - 1
    return Cat((row[:inside] + 1)[:inside], row[inside:] + Mux(row[:inside].all(), pitch, 0))


class RowReader(wiring.Component):
    """Read ranges of rows into a stream of beats.

    Latency is :attr:`latency` cycles from the job to its first beat when the port is free; throughput is one beat per
    cycle with no bubbles between jobs, or ``depth`` beats in every 4 cycles if that is less. ``job.ready`` depends
    combinationally on ``port.ready``, unless ``ahead`` is set.

    Parameters
    ----------
    rows, lanes : int
        Number of rows and lanes of the memory.
    elements : int
        Maximum number of elements in a job.
    gradients : bool
        Whether the elements are gradients, which are converted to canonical form: -0.0 to +0.0, and every NaN to
        0x7fc00000.
    depth : int
        Maximum number of beats waiting or in flight; at least 1. Up to two beats are stored in registers, more in LUT
        memory.
    strided : bool
        Whether groups of a job are ``pitch`` groups apart, not contiguous. Such jobs start at a group boundary.
    ahead : bool
        Whether a job is accepted while the previous one still has rows to read, so that ``job.ready`` is a register.
        The inference engine does not use this option.
    guarded : bool
        Whether the memory is guarded, so that its data arrives late in the cycle; gradients are then made canonical
        after the queue instead of before it.
    late : bool
        Whether the memory responds late; row tags then wait in a queue for the response, and throughput is ``depth``
        beats per response latency plus 2 cycles.

    Members
    -------
    job : In(stream of job_layout(rows, elements))
    port : Out(read_signature(rows, lanes))
    pitch : In(range(groups of the memory))
        Only with ``strided``. Must be stable while a job is in progress.
    o : Out(stream of beat_layout(lanes))
        In the last beat of a job, ``keep`` covers only the lanes that belong to the job.
    nan : Out(1)
        High for one cycle after a NaN has been read or, with ``guarded``, after its beat has left; only with
        ``gradients``.
    """

    latency = 2 + READ_LATENCY

    def __init__(self, *, rows, lanes, elements, gradients=False, depth=9, strided=False, ahead=True,
                 guarded=False, late=False):
        if not isinstance(depth, int) or depth < 1:
            raise ValueError(f"Reader depth must be a positive integer, not {depth!r}")
        self._rows = rows
        self._lanes = lanes
        self._elements = elements
        self._gradients = gradients
        self._depth = depth
        self._strided = strided
        self._ahead = ahead
        self._guarded = guarded
        self._late = late
        super().__init__(
            {
                "job": In(stream.Signature(job_layout(rows, elements))),
                "port": Out(read_signature(rows, lanes)),
                "o": Out(stream.Signature(beat_layout(lanes))),
                "nan": Out(1),
                **_pitch_members(rows, lanes, strided),
            }
        )

    @property
    def strided(self):
        return self._strided

    def elaborate(self, platform):
        m = Module()
        lanes = self._lanes
        m.submodules.queue = queue = Queue(shape=beat_layout(lanes), depth=self._depth, block=False)

        busy = Signal()
        row = Signal(range(self._rows))
        count = Signal(range(self._elements + 1))  # number of elements that remain to be requested
        more = Signal()  # the requested row is not the last of its job
        advance = Signal()
        granted = Signal()
        departs = Signal()
        # With `ahead`, a job waits here until the previous one has no rows left, and starts without a new grant.
        held = Signal()
        waiting = Signal.like(self.job.payload)
        following = Signal.like(self.job.payload)
        present = Signal()  # there is a next job
        # A row is requested only if the queue has a free slot for it.
        slots = Signal(range(self._depth + 1), init=self._depth)
        room = Signal(init=1)
        m.d.comb += [
            self.port.valid.eq(busy & room),
            self.port.row.eq(row),
            granted.eq(self.port.valid & self.port.ready),
            departs.eq(self.o.valid & self.o.ready),
            advance.eq(~busy | granted),
            self.job.ready.eq(~held if self._ahead else advance & ~more),
            present.eq(held | self.job.valid),
            following.eq(Mux(held, waiting, self.job.payload)),
        ]
        with m.If(granted & ~departs):
            m.d.sync += [slots.eq(slots - 1), room.eq(slots != 1)]
        with m.If(departs & ~granted):
            m.d.sync += [slots.eq(slots + 1), room.eq(1)]
        if self._ahead:
            with m.If(~held):
                m.d.sync += [waiting.eq(self.job.payload), held.eq(self.job.valid)]
        # The grant arrives late in the cycle, so a single register selects between the next row and the next job.
        with m.If(advance):
            m.d.sync += [
                busy.eq(more | present),
                row.eq(Mux(more, _following(row, lanes, self.pitch if self._strided else None), following.row)),
                count.eq(Mux(more, count - lanes, following.count)),
                more.eq(Mux(more, count > 2 * lanes, present & (following.count > lanes))),
            ]
            if self._ahead:
                with m.If(~more):
                    m.d.sync += held.eq(0)

        keep = Signal(lanes)
        for n in range(lanes):
            m.d.comb += keep[n].eq(more | (count[:lanes.bit_length()] > n))
        tag = Cat(keep, ~more)
        if self._late:
            m.submodules.tags = tags = Queue(shape=lanes + 1, depth=self._depth, block=False)
            m.d.comb += [tags.i.payload.eq(tag), tags.i.valid.eq(granted), tags.o.ready.eq(self.port.response)]
            tag = tags.o.payload
        else:
            for stage in range(READ_LATENCY):
                following = Signal(lanes + 1, name=f"tag_{stage}")
                m.d.sync += following.eq(tag)
                tag = following
        m.d.comb += [
            queue.i.valid.eq(self.port.response),
            queue.i.payload.keep.eq(tag[:lanes]),
            queue.i.payload.last.eq(tag[lanes]),
        ]
        after_queue = self._gradients and self._guarded
        source, leaves, made = self.port, self.port.response, queue.i.payload
        if after_queue:
            connect_stream(m, queue.o, self.o)
            m.d.comb += queue.i.payload.elements.eq(self.port.elements)
            source, leaves, made, tag = queue.o.payload, departs, self.o.payload, queue.o.payload.keep
        nans = Signal(lanes)
        for n in range(lanes):
            element = source.elements[n]
            if self._gradients:
                m.d.comb += [
                    nans[n].eq(element[23:31].all() & element[:23].any() & tag[n]),
                    made.elements[n].eq(
                        Mux(nans[n], 0x7FC00000, Mux(element[:31] == 0, 0, element))
                    ),
                ]
            else:
                m.d.comb += made.elements[n].eq(element)
        m.d.sync += self.nan.eq(leaves & nans.any())
        if not after_queue:
            connect_stream(m, queue.o, self.o)
        return m


class RowWriter(wiring.Component):
    """Write a stream of beats to ranges of rows.

    Latency is :attr:`latency` cycle; throughput is one beat per cycle within a job, with one cycle between jobs.
    ``i.ready`` depends combinationally on ``port.ready``.

    Parameters
    ----------
    rows, lanes : int
        Number of rows and lanes of the memory.
    elements : int
        Maximum number of elements in a job.
    strided : bool
        Whether the groups of a job are ``pitch`` groups apart; see :class:`RowReader`.

    Members
    -------
    job : In(stream of job_layout(rows, elements))
        A job ends at the beat with ``last``. Elements beyond its count are not written, since decoders output whole
        groups.
    i : In(stream of beat_layout(lanes))
    port : Out(write_signature(rows, lanes))
    pitch : In(range(groups of the memory))
        Only with ``strided``.
    done : Out(1)
        High for one cycle when the last element of a job is in memory.
    """

    latency = 1

    def __init__(self, *, rows, lanes, elements, strided=False):
        self._rows = rows
        self._lanes = lanes
        self._elements = elements
        self._strided = strided
        super().__init__(
            {
                "job": In(stream.Signature(job_layout(rows, elements))),
                "i": In(stream.Signature(beat_layout(lanes))),
                "port": Out(write_signature(rows, lanes)),
                "done": Out(1),
                **_pitch_members(rows, lanes, strided),
            }
        )

    @property
    def strided(self):
        return self._strided

    def elaborate(self, platform):
        m = Module()
        lanes = self._lanes
        busy = Signal()
        row = Signal(range(self._rows))
        count = Signal(range(self._elements + 1))
        free = Signal()  # the port register can accept a beat
        ending = Signal()  # the port register holds the last beat of a job
        # A beat entirely beyond the count has an empty `keep` and passes without a write.
        m.d.comb += [
            self.port.valid.eq(self.port.keep.any()),
            free.eq(~self.port.valid | self.port.ready),
            self.i.ready.eq(busy & free),
            self.job.ready.eq(~busy),
        ]
        m.d.sync += self.done.eq(ending & free)
        with m.If(free):
            m.d.sync += [
                self.port.keep.eq(0),
                ending.eq(0),
                self.port.row.eq(row),
                self.port.elements.eq(self.i.payload.elements),
            ]
            with m.If(self.i.valid & busy):
                m.d.sync += [
                    row.eq(_following(row, lanes, self.pitch if self._strided else None)),
                    count.eq(Mux(count > lanes, count - lanes, 0)),
                    ending.eq(self.i.payload.last),
                ]
                for n in range(lanes):
                    m.d.sync += self.port.keep[n].eq(self.i.payload.keep[n] & (count > n))
                with m.If(self.i.payload.last):
                    m.d.sync += busy.eq(0)
        with m.If(self.job.ready & self.job.valid):
            m.d.sync += [busy.eq(1), row.eq(self.job.payload.row), count.eq(self.job.payload.count)]
        return m
