"""Streaming encoder and decoder for packets of numbers in blocks with a shared exponent."""

from amaranth.hdl import Array, Cat, Module
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.mx.dequantizer import Dequantizer, dequantizer_latency
from hdl.features.mx.format import check_among, check_codec, choice_port
from hdl.features.mx.packing import Packer, Unpacker, check_words, min_words, positions
from hdl.features.mx.quantizer import Quantizer, quantizer_latency
from hdl.floating.format import FP32
from hdl.streams.stream import beat_layout, connect_stream

__all__ = ["Decoder", "Encoder", "flags_layout"]


def flags_layout(lanes):
    """Flags of a beat: which elements are zero and which are saturated; ``last`` ends a packet."""
    return data.StructLayout({"valid": 1, "last": 1, "zeros": lanes, "saturations": lanes})


class Encoder(wiring.Component):
    """Encode packets of elements, using a :class:`Quantizer` and a :class:`Packer`.

    One beat is taken per cycle, without gaps between blocks or packets, except for the missing beats of a partial
    last block. The first words of a block are offered :attr:`latency` cycles after its last beat was accepted, if its
    first beat completes a word. ``i.ready`` depends combinationally on ``o.ready``.

    Parameters
    ----------
    codec : BlockCodec
    lanes : int
        Number of elements per beat: a power of two, at most a block.
    format : FloatFormat
        Format of the elements, FP32 or BF16.
    words : int or None
        Number of words per output beat; by default the maximum that an input beat can complete.
    among : sequence of SharedExponent
        Formats to choose from at run time, as in a :class:`Quantizer`.

    Members
    -------
    i : In(stream of beat_layout(lanes, format.width))
    choice, flags : In, Out(flags_layout(lanes)), if there is ``among``
        The chosen format; and for the beat that was quantized one cycle before, the elements that decode to zero,
        and the elements with the largest magnitude or in a block with a NaN.
    o : Out(stream of beat_layout(words))
        Each beat keeps at least one word, but not necessarily all.
    """

    def __init__(self, *, codec, lanes, format=FP32, words=None, among=()):
        check_codec(codec, lanes, format)
        self._codec = codec
        self._lanes = lanes
        self._format = format
        self._among = check_among(codec, among)
        self._words = check_words(words, max(positions(option, lanes)[-1] for option in self._among or [codec]))
        super().__init__({
            **choice_port(self._among), **({"flags": Out(flags_layout(lanes))} if self._among else {}),
            "i": In(stream.Signature(beat_layout(lanes, format.width))),
            "o": Out(stream.Signature(beat_layout(self._words))),
        })

    @property
    def words(self):
        """Number of words per output beat."""
        return self._words

    @property
    def latency(self):
        """Latency in cycles from accepting a block's last beat to offering its first beat's words."""
        return quantizer_latency(self._codec, self._lanes) + Packer.latency

    def elaborate(self, platform):
        m = Module()
        m.submodules.quantizer = quantizer = Quantizer(
            codec=self._codec, lanes=self._lanes, format=self._format, among=self._among)
        m.submodules.packer = packer = Packer(
            codec=self._codec, lanes=self._lanes, words=self._words, among=self._among)
        connect_stream(m, self.i, quantizer.i)
        connect_stream(m, quantizer.o, packer.i)
        connect_stream(m, packer.o, self.o)
        if self._among:
            m.d.comb += [quantizer.choice.eq(self.choice), packer.choice.eq(self.choice)]
            self._find(m, quantizer.o)
        return m

    def _find(self, m, blocks):
        """Detect zeros and saturations. Only codes of zero are looked for, because a normal number with a nonzero
        code never decodes to zero: the distance between neighbouring numbers of a block is a power of two, which
        either divides the smallest normal number or exceeds it.
        """
        block = blocks.payload
        nan = block.exponent == self._codec.nan
        magnitudes = [code[:-1] for code in block.codes]
        m.d.sync += [
            self.flags.valid.eq(blocks.valid & blocks.ready),
            self.flags.last.eq(block.last),
            self.flags.zeros.eq(Cat(~(magnitude.any() | nan) for magnitude in magnitudes)),
            self.flags.saturations.eq(Cat(
                nan | Array([magnitude == option.largest for option in self._among])[self.choice]
                for magnitude in magnitudes)),
        ]


class Decoder(wiring.Component):
    """Decode packets of words, using an :class:`Unpacker` and a :class:`Dequantizer`.

    One beat is output per cycle, without gaps between packets, as long as words arrive. A beat is offered
    :attr:`latency` cycles after its last word was accepted. ``i.ready`` depends combinationally on ``o.ready``. A
    packet that ends inside a block raises ``error``; missing elements are NaN, and the next packet is not affected.

    Parameters
    ----------
    codec : BlockCodec
    lanes : int
        Number of elements per beat: a power of two, at most a block.
    format : FloatFormat
        Format of the elements, FP32 or BF16.
    words : int or None
        Number of words per input beat; at least (and by default) the maximum that a beat of elements needs.
    among : sequence of SharedExponent
        Formats to choose from at run time, as in a :class:`Quantizer`.

    Members
    -------
    choice : In, if there is ``among``
    i : In(stream of beat_layout(words))
        ``keep`` must be all ones except in the last beat, as usual.
    o : Out(stream of beat_layout(lanes, format.width))
        Only whole blocks are output: all elements are kept.
    error : Out(1)
        Pulse: a block is incomplete.
    """

    def __init__(self, *, codec, lanes, format=FP32, words=None, among=()):
        check_codec(codec, lanes, format)
        self._codec = codec
        self._lanes = lanes
        self._format = format
        self._among = check_among(codec, among)
        self._words = check_words(words, min_words(codec, lanes))
        super().__init__({
            **choice_port(self._among),
            "i": In(stream.Signature(beat_layout(self._words))),
            "o": Out(stream.Signature(beat_layout(lanes, format.width))),
            "error": Out(1),
        })

    @property
    def words(self):
        """Number of words per input beat."""
        return self._words

    @property
    def latency(self):
        """Latency in cycles from accepting the last word of a beat to offering its elements."""
        return Unpacker.latency + dequantizer_latency(self._codec)

    def elaborate(self, platform):
        m = Module()
        m.submodules.unpacker = unpacker = Unpacker(
            codec=self._codec, lanes=self._lanes, words=self._words, among=self._among)
        if self._among:
            m.d.comb += unpacker.choice.eq(self.choice)
        m.submodules.dequantizer = dequantizer = Dequantizer(
            codec=self._codec, lanes=self._lanes, format=self._format)
        connect_stream(m, self.i, unpacker.i)
        connect_stream(m, unpacker.o, dequantizer.i)
        connect_stream(m, dequantizer.o, self.o)
        m.d.comb += self.error.eq(unpacker.error)
        return m
