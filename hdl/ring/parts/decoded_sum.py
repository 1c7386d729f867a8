"""The decoded sum: gradients that are decoded, added and encoded again at every hop.

The last sum of a reduce-scatter comes to rest as it is, as that of a fused update goes to the optimizer. What is sent
next would have to wait behind it for the last packet of the segment; so it lags one segment behind, as a gather does,
and what that packet holds waits apart.
"""

from amaranth.hdl import Cat, Module, Mux
from amaranth.lib import enum, stream
from amaranth.lib.wiring import In, Out

from hdl.compression.feedback import FeedbackEncoder, PacketAdder
from hdl.compression.registry import GRADIENT_CODECS
from hdl.compression.words import WordDecoder
from hdl.node_features import Tenants
from hdl.ring.parts.part import Given, Part, PartDescription, Sink, Socket, Step, has_infinite, job, taken
from hdl.ring.walks import INGRESS, Tour, WalkDescription, is_final, is_gather, is_scatter
from hdl.row_transfer import RowReader
from hdl.streams.route import PacketDemux, PacketMux
from hdl.streams.stream import Queue, beat_layout, connect_stream, word_layout

__all__ = ["SUMS", "AddedFrom", "AddedTo", "CodedTo", "DecodedSum", "DecodedTo", "LandedFrom", "describe",
           "is_encoded", "scatters_only"]

#: The sums of what comes in and the local gradients, in the order in which they are formed: those that are encoded,
#: and in place of a gather the last ones of a reduce-scatter.
SUMS = WalkDescription(
    name="sums",
    scatter=lambda now: Tour(steps=Mux(now.setup.sum & now.setup.gather, now.size, now.sends), first=now.own),
    gather=lambda now: Tour(steps=scatters_only(now.setup), first=now.following))


class AddedFrom(enum.IntEnum):
    """Source of what a local gradient is added to."""

    DECODER = 0
    LAST = 1


class AddedTo(enum.IntEnum):
    """Destination of a sum."""

    ENCODER = 0
    LANDING = 1


class CodedTo(enum.IntEnum):
    """Destination of a sum that has been encoded."""

    EGRESS = 0
    KEPT = 1


class DecodedTo(enum.IntEnum):
    """Destination of a segment that has been decoded."""

    ADDER = 0
    OPTIMIZER = 1
    LANDING = 2
    LAST = 3


class LandedFrom(enum.IntEnum):
    """Source of a decoded sum that comes to rest."""

    OWN = 0
    INGRESS = 1
    ADDER = 2


def scatters_only(setup):
    """Whether the command is a reduce-scatter, whose last sums come to rest as they are."""
    return setup.sum & ~setup.gather


def _is_coded(at, setup):
    """Whether a packet has sums in it, and so is decoded."""
    return is_scatter(at) | setup.sum


def _decoded_to(at, setup):
    final = is_final(at)
    updated, last = final & setup.fused, final & scatters_only(setup)
    sinks = {DecodedTo.ADDER: is_scatter(at) & ~updated & ~last, DecodedTo.OPTIMIZER: updated,
             DecodedTo.LANDING: is_gather(at), DecodedTo.LAST: last}
    return Cat(sinks[sink] for sink in DecodedTo)


def _stays(at, setup):
    """Whether a sum is encoded and comes to rest. It is the last one of its segment."""
    return at.last & setup.sum & setup.gather


def is_encoded(at, setup):
    """Whether a sum is encoded. Only a reduce-scatter has others, in place of a gather."""
    return is_scatter(at)


def _is_paired(at, setup):
    """Whether a sum has an addend from the ring."""
    return Mux(is_encoded(at, setup), ~at.first, ~setup.alone)


def _added_to(at, setup):
    sinks = {AddedTo.ENCODER: is_encoded(at, setup), AddedTo.LANDING: ~is_encoded(at, setup)}
    return Cat(sinks[sink] for sink in AddedTo)


def _landed_from(at, setup):
    own = Mux(setup.gather, LandedFrom.OWN, LandedFrom.ADDER)
    return Mux(is_scatter(at), own, LandedFrom.INGRESS)


