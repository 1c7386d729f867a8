"""Sign-only format with a shared power of two, with packet encoder and decoder.

A block of 32 elements has 40 bits: the 8-bit exponent of its largest number, and a sign for each element. An element
decodes to 2 ** (exponent - 127) with its sign. A block of numbers below 2 ** -126 decodes to signed zeros, and a
block that contains an infinity or a NaN decodes to NaNs.
"""

import dataclasses

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.mx.format import ONES, BlockCodec, check_codec
from hdl.features.mx.packing import Packer, Unpacker
from hdl.streams.stream import beat_layout, connect_stream

_NAN = 0x7FC0_0000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Signs(BlockCodec):
    """Format of blocks that contain only an exponent and signs, with the interface for Packer and Unpacker."""

    block = 32
    exponent_bits = 8
    difference_bits = 0
    magnitude_bits = 0


class Encoder(wiring.Component):
    """Encode packets of elements: collect the signs and the largest exponent of a block for a Packer.

    A block takes 2 * 32 / ``lanes`` cycles. ``i.ready`` depends only on registers.

    Parameters
    ----------
    codec : Signs
    lanes : int
        Number of elements per beat: 1, 2, 4 or 8.
    words : int or None
        Number of words per output beat; by default the number that an input beat can complete.

    Members
    -------
    i : In(stream of beat_layout(lanes))
    o : Out(stream of beat_layout(words))
    """

    def __init__(self, *, codec, lanes, words=None):
        check_codec(codec, lanes)
        self._codec = codec
        self._lanes = lanes
        self._packer = Packer(codec=codec, lanes=lanes, words=words)
        super().__init__({"i": In(stream.Signature(beat_layout(lanes))),
                          "o": Out(stream.Signature(beat_layout(self.words)))})

    @property
    def words(self):
        return self._packer.words

    def elaborate(self, platform):
        m = Module()
        m.submodules.packer = packer = self._packer
        lanes, beats = self._lanes, self._codec.block // self._lanes
        exponent, signs = Signal(8), Signal(self._codec.block)
        index, ended = Signal(range(beats)), Signal()
        elements = [Mux(keep, element, 0) for element, keep in zip(
            self.i.payload.elements, self.i.payload.keep, strict=True)]  # missing elements are encoded as +0
        largest = exponent
        for element in elements:
            largest = Mux(element[23:31] > largest, element[23:31], largest)
        part = signs.word_select(index, lanes)
        final = index == beats - 1
        m.d.comb += [
            packer.i.payload.first.eq(index == 0), packer.i.payload.last.eq(ended & final),
            packer.i.payload.exponent.eq(exponent),
            packer.i.payload.codes.eq(Mux(exponent == ONES, 0, part))]
        with m.FSM():
            with m.State("Collect"):
                m.d.comb += self.i.ready.eq(1)
                with m.If(self.i.valid):
                    m.d.sync += [exponent.eq(largest), part.eq(Cat(element[31] for element in elements)),
                                 ended.eq(self.i.payload.last), index.eq(index + 1)]
                    with m.If(final | self.i.payload.last):
                        m.d.sync += index.eq(0)
                        m.next = "Give"
            with m.State("Give"):
                m.d.comb += packer.i.valid.eq(1)
                with m.If(packer.i.ready):
                    m.d.sync += index.eq(index + 1)
                    with m.If(final):
                        m.d.sync += [index.eq(0), exponent.eq(0), signs.eq(0)]
                        m.next = "Collect"
        connect_stream(m, packer.o, self.o)
        return m


class Decoder(wiring.Component):
    """Decode packets of words: each sign becomes the sign bit above the exponent from an Unpacker.

    ``i.ready`` depends combinationally on ``o.ready``.

    Parameters
    ----------
    codec : Signs
    lanes : int
        Number of elements per beat: 1, 2, 4 or 8.
    words : int or None
        Number of words per input beat; by default the number that an output beat can need.

    Members
    -------
    i : In(stream of beat_layout(words))
    o : Out(stream of beat_layout(lanes))
        Whole blocks: all elements are kept.
    """

    def __init__(self, *, codec, lanes, words=None):
        check_codec(codec, lanes)
        self._unpacker = Unpacker(codec=codec, lanes=lanes, words=words)
        super().__init__({"i": In(stream.Signature(beat_layout(self.words))),
                          "o": Out(stream.Signature(beat_layout(lanes)))})

    @property
    def words(self):
        return self._unpacker.words

    def elaborate(self, platform):
        m = Module()
        m.submodules.unpacker = unpacker = self._unpacker
        connect_stream(m, self.i, unpacker.i)
        block = unpacker.o.payload
        m.d.comb += [
            self.o.valid.eq(unpacker.o.valid), unpacker.o.ready.eq(self.o.ready), self.o.payload.last.eq(block.last)]
        for code, element, keep in zip(block.codes, self.o.payload.elements, self.o.payload.keep, strict=True):
            number = Cat(Signal(23, name="fraction"), block.exponent, code)
            m.d.comb += [element.eq(Mux(block.exponent == ONES, _NAN, number)), keep.eq(1)]
        return m
