"""Part for decoded sums: each node decodes incoming gradients, adds its own and encodes the sum.

The last sum of a reduce-scatter is written back without encoding, just as the last sum of a fused update is passed to
the optimizer. To keep the next outgoing packet from waiting for the last packet of the segment, the last sum lags
by one segment, like an all-gather, and the rows of the last packet wait in a separate queue.
"""

from amaranth.hdl import Cat, Module, Mux
from amaranth.lib import enum, stream
from amaranth.lib.wiring import In, Out

from hdl.compression.feedback import FeedbackEncoder, PacketAdder
from hdl.compression.registry import GRADIENT_CODECS
from hdl.compression.words import WordDecoder
from hdl.ring.parts.conditions import is_final, is_gather, is_reduce_scatter, is_scatter, is_sum
from hdl.ring.parts.part import Channel, Input, Instruction, Output, Part, PartDescription, has_infinite, job, taken
from hdl.ring.sequences import INGRESS, Path, Sequence
from hdl.streams.route import PacketDemux, PacketMux
from hdl.streams.stream import Queue, beat_layout, connect_stream, word_layout

__all__ = ["SUMS", "AddedFrom", "AddedTo", "CodedTo", "DecodedSum", "DecodedTo", "WrittenFrom", "describe",
           "is_encoded"]


class _Sums(Sequence):
    name = "sums"

    def scatter(self, command):
        setup = command.setup
        return Path(steps=Mux(setup.sum & setup.gather, command.size, command.sends), first=command.own)

    def gather(self, command):
        return Path(steps=is_reduce_scatter(command.setup), first=command.following)


#: Sequence of sums of packets and local gradients as they are computed: encoded sums and, in a reduce-scatter
#: (which has no all-gather), the last sums.
SUMS = _Sums()


class AddedFrom(enum.IntEnum):
    """Source of the rows to which a local gradient is added."""

    DECODER = 0
    LAST = 1


class AddedTo(enum.IntEnum):
    """Destination of a sum from the adder."""

    ENCODER = 0
    WRITE_BACK = 1


class CodedTo(enum.IntEnum):
    """Destination of an encoded sum."""

    EGRESS = 0
    KEPT = 1


class DecodedTo(enum.IntEnum):
    """Destination of a decoded segment."""

    ADDER = 0
    OPTIMIZER = 1
    WRITE_BACK = 2
    LAST = 3


class WrittenFrom(enum.IntEnum):
    """Source of a sum to be written back."""

    OWN = 0
    INGRESS = 1
    ADDER = 2


def _is_coded(record, setup):
    """Whether a packet contains sums and must therefore be decoded."""
    return is_scatter(record) | setup.sum


def _is_decoded(record, setup):
    return ~setup.alone & _is_coded(record, setup)


def _decoded_to(record, setup):
    final = is_final(record)
    updated, last = final & setup.fused, final & is_reduce_scatter(setup)
    sinks = {DecodedTo.ADDER: is_scatter(record) & ~updated & ~last, DecodedTo.OPTIMIZER: updated,
             DecodedTo.WRITE_BACK: is_gather(record), DecodedTo.LAST: last}
    return Cat(sinks[sink] for sink in DecodedTo)


def _is_kept(record, setup):
    """Whether a sum is the last one of its segment, which is encoded, decoded again and written back."""
    return record.last & setup.sum & setup.gather


def is_encoded(record, setup):
    """Return whether a sum is encoded. The last sums of a reduce-scatter, which are scheduled in place of an
    all-gather, are not encoded."""
    return is_scatter(record)


def _is_paired(record, setup):
    """Whether a sum includes rows from the ring."""
    return Mux(is_encoded(record, setup), ~record.first, ~setup.alone)


def _added_from(record, setup):
    return Mux(is_encoded(record, setup), AddedFrom.DECODER, AddedFrom.LAST)


def _added_to(record, setup):
    sinks = {AddedTo.ENCODER: is_encoded(record, setup), AddedTo.WRITE_BACK: ~is_encoded(record, setup)}
    return Cat(sinks[sink] for sink in AddedTo)


def _is_written(record, setup):
    """Whether the sums of a packet are written back."""
    return (is_final(record) | (is_gather(record) & setup.sum)) & setup.sum


