"""Conversion of NVFP4 blocks to floating-point numbers; see :mod:`hdl.features.nvfp4.format`."""

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.mx.format import ONES, block_layout, check_codec
from hdl.features.mx.pipeline import Pipeline
from hdl.features.nvfp4.format import NAN_SCALE
from hdl.features.nvfp4.scale import ORIGIN, open_scale
from hdl.floating.format import FP32
from hdl.streams.stream import beat_layout

__all__ = ["Dequantizer"]


class Dequantizer(wiring.Component):
    """Convert NVFP4 blocks to numbers, exactly.

    A number is the scale or 1.5 times the scale, both computed once per beat, times a power of two. Latency is
    :attr:`latency` cycles, throughput one beat per cycle. Both stages move together when the output is free;
    ``i.ready`` depends combinationally on ``o.ready``.

    Parameters
    ----------
    codec : NVFP4
    lanes : int
        Number of elements per beat: a power of two, at most the block size.
    format : FloatFormat
        Format of the elements, FP32 or BF16.

    Members
    -------
    i : In(stream of block_layout(codec, lanes))
    o : Out(stream of beat_layout(lanes, format.width))
        Only whole blocks are output, so all elements are kept.
    """

    latency = 2

    def __init__(self, *, codec, lanes, format=FP32):
        check_codec(codec, lanes, format)
        self._codec, self._lanes, self._format = codec, lanes, format
        super().__init__({
            "i": In(stream.Signature(block_layout(codec, lanes))),
            "o": Out(stream.Signature(beat_layout(lanes, format.width))),
        })

    def elaborate(self, platform):
        m = Module()
        source, result = self.i.payload, self.o.payload
        m.d.comb += self.i.ready.eq(self.o.ready | ~self.o.valid)
        pipeline = Pipeline(m, self.i.ready)
        flags = pipeline.flags("opened_flags", valid=self.i.valid, last=source.last)

        code = source.exponent[:7]
        opened = open_scale(m, code)
        # 1.5 times the scale's significand in units of 1 / 16; values from 32 on increment the result's exponent.
        more = Signal(6)
        significand = Cat(opened.fraction, C(1, 1))
        m.d.comb += more.eq(significand + (significand << 1))
        block = pipeline.register(
            "block", plain=Cat(C(0, 2), opened.fraction), more=Mux(more[5], more[:5], more[:4] << 1), carry=more[5],
            base=opened.field + (ORIGIN - 1 + self._codec.power), zero=code == 0, nan=code == NAN_SCALE)

        for lane in range(self._lanes):
            element = source.codes[lane]
            number = pipeline.register(
                f"number_{lane}", sign=element[3], power=element[1:3], half=element[0] & element[1:3].any(),
                zero=~element[:3].any())
            exponent = Signal(8, name=f"exponent_{lane}")
            m.d.comb += exponent.eq(block.base + number.power + (number.half & block.carry))
            fraction = Mux(number.half, block.more, block.plain)
            zero = number.zero | block.zero
            encoding = Signal(self._format.layout, name=f"encoding_{lane}")
            m.d.comb += [
                encoding.sign.eq(number.sign & ~block.nan),
                encoding.exponent.eq(Mux(block.nan, ONES, Mux(zero, 0, exponent))),
                encoding.fraction[-5:].eq(Mux(block.nan, 1 << 4, Mux(zero, 0, fraction))),
            ]
            with m.If(self.i.ready):
                m.d.sync += result.elements[lane].eq(encoding)
        m.d.comb += result.keep.eq((1 << self._lanes) - 1)
        with m.If(self.i.ready):
            m.d.sync += [self.o.valid.eq(flags.valid), result.last.eq(flags.last)]
        return m
