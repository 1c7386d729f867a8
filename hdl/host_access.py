"""Access from the host port to a node's memories."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hdl.control.protocol import access_layout
from hdl.memory import read_signature, write_signature
from hdl.row_transfer import LATE_READER, RowReader
from hdl.streams.rows import RowSerializer
from hdl.streams.stream import connect_stream, word_layout

__all__ = ["HostAccess"]


class HostAccess(wiring.Component):
    """Serve the host port's bursts from the node's memories, one word per cycle.

    Words are written as they arrive, with only the word's lane enabled. The first word of a read follows after
    :attr:`latency` cycles, plus one cycle for each element before the address in its row, plus the memory's delay.

    Parameters
    ----------
    rows : tuple of int
        Number of rows in each memory space.
    lanes : int
        Number of elements in a row.
    late : bool
        Whether any memory may delay its responses.

    Members
    -------
    read : In(signature of ``request``: Out(stream of access_layout()), ``data``: In(stream of word_layout()))
    write : In(signature of ``request``: Out(stream of access_layout()), ``data``: Out(stream of word_layout()))
        Ports of :class:`~hdl.control.host_port.HostPort`, which has checked spaces and ranges.
    read_<n>, write_<n> : Out(read_signature), Out(write_signature)
        Ports to the memory of space n.
    """

    latency = RowReader.latency + RowSerializer.latency

    def __init__(self, *, rows, lanes, late=False):
        self._rows = rows
        self._late = late
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
        # The queue is deep enough for one word per cycle.
        m.submodules.reader = reader = RowReader(
            rows=max(self._rows), lanes=lanes, elements=(1 << 16) + lanes,
            **(LATE_READER if self._late else {"depth": -(-RowReader.latency // lanes)}))
        m.submodules.serializer = serializer = RowSerializer(lanes=lanes)
        connect_stream(m, reader.o, serializer.i)

        chosen = Signal(len(self._rows))  # one bit per space
        skip = Signal(range(max(lanes, 2)))  # number of words to drop: elements before the address in the first row
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
