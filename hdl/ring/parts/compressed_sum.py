"""Part for compressed sums, which adds gradients in the coded form in which they are sent."""

from amaranth.hdl import Cat, Module, Mux
from amaranth.lib import enum, stream
from amaranth.lib.wiring import In, Out

from hdl.compression.zero_value.adder import Adder
from hdl.compression.zero_value.decoder import Decoder
from hdl.compression.zero_value.encoder import Encoder
from hdl.group import GROUP
from hdl.ring.parts.conditions import is_final, is_gather, is_scatter, is_sum
from hdl.ring.parts.pace import reader_options
from hdl.ring.parts.part import Channel, Input, Instruction, Output, Part, PartDescription, has_infinite, job, taken
from hdl.ring.sequences import ENCODE, INGRESS
from hdl.streams.route import PacketDemux, PacketMux
from hdl.streams.stream import Queue, SkidBuffer, beat_layout, connect_stream, word_layout

__all__ = ["CompressedSum", "DecodedFrom", "ForwardedFrom", "SummedTo", "describe"]


class ForwardedFrom(enum.IntEnum):
    """Source of the payload of a forwarded packet."""

    ADDER = 0
    INGRESS = 1


class DecodedFrom(enum.IntEnum):
    """Source of a compressed segment to be decoded."""

    INGRESS = 0
    ADDER = 1
    ENCODER = 2


class SummedTo(enum.IntEnum):
    """Destination of a compressed sum from the adder."""

    EGRESS = 0
    KEPT = 1
    DECODER = 2


def _is_sent(record, setup):
    return record.first & ~setup.alone


def _is_added(record, setup):
    return ~_is_sent(record, setup)


def _takes_local(record, setup):
    """Return whether the adder adds the local gradient to a packet. In an update, the optimizer adds the last one."""
    return is_scatter(record) & ~(is_final(record) & setup.fused)


def _is_summed(record, setup):
    """Whether the adder outputs a sum. A ring of one node has nothing to add."""
    return ~setup.alone & _takes_local(record, setup)


def _summed_to(record, setup):
    final = is_final(record)
    sinks = {SummedTo.EGRESS: ~final, SummedTo.KEPT: final & setup.gather, SummedTo.DECODER: final}
    return Cat(sinks[sink] for sink in SummedTo)


def _is_decoded(record, setup):
    """Whether a packet, or the sum formed from it, is decoded."""
    return is_final(record) | (is_gather(record) & setup.sum)


def _is_decoded_unchanged(record, setup):
    """Whether a packet is decoded without adding to it."""
    return ~_takes_local(record, setup) & _is_decoded(record, setup)


def _decoded_from(record, setup):
    own = Mux(setup.alone, DecodedFrom.ENCODER, DecodedFrom.ADDER)
    return Mux(is_final(record) & setup.sum, own, DecodedFrom.INGRESS)


def _is_forwarded(record, setup):
    """Whether a packet is forwarded, either unchanged or as the sum formed from it."""
    return ~setup.alone & ((is_scatter(record) & ~is_final(record))
                           | (is_gather(record) & (~record.last | setup.pass_on)))


def _forwarded_from(record, setup):
    return Mux(is_gather(record), ForwardedFrom.INGRESS, ForwardedFrom.ADDER)


def describe(config):
    """Return the part's :class:`~hdl.ring.parts.part.PartDescription`, or None if sums must be decoded."""
    if not config.adds_compressed:
        return None
    return PartDescription(
        name="sums",
        component=CompressedSum,
        instructions=(
            # Local gradients to encode: for the first step of a segment, and for adding to incoming packets.
            job(config, "sending_job", ENCODE, "gradients", when=_is_sent),
            job(config, "adding_job", ENCODE, "gradients", when=_is_added),
            # Destinations of each sum, with one bit for each member of SummedTo.
            Instruction("summed_to", INGRESS, len(SummedTo), _summed_to, when=_is_summed),
            # Source of each segment to decode. In a ring of one node, these are its own segments.
            Instruction("decoded_from", INGRESS, range(len(DecodedFrom)), _decoded_from, when=_is_decoded),
            # Source of each forwarded payload.
            Instruction("forwarded_from", INGRESS, range(len(ForwardedFrom)), _forwarded_from, when=_is_forwarded),
        ),
        reads={"gradients": 2},
        inputs=(
            Input("to_adder", Channel.INGRESS, packets=_takes_local),
            Input("to_decoder", Channel.INGRESS, packets=_is_decoded_unchanged),
            Input("transit", Channel.TRANSIT),
        ),
        outputs=(
            Output("encoded", Channel.ENCODED),
            Output("forwarded", Channel.FORWARD),
            Output("finished", Channel.SUMS),
            Output("write_back", Channel.WRITE_BACK, during=is_sum),
            Output("kept", Channel.OWN, during=is_sum),
        ),
        pulses=("elements_encoded", "encodes", "compressed_adds", "positions_added", "decodes", "local_nan",
                "not_finite", "malformed"),
    )


