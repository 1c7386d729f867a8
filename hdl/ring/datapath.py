"""The datapath of a collective: everything between a node's memories and its two ring ports.

It is a set of units that meet only in streams. The :class:`~hdl.ring.sequencer.Sequencer` steers each stream of
packets by a queue of routes, one per packet, and gives the readers and writers their jobs, so no unit knows of
another.
"""

from types import SimpleNamespace

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.compression.feedback import FeedbackEncoder, PacketAdder
from hdl.compression.registry import GRADIENT_CODECS, WEIGHT_CODECS
from hdl.compression.words import WordDecoder, WordEncoder
from hdl.compression.zero_value import format as zero_value
from hdl.group import GROUP
from hdl.memory import read_signature, write_signature
from hdl.optimizer.burst import StreamedOptimizer
from hdl.optimizer.moments import MomentPacker, MomentUnpacker
from hdl.optimizer.rules import RULES
from hdl.optimizer.slices import RowJoiner, RowSplitter
from hdl.ring.header import expected_layout, header_layout
from hdl.ring.sequencer import (
    Coded,
    Decoded,
    Landed,
    Passed,
    Received,
    Restored,
    Sent,
    Sequencer,
    Shared,
    Summed,
    setup_layout,
)
from hdl.row_transfer import RowReader, RowWriter
from hdl.streams.route import Fork, PacketDemux, PacketMux
from hdl.streams.rows import RowAssembler, RowSerializer, SegmentBuffer
from hdl.streams.stream import Queue, SkidBuffer, beat_layout, connect_stream, word_layout

__all__ = ["Datapath", "codebook_ports", "pulses_layout"]


def codebook_ports(config):
    """The port that the codebook is read through, or none, as members of a signature."""
    rows = config.codebook_words // config.lanes
    return {"codebook_read": Out(read_signature(rows, config.lanes)).array(1)} if rows else {}


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


