"""Sequencer, which converts a command's static order to headers, routes and jobs, one segment at a time.

Each participant follows the order of :mod:`hdl.ring.order` with its own sequence (:mod:`hdl.ring.sequences`). Two
participants are implemented here. Egress generates the header of each packet to send and selects the source of its
payload; ingress gives the next expected packet and the destinations of its payload. All other routes and jobs are
instructions described by the parts of the datapath (:mod:`hdl.ring.parts.part`).

All headers, routes and jobs go through queues, so a sequence can run ahead of the data. The packet of an empty
segment consists only of a header.
"""

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.compression.registry import CODECS, FETCH_FORMATS, RAW
from hdl.ring.header import ADDED_WORDS, PacketType, expected_layout, header_layout
from hdl.ring.order import Phase, SequenceGenerator
from hdl.ring.parts.conditions import is_scatter
from hdl.ring.parts.part import Instruction, extends, packet_inputs
from hdl.ring.parts.registry import parts as node_parts
from hdl.ring.sequences import EGRESS, INGRESS, sequences_of
from hdl.ring.setup import longest_vector, setup_layout
from hdl.streams.route import Fork
from hdl.streams.stream import Queue, connect_stream

__all__ = ["Sent", "Sequencer"]

#: Number of headers, routes or jobs by which a sequence can run ahead of the data.
_AHEAD = 5


class Sent(enum.IntEnum):
    """Source of the payload of a packet to send."""

    ENCODER = 0
    OWN = 1
    FORWARD = 2


def _is_received(record, setup):
    return ~setup.alone


def _packet_instructions(parts):
    """Routes of packets from their sources to the ring, and from the ring to the inputs of parts."""
    encodes_all = any(part.encodes_all for part in parts)
    inputs = packet_inputs(parts)

    def sent(record, setup):
        first = Mux(is_scatter(record), Sent.ENCODER, Mux(setup.relay, Sent.FORWARD, Sent.OWN))
        return Mux(record.first | is_scatter(record) if encodes_all else record.first, first, Sent.FORWARD)

    def received(record, setup):
        return Cat(packets(record, setup) for packets in inputs.values())

    return (
        # Source of the payload of each packet to send.
        Instruction("sent", EGRESS, range(len(Sent)), sent),
        # Destinations of the payload of each received packet, with one bit per input.
        Instruction("received", INGRESS, len(inputs), received, when=_is_received),
    )


def _order_of(config, parts):
    """Return the :class:`~hdl.ring.parts.part.RecordOrder` of a datapath, or None for the usual order."""
    if config.role.interleaved:
        from hdl.ring.interleaved import ORDER

        return ORDER
    order, = [part.order for part in parts if part.order is not None] or [None]
    return order


