"""The memories of a node: rows of ``lanes`` elements, one read and one write per cycle, shared by ports in turn."""

import functools
import operator

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hdl.control.protocol import access_layout
from hdl.streams.rows import RowSerializer
from hdl.streams.stream import Queue, beat_layout, check_lanes, connect_stream, word_layout

__all__ = ["HostAccess", "LanedMemory", "RowReader", "RowWriter", "job_layout", "read_signature", "write_signature"]

#: Cycles from the grant of a read to its elements.
READ_LATENCY = 2


def read_signature(rows, lanes):
    """Reader's side of a read port: a row is requested with ``valid``, granted with ``ready``, and its elements are
    there :data:`READ_LATENCY` cycles after the grant, in ``elements`` while ``response`` is high."""
    return wiring.Signature(
        {
            "valid": Out(1),
            "ready": In(1),
            "row": Out(range(rows)),
            "response": In(1),
            "elements": In(data.ArrayLayout(32, lanes)),
        }
    )


def write_signature(rows, lanes):
    """Writer's side of a write port: the kept elements of a row, taken in the cycle of ``valid`` and ``ready``."""
    return wiring.Signature(
        {
            "valid": Out(1),
            "ready": In(1),
            "row": Out(range(rows)),
            "elements": Out(data.ArrayLayout(32, lanes)),
            "keep": Out(lanes),
        }
    )


def job_layout(rows, elements):
    """A run of rows to read or write: its first row, and how many elements it has, 1 to ``elements``."""
    return data.StructLayout({"row": range(rows), "count": range(elements + 1)})


class LanedMemory(wiring.Component):
    """Memory of rows of ``lanes`` 32-bit elements, with one read and one write per cycle.

    Read ports take turns. Write ports are served in order of priority, port 0 first. A port that loses waits. A read
    that is granted in the same cycle as a write of its row is taken returns the old elements; in the cycle after, a
    read of that row waits, and then returns the new ones. ``ready`` of a port depends combinationally on ``valid`` of
    the others of its kind, and on its own and on the rows of all if it reads.

    Parameters
    ----------
    rows : int
        Rows; at least 2.
    lanes : int
        Elements in a row: 1, 2, 4 or 8.
    readers, writers : int
        Ports of each kind; at least 1.

    Members
    -------
    read : array of In(read_signature(rows, lanes))
    write : array of In(write_signature(rows, lanes))
    """

    def __init__(self, *, rows, lanes, readers, writers):
        for name, value, least in (("Row", rows, 2), ("Reader", readers, 1), ("Writer", writers, 1)):
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} count must be an integer of at least {least}, not {value!r}")
        check_lanes(lanes)
        self._rows = rows
        self._lanes = lanes
        super().__init__(
            {
                "read": In(read_signature(rows, lanes)).array(readers),
                "write": In(write_signature(rows, lanes)).array(writers),
            }
        )

    def elaborate(self, platform):
        m = Module()
        # A row is never read while it is written: see below.
        m.submodules.memory = memory = Memory(
            shape=32 * self._lanes, depth=self._rows, init=[], attrs={"no_rw_check": 1}
        )
        read = memory.read_port(transparent_for=())
        write = memory.write_port(granularity=32)
        self._elaborate_write(m, write)
        self._elaborate_read(m, read, write)
        return m

    def _elaborate_read(self, m, read, write):
        elements = Signal(32 * self._lanes)
        m.d.sync += elements.eq(read.data)
        count = len(self.read)
        # Block memory does not say what a read returns beside a write of the same row, so the reader waits for it.
        asking = Signal(count)
        for n, port in enumerate(self.read):
            m.d.comb += asking[n].eq(port.valid & ~((port.row == write.addr) & write.en.any()))
        # The port after the one served last comes first.
        served = Signal(range(max(count, 2)))
        granted = Signal(count)
        with m.Switch(served):
            for latest in range(count):
                with m.Case(latest):
                    for n in reversed(range(latest + 1, latest + 1 + count)):
                        with m.If(asking[n % count]):
                            m.d.comb += granted.eq(1 << (n % count))
        for n, port in enumerate(self.read):
            fetched = Signal(name=f"read_fetched_{n}")
            m.d.comb += [port.ready.eq(granted[n]), port.elements.eq(elements)]
            m.d.sync += [fetched.eq(granted[n]), port.response.eq(fetched)]
            with m.If(granted[n]):
                m.d.sync += served.eq(n)
        m.d.comb += [
            read.en.eq(granted.any()),
            read.addr.eq(_chosen(granted, [port.row for port in self.read])),
        ]

    def _elaborate_write(self, m, write):
        """Take a row in one cycle, and write it in the next: then a register says which row that is."""
        taken = Const(0)
        for port in self.write:
            m.d.comb += port.ready.eq(~taken)
            taken = taken | port.valid
        # Without a valid port it does not matter which row it is, so that the last one needs no mark.
        m.d.sync += [
            write.addr.eq(_first(self.write, "row")),
            write.data.eq(_first(self.write, "elements")),
            write.en.eq(Mux(taken, _first(self.write, "keep"), 0)),
        ]