def _coded_to(at, setup):
    own = _stays(at, setup)
    sinks = {CodedTo.EGRESS: ~own, CodedTo.KEPT: own & ~setup.alone}
    return Cat(sinks[sink] for sink in CodedTo)


def describe(config):
    """The part's :class:`~hdl.ring.parts.part.PartDescription`, or None where sums are added as they are coded."""
    if config.adds_compressed:
        return None
    lossy = config.has_residual  # then the residual is added on the way, by a part of its own
    return PartDescription(
        name="sums",
        make=lambda description: DecodedSum(config=config, description=description),
        steps=(
            # Reads of local gradients, in the order of the sums.
            job(config, "summing_job", SUMS, "gradients", lambda setup: setup.gradient_row),
            # Whether such gradients are added to ingress.
            Step(name="paired", walk=SUMS, shape=1, payload=_is_paired),
            # Source of what they are then added to.
            Step(name="added_from", walk=SUMS, shape=range(len(AddedFrom)), when=_is_paired,
                 payload=lambda at, setup: Mux(is_encoded(at, setup), AddedFrom.DECODER, AddedFrom.LAST)),
            # Destination of each sum, a bit for each of AddedTo.
            Step(name="added_to", walk=SUMS, shape=len(AddedTo), payload=_added_to),
            # Destinations of each sum that has been encoded, a bit for each of CodedTo.
            Step(name="coded_to", walk=SUMS, shape=len(CodedTo), payload=_coded_to, when=is_encoded),
            # Whether a sum that has been encoded comes to rest, decoded again.
            Step(name="restore", walk=SUMS, shape=1, payload=_stays, when=is_encoded),
            # Destinations of each segment that has been decoded, a bit for each of DecodedTo.
            Step(name="decoded_to", walk=INGRESS, shape=len(DecodedTo), payload=_decoded_to,
                 when=lambda at, setup: ~setup.alone & _is_coded(at, setup)),
            # Source of each sum that comes to rest.
            Step(name="landed_from", walk=INGRESS, shape=range(len(LandedFrom)), payload=_landed_from,
                 when=lambda at, setup: (is_final(at) | (is_gather(at) & setup.sum)) & setup.sum),
        ),
        reads={"gradients": 1},
        receives=(Sink(name="to_decoder", when=_is_coded),),
        takes={Socket.ONWARD: "onward", Socket.ADDEND: "addend"},
        gives=(
            Given(name="local", to=Socket.LOCAL if lossy else Socket.ADDEND),
            Given(name="encoded", to=Socket.ENCODED),
            Given(name="passed", to=Socket.PASSED),
            Given(name="finished", to=Socket.FINISHED),
            Given(name="landing", to=Socket.LANDING, during=lambda setup: setup.sum),
            Given(name="kept", to=Socket.OWN, during=lambda setup: setup.sum),
            *((Given(name="lost", to=Socket.LOST),) if lossy else ()),
        ),
        pulses=("elements_encoded", "encodes", "compressed_adds", "decodes", "local_nan", "not_finite"),
        encodes_all=True,
        lands=lambda at, setup: is_final(at) & setup.sum,
    )