def _written_from(record, setup):
    own = Mux(setup.gather, WrittenFrom.OWN, WrittenFrom.ADDER)
    return Mux(is_scatter(record), own, WrittenFrom.INGRESS)


def _coded_to(record, setup):
    own = _is_kept(record, setup)
    sinks = {CodedTo.EGRESS: ~own, CodedTo.KEPT: own & ~setup.alone}
    return Cat(sinks[sink] for sink in CodedTo)


def describe(config):
    """Return the :class:`~hdl.ring.parts.part.PartDescription`, or None if other parts add the gradients."""
    if config.adds_compressed or config.adds_integers:
        return None
    lossy = config.has_residual  # if so, a separate part adds the residual to the local gradients
    return PartDescription(
        name="sums",
        component=DecodedSum,
        instructions=(
            # Reads of the local gradients, in the order of the sums.
            job(config, "summing_job", SUMS, "gradients"),
            # Whether the local gradients are added to an incoming packet.
            Instruction("paired", SUMS, 1, _is_paired),
            # Source of the rows to which local gradients are added.
            Instruction("added_from", SUMS, range(len(AddedFrom)), _added_from, when=_is_paired),
            # Destinations of each sum, one bit per member of AddedTo.
            Instruction("added_to", SUMS, len(AddedTo), _added_to),
            # Destinations of each encoded sum, one bit per member of CodedTo.
            Instruction("coded_to", SUMS, len(CodedTo), _coded_to, when=is_encoded),
            # Whether an encoded sum is decoded again and written back.
            Instruction("restore", SUMS, 1, _is_kept, when=is_encoded),
            # Destinations of each decoded segment, one bit per member of DecodedTo.
            Instruction("decoded_to", INGRESS, len(DecodedTo), _decoded_to, when=_is_decoded),
            # Source of each sum that is written back.
            Instruction("written_from", INGRESS, range(len(WrittenFrom)), _written_from, when=_is_written),
        ),
        reads={"gradients": 1},
        inputs=(Input("to_decoder", Channel.INGRESS, packets=_is_coded), Input("transit", Channel.TRANSIT),
                Input("addend", Channel.ADDEND)),
        outputs=(
            Output("local", Channel.LOCAL if lossy else Channel.ADDEND),
            Output("encoded", Channel.ENCODED),
            Output("forwarded", Channel.FORWARD),
            Output("finished", Channel.SUMS),
            Output("write_back", Channel.WRITE_BACK, during=is_sum),
            Output("kept", Channel.OWN, during=is_sum),
            *((Output("errors", Channel.ERRORS),) if lossy else ()),
        ),
        pulses=("elements_encoded", "encodes", "compressed_adds", "decodes", "local_nan", "not_finite"),
        encodes_all=True,
    )


