"""Access of the compute engine's units to a node's memories."""

from amaranth.hdl import Cat, Const, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.compute.access import memory_of, owner_of, request_layout, response_layout, write_layout
from hdl.features.compute.layer_list import Place
from hdl.memory import READ_LATENCY, read_signature, write_signature
from hdl.streams.stream import Queue, SkidBuffer, check_lanes, connect_stream, step_count

__all__ = ["READABLE", "WRITABLE", "MemoryAccess"]

READABLE = (Place.GRADIENTS, Place.WEIGHTS, Place.ACTIVATIONS)
"""Memories that are read."""

WRITABLE = (Place.GRADIENTS, Place.ACTIVATIONS)
"""Memories that are written."""


class MemoryAccess(wiring.Component):
    """Read and write rows of three memories through one stream in each direction.

    A request waits until its memory grants it and blocks all later requests, so responses arrive in request order. A
    response is offered :attr:`latency` cycles after the request, if its memory grants it immediately; throughput is a
    row per cycle. Responses wait in a queue, and requests are made only if there is room in it. A write is sent to
    the memory in the cycle after it is accepted; writes to weights are discarded.

    A request accepted while ``settled`` is high sees all writes accepted before it. All ``ready`` signals depend on
    registers only.

    Parameters
    ----------
    rows : tuple of int
        Number of rows in the gradient, weight and activation memories.
    lanes : int
        Number of elements per row: 1, 2, 4 or 8.
    owner_bits : int
        Width of a buffer number in bits; 0 without buffer tags.

    Members
    -------
    request : In(stream of request_layout(most rows, owner_bits))
    response : Out(stream of response_layout(lanes))
    write : In(stream of write_layout(most rows, lanes, owner_bits))
    settled : Out(1)
        All accepted writes are in their memories.
    waits : Out(1)
        A port is waiting for its memory.
    read_0, read_1, read_2 : Out(read_signature(rows, lanes))
        Ports to the gradient, weight and activation memories.
    write_0, write_2 : Out(write_signature(rows, lanes))
        Ports to the gradient and activation memories.
    read_owner, write_owner : Out(owner_bits)
        Buffer numbers of the requested read and write; only with ``owner_bits``.
    """

    #: Maximum number of responses pending or waiting.
    depth = 9
    latency = SkidBuffer.latency + READ_LATENCY + 1

    def __init__(self, *, rows, lanes, owner_bits=0):
        rows = tuple(rows)
        if len(rows) != len(READABLE) or not all(isinstance(count, int) and count >= 2 for count in rows):
            raise ValueError(f"Rows must be {len(READABLE)} integers of at least 2, not {rows!r}")
        check_lanes(lanes)
        self._rows = rows
        self._lanes = lanes
        self._owner_bits = owner_bits
        super().__init__({
            "request": In(stream.Signature(request_layout(max(rows), owner_bits))),
            "response": Out(stream.Signature(response_layout(lanes))),
            "write": In(stream.Signature(write_layout(max(rows), lanes, owner_bits))),
            "settled": Out(1),
            "waits": Out(1),
            **{f"read_{memory.value}": Out(read_signature(rows[memory], lanes)) for memory in READABLE},
            **{f"write_{memory.value}": Out(write_signature(rows[memory], lanes)) for memory in WRITABLE},
            **({"read_owner": Out(owner_bits), "write_owner": Out(owner_bits)} if owner_bits else {}),
        })

    def elaborate(self, platform):
        m = Module()
        waits = [*self._elaborate_reads(m), *self._elaborate_writes(m)]
        m.d.comb += self.waits.eq(Cat(waits).any())
        return m

    def _elaborate_reads(self, m):
        """Connect requests and responses; for each read port, return whether it is waiting for its memory."""
        m.submodules.asked = asked = SkidBuffer(shape=self.request.payload.shape())
        m.submodules.answers = answers = Queue(shape=self.response.payload.shape(), depth=self.depth, block=False)
        connect_stream(m, self.request, asked.i)
        connect_stream(m, answers.o, self.response)
        room = Signal(range(self.depth + 1), init=self.depth)
        granted = Signal()
        departs = Signal()
        ports = {memory: getattr(self, f"read_{memory.value}") for memory in READABLE}
        responses = Cat(port.response for port in ports.values())
        m.d.comb += [
            asked.o.ready.eq(granted),
            departs.eq(self.response.valid & self.response.ready),
            answers.i.valid.eq(responses.any()),
        ]
        step_count(m, room, up=departs, down=granted)
        for memory, port in ports.items():
            # All memories have the same read latency, so at most one of them responds in any cycle.
            with m.If(port.response):
                m.d.comb += answers.i.payload.elements.eq(port.elements)
            m.d.comb += [
                port.valid.eq(asked.o.valid & (memory_of(asked.o.payload.place) == memory.value) & (room != 0)),
                port.row.eq(asked.o.payload.row),
            ]
            with m.If(port.valid & port.ready):
                m.d.comb += granted.eq(1)
        if self._owner_bits:
            m.d.comb += self.read_owner.eq(owner_of(asked.o.payload.place))
        return [port.valid & ~port.ready for port in ports.values()]

    def _elaborate_writes(self, m):
        """Connect the write ports; for each of them, return whether it is waiting for its memory."""
        m.submodules.written = written = SkidBuffer(shape=self.write.payload.shape())
        connect_stream(m, self.write, written.i)
        row_write = written.o.payload
        ports = {memory: getattr(self, f"write_{memory.value}") for memory in WRITABLE}
        chosen = {memory: memory_of(row_write.place) == memory.value for memory in WRITABLE}
        m.d.comb += [
            self.settled.eq(~written.o.valid),
            # Writes to a memory that is not in WRITABLE are discarded.
            written.o.ready.eq(Const(1)),
        ]
        if self._owner_bits:
            m.d.comb += self.write_owner.eq(owner_of(row_write.place))
        for memory, port in ports.items():
            m.d.comb += [
                port.valid.eq(written.o.valid & chosen[memory]),
                port.row.eq(row_write.row),
                port.elements.eq(row_write.elements),
                port.keep.eq(row_write.keep),
            ]
            with m.If(chosen[memory]):
                m.d.comb += written.o.ready.eq(port.ready)
        return [port.valid & ~port.ready for port in ports.values()]
