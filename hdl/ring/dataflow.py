"""The datapath of a collective: everything between a node's memories and its two ring ports.

The control side (:mod:`hdl.ring.collective`) starts it with a :func:`setup_layout` and resets it as a whole when a
command is refused. Inside, five walks follow the static order of :mod:`hdl.ring.schedule`, each for one participant:

======== ===============================================================================
egress   heads each packet that is sent, and names the source of its payload
ingress  says which packet is expected next, and where its payload goes
encode   reads the local gradient of a segment and compresses it
own      updates the own block with the optimizer; without one, reads what it gives away
======== ===============================================================================

They meet only in streams. Each stream of packets is steered by a queue of routes, one per packet, so no unit knows of
another, and an empty segment, which has no payload, leaves no trace beyond its header.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.compression import zero_value
from hdl.memory import RowReader, RowWriter, read_signature, write_signature
from hdl.optimizer.burst import StreamedOptimizer
from hdl.optimizer.rules import Rule, settings_layout
from hdl.ring.packet import Codec, PacketType, expected_layout, header_layout
from hdl.ring.schedule import GROUP, Phase, Walk, plan_layout, record_layout, tour_layout
from hdl.route import Fork, PacketDemux, PacketMux
from hdl.rows import RowAssembler, RowSerializer, SegmentBuffer
from hdl.stream import Queue, beat_layout, connect_stream, word_layout

__all__ = ["Dataflow", "longest_vector", "pulses_layout", "setup_layout"]

#: Routes and jobs that a walk may be ahead of the data.
_AHEAD = 5


def longest_vector(config):
    """Most elements in a command."""
    return max(config.gradient_words, config.weight_words)


def setup_layout(config):
    """What a command looks like to the datapath; holds as long as the command runs.

    ``fused``: the scatter-reduce ends in the optimizer, and new weights are gathered. ``sum``: it ends in the
    gradient memory, and ``gather``: sums are gathered after it. With neither ``fused`` nor ``sum``, weights are
    gathered from the weight memory. ``alone``: the ring has one node. ``relay``: even the first step of a gather
    passes on what came in; ``pass_on``: even its last step is passed on (both are for broadcasts).
    """
    elements = longest_vector(config)
    return data.StructLayout(
        {
            "fused": 1,
            "sum": 1,
            "gather": 1,
            "alone": 1,
            "relay": 1,
            "pass_on": 1,
            "rank": 8,
            "predecessor": 8,
            "successor": 8,
            "epoch": 8,
            "iteration": 16,
            "gradient_row": range(config.gradient_words // config.lanes),
            "weight_row": range(config.weight_words // config.lanes),
            "state_row": range(config.state_words // config.lanes),
            "plan": plan_layout(elements),
            "egress_scatter": tour_layout(elements),
            "egress_gather": tour_layout(elements),
            "ingress_scatter": tour_layout(elements),
            "ingress_gather": tour_layout(elements),
            "encode": tour_layout(elements),
            "own_scatter": tour_layout(elements),
            "own_gather": tour_layout(elements),
            "settings": settings_layout(),
        }
    )


def pulses_layout():
    """What happened in a cycle: counts for the registers of the same name, and findings for the event's flags."""
    return data.StructLayout(
        {
            "compressed_words": 1,
            "elements_encoded": 5,
            "encodes": 2,
            "compressed_adds": 1,
            "positions_added": 1,
            "decodes": 1,
            "optimizer_bursts": 1,
            "scatter_reduce": 1,
            "stall_encoder": 1,
            "stall_optimizer": 1,
            "stall_memory": 1,
            "local_nan": 1,
            "not_finite": 1,
            "malformed": 1,
        }
    )