class DecodedSum(Part):
    """Decodes what comes in, adds the local gradient, and encodes the sum, with one path for all that is sent."""

    def __init__(self, *, config, description):
        words = stream.Signature(word_layout())
        rows = stream.Signature(beat_layout(config.lanes))
        self._codec = GRADIENT_CODECS[config.gradients]
        super().__init__(config, description, {
            # Packets that are decoded.
            "to_decoder": In(words),
            # Packets that are passed on as they come.
            "onward": In(words),
            # Local gradients as they are in memory.
            "local": Out(rows),
            # Local gradients as they are added, with residuals if there are any.
            "addend": In(rows),
            # Sums to be sent.
            "encoded": Out(words),
            # Packets to be passed on.
            "passed": Out(words),
            # Sums for the optimizer, in a fused update.
            "finished": Out(rows),
            # Sums that come to rest, in other commands.
            "landing": Out(rows),
            # Finished sums of the own block, for the gather.
            "kept": Out(words),
            # Errors that encoding has made, with a codec that is not exact.
            **({} if self._codec.exact else {"lost": Out(rows)}),
        })

    def elaborate(self, platform):
        m = Module()
        config, setup, codec = self._config, self.setup, self._codec
        lanes, segment = config.lanes, config.segment
        beats, words = beat_layout(lanes), codec.most_words(segment)
        m.submodules.reader = reader = RowReader(
            rows=config.memories.gradient // lanes, lanes=lanes, elements=segment, gradients=True, strided=True,
            guarded=config.has(Tenants))
        m.submodules.adder = adder = PacketAdder(lanes=lanes, choice=True)
        m.submodules.encoder = encoder = FeedbackEncoder(codec=codec, lanes=lanes)
        m.submodules.decoder = decoder = WordDecoder(codec=codec, lanes=lanes)
        m.submodules.added_mux = addends = PacketMux(inputs=len(AddedFrom), shape=beats)
        m.submodules.added_demux = added = PacketDemux(outputs=len(AddedTo), shape=beats)
        m.submodules.coded_demux = coded = PacketDemux(outputs=len(CodedTo))
        m.submodules.decoded_demux = decoded = PacketDemux(outputs=len(DecodedTo), shape=beats)
        m.submodules.landed_mux = landed = PacketMux(inputs=len(LandedFrom), shape=beats)
        # A segment can wait where it is sent, so that the path goes on, and on its way into it. Sums that are kept
        # are given to the gather, which lags one segment behind, as the last sums of a reduce-scatter do. While one
        # of these is formed, the encoder has the rows of the sum before it.
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
        connect_stream(m, self.landed_from, landed.route)
        connect_stream(m, self.to_decoder, to_decode.i)
        connect_stream(m, self.onward, self.passed)
        connect_stream(m, to_decode.o, decoder.i)
        connect_stream(m, decoder.o, decoded.i)
        connect_stream(m, decoded.o[DecodedTo.ADDER], addends.i[AddedFrom.DECODER])
        connect_stream(m, decoded.o[DecodedTo.LAST], last.i)
        connect_stream(m, last.o, addends.i[AddedFrom.LAST])
        connect_stream(m, addends.o, adder.b)
        connect_stream(m, decoded.o[DecodedTo.OPTIMIZER], self.finished)
        connect_stream(m, decoded.o[DecodedTo.LANDING], landed.i[LandedFrom.INGRESS])
        connect_stream(m, reader.o, self.local)
        connect_stream(m, self.addend, adder.a)
        connect_stream(m, adder.o, added.i)
        connect_stream(m, added.o[AddedTo.LANDING], landed.i[LandedFrom.ADDER])
        with m.If(scatters_only(setup)):
            connect_stream(m, added.o[AddedTo.ENCODER], to_encode.i)
            connect_stream(m, to_encode.o, encoder.i)
        with m.Else():
            connect_stream(m, added.o[AddedTo.ENCODER], encoder.i)
        connect_stream(m, encoder.o, coded.i)
        connect_stream(m, encoder.restored, landed.i[LandedFrom.OWN])
        connect_stream(m, coded.o[CodedTo.EGRESS], to_send.i)
        connect_stream(m, coded.o[CodedTo.KEPT], kept_sums.i)
        connect_stream(m, to_send.o, self.encoded)
        connect_stream(m, landed.o, self.landing)
        connect_stream(m, kept_sums.o, self.kept)
        if not codec.exact:
            connect_stream(m, encoder.error, self.lost)
        self._connect_read(m, reader, "gradients")

        pulses = self.pulses
        m.d.comb += [
            pulses.encodes.eq(taken(encoder.o) & encoder.o.payload.last),
            pulses.elements_encoded.eq(sum(taken(encoder.i) & encoder.i.payload.keep[lane] for lane in range(lanes))),
            pulses.compressed_adds.eq(self.paired.ready & self.paired.payload),
            pulses.decodes.eq(taken(decoder.o) & decoder.o.payload.last),
            pulses.local_nan.eq(reader.nan),
            pulses.not_finite.eq(setup.sum & taken(landed.o) & has_infinite(landed.o.payload)),
        ]
        return m
