"""Packets of numbers encoded in blocks with a shared exponent, and decoded, as streams."""

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.compression.block.dequantizer import Dequantizer, dequantizer_latency
from hdl.compression.block.format import check_codec
from hdl.compression.block.packing import Packer, Unpacker, check_words, least_words, positions
from hdl.compression.block.quantizer import Quantizer, quantizer_latency
from hdl.floating.format import FP32
from hdl.streams.stream import beat_layout, connect_stream

__all__ = ["Decoder", "Encoder"]


class Encoder(wiring.Component):
    """Encode packets of elements: a :class:`Quantizer` and a :class:`Packer`.

    One beat is taken per cycle, also from block to block and from packet to packet, but for those that a partial last
    block lacks. The first words of a block are offered :attr:`latency` cycles after its last beat was accepted, where
    its first beat completes a word. ``i.ready`` depends combinationally on ``o.ready``.

    Parameters
    ----------
    codec : BlockCodec
    lanes : int
        Elements in a beat: a power of two, at most a block.
    format : FloatFormat
        Format of the elements, FP32 or BF16.
    words : int or None
        Words in a beat of the output; by default as many as a beat can complete.

    Members
    -------
    i : In(stream of beat_layout(lanes, format.width))
    o : Out(stream of beat_layout(words))
        At least one word is kept in each beat, but not all of them need be.
    """

    def __init__(self, *, codec, lanes, format=FP32, words=None):
        check_codec(codec, lanes, format)
        self._codec = codec
        self._lanes = lanes
        self._format = format
        self._words = check_words(words, positions(codec, lanes)[-1])
        super().__init__({
            "i": In(stream.Signature(beat_layout(lanes, format.width))),
            "o": Out(stream.Signature(beat_layout(self._words))),
        })

    @property
    def words(self):
        """Words in a beat of the output."""
        return self._words

    @property
    def latency(self):
        """Cycles from the acceptance of a block's last beat to the offer of the words of its first."""
        return quantizer_latency(self._codec, self._lanes) + Packer.latency

    def elaborate(self, platform):
        m = Module()
        m.submodules.quantizer = quantizer = Quantizer(codec=self._codec, lanes=self._lanes, format=self._format)
        m.submodules.packer = packer = Packer(codec=self._codec, lanes=self._lanes, words=self._words)
        connect_stream(m, self.i, quantizer.i)
        connect_stream(m, quantizer.o, packer.i)
        connect_stream(m, packer.o, self.o)
        return m


class Decoder(wiring.Component):
    """Decode packets of words: an :class:`Unpacker` and a :class:`Dequantizer`.

    One beat is given per cycle, also from packet to packet, as long as words come. A beat is offered :attr:`latency`
    cycles after its last word was accepted. ``i.ready`` depends combinationally on ``o.ready``. A packet whose words
    end inside a block is told by ``error``; what is missing is NaN, and the next packet is not affected.

    Parameters
    ----------
    codec : BlockCodec
    lanes : int
        Elements in a beat: a power of two, at most a block.
    format : FloatFormat
        Format of the elements, FP32 or BF16.
    words : int or None
        Words in a beat of the input; by default, and at least, as many as a beat of elements can need.

    Members
    -------
    i : In(stream of beat_layout(words))
        ``keep`` must be all ones except in the last beat, as usual.
    o : Out(stream of beat_layout(lanes, format.width))
        Whole blocks: all elements are kept.
    error : Out(1)
        Pulse: a block lacks bits.
    """

    def __init__(self, *, codec, lanes, format=FP32, words=None):
        check_codec(codec, lanes, format)
        self._codec = codec
        self._lanes = lanes
        self._format = format
        self._words = check_words(words, least_words(codec, lanes))
        super().__init__({
            "i": In(stream.Signature(beat_layout(self._words))),
            "o": Out(stream.Signature(beat_layout(lanes, format.width))),
            "error": Out(1),
        })

    @property
    def words(self):
        """Words in a beat of the input."""
        return self._words

    @property
    def latency(self):
        """Cycles from the acceptance of the last word of a beat to the offer of its elements."""
        return Unpacker.latency + dequantizer_latency(self._codec)

    def elaborate(self, platform):
        m = Module()
        m.submodules.unpacker = unpacker = Unpacker(codec=self._codec, lanes=self._lanes, words=self._words)
        m.submodules.dequantizer = dequantizer = Dequantizer(
            codec=self._codec, lanes=self._lanes, format=self._format)
        connect_stream(m, self.i, unpacker.i)
        connect_stream(m, unpacker.o, dequantizer.i)
        connect_stream(m, dequantizer.o, self.o)
        m.d.comb += self.error.eq(unpacker.error)
        return m