class DecodedSum(Part):
    """Decode packets, add local gradients and encode the sums, for all packets that the node sends."""

    def __init__(self, *, config, description):
        words = stream.Signature(word_layout())
        rows = stream.Signature(beat_layout(config.lanes))
        self._codec = GRADIENT_CODECS[config.gradients]
        super().__init__(config, description, {
            # Packets to be decoded.
            "to_decoder": In(words),
            # Packets to be forwarded unchanged.
            "transit": In(words),
            # Local gradients from memory.
            "local": Out(rows),
            # Local gradients to add, including the residual if there is one.
            "addend": In(rows),
            # Sums to be sent.
            "encoded": Out(words),
            # Packets to be forwarded.
            "forwarded": Out(words),
            # Sums for the optimizer in a fused update.
            "finished": Out(rows),
            # Sums to write to the gradient memory, in commands other than a fused update.
            "write_back": Out(rows),
            # Final sums of the node's own block, for the all-gather.
            "kept": Out(words),
            # Encoding errors of a lossy codec.
            **({} if self._codec.exact else {"errors": Out(rows)}),
        })

    def elaborate(self, platform):
        m = Module()
        config, setup, codec = self._config, self.setup, self._codec
        lanes, segment = config.lanes, config.segment
        beats, words = beat_layout(lanes), codec.max_words(segment)
        m.submodules.reader = reader = self._gradient_reader()
        m.submodules.adder = adder = PacketAdder(lanes=lanes, choice=True)
        m.submodules.encoder = encoder = FeedbackEncoder(codec=codec, lanes=lanes)
        m.submodules.decoder = decoder = WordDecoder(codec=codec, lanes=lanes)
        m.submodules.added_mux = addends = PacketMux(inputs=len(AddedFrom), shape=beats)
        m.submodules.added_demux = added = PacketDemux(outputs=len(AddedTo), shape=beats)
        m.submodules.coded_demux = coded = PacketDemux(outputs=len(CodedTo))
        m.submodules.decoded_demux = decoded = PacketDemux(outputs=len(DecodedTo), shape=beats)
        m.submodules.written_mux = written = PacketMux(inputs=len(WrittenFrom), shape=beats)
        # One segment can wait for the link, and another for the decoder, without stalling the other units. Kept sums
        # wait for the all-gather, which lags by one segment. The last sums of a reduce-scatter lag by one segment,
        # too. While such a sum is being computed, the encoder holds the rows of the previous sum.
        m.submodules.to_send = to_send = Queue(shape=word_layout(), depth=2 * words, block=True)
        m.submodules.to_decode = to_decode = Queue(shape=word_layout(), depth=words, block=True)
        m.submodules.last_rows = last = Queue(shape=beats, depth=2 * segment // lanes, block=True)
        m.submodules.to_encode = to_encode = Queue(shape=beats, depth=segment // lanes, block=True)
        m.submodules.kept_sums = kept_sums = Queue(shape=word_layout(), depth=2 * words, block=True)

        connect_stream(m, self.summing_job, reader.job)
        connect_stream(m, self.paired, adder.paired)
        connect_stream(m, self.added_from, addends.route)
        connect_stream(m, self.added_to, added.route)
        connect_stream(m, self.coded_to, coded.route)
        connect_stream(m, self.decoded_to, decoded.route)
        connect_stream(m, self.restore, encoder.restore)
        connect_stream(m, self.written_from, written.route)
        connect_stream(m, self.to_decoder, to_decode.i)
        connect_stream(m, self.transit, self.forwarded)
        connect_stream(m, to_decode.o, decoder.i)
        connect_stream(m, decoder.o, decoded.i)
        connect_stream(m, decoded.o[DecodedTo.ADDER], addends.i[AddedFrom.DECODER])
        connect_stream(m, decoded.o[DecodedTo.LAST], last.i)
        connect_stream(m, last.o, addends.i[AddedFrom.LAST])
        connect_stream(m, addends.o, adder.b)
        connect_stream(m, decoded.o[DecodedTo.OPTIMIZER], self.finished)
        connect_stream(m, decoded.o[DecodedTo.WRITE_BACK], written.i[WrittenFrom.INGRESS])
        connect_stream(m, reader.o, self.local)
        connect_stream(m, self.addend, adder.a)
        connect_stream(m, adder.o, added.i)
        connect_stream(m, added.o[AddedTo.WRITE_BACK], written.i[WrittenFrom.ADDER])
        with m.If(is_reduce_scatter(setup)):
            connect_stream(m, added.o[AddedTo.ENCODER], to_encode.i)
            connect_stream(m, to_encode.o, encoder.i)
        with m.Else():
            connect_stream(m, added.o[AddedTo.ENCODER], encoder.i)
        connect_stream(m, encoder.o, coded.i)
        connect_stream(m, encoder.restored, written.i[WrittenFrom.OWN])
        connect_stream(m, coded.o[CodedTo.EGRESS], to_send.i)
        connect_stream(m, coded.o[CodedTo.KEPT], kept_sums.i)
        connect_stream(m, to_send.o, self.encoded)
        connect_stream(m, written.o, self.write_back)
        connect_stream(m, kept_sums.o, self.kept)
        if not codec.exact:
            connect_stream(m, encoder.error, self.errors)
        self._connect_read(m, reader, "gradients")

        pulses = self.pulses
        m.d.comb += [
            pulses.encodes.eq(taken(encoder.o) & encoder.o.payload.last),
            pulses.elements_encoded.eq(sum(taken(encoder.i) & encoder.i.payload.keep[lane] for lane in range(lanes))),
            pulses.compressed_adds.eq(self.paired.ready & self.paired.payload),
            pulses.decodes.eq(taken(decoder.o) & decoder.o.payload.last),
            pulses.local_nan.eq(reader.nan),
            pulses.not_finite.eq(setup.sum & taken(written.o) & has_infinite(written.o.payload)),
        ]
        return m