class Datapath(wiring.Component):
    """The datapath of a collective. See docs/ring/collective/theory.md for its picture.

    Parameters
    ----------
    config : NodeConfig

    Members
    -------
    start : In(1)
        Begins a command; ``setup`` must hold from then until ``busy`` is low.
    setup : In(setup_layout(config))
    busy : Out(1)
        High from the cycle after ``start`` until every header has been taken and everything is in the memories.
    header : Out(stream of header_layout())
    egress : Out(stream of word_layout())
        To the packetizer: what to send.
    expected : Out(stream of expected_layout())
    ingress : In(stream of word_layout())
        To and from the depacketizer: the packets to come, and their payload once the header has matched.
    gradient_read : array of 3 Out(read_signature)
        The optimizer's local gradient, then what is sent first, then what is added; where gradients are not added in
        compressed form only 2, the second for all that is sent.
    gradient_write : Out(write_signature)
    weight_read : Out(read_signature)
    weight_write : array of 2 Out(write_signature)
        From the ring, then from the optimizer; with a weight codec only one, for what has been decoded.
    state_read, state_write : arrays of one port per state plane
    master_read, master_write : arrays of one port with a weight codec, else none
    codebook_read : array of one port with a weight codec of centroids, else none
    residual_read, residual_write : arrays of one port with a gradient codec that loses something, else none
    pulses : Out(pulses_layout())
    """

    def __init__(self, *, config):
        self._config = config
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
                "gradient_read": Out(read_signature(gradient_rows, lanes)).array(2 + config.adds_compressed),
                "gradient_write": Out(write_signature(gradient_rows, lanes)),
                "weight_read": Out(read_signature(weight_rows, lanes)),
                "weight_write": Out(write_signature(weight_rows, lanes)).array(2 - config.has_master),
                "state_read": Out(read_signature(state_rows, lanes)).array(config.state_planes),
                "state_write": Out(write_signature(state_rows, lanes)).array(config.state_planes),
                "master_read": Out(read_signature(state_rows, lanes)).array(config.has_master),
                "master_write": Out(write_signature(state_rows, lanes)).array(config.has_master),
                **codebook_ports(config),
                "residual_read": Out(read_signature(gradient_rows, lanes)).array(config.has_residual),
                "residual_write": Out(write_signature(gradient_rows, lanes)).array(config.has_residual),
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
        # Beats of the optimizer. One that takes several cycles for each has them, and its buffers, as narrow as its
        # arithmetic; then it is enough to read a row for it when the one before has been taken.
        narrow = lanes if config.update_interval == 1 else config.update_lanes
        parts = lanes // narrow
        slow = lanes >= RowReader.latency and parts + RowReader.latency + 1 <= parts * config.update_interval
        depth = {"depth": 1} if slow else {}

        m.submodules.sequencer = sequencer = Sequencer(config=config)
        m.d.comb += [sequencer.start.eq(self.start), sequencer.setup.eq(setup), self.busy.eq(sequencer.busy)]
        connect_stream(m, sequencer.header, self.header)
        connect_stream(m, sequencer.expected, self.expected)

        # Units.
        m.submodules.gradient_reader = gradient_reader = RowReader(
            rows=gradient_rows, lanes=lanes, elements=segment, gradients=True, **depth
        )
        m.submodules.weight_reader = weight_reader = RowReader(
            rows=weight_rows, lanes=lanes, elements=segment, **depth
        )
        # What the optimizer makes of weights: with a weight codec those of the own block, kept apart.
        if config.has_master:
            m.submodules.master_reader = optimizer_reader = RowReader(
                rows=state_rows, lanes=lanes, elements=segment, **depth
            )
            m.submodules.master_writer = optimizer_writer = RowWriter(rows=state_rows, lanes=lanes, elements=segment)
        else:
            optimizer_reader = weight_reader
            m.submodules.weight_writer = optimizer_writer = RowWriter(
                rows=weight_rows, lanes=lanes, elements=segment
            )
        # What comes to rest from the ring: sums in the gradient memory, weights in the weight memory.
        landing_rows = max(gradient_rows, weight_rows)
        m.submodules.landing_writer = landing_writer = RowWriter(rows=landing_rows, lanes=lanes, elements=segment)
        m.submodules.landing = landing = SegmentBuffer(lanes=lanes, depth=2 * segment // lanes)
        m.submodules.assembler = assembler = RowAssembler(lanes=lanes)
        m.submodules.optimizer = optimizer = StreamedOptimizer(
            workers=2,
            lanes=narrow,
            update_lanes=config.update_lanes,
            update_interval=config.update_interval,
            depth=segment,
            broadcasts=1,
            rules=tuple(rule for rule, traits in RULES.items() if traits.planes <= config.state_planes),
            dsps=config.multiplier_dsps,
        )
        m.submodules.serializer = serializer = RowSerializer(lanes=lanes)
        # Here and elsewhere a skid buffer is where a way of ready signals would be too long.
        m.submodules.own = own = SkidBuffer(shape=word_layout())
        connect_stream(m, serializer.o, own.i)

        def split(name, sink):
            """Where rows go that a unit takes in slices."""
            if narrow == lanes:
                return sink
            m.submodules[f"{name}_splitter"] = splitter = RowSplitter(lanes=lanes, slice_lanes=narrow)
            connect_stream(m, splitter.o, sink)
            return splitter.i

        def join(name, source):
            """Rows of what a unit gives in slices."""
            if narrow == lanes:
                return source
            m.submodules[f"{name}_joiner"] = joiner = RowJoiner(lanes=lanes, slice_lanes=narrow)
            connect_stream(m, source, joiner.i)
            return joiner.o

        # What is passed on can wait for its turn, so that the ingress does not wait for the one before it.
        m.submodules.to_pass = to_pass = Queue(shape=word_layout(), depth=2 * segment, block=True)
        # What the own block gives to the gather, which lags one segment behind.
        if not config.has_master:
            m.submodules.kept_weights = kept_weights = Queue(
                shape=beat_layout(narrow), depth=2 * segment // narrow, block=True
            )
        state_readers, state_writers = [], []
        for plane in range(config.state_planes):
            reader = RowReader(rows=state_rows, lanes=lanes, elements=segment, **depth)
            writer = RowWriter(rows=state_rows, lanes=lanes, elements=segment)
            m.submodules[f"state_reader_{plane}"] = reader
            m.submodules[f"state_writer_{plane}"] = writer
            connect_stream(m, sequencer.state_jobs[plane], reader.job)
            connect_stream(m, sequencer.state_write_jobs[plane], writer.job)
            m.d.comb += sequencer.states_written[plane].eq(writer.done)
            state_readers.append(reader)
            state_writers.append(writer)
        connect_stream(m, sequencer.gradient_job, gradient_reader.job)
        connect_stream(m, sequencer.weight_job, weight_reader.job)
        if config.has_master:
            connect_stream(m, sequencer.master_job, optimizer_reader.job)
            connect_stream(m, sequencer.master_write_job, optimizer_writer.job)
            m.d.comb += sequencer.masters_written.eq(optimizer_writer.done)
        else:
            connect_stream(m, sequencer.weight_write_job, optimizer_writer.job)
            m.d.comb += sequencer.weights_written.eq(optimizer_writer.done)
        connect_stream(m, sequencer.landing_job, landing_writer.job)
        connect_stream(m, sequencer.bursts, optimizer.command)
        m.d.comb += sequencer.landed.eq(landing_writer.done)

        # Packets on their way.
        m.submodules.sent = sent = PacketMux(inputs=len(Sent))
        m.submodules.received = received = PacketDemux(outputs=len(Received))
        connect_stream(m, sequencer.sent, sent.route)
        connect_stream(m, sequencer.received, received.route)
        # Here, where all ways out of the ingress meet, no ready goes further back.
        m.submodules.arriving = arriving = SkidBuffer(shape=word_layout())
        connect_stream(m, self.ingress, arriving.i)
        connect_stream(m, arriving.o, received.i)
        if not config.has_master:
            connect_stream(m, received.o[Received.ASSEMBLER], assembler.i)
        connect_stream(m, to_pass.o, sent.i[Sent.PASSED])
        connect_stream(m, sent.o, self.egress)

        finished = split("finished", optimizer.gradients[0])
        connect_stream(m, gradient_reader.o, split("gradient", optimizer.gradients[1]))
        connect_stream(m, join("weight", optimizer.weights_out), optimizer_writer.i)
        for plane in range(config.state_planes):
            m.submodules[f"moment_unpacker_{plane}"] = unpacker = MomentUnpacker(lanes=narrow)
            m.submodules[f"moment_packer_{plane}"] = packer = MomentPacker(lanes=narrow)
            m.d.comb += [unpacker.packed_state.eq(setup.packed_state), packer.packed_state.eq(setup.packed_state)]
            connect_stream(m, state_readers[plane].o, split(f"state_{plane}", unpacker.i))
            connect_stream(m, unpacker.o, optimizer.state[plane])
            connect_stream(m, optimizer.state_out[plane], packer.i)
            connect_stream(m, join(f"state_{plane}", packer.o), state_writers[plane].i)
        connect_stream(m, landing.o, landing_writer.i)
        m.d.comb += optimizer.settings.eq(setup.settings)

        # Streams that a command uses in one way or the other.
        ways = m, sequencer, received, to_pass, sent, finished, landing
        sums = self._sum_compressed(*ways, depth) if config.adds_compressed else self._sum_decoded(*ways)
        weights = split("weight", optimizer.weights)
        with m.If(setup.fused):
            connect_stream(m, optimizer_reader.o, weights)
            if not config.has_master and narrow == lanes:
                connect_stream(m, kept_weights.o, serializer.i)
        with m.Else():
            connect_stream(m, weight_reader.o, serializer.i)
        with m.If(~setup.sum):
            connect_stream(m, assembler.o, landing.i)
            connect_stream(m, own.o, sent.i[Sent.OWN])
        if config.has_master:
            updated = join("broadcast", optimizer.broadcast[0])
            self._code_weights(m, sequencer, updated, received, assembler, landing, sent)
        else:
            if narrow < lanes:
                m.submodules.kept_serializer = kept_serializer = RowSerializer(lanes=narrow)
                connect_stream(m, kept_weights.o, kept_serializer.i)
                with m.If(setup.fused):
                    connect_stream(m, kept_serializer.o, own.i)
            with m.If(setup.alone):  # nobody to give new weights to
                m.d.comb += optimizer.broadcast[0].ready.eq(1)
            with m.Else():
                connect_stream(m, optimizer.broadcast[0], kept_weights.i)

        # Memory ports.
        wiring.connect(m, reader=gradient_reader.port, memory=wiring.flipped(self.gradient_read[0]))
        for reader, port in zip(sums.readers, self.gradient_read[1:], strict=True):
            wiring.connect(m, reader=reader.port, memory=wiring.flipped(port))
        wiring.connect(m, reader=weight_reader.port, memory=wiring.flipped(self.weight_read))
        if config.has_master:
            wiring.connect(m, reader=optimizer_reader.port, memory=wiring.flipped(self.master_read[0]))
            wiring.connect(m, writer=optimizer_writer.port, memory=wiring.flipped(self.master_write[0]))
        else:
            wiring.connect(m, writer=optimizer_writer.port, memory=wiring.flipped(self.weight_write[1]))
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

        # What the registers count.
        def taken(port):
            return port.valid & port.ready

        starved = sent.route.valid & self.egress.ready & ~self.egress.valid
        infinite = Cat(
            sums.o.payload.elements[lane][23:31].all() & sums.o.payload.keep[lane] for lane in range(lanes)
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
                *self.master_read,
                *self.master_write,
                *self.residual_read,
                *self.residual_write,
            )
        ]
        pulses = self.pulses
        m.d.comb += [
            pulses.compressed_words.eq(taken(self.egress) & (sequencer.scattering | setup.sum)),
            pulses.encodes.eq(sum(taken(encoder.o) & encoder.o.payload.last for encoder in sums.encoders)),
            pulses.elements_encoded.eq(
                sum(
                    taken(encoder.i) & encoder.i.payload.keep[lane]
                    for encoder in sums.encoders
                    for lane in range(lanes)
                )
            ),
            pulses.compressed_adds.eq(sums.added),
            pulses.positions_added.eq(sums.position),
            pulses.decodes.eq(taken(sums.decoder.o) & sums.decoder.o.payload.last),
            pulses.optimizer_bursts.eq(optimizer.bursts),
            pulses.scatter_reduce.eq(self.busy & sequencer.scattering),
            pulses.stall_encoder.eq(starved & (sent.route.payload == Sent.ENCODER)),
            pulses.stall_optimizer.eq(starved & (sent.route.payload == Sent.OWN) & setup.fused),
            pulses.stall_memory.eq(Cat(*refused).any()),
            pulses.local_nan.eq(Cat(gradient_reader.nan, *(reader.nan for reader in sums.readers)).any()),
            pulses.not_finite.eq(optimizer.nonfinite | (setup.sum & taken(sums.o) & infinite)),
            pulses.malformed.eq(sums.error),
        ]
        return m

    def _sum_compressed(self, m, sequencer, received, to_pass, sent, finished, landing, depth):
        """Add the way of gradients in compressed form, in which they are added, and what of it is counted."""
        setup, lanes, segment = self.setup, self._config.lanes, self._config.segment
        rows = self._config.gradient_words // lanes
        # What is sent in the first step and what is added to ingress later have an encoder each: together they make
        # N words for each N - 1 words on the link. Where the optimizer is slow, an element per cycle is enough.
        readers, encoders = [], []
        for name in ("sending", "adding"):
            reader = RowReader(rows=rows, lanes=lanes, elements=segment, gradients=True, **depth)
            encoder = zero_value.Encoder(lanes=lanes)
            m.submodules[f"{name}_reader"] = reader
            m.submodules[f"{name}_encoder"] = encoder
            connect_stream(m, getattr(sequencer, f"{name}_job"), reader.job)
            connect_stream(m, reader.o, encoder.i)
            readers.append(reader)
            encoders.append(encoder)
        sending, adding = encoders
        m.submodules.adder = adder = zero_value.Adder()
        m.submodules.decoder = decoder = zero_value.Decoder(lanes=lanes)
        # A segment can wait at each way out, so that the encoder does not wait for the one before it, and on the way
        # to the decoder, which may still be busy with a sum that has just left the adder.
        m.submodules.to_send = to_send = Queue(shape=word_layout(), depth=2 * segment, block=True)
        m.submodules.to_add = to_add = Queue(shape=word_layout(), depth=2 * segment, block=True)
        m.submodules.to_decode = to_decode = Queue(shape=word_layout(), depth=segment, block=True)
        m.submodules.kept_sums = kept_sums = Queue(
            shape=word_layout(), depth=2 * (segment + segment // GROUP), block=True
        )
        m.submodules.passed = passed = PacketMux(inputs=len(Passed))
        m.submodules.decoded = decoded = PacketMux(inputs=len(Decoded))
        m.submodules.summed = summed = PacketDemux(outputs=len(Summed))
        connect_stream(m, sequencer.passed, passed.route)
        connect_stream(m, sequencer.decoded, decoded.route)
        connect_stream(m, sequencer.summed, summed.route)
        connect_stream(m, sending.o, to_send.i)
        connect_stream(m, to_send.o, sent.i[Sent.ENCODER])
        connect_stream(m, adding.o, to_add.i)
        m.submodules.received_addend = received_addend = SkidBuffer(shape=word_layout())
        m.submodules.own_addend = own_addend = SkidBuffer(shape=word_layout())
        connect_stream(m, received.o[Received.ADDER], received_addend.i)
        connect_stream(m, received_addend.o, adder.a)
        connect_stream(m, own_addend.o, adder.b)
        connect_stream(m, received.o[Received.DECODER], to_decode.i)
        connect_stream(m, to_decode.o, decoded.i[Decoded.INGRESS])
        connect_stream(m, received.o[Received.EGRESS], passed.i[Passed.INGRESS])
        connect_stream(m, adder.o, summed.i)
        connect_stream(m, summed.o[Summed.EGRESS], passed.i[Passed.ADDER])
        connect_stream(m, summed.o[Summed.KEPT], kept_sums.i)
        connect_stream(m, summed.o[Summed.DECODER], decoded.i[Decoded.ADDER])
        connect_stream(m, passed.o, to_pass.i)
        m.submodules.to_decoder = to_decoder = SkidBuffer(shape=word_layout())
        connect_stream(m, decoded.o, to_decoder.i)
        connect_stream(m, to_decoder.o, decoder.i)
        with m.If(setup.fused):
            connect_stream(m, decoder.o, finished)
        with m.If(setup.sum):
            connect_stream(m, decoder.o, landing.i)
            connect_stream(m, kept_sums.o, sent.i[Sent.OWN])
        with m.If(setup.alone):  # nothing to add
            connect_stream(m, to_add.o, decoded.i[Decoded.ENCODER])
        with m.Else():
            connect_stream(m, to_add.o, own_addend.i)
        return SimpleNamespace(
            readers=readers, encoders=encoders, decoder=decoder, o=decoder.o, position=adder.position,
            added=adder.o.valid & adder.o.ready & adder.o.payload.last, error=adder.error,
        )

    def _sum_decoded(self, m, sequencer, received, to_pass, sent, finished, landing):
        """Add the way of gradients through a codec, with one path for all that is sent: what came in is decoded, the
        local gradient is added, with what was lost before, and the sum is encoded. And what of it is counted."""
        config, setup = self._config, self.setup
        lanes, segment, beats = config.lanes, config.segment, beat_layout(config.lanes)
        codec = GRADIENT_CODECS[config.gradient_codec]
        rows, words = config.gradient_words // lanes, codec.most_words(segment)
        m.submodules.summing_reader = reader = RowReader(rows=rows, lanes=lanes, elements=segment, gradients=True)
        m.submodules.adder = adder = PacketAdder(lanes=lanes, choice=True)
        m.submodules.encoder = encoder = FeedbackEncoder(codec=codec, lanes=lanes)
        m.submodules.decoder = decoder = WordDecoder(codec=codec, lanes=lanes)
        m.submodules.coded = coded = PacketDemux(outputs=len(Coded))
        m.submodules.shared = shared = PacketDemux(outputs=len(Shared), shape=beats)
        m.submodules.landed = landed = PacketMux(inputs=len(Landed), shape=beats)
        # A segment can wait where it is sent, so that the path goes on, and on its way into it. Sums that are kept
        # are given to the gather, which lags one segment behind.
        m.submodules.to_send = to_send = Queue(shape=word_layout(), depth=2 * words, block=True)
        m.submodules.to_decode = to_decode = Queue(shape=word_layout(), depth=words, block=True)
        m.submodules.kept_sums = kept_sums = Queue(shape=word_layout(), depth=2 * words, block=True)

        connect_stream(m, sequencer.summing_job, reader.job)
        connect_stream(m, sequencer.paired, adder.paired)
        connect_stream(m, sequencer.coded, coded.route)
        connect_stream(m, sequencer.shared, shared.route)
        connect_stream(m, sequencer.restore, encoder.restore)
        connect_stream(m, sequencer.landed_from, landed.route)
        connect_stream(m, received.o[Received.DECODER], to_decode.i)
        connect_stream(m, received.o[Received.EGRESS], to_pass.i)
        connect_stream(m, to_decode.o, decoder.i)
        connect_stream(m, decoder.o, shared.i)
        connect_stream(m, shared.o[Shared.ADDER], adder.b)
        connect_stream(m, shared.o[Shared.OPTIMIZER], finished)
        connect_stream(m, shared.o[Shared.LANDING], landed.i[Landed.INGRESS])
        connect_stream(m, adder.o, encoder.i)
        connect_stream(m, encoder.o, coded.i)
        connect_stream(m, encoder.restored, landed.i[Landed.OWN])
        connect_stream(m, coded.o[Coded.EGRESS], to_send.i)
        connect_stream(m, coded.o[Coded.KEPT], kept_sums.i)
        connect_stream(m, to_send.o, sent.i[Sent.ENCODER])
        with m.If(setup.sum):
            connect_stream(m, landed.o, landing.i)
            connect_stream(m, kept_sums.o, sent.i[Sent.OWN])
        if config.has_residual:
            m.submodules.residual_reader = lost_reader = RowReader(rows=rows, lanes=lanes, elements=segment)
            m.submodules.residual_writer = lost_writer = RowWriter(rows=rows, lanes=lanes, elements=segment)
            m.submodules.residual_adder = residual_adder = PacketAdder(lanes=lanes)
            connect_stream(m, sequencer.residual_job, lost_reader.job)
            connect_stream(m, sequencer.residual_write_job, lost_writer.job)
            connect_stream(m, reader.o, residual_adder.a)
            connect_stream(m, lost_reader.o, residual_adder.b)
            connect_stream(m, residual_adder.o, adder.a)
            # Nor does anything come to rest of what a corrupt packet would make of a residual.
            m.submodules.lost = lost = SegmentBuffer(lanes=lanes, depth=2 * segment // lanes)
            connect_stream(m, encoder.error, lost.i)
            connect_stream(m, lost.o, lost_writer.i)
            m.d.comb += sequencer.residuals_written.eq(lost_writer.done)
            wiring.connect(m, reader=lost_reader.port, memory=wiring.flipped(self.residual_read[0]))
            wiring.connect(m, writer=lost_writer.port, memory=wiring.flipped(self.residual_write[0]))
        else:
            connect_stream(m, reader.o, adder.a)
        return SimpleNamespace(
            readers=[reader], encoders=[encoder], decoder=decoder, o=landed.o, position=0,
            added=sequencer.paired.ready & sequencer.paired.payload, error=0,
        )

    def _code_weights(self, m, sequencer, updated, received, assembler, landing, sent):
        """Add the weight codec, which takes the place of raw weights in a fused update: new weights go to the ring
        and, decoded again, to the weight memory, where those from the ring follow them."""
        setup = self.setup
        codec = WEIGHT_CODECS[self._config.weight_codec]
        lanes, segment = self._config.lanes, self._config.segment
        words = codec.most_words(segment)
        m.submodules.weight_encoder = encoder = WordEncoder(codec=codec, lanes=lanes, segment=segment)
        m.submodules.weight_decoder = decoder = WordDecoder(codec=codec, lanes=lanes)
        m.submodules.encoded = encoded = Fork(shape=word_layout(), outputs=2)
        m.submodules.restored = restored = PacketMux(inputs=len(Restored))
        # What the own block gives to the gather, which lags one segment behind; and what waits for the decoder.
        m.submodules.kept_weights = kept_weights = Queue(shape=word_layout(), depth=2 * words, block=True)
        m.submodules.to_restore = to_restore = Queue(shape=word_layout(), depth=words, block=True)
        m.submodules.gathered = gathered = Queue(shape=word_layout(), depth=words, block=True)

        has_codebook = self._config.codebook_words != 0
        if not has_codebook:
            connect_stream(m, updated, encoder.i)
        connect_stream(m, encoder.o, encoded.i)
        m.d.comb += encoded.enable.eq(Cat(~setup.alone, 1))  # a ring of one has nobody to give new weights to
        connect_stream(m, encoded.o[0], kept_weights.i)
        connect_stream(m, encoded.o[1], to_restore.i)
        connect_stream(m, sequencer.restored, restored.route)
        connect_stream(m, to_restore.o, restored.i[Restored.OWN])
        connect_stream(m, gathered.o, restored.i[Restored.INGRESS])
        if has_codebook:
            loaded = self._load_codebook(m, encoder.load, decoder.load)
            for source, sink in ((updated, encoder.i), (restored.o, decoder.i)):
                m.d.comb += [sink.payload.eq(source.payload), sink.valid.eq(source.valid & loaded),
                             source.ready.eq(sink.ready & loaded)]
        else:
            connect_stream(m, restored.o, decoder.i)
        with m.If(setup.fused):
            connect_stream(m, received.o[Received.ASSEMBLER], gathered.i)
            connect_stream(m, decoder.o, landing.i)
            connect_stream(m, kept_weights.o, sent.i[Sent.OWN])
        with m.Else():
            connect_stream(m, received.o[Received.ASSEMBLER], assembler.i)

    def _load_codebook(self, m, bounds, centroids):
        """Give encoder and decoder of weights what they are loaded with, anew at the start of every fused update.

        Returns
        -------
        Signal
            They have it.
        """
        lanes, words = self._config.lanes, self._config.codebook_words
        m.submodules.codebook_reader = reader = RowReader(rows=words // lanes, lanes=lanes, elements=words // 2)
        m.submodules.codebook_serializer = serializer = RowSerializer(lanes=lanes)
        asked = Signal(2)  # for bounds, and then for centroids
        given = Signal(2)
        m.d.comb += [
            reader.job.valid.eq(Mux(asked[0], ~asked[1], self.start & self.setup.fused)),
            reader.job.payload.row.eq(Mux(asked[0], words // 2 // lanes, 0)),
            reader.job.payload.count.eq(Mux(asked[0], words // 2, words // 2 - 1)),
        ]
        with m.If(reader.job.valid & reader.job.ready):
            m.d.sync += asked.eq(Cat(1, asked[0]))
        connect_stream(m, reader.o, serializer.i)
        word = serializer.o
        with m.If(word.valid & word.ready & word.payload.last):
            m.d.sync += given.eq(Cat(1, given[0]))
        for sink, chosen in ((bounds, ~given[0]), (centroids, given[0])):
            m.d.comb += [sink.payload.eq(word.payload), sink.valid.eq(word.valid & chosen)]
        m.d.comb += word.ready.eq(Mux(given[0], centroids.ready, bounds.ready))
        wiring.connect(m, reader=reader.port, memory=wiring.flipped(self.codebook_read[0]))
        return given[1]