class Dataflow(wiring.Component):
    """The datapath of a collective. See docs/ring/collective.md for its picture.

    Parameters
    ----------
    config : NodeConfig

    Members
    -------
    start : In(1)
        Begins a command; ``setup`` must hold from then until ``busy`` is low.
    setup : In(setup_layout(config))
    busy : Out(1)
        High from the cycle after ``start`` until every record has gone its way and everything is in the memories.
    header : Out(stream of header_layout())
    egress : Out(stream of word_layout())
        To the packetizer: what to send.
    expected : Out(stream of expected_layout())
    ingress : In(stream of word_layout())
        To and from the depacketizer: the packets to come, and their payload once the header has matched.
    gradient_read : array of 3 Out(read_signature)
        The optimizer's local gradient, then what is sent first, then what is added.
    gradient_write : Out(write_signature)
    weight_read : Out(read_signature)
    weight_write : array of 2 Out(write_signature)
        From the ring, then from the optimizer.
    state_read, state_write : arrays of one port per state plane
    pulses : Out(pulses_layout())
    """

    def __init__(self, *, config):
        self._config = config
        self._elements = longest_vector(config)
        lanes = config.lanes
        gradient_rows = config.gradient_words // lanes
        weight_rows = config.weight_words // lanes
        state_rows = config.state_words // lanes
        super().__init__(
            {
                "start": In(1),
                "setup": In(setup_layout(config)),
                "busy": Out(1),
                "header": Out(stream.Signature(header_layout())),
                "egress": Out(stream.Signature(word_layout())),
                "expected": Out(stream.Signature(expected_layout())),
                "ingress": In(stream.Signature(word_layout())),
                "gradient_read": Out(read_signature(gradient_rows, lanes)).array(3),
                "gradient_write": Out(write_signature(gradient_rows, lanes)),
                "weight_read": Out(read_signature(weight_rows, lanes)),
                "weight_write": Out(write_signature(weight_rows, lanes)).array(2),
                "state_read": Out(read_signature(state_rows, lanes)).array(config.state_planes),
                "state_write": Out(write_signature(state_rows, lanes)).array(config.state_planes),
                "pulses": Out(pulses_layout()),
            }
        )

    def elaborate(self, platform):
        m = Module()
        config, setup = self._config, self.setup
        lanes, segment = config.lanes, config.segment
        gradient_rows = config.gradient_words // lanes
        weight_rows = config.weight_words // lanes
        state_rows = config.state_words // lanes
        compressed_segment = segment + segment // GROUP
        record = record_layout(self._elements, segment)

        # Units.
        m.submodules.gradient_reader = gradient_reader = RowReader(
            rows=gradient_rows, lanes=lanes, elements=segment, gradients=True
        )
        # What is sent in the first step and what is added to ingress later have an encoder each: together they make
        # N words for each N - 1 words on the link.
        readers, encoders = [], []
        for name in ("sending", "adding"):
            reader = RowReader(rows=gradient_rows, lanes=lanes, elements=segment, gradients=True)
            encoder = zero_value.Encoder(lanes=lanes)
            m.submodules[f"{name}_reader"] = reader
            m.submodules[f"{name}_encoder"] = encoder
            connect_stream(m, reader.o, encoder.i)
            readers.append(reader)
            encoders.append(encoder)
        sending, adding = encoders
        m.submodules.weight_reader = weight_reader = RowReader(rows=weight_rows, lanes=lanes, elements=segment)
        m.submodules.weight_writer = weight_writer = RowWriter(rows=weight_rows, lanes=lanes, elements=segment)
        # What comes to rest from the ring: sums in the gradient memory, weights in the weight memory.
        landing_rows = max(gradient_rows, weight_rows)
        m.submodules.landing_writer = landing_writer = RowWriter(rows=landing_rows, lanes=lanes, elements=segment)
        m.submodules.landing = landing = SegmentBuffer(lanes=lanes, depth=2 * segment // lanes)
        m.submodules.assembler = assembler = RowAssembler(lanes=lanes)
        m.submodules.adder = adder = zero_value.Adder()
        m.submodules.decoder = decoder = zero_value.Decoder(lanes=lanes)
        m.submodules.optimizer = optimizer = StreamedOptimizer(
            workers=2,
            lanes=lanes,
            update_lanes=config.update_lanes,
            depth=segment,
            broadcasts=1,
            planes=config.state_planes,
            dsps=config.multiplier_dsps,
        )
        m.submodules.serializer = serializer = RowSerializer(lanes=lanes)
        # A segment can wait at each way out, so that neither the encoder nor the ingress waits for the one before it,
        # and on the way to the decoder, which may still be busy with a sum that has just left the adder.
        m.submodules.to_send = to_send = Queue(shape=word_layout(), depth=2 * segment, block=True)
        m.submodules.to_add = to_add = Queue(shape=word_layout(), depth=2 * segment, block=True)
        m.submodules.to_pass = to_pass = Queue(shape=word_layout(), depth=2 * segment, block=True)
        m.submodules.to_decode = to_decode = Queue(shape=word_layout(), depth=segment, block=True)
        # What the own block gives to the gather, which lags one segment behind: new weights, or compressed sums.
        m.submodules.kept_weights = kept_weights = Queue(
            shape=beat_layout(lanes), depth=2 * segment // lanes, block=True
        )
        m.submodules.kept_sums = kept_sums = Queue(shape=word_layout(), depth=2 * compressed_segment, block=True)
        state_readers, state_writers = [], []
        for plane in range(config.state_planes):
            reader = RowReader(rows=state_rows, lanes=lanes, elements=segment)
            writer = RowWriter(rows=state_rows, lanes=lanes, elements=segment)
            m.submodules[f"state_reader_{plane}"] = reader
            m.submodules[f"state_writer_{plane}"] = writer
            state_readers.append(reader)
            state_writers.append(writer)

        # Routes.
        m.submodules.sent = sent = PacketMux(inputs=3)  # encoder, own block, what is passed on
        m.submodules.passed = passed = PacketMux(inputs=2)  # adder, ingress
        m.submodules.received = received = PacketDemux(outputs=4)  # adder, decoder, assembler, egress
        m.submodules.summed = summed = PacketDemux(outputs=3)  # egress, own block, decoder
        m.submodules.decoded = decoded = PacketMux(inputs=3)  # ingress, adder, encoder

        connect_stream(m, sending.o, to_send.i)
        connect_stream(m, to_send.o, sent.i[0])
        connect_stream(m, adding.o, to_add.i)
        connect_stream(m, self.ingress, received.i)
        connect_stream(m, received.o[0], adder.a)
        connect_stream(m, received.o[1], to_decode.i)
        connect_stream(m, to_decode.o, decoded.i[0])
        connect_stream(m, received.o[2], assembler.i)
        connect_stream(m, received.o[3], passed.i[1])
        connect_stream(m, adder.o, summed.i)
        connect_stream(m, summed.o[0], passed.i[0])
        connect_stream(m, summed.o[1], kept_sums.i)
        connect_stream(m, summed.o[2], decoded.i[1])
        connect_stream(m, passed.o, to_pass.i)
        connect_stream(m, to_pass.o, sent.i[2])
        connect_stream(m, decoded.o, decoder.i)
        connect_stream(m, sent.o, self.egress)

        connect_stream(m, gradient_reader.o, optimizer.gradients[1])
        connect_stream(m, optimizer.weights_out, weight_writer.i)
        for plane in range(config.state_planes):
            connect_stream(m, state_readers[plane].o, optimizer.state[plane])
            connect_stream(m, optimizer.state_out[plane], state_writers[plane].i)
        connect_stream(m, landing.o, landing_writer.i)
        m.d.comb += optimizer.settings.eq(setup.settings)

        # Streams that a command uses in one way or the other.
        with m.If(setup.fused):
            connect_stream(m, decoder.o, optimizer.gradients[0])
            connect_stream(m, weight_reader.o, optimizer.weights)
            connect_stream(m, kept_weights.o, serializer.i)
        with m.Else():
            connect_stream(m, weight_reader.o, serializer.i)
        with m.If(setup.sum):
            connect_stream(m, decoder.o, landing.i)
            connect_stream(m, kept_sums.o, sent.i[1])
        with m.Else():
            connect_stream(m, assembler.o, landing.i)
            connect_stream(m, serializer.o, sent.i[1])
        with m.If(setup.alone):  # nothing to add, and nobody to give new weights to
            connect_stream(m, to_add.o, decoded.i[2])
            m.d.comb += optimizer.broadcast[0].ready.eq(1)
        with m.Else():
            connect_stream(m, to_add.o, adder.b)
            connect_stream(m, optimizer.broadcast[0], kept_weights.i)

        # Memory ports.
        wiring.connect(m, reader=gradient_reader.port, memory=wiring.flipped(self.gradient_read[0]))
        wiring.connect(m, reader=readers[0].port, memory=wiring.flipped(self.gradient_read[1]))
        wiring.connect(m, reader=readers[1].port, memory=wiring.flipped(self.gradient_read[2]))
        wiring.connect(m, reader=weight_reader.port, memory=wiring.flipped(self.weight_read))
        wiring.connect(m, writer=weight_writer.port, memory=wiring.flipped(self.weight_write[1]))
        for plane in range(config.state_planes):
            wiring.connect(m, reader=state_readers[plane].port, memory=wiring.flipped(self.state_read[plane]))
            wiring.connect(m, writer=state_writers[plane].port, memory=wiring.flipped(self.state_write[plane]))
        for port, chosen in ((self.gradient_write, setup.sum), (self.weight_write[0], ~setup.sum)):
            m.d.comb += [
                port.valid.eq(landing_writer.port.valid & chosen),
                port.row.eq(landing_writer.port.row),
                port.elements.eq(landing_writer.port.elements),
                port.keep.eq(landing_writer.port.keep),
            ]
        m.d.comb += landing_writer.port.ready.eq(
            Mux(setup.sum, self.gradient_write.ready, self.weight_write[0].ready)
        )

        # Walks.
        walks = {}
        for name, scatter, gather in (
            ("egress", setup.egress_scatter, setup.egress_gather),
            ("ingress", setup.ingress_scatter, setup.ingress_gather),
            ("encode", setup.encode, None),
            ("own", setup.own_scatter, setup.own_gather),
        ):
            walks[name] = walk = Walk(elements=self._elements, segment=segment)
            m.submodules[f"{name}_walk"] = walk
            m.d.comb += [walk.start.eq(self.start), walk.plan.eq(setup.plan), walk.scatter.eq(scatter)]
            if gather is not None:
                m.d.comb += walk.gather.eq(gather)

        def split(name, outputs):
            """Fork of a walk's records to what each of them asks for."""
            fork = Fork(shape=record, outputs=outputs)
            m.submodules[f"{name}_fork"] = fork
            connect_stream(m, walks[name].o, fork.i)
            return fork

        def ahead(name, port, shape, payload):
            """Queue from a record to what follows from it, so that the walk may be ahead."""
            m.submodules[name] = queue = Queue(shape=shape, depth=_AHEAD)
            m.d.comb += [queue.i.valid.eq(port.valid), port.ready.eq(queue.i.ready), queue.i.payload.eq(payload)]
            return queue

        def row(base, group):
            return base + (group << (GROUP // lanes).bit_length() - 1)

        pending = []  # high while there is something that has not reached a memory or a ring port

        def job(name, port, unit, base, group, count):
            """Queue of jobs of a reader or writer."""
            layout = unit.job.payload.shape()
            m.submodules[name] = queue = Queue(shape=layout, depth=_AHEAD)
            m.d.comb += [
                queue.i.valid.eq(port.valid),
                port.ready.eq(queue.i.ready),
                queue.i.payload.row.eq(row(base, group)),
                queue.i.payload.count.eq(count),
            ]
            connect_stream(m, queue.o, unit.job)
            if isinstance(unit, RowWriter):
                unfinished = Signal(8, name=f"{name}_unfinished")
                m.d.sync += unfinished.eq(unfinished + (queue.i.valid & queue.i.ready) - unit.done)
                pending.append(unfinished != 0)

        # Egress: a header for each record, and a route for each payload.
        fork = split("egress", 2)
        at = fork.i.payload
        scatter = at.phase == Phase.SCATTER
        m.d.comb += fork.enable.eq(Cat(1, at.length != 0))
        header = Signal(header_layout())
        sequence = Signal(16)
        m.d.comb += [
            header.type.eq(PacketType.DATA),
            header.codec.eq(Mux(scatter | setup.sum, Codec.ZERO_VALUE, Codec.RAW)),
            header.source.eq(setup.rank),
            header.destination.eq(setup.successor),
            header.epoch.eq(setup.epoch),
            header.sequence.eq(sequence),
            header.iteration.eq(setup.iteration),
            header.block.eq(at.block),
            header.segment.eq(at.segment),
            header.length.eq(at.length),
        ]
        headed = data.StructLayout({"header": header_layout(), "phase": Phase})
        headers = ahead("headers", fork.o[0], headed, Cat(header, at.phase))
        m.d.comb += [
            self.header.valid.eq(headers.o.valid),
            self.header.payload.eq(headers.o.payload.header),
            headers.o.ready.eq(self.header.ready),
        ]
        pending.append(headers.level != 0)
        source = Mux(at.first, Mux(scatter, 0, Mux(setup.relay, 2, 1)), 2)
        egress_routes = ahead("egress_routes", fork.o[1], range(3), source)
        connect_stream(m, egress_routes.o, sent.route)
        with m.If(self.start):
            m.d.sync += sequence.eq(0)
        with m.Elif(headers.i.valid & headers.i.ready):
            m.d.sync += sequence.eq(sequence + 1)

        # Ingress: what to expect, and where it goes. A ring of one expects nothing and lands its own sums.
        fork = split("ingress", 6)
        at = fork.i.payload
        some, scatter = at.length != 0, at.phase == Phase.SCATTER
        gather = ~scatter
        final = scatter & at.last  # here the block is summed to its end
        forwarded = gather & (~at.last | setup.pass_on)
        m.d.comb += fork.enable.eq(
            Cat(
                ~setup.alone,
                some & ~setup.alone,
                some & ~setup.alone & scatter & ~(final & setup.fused),
                some & (final | (gather & setup.sum)),
                some & (gather | (final & setup.sum)),
                some & (forwarded | (scatter & ~final)),
            )
        )
        coming = Signal(expected_layout())
        expected_sequence = Signal(16)
        m.d.comb += [
            coming.codec.eq(Mux(scatter | setup.sum, Codec.ZERO_VALUE, Codec.RAW)),
            coming.source.eq(setup.predecessor),
            coming.epoch.eq(setup.epoch),
            coming.sequence.eq(expected_sequence),
            coming.iteration.eq(setup.iteration),
            coming.block.eq(at.block),
            coming.segment.eq(at.segment),
            coming.length.eq(at.length),
        ]
        expectations = ahead("expectations", fork.o[0], expected_layout(), coming)
        connect_stream(m, expectations.o, self.expected)
        pending.append(expectations.level != 0)
        with m.If(self.start):
            m.d.sync += expected_sequence.eq(0)
        with m.Elif(expectations.i.valid & expectations.i.ready):
            m.d.sync += expected_sequence.eq(expected_sequence + 1)

        summing = scatter & ~(final & setup.fused)
        mask = Cat(summing, ~summing & (scatter | setup.sum), gather & ~setup.sum, forwarded)
        received_routes = ahead("received_routes", fork.o[1], 4, mask)
        connect_stream(m, received_routes.o, received.route)
        mask = Cat(~final, final & setup.gather, final)
        summed_routes = ahead("summed_routes", fork.o[2], 3, mask)
        connect_stream(m, summed_routes.o, summed.route)
        source = Mux(final & setup.sum, Mux(setup.alone, 2, 1), 0)
        decoded_routes = ahead("decoded_routes", fork.o[3], range(3), source)
        connect_stream(m, decoded_routes.o, decoded.route)
        base = Mux(setup.sum, setup.gradient_row, setup.weight_row)
        job("landing_jobs", fork.o[4], landing_writer, base, at.group, at.length)
        passed_routes = ahead("passed_routes", fork.o[5], range(2), gather)
        connect_stream(m, passed_routes.o, passed.route)

        # Encode: the first step is sent as it is, what follows is added to what comes in.
        fork = split("encode", 2)
        at = fork.i.payload
        sends = at.first & ~setup.alone
        m.d.comb += fork.enable.eq(Cat(sends, ~sends) & (at.length != 0).replicate(2))
        job("sending_jobs", fork.o[0], readers[0], setup.gradient_row, at.group, at.length)
        job("adding_jobs", fork.o[1], readers[1], setup.gradient_row, at.group, at.length)

        # Own block: a burst of the optimizer for each segment, or a read of the weights it gives away.
        fork = split("own", 4 + 2 * config.state_planes)
        at = fork.i.payload
        some = at.length != 0
        update = some & setup.fused
        stateful = update & (setup.settings.rule != Rule.SGD)
        m.d.comb += fork.enable.eq(
            Cat(some, update, update, update, *(stateful for _ in range(2 * config.state_planes)))
        )
        in_block = Signal.like(at.group)  # the state memory holds the own block only
        m.d.comb += in_block.eq(at.group - setup.own_scatter.start)
        job("weight_jobs", fork.o[0], weight_reader, setup.weight_row, at.group, at.length)
        job("gradient_jobs", fork.o[1], gradient_reader, setup.gradient_row, at.group, at.length)
        job("weight_write_jobs", fork.o[2], weight_writer, setup.weight_row, at.group, at.length)
        burst = Signal(optimizer.command.payload.shape())
        m.d.comb += [burst.count.eq(at.length), burst.active.eq(Cat(~setup.alone, 1))]
        bursts = ahead("bursts", fork.o[3], burst.shape(), burst)
        connect_stream(m, bursts.o, optimizer.command)
        for plane in range(config.state_planes):
            reads, writes = fork.o[4 + 2 * plane], fork.o[5 + 2 * plane]
            job(f"state_jobs_{plane}", reads, state_readers[plane], setup.state_row, in_block, at.length)
            job(f"state_write_jobs_{plane}", writes, state_writers[plane], setup.state_row, in_block, at.length)

        m.d.comb += self.busy.eq(Cat(*(walk.busy for walk in walks.values()), *pending).any())

        # What the registers count.
        def taken(port):
            return port.valid & port.ready

        scattering = Signal()
        with m.If(self.start):
            m.d.sync += scattering.eq(setup.egress_scatter.steps != 0)
        with m.Elif(taken(self.header)):
            m.d.sync += scattering.eq(headers.o.payload.phase == Phase.SCATTER)
        starved = sent.route.valid & self.egress.ready & ~self.egress.valid
        infinite = Cat(
            decoder.o.payload.elements[lane][23:31].all() & decoder.o.payload.keep[lane] for lane in range(lanes)
        ).any()
        refused = [
            port.valid & ~port.ready
            for port in (
                *self.gradient_read,
                self.gradient_write,
                self.weight_read,
                *self.weight_write,
                *self.state_read,
                *self.state_write,
            )
        ]
        pulses = self.pulses
        m.d.comb += [
            pulses.compressed_words.eq(taken(self.egress) & (scattering | setup.sum)),
            pulses.encodes.eq(sum(taken(encoder.o) & encoder.o.payload.last for encoder in encoders)),
            pulses.elements_encoded.eq(
                sum(taken(encoder.i) & encoder.i.payload.keep[lane] for encoder in encoders for lane in range(lanes))
            ),
            pulses.compressed_adds.eq(taken(adder.o) & adder.o.payload.last),
            pulses.positions_added.eq(adder.position),
            pulses.decodes.eq(taken(decoder.o) & decoder.o.payload.last),
            pulses.optimizer_bursts.eq(optimizer.bursts),
            pulses.scatter_reduce.eq(self.busy & scattering),
            pulses.stall_encoder.eq(starved & (sent.route.payload == 0)),
            pulses.stall_optimizer.eq(starved & (sent.route.payload == 1) & setup.fused),
            pulses.stall_memory.eq(Cat(*refused).any()),
            pulses.local_nan.eq(gradient_reader.nan | readers[0].nan | readers[1].nan),
            pulses.not_finite.eq(optimizer.nonfinite | (setup.sum & taken(decoder.o) & infinite)),
            pulses.malformed.eq(adder.error),
        ]
        return m
