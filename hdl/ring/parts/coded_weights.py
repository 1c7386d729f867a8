"""Part for coded weights, which encodes new weights for the ring and decodes them again for the weight memory.

They come from the optimizer or, in a separate all-gather, from the weight memory; weights that have already passed
through the codec do not change.
"""

from amaranth.hdl import Cat, Const, Module, Mux
from amaranth.lib import enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.compression.registry import RAW, WEIGHT_CODECS
from hdl.compression.words import WordDecoder, WordEncoder
from hdl.ring.parts.codebook import CodebookLoader
from hdl.ring.parts.conditions import has_coded_weights, is_weights
from hdl.ring.parts.pace import beat_lanes, join
from hdl.ring.parts.part import Alternative, Channel, Input, Instruction, Output, Part, PartDescription
from hdl.ring.sequences import Path, Sequence
from hdl.streams.route import Fork, PacketMux
from hdl.streams.stream import Queue, beat_layout, connect_stream, word_layout

__all__ = ["DECODE", "CodebookWeights", "CodedWeights", "RestoredFrom", "describe"]


class _Decode(Sequence):
    name = "decode"

    def gather(self, command):
        return Path(steps=Mux(command.setup.coded, command.size, 0), first=command.following)


#: Sequence of new weights in decoding order: the node's own segment, followed by gathered segments.
DECODE = _Decode()


class RestoredFrom(enum.IntEnum):
    """Source of encoded weights to be decoded."""

    OWN = 0
    INGRESS = 1


def _restored_from(record, setup):
    return Mux(record.first, RestoredFrom.OWN, RestoredFrom.INGRESS)


def describe(config):
    """Return the part's :class:`~hdl.ring.parts.part.PartDescription`, or None if weights have no codec."""
    if config.weights.codec == RAW:
        return None
    has_codebook = config.codebook_words != 0
    return PartDescription(
        name="weight_codec",
        component=CodebookWeights if has_codebook else CodedWeights,
        instructions=(
            # Source of each packet of encoded weights.
            Instruction("restored_from", DECODE, range(len(RestoredFrom)), _restored_from),
        ),
        reads={"codebook": 1} if has_codebook else {},
        ahead=("codebook",),
        inputs=(
            Input("gathered", Channel.INGRESS, packets=is_weights, during=has_coded_weights),
            Input("broadcast", Channel.BROADCAST),
            Input("stored", Channel.STORED),
        ),
        outputs=(
            Output("write_back", Channel.WRITE_BACK, during=has_coded_weights),
            Output("own", Channel.OWN, during=has_coded_weights),
        ),
        write_back_order=Alternative(DECODE, has_coded_weights),
    )


class CodedWeights(Part):
    """Part for coded weights, which encodes a node's own block once, both for the ring and for decoding into the
    node's own memory, followed by decoding of the blocks from the ring."""

    def __init__(self, *, config, description):
        words = stream.Signature(word_layout())
        super().__init__(config, description, {
            # Weights from the ring.
            "gathered": In(words),
            # Weights from the optimizer, in its beats.
            "broadcast": In(stream.Signature(beat_layout(beat_lanes(config)))),
            # Weights of the node's own block, read by a separate all-gather.
            "stored": In(stream.Signature(beat_layout(config.lanes))),
            # Decoded weights of all blocks.
            "write_back": Out(stream.Signature(beat_layout(config.lanes))),
            # Encoded weights of the node's own block, for the all-gather.
            "own": Out(words),
        })

    def elaborate(self, platform):
        m = Module()
        config = self._config
        codec = WEIGHT_CODECS[config.weights.codec]
        lanes, segment = config.lanes, config.segment
        words = codec.max_words(segment)
        m.submodules.encoder = encoder = WordEncoder(codec=codec, lanes=lanes, segment=segment)
        m.submodules.decoder = decoder = WordDecoder(codec=codec, lanes=lanes)
        m.submodules.encoded = encoded = Fork(shape=word_layout(), outputs=2)
        m.submodules.restored = restored = PacketMux(inputs=len(RestoredFrom))
        # Queues for words of the own block until the all-gather, one segment later, and for decoding.
        m.submodules.kept = kept = Queue(shape=word_layout(), depth=2 * words, block=True)
        m.submodules.to_restore = to_restore = Queue(shape=word_layout(), depth=words, block=True)
        m.submodules.gathered_words = gathered = Queue(shape=word_layout(), depth=words, block=True)

        connect_stream(m, encoder.o, encoded.i)
        m.d.comb += encoded.enable.eq(Cat(~self.setup.alone, 1))  # in a ring of one node, no new weights are sent
        connect_stream(m, encoded.o[0], kept.i)
        connect_stream(m, encoded.o[1], to_restore.i)
        connect_stream(m, self.gathered, gathered.i)
        connect_stream(m, self.restored_from, restored.route)
        connect_stream(m, to_restore.o, restored.i[RestoredFrom.OWN])
        connect_stream(m, gathered.o, restored.i[RestoredFrom.INGRESS])
        connect_stream(m, decoder.o, self.write_back)
        connect_stream(m, kept.o, self.own)
        own = stream.Signature(beat_layout(lanes)).create(path=("own_rows",))
        with m.If(self.setup.fused):
            connect_stream(m, join(m, config, "broadcast", self.broadcast), own)
        with m.Else():
            connect_stream(m, self.stored, own)
        loaded = self._load(m, encoder, decoder)
        for source, sink in ((own, encoder.i), (restored.o, decoder.i)):
            m.d.comb += [sink.payload.eq(source.payload), sink.valid.eq(source.valid & loaded),
                         source.ready.eq(sink.ready & loaded)]
        return m

    def _load(self, m, encoder, decoder):
        """Return whether encoder and decoder are loaded; always true without a codebook."""
        return Const(1)


class CodebookWeights(CodedWeights):
    """Coded weights with a codec that reloads its codebook at the start of every command using it."""

    def _load(self, m, encoder, decoder):
        config = self._config
        m.submodules.loader = loader = CodebookLoader(words=config.codebook_words, lanes=config.lanes)
        m.d.comb += loader.start.eq(self.start & self.setup.coded)
        connect_stream(m, loader.bounds, encoder.load)
        connect_stream(m, loader.centroids, decoder.load)
        wiring.connect(m, loader=loader.port, memory=wiring.flipped(self.codebook_read[0]))
        return loader.done
