"""Converters between ring segment elements and link words, for any codec."""

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.compression.codec import create_unit
from hdl.streams.route import Fork
from hdl.streams.rows import RowAssembler, RowSerializer
from hdl.streams.stream import Queue, beat_layout, check_lanes, connect_stream, word_layout

__all__ = ["WordDecoder", "WordEncoder"]


def _load_port(codec):
    return {"load": In(stream.Signature(word_layout()))} if codec.codebook_words else {}


class WordEncoder(wiring.Component):
    """Encode packets of elements into link words.

    Latency is the sum of the latencies of the codec's encoder and of a serializer; throughput is one word per cycle.
    ``i.ready`` depends combinationally on ``o.ready``. A two-pass encoder receives each packet a second time from a
    queue with room for one packet.

    Parameters
    ----------
    codec : Codec
        Codec that has its own encoder and decoder.
    lanes : int
        Number of elements in a beat: 1, 2, 4 or 8.
    segment : int
        Maximum number of elements in a packet.

    Members
    -------
    i : In(stream of beat_layout(lanes))
    load : In(stream of {data, last})
        Bounds between centroids, to be loaded before the first packet; only for a codec with a codebook.
    o : Out(stream of word_layout())
    """

    def __init__(self, *, codec, lanes, segment=256):
        check_lanes(lanes)
        self._codec = codec
        self._lanes = lanes
        self._segment = segment
        super().__init__({
            "i": In(stream.Signature(beat_layout(lanes))),
            **_load_port(codec),
            "o": Out(stream.Signature(word_layout())),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.encoder = encoder = create_unit(self._codec.encoder, self._codec, self._lanes)
        m.submodules.serializer = serializer = RowSerializer(lanes=encoder.words)
        if self._codec.two_passes:
            shape, depth = self.i.payload.shape(), self._segment // self._lanes
            m.submodules.fork = fork = Fork(shape=shape, outputs=2)
            m.submodules.again = again = Queue(shape=shape, depth=max(depth, 4), block=True)
            m.d.comb += fork.enable.eq(0b11)
            connect_stream(m, self.i, fork.i)
            connect_stream(m, fork.o[0], encoder.scan)
            connect_stream(m, fork.o[1], again.i)
            connect_stream(m, again.o, encoder.i)
        else:
            connect_stream(m, self.i, encoder.i)
        if self._codec.codebook_words:
            connect_stream(m, self.load, encoder.load)
        connect_stream(m, encoder.o, serializer.i)
        connect_stream(m, serializer.o, self.o)
        return m


class WordDecoder(wiring.Component):
    """Decode packets of elements from link words.

    Latency is the sum of the latencies of an assembler and of the codec's decoder; throughput is one word, or one
    beat, per cycle, whichever takes longer. ``i.ready`` depends combinationally on ``o.ready``.

    Parameters
    ----------
    codec : Codec
        Codec that has its own encoder and decoder.
    lanes : int
        Number of elements in a beat: 1, 2, 4 or 8.

    Members
    -------
    i : In(stream of word_layout())
    load : In(stream of {data, last})
        Centroids, to be loaded before the first packet; only for a codec with a codebook.
    o : Out(stream of beat_layout(lanes))
        Whole blocks of the codec, regardless of the packet's length.
    """

    def __init__(self, *, codec, lanes):
        check_lanes(lanes)
        self._codec = codec
        self._lanes = lanes
        super().__init__({
            "i": In(stream.Signature(word_layout())),
            **_load_port(codec),
            "o": Out(stream.Signature(beat_layout(lanes))),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.decoder = decoder = create_unit(self._codec.decoder, self._codec, self._lanes)
        m.submodules.assembler = assembler = RowAssembler(lanes=decoder.words)
        connect_stream(m, self.i, assembler.i)
        if self._codec.codebook_words:
            connect_stream(m, self.load, decoder.load)
        connect_stream(m, assembler.o, decoder.i)
        connect_stream(m, decoder.o, self.o)
        return m
