"""Convert numbers to NVFP4 blocks; see :mod:`hdl.features.nvfp4.format`."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.mx.format import block_layout, check_codec
from hdl.features.mx.pipeline import Pipeline
from hdl.features.nvfp4.element import find_element
from hdl.features.nvfp4.format import NAN_SCALE
from hdl.features.nvfp4.scale import KEY, ORIGIN, find_scale, open_scale
from hdl.floating.format import FP32
from hdl.streams.stream import beat_layout

__all__ = ["Quantizer", "quantizer_latency"]


def _found(codec, lanes):
    """Number of pipeline steps from when the first register holds a block's last beat until the values common to the
    block are known."""
    return lanes.bit_length() - 1 + (codec.block > lanes) + 3


def quantizer_latency(codec, lanes):
    """Latency of a :class:`Quantizer`."""
    return 1 + _found(codec, lanes) + 3


class Quantizer(wiring.Component):
    """Determine the scale of each block and round its elements relative to it.

    One beat is taken and one is output per cycle. The first beat of a block is offered :attr:`latency` cycles after
    its last beat is accepted. A partial last block is filled up with +0, one beat per cycle; ``i.ready`` is low then.

    All stages move together, as in :class:`hdl.features.mx.quantizer.Quantizer`, when the output is free; while the
    latest block is incomplete, they move only when one of its beats arrives. ``i.ready`` depends combinationally on
    ``o.ready``.

    Parameters
    ----------
    codec : NVFP4
    lanes : int
        Number of elements per beat: a power of two, at most the block size.
    format : FloatFormat
        Format of the elements, FP32 or BF16.

    Members
    -------
    i : In(stream of beat_layout(lanes, format.width))
    o : Out(stream of block_layout(codec, lanes))
    """

    def __init__(self, *, codec, lanes, format=FP32):
        check_codec(codec, lanes, format)
        self._codec, self._lanes, self._format = codec, lanes, format
        super().__init__({
            "i": In(stream.Signature(beat_layout(lanes, format.width))),
            "o": Out(stream.Signature(block_layout(codec, lanes))),
        })

    @property
    def latency(self):
        """Latency in cycles from when a block's last beat is accepted until its first beat is offered."""
        return quantizer_latency(self._codec, self._lanes)

    def elaborate(self, platform):
        m = Module()
        beat, beats, power = self.i.payload, self._codec.block // self._lanes, self._codec.power

        # Incoming beats: from the input, or zeros that fill up a partial block.
        number = Signal(range(max(beats, 2)))
        filling = Signal()
        enters = Signal()
        step = Signal()
        ends = Signal()
        m.d.comb += [
            enters.eq(self.i.valid | filling), ends.eq(number == beats - 1),
            step.eq((self.o.ready | ~self.o.valid) & (enters | (number == 0))),
            self.i.ready.eq((self.o.ready | ~self.o.valid) & ~filling),
        ]
        if beats > 1:
            with m.If(step & enters):
                m.d.sync += [number.eq(Mux(ends, 0, number + 1)), filling.eq(~ends & (filling | beat.last))]
        pipeline = Pipeline(m, step)
        lanes = [self._open(pipeline, lane, beat.keep[lane] & ~filling) for lane in range(self._lanes)]
        tags = pipeline.flags("entered", first=number == 0, final=enters & ends, last=filling | beat.last)

        # The largest magnitude in the beat and in the block, and the scale of the block.
        peaks = [lane.key for lane in lanes]
        while len(peaks) > 1:
            level = len(peaks) // 2
            peaks = list(vars(pipeline.register(f"level_{level}", **{
                f"peak_{position}": Mux(low > high, low, high)
                for position, (low, high) in enumerate(zip(peaks[::2], peaks[1::2], strict=True))})).values())
            tags = pipeline.flags(f"tags_{level}", **vars(tags))
        peak, = peaks
        if beats > 1:
            largest = Signal(len(peak), reset_less=True)
            with m.If(step & (tags.first | (peak > largest))):
                m.d.sync += largest.eq(peak)
            peak, tags = largest, pipeline.flags("tags_largest", **vars(tags))
        code = find_scale(m, pipeline, data.View(KEY, peak), power)
        for stage in ("sixth", "scale"):
            tags = pipeline.flags(f"tags_{stage}", **vars(tags))

        # The block's common values are held while its beats pass.
        opened = open_scale(m, code)
        position = Signal(range(max(beats, 2)))
        active = Signal()
        last = Signal()
        common = {name: Signal(width, name=f"common_{name}", reset_less=True) for name, width in (
            ("code", 7), ("base", 8), ("fraction", 3))}
        with m.If(step):
            m.d.sync += [position.eq(position + 1), active.eq(tags.final | (active & (position != beats - 1)))]
            with m.If(tags.final):
                m.d.sync += [position.eq(0), last.eq(tags.last)]
                m.d.sync += [common[name].eq(value) for name, value in (
                    ("code", code), ("base", opened.field + (ORIGIN - 3 + power)), ("fraction", opened.fraction))]

        # Three steps: find the interval of the number relative to its scale, encode the element, and output it.
        header = {"code": common["code"]}
        flags = {"valid": active, "first": active & (position == 0), "last": active & last & (position == beats - 1)}
        for stage in ("placed", "compared"):
            header = vars(pipeline.register(f"{stage}_header", **header))
            flags = vars(pipeline.flags(f"{stage}_flags", **flags))
        fraction = pipeline.register("placed_scale", fraction=common["fraction"]).fraction
        delayed = pipeline.delay("elements", Cat(*(Cat(lane.key, lane.sign) for lane in lanes)),
                                 _found(self._codec, self._lanes) + beats - 1)
        for lane in range(self._lanes):
            number = delayed.word_select(lane, len(delayed) // self._lanes)
            magnitude = find_element(m, pipeline, lane, data.View(KEY, number[:-1]),
                                     Cat(common["fraction"], common["base"]), fraction)
            sign = pipeline.delay(f"sign_{lane}", number[-1], 2)
            with m.If(step):
                m.d.sync += self.o.payload.codes[lane].eq(
                    Mux(header["code"] == NAN_SCALE, 0, Cat(magnitude, sign)))

        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(step):
            m.d.sync += [self.o.payload.exponent.eq(header["code"]), self.o.valid.eq(flags["valid"]),
                         self.o.payload.first.eq(flags["first"]), self.o.payload.last.eq(flags["last"])]
        return m

    def _open(self, pipeline, lane, present):
        """Extract an element's sign and relevant magnitude bits; zero and absent elements get exponent 0."""
        opened = data.View(self._format.layout, self.i.payload.elements[lane])
        below = self._format.fraction_bits - 6
        return pipeline.register(
            f"opened_{lane}", sign=opened.sign & present, key=Cat(
                opened.fraction[:below].any(), opened.fraction[below:], Mux(present, opened.exponent, 0)))
