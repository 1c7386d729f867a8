"""Convert blocks with a shared exponent to numbers; see :mod:`hdl.features.mx.format`."""

from amaranth.hdl import C, Cat, Module, Mux, Signal, signed
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.mx.format import (
    ONES,
    block_layout,
    check_codec,
)
from hdl.features.mx.pipeline import Pipeline
from hdl.floating.format import FP32
from hdl.floating.stages import leading_zeros, shift_left
from hdl.streams.stream import beat_layout

__all__ = ["Dequantizer", "dequantizer_latency"]


def dequantizer_latency(codec):
    """Latency of a :class:`Dequantizer`."""
    return 3 if codec.complement else 2


class Dequantizer(wiring.Component):
    """Convert blocks with a shared exponent to numbers.

    Latency is :attr:`latency` cycles, throughput one beat per cycle. All stages advance together when the output is
    free; ``i.ready`` depends combinationally on ``o.ready``.

    Parameters
    ----------
    codec : BlockCodec
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

    def __init__(self, *, codec, lanes, format=FP32):
        check_codec(codec, lanes, format)
        self._codec = codec
        self._lanes = lanes
        self._format = format
        super().__init__({
            "i": In(stream.Signature(block_layout(codec, lanes))),
            "o": Out(stream.Signature(beat_layout(lanes, format.width))),
        })

    @property
    def latency(self):
        """Latency in cycles from accepting a block's beat to outputting its elements."""
        return dequantizer_latency(self._codec)

    def elaborate(self, platform):
        m = Module()
        codec, format, lanes = self._codec, self._format, self._lanes
        beat = self.i.payload
        free = Signal()
        m.d.comb += [free.eq(self.o.ready | ~self.o.valid), self.i.ready.eq(free)]
        pipeline = Pipeline(m, free)

        lowered = [C(0, 1)] * lanes
        if codec.subsets:
            beats = codec.block // lanes
            groups = [beat.differences.as_value()]
            if beats > 1:
                index = Signal(range(beats))
                now = Signal(range(beats))
                m.d.comb += now.eq(Mux(beat.first, 0, index))
                with m.If(free & self.i.valid):
                    m.d.sync += index.eq(now + 1)
                per_subset = max(codec.subset // lanes, 1)
                width = max(lanes // codec.subset, 1) * codec.difference_bits
                groups = beat.differences.as_value().word_select(now >> (per_subset.bit_length() - 1), width)
            else:
                groups, = groups
            width = codec.difference_bits
            lowered = [groups[lane // codec.subset * width:][:width] for lane in range(lanes)]

        common = {"exponent": beat.exponent, "nan": beat.exponent == codec.nan}
        flags = {"valid": self.i.valid, "last": beat.last}
        numbers = []
        for lane in range(lanes):
            code = beat.codes[lane]
            numbers.append({"sign": code[-1], "magnitude": code[:-1], "lowered": lowered[lane]})
        if codec.complement:
            for lane, number in enumerate(numbers):
                sign, magnitude = number["sign"], Signal(codec.magnitude_bits, name=f"absolute_{lane}")
                m.d.comb += magnitude.eq((number["magnitude"] ^ sign.replicate(codec.magnitude_bits)) + sign)
                number["magnitude"] = magnitude
                numbers[lane] = vars(pipeline.register(f"positive_{lane}", **number))
            common = vars(pipeline.register("positive", **common))
            flags = vars(pipeline.flags("positive_flags", **flags))

        fraction_bits = codec.fraction_bits
        for lane, number in enumerate(numbers):
            magnitude, sign = number["magnitude"], number["sign"]
            field, fraction = magnitude[fraction_bits:], magnitude[:fraction_bits]
            # Normalize a number without a hidden bit.
            if codec.top_field == 1:
                amount, none = leading_zeros(m, magnitude)
                shifted = shift_left(m, magnitude, amount)
                # The stored magnitude bits of -2 are all zero although the number is not, so its count of leading
                # zeros is set to -1.
                minus = none & sign if codec.complement else C(0, 1)
                zero = none & ~minus
                offset = Cat(amount, minus).as_signed()
                special = infinite = C(0, 1)
            else:
                amount, none = leading_zeros(m, fraction)
                shifted = Signal(fraction_bits + 1, name=f"normal_{lane}")
                m.d.comb += shifted.eq(Mux(field.any(), fraction, shift_left(m, fraction, amount).shift_left(1)))
                zero = none & ~field.any()
                offset = Mux(field.any(), field, -amount)
                special, infinite = C(0, 1), C(0, 1)
                if codec.nan_magnitude is not None:
                    special = magnitude == codec.nan_magnitude
                if codec.infinities:
                    infinite = field.all() & ~fraction.any()
                    special = field.all() & fraction.any()
            number.update(normal=pipeline.register(
                f"normal_{lane}", fraction=shifted[:fraction_bits] if fraction_bits else C(0, 1), offset=offset,
                zero=zero, sign=sign, lowered=number["lowered"], nan=special | common["nan"], infinite=infinite))
        below = codec.lowest - (codec.top_field if codec.top_field > 1 else 0)
        origin = Signal(signed(9), name="origin")
        m.d.comb += origin.eq(common["exponent"] + below)
        start = pipeline.register("block", start=origin).start
        flags = vars(pipeline.flags("normal_flags", **flags))

        for lane in range(lanes):
            number = numbers[lane]["normal"]
            total = Signal(signed(10), name=f"total_{lane}")
            if codec.top_field > 1:
                m.d.comb += total.eq(start + number.offset)
            elif codec.difference_bits == 1:
                chain = Signal(signed(11), name=f"chain_{lane}")
                less = Cat(number.lowered, number.offset).as_signed()
                m.d.comb += [chain.eq(Cat(C(0, 1), start).as_signed() - less), total.eq(chain[1:])]
            elif codec.subsets:
                m.d.comb += total.eq(start - number.offset - number.lowered)
            else:
                m.d.comb += total.eq(start - number.offset)
            small = total[-1] | ~total[:9].any() | number.zero
            large = ~total[-1] & (total[:9] >= ONES)
            result = Signal(format.layout, name=f"result_{lane}", reset_less=True)
            with m.If(free):
                m.d.sync += [
                    result.sign.eq(number.sign & ~number.nan),
                    result.exponent.eq(total[:8]),
                    result.fraction.eq(number.fraction.shift_left(format.fraction_bits - max(fraction_bits, 1))),
                ]
                with m.If(small):
                    m.d.sync += [result.exponent.eq(0), result.fraction.eq(0)]
                with m.If(large | number.infinite | number.nan):
                    m.d.sync += [result.exponent.eq(ONES), result.fraction.eq(
                        number.nan.shift_left(format.fraction_bits - 1))]
            m.d.comb += self.o.payload.elements[lane].eq(result)
        m.d.comb += self.o.payload.keep.eq((1 << lanes) - 1)
        with m.If(free):
            m.d.sync += [self.o.valid.eq(flags["valid"]), self.o.payload.last.eq(flags["last"])]
        return m