class Sequencer(wiring.Component):
    """Generate the headers, routes and jobs with which the datapath executes a command.

    Every output stream comes from a queue with registered outputs. ``header`` and ``expected`` are completed with the
    fields that are constant for the whole command and with the codec, which depends on the phase.

    Parameters
    ----------
    config : NodeConfig
    parts : sequence of PartDescription, optional
        Parts of the datapath; by default :func:`hdl.ring.parts.registry.parts`.
    """

    def __init__(self, *, config, parts=None):
        self._config = config
        self._elements = longest_vector(config)
        parts = node_parts(config) if parts is None else parts
        self._order = _order_of(config, parts)
        self._added_words, = [part.added_words for part in parts if part.added_words is not None] or [None]
        self._instructions = (
            *_packet_instructions(parts), *(instruction for part in parts for instruction in part.instructions))
        super().__init__(
            {
                # Starts a command; ``setup`` must be stable from then until ``busy`` is low.
                "start": In(1),
                "setup": In(setup_layout(config, parts)),
                # High from the cycle after ``start`` until all headers and records have been taken and every awaited
                # instruction is done.
                "busy": Out(1),
                # Whether the header taken last (initially, the first header) belongs to a scatter-reduce.
                "scattering": Out(1),
                # Headers of the packets to be sent.
                "header": Out(stream.Signature(header_layout())),
                # Whether the packet of the offered header has payload words in addition to its elements.
                "extra": Out(1),
                # Required header fields of the expected packets.
                "expected": Out(stream.Signature(expected_layout(extended=extends(parts)))),
                # A stream for each instruction; if it is awaited, also ``<name>_done``, high for one cycle when the
                # part is done.
                **{name: port for instruction in self._instructions
                   for name, port in instruction.ports(Out).items()},
            }
        )

    def elaborate(self, platform):
        m = Module()
        # Conditions for `busy`, which is high while some data has not yet reached a memory or a ring port.
        self._pending = []
        records = {sequence: self._generate(m, sequence) for sequence in sequences_of(self._instructions)}
        self._direct_egress(m, records[EGRESS])
        self._direct_ingress(m, records[INGRESS])
        for instruction in self._instructions:
            self._follow(m, instruction, records)
        for sequence, consumers in records.items():
            self._fork(m, sequence, consumers)
        m.d.comb += self.busy.eq(Cat(self._pending).any())
        return m

    def _generate(self, m, sequence):
        """Create the generator of a sequence's records; consumers are added later."""
        config, chained, lags = self._config, self._config.has_chains, self._config.role.root_reduce
        shape = {"elements": self._elements, "segment": config.segment, "nodes_max": config.topology.max_nodes}
        if self._order is None:
            generator = SequenceGenerator(**shape, chained=chained, lags=lags)
        else:
            generator = self._order.generator(**shape)
            self._order.connect(m, generator, self.setup)
        m.submodules[f"{sequence.name}_sequence"] = generator
        m.d.comb += [generator.start.eq(self.start), generator.plan.eq(self.setup.plan)]
        if chained:
            m.d.comb += [generator.opens.eq(self.setup.opens), generator.closes.eq(self.setup.closes)]
        if lags:
            m.d.comb += generator.late.eq(self.setup.root_reduce)
        for phase in sequence.paths:
            m.d.comb += getattr(generator, phase).eq(self.setup[f"{sequence.name}_{phase}"])
        self._pending.append(generator.busy)
        return _Consumers(generator.o)

    def _fork(self, m, sequence, consumers):
        """Send each record of a sequence to all consumers that request it."""
        fork = Fork(shape=consumers.layout, outputs=len(consumers.ports))
        m.submodules[f"{sequence.name}_fork"] = fork
        connect_stream(m, consumers.source, fork.i)
        m.d.comb += fork.enable.eq(Cat(enable for _, enable in consumers.ports))
        for inner, (port, _) in zip(fork.o, consumers.ports, strict=True):
            m.d.comb += [port.valid.eq(inner.valid), inner.ready.eq(port.ready)]

    def _queue(self, m, name, port, shape, payload):
        """Create a queue for payloads computed from records."""
        m.submodules[name] = queue = Queue(shape=shape, depth=_AHEAD)
        m.d.comb += [queue.i.valid.eq(port.valid), port.ready.eq(queue.i.ready), queue.i.payload.eq(payload)]
        return queue

    def _follow(self, m, instruction, records):
        """Implement an instruction: queue its payloads for all records that match its condition."""
        setup, name, consumers = self.setup, instruction.name, records[instruction.sequence]
        record = consumers.record
        port = consumers.add(f"{name}_records", instruction.present(record) & instruction.when(record, setup))
        if instruction.alternative is not None:
            port, record = self._select(m, instruction, port, record, records[instruction.alternative.sequence])
        payload = Signal(instruction.shape, name=f"{name}_payload")
        values = instruction.payload(record, setup)
        if isinstance(values, dict):
            m.d.comb += [payload[field].eq(value) for field, value in values.items()]
        else:
            m.d.comb += payload.eq(values)
        queue = self._queue(m, f"{name}_queue", port, instruction.shape, payload)
        connect_stream(m, queue.o, getattr(self, name))
        if instruction.awaited:
            unfinished = Signal(8, name=f"{name}_unfinished")
            done = getattr(self, f"{name}_done")
            m.d.sync += unfinished.eq(unfinished + (queue.i.valid & queue.i.ready) - done)
            self._pending.append(unfinished != 0)

    def _select(self, m, instruction, port, record, consumers):
        """Use an instruction's alternative sequence in some commands; each command uses only one of the sequences."""
        alternative = instruction.alternative.during(self.setup)
        other = consumers.add(f"{instruction.name}_alternatives", instruction.present(consumers.record))
        selected = stream.Signature(0).create(path=(f"{instruction.name}_selected",))
        selected_record = Signal(consumers.layout, name=f"{instruction.name}_record")
        m.d.comb += [
            selected.valid.eq(Mux(alternative, other.valid, port.valid)),
            other.ready.eq(selected.ready & alternative),
            port.ready.eq(selected.ready & ~alternative),
            selected_record.eq(Mux(alternative, consumers.record.as_value(), record.as_value())),
        ]
        return selected, selected_record

    def _packets(self, m, name, port, record, sink):
        """Drive the header to send or expect, except for source and destination.

        The queue holds the fields that differ between packets. Returns the offered packet's fields.
        """
        setup, header = self.setup, sink.payload
        values = {field: Value.cast(record[field]) for field in ("phase", "block", "segment", "length")}
        if self._added_words is not None:
            values["extra"] = Signal(ADDED_WORDS, name=f"{name}_extra")
            m.d.comb += values["extra"].eq(self._added_words(record, setup))
        shape = data.StructLayout({field: len(value) for field, value in values.items()})
        queue = self._queue(m, name, port, shape, Cat(values.values()))
        number = Signal.like(header.sequence, name=f"{name}_sequence")
        with m.If(self.start):
            m.d.sync += number.eq(0)
        with m.Elif(sink.valid & sink.ready):
            m.d.sync += number.eq(number + 1)
        packet = queue.o.payload
        scatter = packet.phase == Phase.SCATTER.value
        m.d.comb += [
            sink.valid.eq(queue.o.valid),
            queue.o.ready.eq(sink.ready),
            header.codec.eq(self._codec(scatter)),
            header.epoch.eq(setup.epoch),
            header.sequence.eq(number),
            header.collective.eq(setup.collective),
            header.block.eq(packet.block),
            header.segment.eq(packet.segment),
            header.length.eq(packet.length),
        ]
        self._pending.append(queue.level != 0)
        return scatter, packet.extra if "extra" in values else 0

    def _codec(self, scatter):
        gradients, weights, raw = (
            CODECS[name].code for name in (self._config.gradients, self._config.weights.codec, RAW)
        )
        if self._config.role.broadcast_formats:
            raw = Array(CODECS[name].code for name in FETCH_FORMATS)[self.setup.format]
        return Mux(scatter | self.setup.sum, gradients, Mux(self.setup.coded, weights, raw))

    def _direct_egress(self, m, consumers):
        """Generate the header of every packet to send, including empty packets."""
        setup, header = self.setup, self.header.payload
        scatter, extra = self._packets(m, "headers", consumers.add("headed", 1), consumers.record, self.header)
        m.d.comb += [
            self.extra.eq(extra != 0),
            header.type.eq(PacketType.DATA),
            header.source.eq(setup.rank),
            header.destination.eq(setup.successor),
        ]
        with m.If(self.start):
            m.d.sync += self.scattering.eq(setup.egress_scatter.steps != 0)
        with m.Elif(self.header.valid & self.header.ready):
            m.d.sync += self.scattering.eq(scatter)

    def _direct_ingress(self, m, consumers):
        """Generate the record of every expected packet. A ring of one node expects none."""
        port = consumers.add("expectations", ~self.setup.alone)
        _, extra = self._packets(m, "expectations", port, consumers.record, self.expected)
        m.d.comb += self.expected.payload.source.eq(self.setup.predecessor)
        if self._added_words is not None:
            m.d.comb += self.expected.payload.extra.eq(extra)


class _Consumers:
    """Consumers of a sequence's records, each of which has a port and requests the records that it needs."""

    def __init__(self, source):
        self.source = source
        self.layout = source.payload.shape()
        self.ports = []

    @property
    def record(self):
        """The record that is being offered."""
        return self.source.payload

    def add(self, name, enable):
        """Return a port that offers the records selected by ``enable``."""
        port = stream.Signature(0).create(path=(name,))
        self.ports.append((port, enable))
        return port