class CompressedSum(Part):
    """Encode local gradients, add them to incoming packets in coded form, and decode finished sums.

    One encoder is for gradients sent in the first step, the other for gradients that are later added to packets;
    together, they produce N words for every N - 1 words on the link. With a slow optimizer, one element per cycle
    is enough.
    """

    def __init__(self, *, config, description):
        words = stream.Signature(word_layout())
        rows = stream.Signature(beat_layout(config.lanes))
        super().__init__(config, description, {
            # Packets to the adder, which adds the local gradient.
            "to_adder": In(words),
            # Packets that are decoded as they arrive.
            "to_decoder": In(words),
            # Packets that are forwarded unchanged.
            "transit": In(words),
            # Encoded local gradients for the first step of a segment.
            "encoded": Out(words),
            # Packets to forward, either unchanged or with the local gradient added.
            "forwarded": Out(words),
            # Decoded sums for the optimizer, in a fused update.
            "finished": Out(rows),
            # Decoded sums for the gradient memory, in commands other than a fused update.
            "write_back": Out(rows),
            # Finished sums of the node's own block, for the all-gather.
            "kept": Out(words),
        })

    def elaborate(self, platform):
        m = Module()
        config, setup = self._config, self.setup
        lanes, segment = config.lanes, config.segment
        readers, encoders = [], []
        for index, name in enumerate(("sending", "adding")):
            reader = self._gradient_reader(**reader_options(config, "gradients"))
            encoder = Encoder(lanes=lanes)
            m.submodules[f"{name}_reader"] = reader
            m.submodules[f"{name}_encoder"] = encoder
            connect_stream(m, getattr(self, f"{name}_job"), reader.job)
            connect_stream(m, reader.o, encoder.i)
            self._connect_read(m, reader, "gradients", index)
            readers.append(reader)
            encoders.append(encoder)
        sending, adding = encoders
        m.submodules.adder = adder = Adder()
        m.submodules.decoder = decoder = Decoder(lanes=lanes)
        # There is room for a segment at each output, so that the encoder need not wait for the previous segment to
        # leave, and at the decoder's input, since the decoder may still have a sum that just left the adder.
        m.submodules.to_send = to_send = Queue(shape=word_layout(), depth=2 * segment, block=True)
        m.submodules.to_add = to_add = Queue(shape=word_layout(), depth=2 * segment, block=True)
        m.submodules.to_decode = to_decode = Queue(shape=word_layout(), depth=segment, block=True)
        m.submodules.kept_sums = kept_sums = Queue(
            shape=word_layout(), depth=2 * (segment + segment // GROUP), block=True
        )
        m.submodules.forwarded_mux = forwarded = PacketMux(inputs=len(ForwardedFrom))
        m.submodules.decoded_mux = decoded = PacketMux(inputs=len(DecodedFrom))
        m.submodules.summed_demux = summed = PacketDemux(outputs=len(SummedTo))
        # A skid buffer breaks a combinational chain of ready signals that would be too long.
        m.submodules.received_addend = received_addend = SkidBuffer(shape=word_layout())
        m.submodules.own_addend = own_addend = SkidBuffer(shape=word_layout())
        m.submodules.decoder_input = decoder_input = SkidBuffer(shape=word_layout())

        connect_stream(m, self.forwarded_from, forwarded.route)
        connect_stream(m, self.decoded_from, decoded.route)
        connect_stream(m, self.summed_to, summed.route)
        connect_stream(m, sending.o, to_send.i)
        connect_stream(m, to_send.o, self.encoded)
        connect_stream(m, adding.o, to_add.i)
        connect_stream(m, self.to_adder, received_addend.i)
        connect_stream(m, received_addend.o, adder.a)
        connect_stream(m, own_addend.o, adder.b)
        connect_stream(m, self.to_decoder, to_decode.i)
        connect_stream(m, to_decode.o, decoded.i[DecodedFrom.INGRESS])
        transit = self.transit
        if config.role.root_reduce or config.role.interleaved:
            # A sum leaves the adder one group and some cycles after its packet arrives. If every sum is followed by a
            # packet in transit, that packet waits here, so that the next sum can reach the adder.
            m.submodules.to_follow = to_follow = Queue(shape=word_layout(), depth=2 * GROUP, block=True)
            connect_stream(m, transit, to_follow.i)
            transit = to_follow.o
        connect_stream(m, transit, forwarded.i[ForwardedFrom.INGRESS])
        connect_stream(m, adder.o, summed.i)
        connect_stream(m, summed.o[SummedTo.EGRESS], forwarded.i[ForwardedFrom.ADDER])
        connect_stream(m, summed.o[SummedTo.KEPT], kept_sums.i)
        connect_stream(m, summed.o[SummedTo.DECODER], decoded.i[DecodedFrom.ADDER])
        connect_stream(m, forwarded.o, self.forwarded)
        connect_stream(m, decoded.o, decoder_input.i)
        connect_stream(m, decoder_input.o, decoder.i)
        connect_stream(m, kept_sums.o, self.kept)
        with m.If(setup.fused):
            connect_stream(m, decoder.o, self.finished)
        with m.If(setup.sum):
            connect_stream(m, decoder.o, self.write_back)
        with m.If(setup.alone):  # a single node has nothing to add
            connect_stream(m, to_add.o, decoded.i[DecodedFrom.ENCODER])
        with m.Else():
            connect_stream(m, to_add.o, own_addend.i)

        pulses, sums = self.pulses, decoder.o
        m.d.comb += [
            pulses.encodes.eq(sum(taken(encoder.o) & encoder.o.payload.last for encoder in encoders)),
            pulses.elements_encoded.eq(sum(
                taken(encoder.i) & encoder.i.payload.keep[lane] for encoder in encoders for lane in range(lanes))),
            pulses.compressed_adds.eq(taken(adder.o) & adder.o.payload.last),
            pulses.positions_added.eq(adder.position),
            pulses.decodes.eq(taken(sums) & sums.payload.last),
            pulses.local_nan.eq(Cat(reader.nan for reader in readers).any()),
            pulses.not_finite.eq(setup.sum & taken(sums) & has_infinite(sums.payload)),
            pulses.malformed.eq(adder.error),
        ]
        return m