def _first(ports, name):
    """A member of the first valid port, or else of the last one."""
    value = Value.cast(getattr(ports[len(ports) - 1], name))
    for n in reversed(range(len(ports) - 1)):
        value = Mux(ports[n].valid, Value.cast(getattr(ports[n], name)), value)
    return value


def _chosen(marks, values):
    """The value that is marked, or zeros if none is."""
    return functools.reduce(operator.or_, (Mux(mark, value, 0) for mark, value in zip(marks, values, strict=True)))


class RowReader(wiring.Component):
    """Reads runs of rows into a stream of beats.

    Latency is :attr:`latency` cycles from the job to its first beat when the port is free; throughput is one beat per
    cycle, with no bubble between jobs, or ``depth`` beats in every 4 cycles where that is less. ``job.ready`` depends
    combinationally on ``port.ready``, unless jobs are taken ahead.

    Parameters
    ----------
    rows, lanes : int
        Those of the memory.
    elements : int
        Most elements in a job.
    gradients : bool
        Whether the elements are gradients, which are read in canonical form: -0.0 as +0.0, and every NaN as
        0x7fc00000.
    depth : int
        Beats that wait or are under way; at least 1. One is a register, two are two, and more are LUT memory, which
        nine fill.
    ahead : bool
        Whether a job is taken while the one before it has rows left, so that ``job.ready`` is a register. The
        inference engine does without.

    Members
    -------
    job : In(stream of job_layout(rows, elements))
    port : Out(read_signature(rows, lanes))
    o : Out(stream of beat_layout(lanes))
        The last beat of a job keeps only the lanes that the job covers.
    nan : Out(1)
        High for a cycle when a NaN was read; only with ``gradients``.
    """

    latency = 2 + READ_LATENCY

    def __init__(self, *, rows, lanes, elements, gradients=False, depth=9, ahead=True):
        if not isinstance(depth, int) or depth < 1:
            raise ValueError(f"Reader depth must be a positive integer, not {depth!r}")
        self._rows = rows
        self._lanes = lanes
        self._elements = elements
        self._gradients = gradients
        self._depth = depth
        self._ahead = ahead
        super().__init__(
            {
                "job": In(stream.Signature(job_layout(rows, elements))),
                "port": Out(read_signature(rows, lanes)),
                "o": Out(stream.Signature(beat_layout(lanes))),
                "nan": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        lanes = self._lanes
        m.submodules.queue = queue = Queue(shape=beat_layout(lanes), depth=self._depth, block=False)

        busy = Signal()
        row = Signal(range(self._rows))
        count = Signal(range(self._elements + 1))  # elements still to request
        more = Signal()  # the row requested is not the last of its job
        advance = Signal()
        granted = Signal()
        departs = Signal()
        # With `ahead` a job waits here while the one before it has rows left: no grant decides whether one is taken.
        held = Signal()
        waiting = Signal.like(self.job.payload)
        following = Signal.like(self.job.payload)
        present = Signal()  # there is a job to follow
        # A request is made only when the queue has a place for its beat.
        places = Signal(range(self._depth + 1), init=self._depth)
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
            m.d.sync += [places.eq(places - 1), room.eq(places != 1)]
        with m.If(departs & ~granted):
            m.d.sync += [places.eq(places + 1), room.eq(1)]
        if self._ahead:
            with m.If(~held):
                m.d.sync += [waiting.eq(self.job.payload), held.eq(self.job.valid)]
        # One register chooses between the next row and the next job, since the grant comes late.
        with m.If(advance):
            m.d.sync += [
                busy.eq(more | present),
                row.eq(Mux(more, row + 1, following.row)),
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
        for stage in range(READ_LATENCY):
            following = Signal(lanes + 1, name=f"tag_{stage}")
            m.d.sync += following.eq(tag)
            tag = following
        m.d.comb += [
            queue.i.valid.eq(self.port.response),
            queue.i.payload.keep.eq(tag[:lanes]),
            queue.i.payload.last.eq(tag[lanes]),
        ]
        nans = Signal(lanes)
        for n in range(lanes):
            element = self.port.elements[n]
            if self._gradients:
                m.d.comb += [
                    nans[n].eq(element[23:31].all() & element[:23].any() & tag[n]),
                    queue.i.payload.elements[n].eq(
                        Mux(nans[n], 0x7FC00000, Mux(element[:31] == 0, 0, element))
                    ),
                ]
            else:
                m.d.comb += queue.i.payload.elements[n].eq(element)
        m.d.sync += self.nan.eq(self.port.response & nans.any())
        connect_stream(m, queue.o, self.o)
        return m


class RowWriter(wiring.Component):
    """Writes a stream of beats to runs of rows.

    Latency is :attr:`latency` cycle; throughput is one beat per cycle within a job, with one cycle between jobs.
    ``i.ready`` depends combinationally on ``port.ready``.

    Parameters
    ----------
    rows, lanes : int
        Those of the memory.
    elements : int
        Most elements in a job.

    Members
    -------
    job : In(stream of job_layout(rows, elements))
        A job ends with the beat that has ``last``. Elements beyond its count are not written: a decoder emits whole
        groups.
    i : In(stream of beat_layout(lanes))
    port : Out(write_signature(rows, lanes))
    done : Out(1)
        High for a cycle when a job's last element is in the memory.
    """

    latency = 1

    def __init__(self, *, rows, lanes, elements):
        self._rows = rows
        self._lanes = lanes
        self._elements = elements
        super().__init__(
            {
                "job": In(stream.Signature(job_layout(rows, elements))),
                "i": In(stream.Signature(beat_layout(lanes))),
                "port": Out(write_signature(rows, lanes)),
                "done": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        lanes = self._lanes
        busy = Signal()
        row = Signal(range(self._rows))
        count = Signal(range(self._elements + 1))
        free = Signal()  # the port register can take a beat
        ending = Signal()  # it holds the last beat of its job
        # A beat wholly beyond the count has an empty keep, and passes without a write.
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
                    row.eq(row + 1),
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


class HostAccess(wiring.Component):
    """Serves the host port's bursts from memories, a word per cycle.

    Words are written as they come, with the word's lane enabled alone. A read has a latency of :attr:`latency` cycles
    to its first word, and one more for each element of the first row below its address.

    Parameters
    ----------
    rows : tuple of int
        Rows of each memory space.
    lanes : int
        Elements in a row.

    Members
    -------
    read : In(signature of ``request``: Out(stream of access_layout()), ``data``: In(stream of word_layout()))
    write : In(signature of ``request``: Out(stream of access_layout()), ``data``: Out(stream of word_layout()))
        As those of :class:`~hdl.control.host_port.HostPort`, which has checked spaces and ranges.
    read_<n>, write_<n> : Out(read_signature), Out(write_signature)
        To the memory of space n.
    """

    latency = RowReader.latency + RowSerializer.latency

    def __init__(self, *, rows, lanes):
        self._rows = rows
        self._lanes = lanes
        accesses = stream.Signature(access_layout())
        words = stream.Signature(word_layout())
        super().__init__(
            {
                "read": In(wiring.Signature({"request": Out(accesses), "data": In(words)})),
                "write": In(wiring.Signature({"request": Out(accesses), "data": Out(words)})),
                **{f"read_{n}": Out(read_signature(count, lanes)) for n, count in enumerate(rows)},
                **{f"write_{n}": Out(write_signature(count, lanes)) for n, count in enumerate(rows)},
            }
        )

    def elaborate(self, platform):
        m = Module()
        self._elaborate_read(m)
        self._elaborate_write(m)
        return m

    def _elaborate_read(self, m):
        lanes, lane_bits = self._lanes, exact_log2(self._lanes)
        # Enough for a word per cycle.
        m.submodules.reader = reader = RowReader(
            rows=max(self._rows), lanes=lanes, elements=(1 << 16) + lanes, depth=-(-RowReader.latency // lanes))
        m.submodules.serializer = serializer = RowSerializer(lanes=lanes)
        connect_stream(m, reader.o, serializer.i)

        chosen = Signal(len(self._rows))  # a bit for each space
        skip = Signal(range(max(lanes, 2)))  # words to drop: elements of the first row below the address
        reading = Signal()
        request = self.read.request.payload
        m.d.comb += [
            reader.job.valid.eq(self.read.request.valid & ~reading),
            reader.job.payload.row.eq(request.address >> lane_bits),
            reader.job.payload.count.eq(request.count + request.address[:lane_bits]),
            self.read.request.ready.eq(reader.job.ready & ~reading),
            self.read.data.payload.eq(serializer.o.payload),
            self.read.data.valid.eq(serializer.o.valid & (skip == 0)),
            serializer.o.ready.eq(self.read.data.ready | (skip != 0)),
        ]
        with m.If(self.read.request.valid & self.read.request.ready):
            m.d.sync += [
                reading.eq(1),
                chosen.eq(Cat(request.space == n for n in range(len(chosen)))),
                skip.eq(request.address[:lane_bits]),
            ]
        with m.Elif(serializer.o.valid & (skip != 0)):
            m.d.sync += skip.eq(skip - 1)
        with m.Elif(serializer.o.valid & serializer.o.ready & serializer.o.payload.last):
            m.d.sync += reading.eq(0)

        for n in range(len(self._rows)):
            port = getattr(self, f"read_{n}")
            m.d.comb += [port.valid.eq(reader.port.valid & chosen[n]), port.row.eq(reader.port.row)]
            with m.If(chosen[n]):
                m.d.comb += [
                    reader.port.ready.eq(port.ready),
                    reader.port.response.eq(port.response),
                    reader.port.elements.eq(port.elements),
                ]

    def _elaborate_write(self, m):
        lanes, lane_bits = self._lanes, exact_log2(self._lanes)
        writing = Signal()
        space = Signal(4)
        address = Signal(28)
        request, word = self.write.request, self.write.data
        m.d.comb += request.ready.eq(~writing)
        with m.If(request.valid & request.ready):
            m.d.sync += [writing.eq(1), space.eq(request.payload.space), address.eq(request.payload.address)]
        with m.Elif(word.valid & word.ready):
            m.d.sync += [writing.eq(~word.payload.last), address.eq(address + 1)]

        for n in range(len(self._rows)):
            port = getattr(self, f"write_{n}")
            m.d.comb += [
                port.valid.eq(word.valid & writing & (space == n)),
                port.row.eq(address >> lane_bits),
                port.keep.eq(1 << address[:lane_bits]),
            ]
            for lane in range(lanes):
                m.d.comb += port.elements[lane].eq(word.payload.data)
            with m.If(writing & (space == n)):
                m.d.comb += word.ready.eq(port.ready)
