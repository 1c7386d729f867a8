"""Numbers to blocks of NVFP4; see :mod:`hdl.compression.nvfp4.format`.

No quotient is computed. An element changes where a magnitude reaches n / 8 of its block's scale, for seven n that are
5, 6, 7 or 8 times a power of two; with the significands X / 64 and k / 8 that is a comparison of X with n * k. Of the
seven, four comparators are enough, since a magnitude whose exponent is known has at most four places to reach.
"""

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.compression.block.format import block_layout, check_codec
from hdl.compression.block.pipeline import Pipeline
from hdl.compression.nvfp4.format import NAN_SCALE
from hdl.compression.nvfp4.scale import KEY, ORIGIN, find_scale, open_scale
from hdl.floating.format import FP32
from hdl.streams.stream import beat_layout

__all__ = ["Quantizer", "quantizer_latency"]

#: Exponent of a number over that of its scale, plus 3: at 0 all elements are 0, and at 7 all are 6.
_TOP = 7
#: Element of the smallest numbers of each place.
_STARTS = (0, 0, 1, 1, 2, 4, 6, 7)
#: Places in which each comparator counts: for 5 or 6, for 7, 8 or 12, for 10, and for 14 times k.
_COUNTS = ((3, 4, 5, 6), (1, 2, 4, 5), (3, 4, 5), (3, 4))


def _found(codec, lanes):
    """Steps from a block's last beat in the first register to all that its beats have in common."""
    return lanes.bit_length() - 1 + (codec.block > lanes) + 3


def quantizer_latency(codec, lanes):
    """Latency of a :class:`Quantizer`."""
    return 1 + _found(codec, lanes) + 3


class Quantizer(wiring.Component):
    """Find the scales of blocks, and bring elements to them.

    One beat is taken per cycle and one given. The first beat of a block is offered :attr:`latency` cycles after its
    last one was accepted. A partial last block is filled up with +0, one beat per cycle, in which ``i.ready`` is low.

    All stages move together, as those of :class:`hdl.compression.block.quantizer.Quantizer`: when the output is free,
    and, while a block has begun, with each of its beats. ``i.ready`` depends combinationally on ``o.ready``.

    Parameters
    ----------
    codec : NVFP4
    lanes : int
        Elements in a beat: a power of two, at most a block.
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
        """Cycles from the acceptance of a block's last beat to the offer of its first."""
        return quantizer_latency(self._codec, self._lanes)

    def elaborate(self, platform):
        m = Module()
        given, beats, power = self.i.payload, self._codec.block // self._lanes, self._codec.power

        # Beats that enter: of the input, or of zeros where a block is partial.
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
                m.d.sync += [number.eq(Mux(ends, 0, number + 1)), filling.eq(~ends & (filling | given.last))]
        pipeline = Pipeline(m, step)
        lanes = [self._open(pipeline, lane, given.keep[lane] & ~filling) for lane in range(self._lanes)]
        tags = pipeline.flags("entered", first=number == 0, final=enters & ends, last=filling | given.last)

        # The largest magnitude of the beat, of the block, and its scale.
        peaks = [lane.key for lane in lanes]
        while len(peaks) > 1:
            level = len(peaks) // 2
            peaks = list(vars(pipeline.register(f"level_{level}", **{
                f"peak_{place}": Mux(low > high, low, high)
                for place, (low, high) in enumerate(zip(peaks[::2], peaks[1::2], strict=True))})).values())
            tags = pipeline.flags(f"tags_{level}", **vars(tags))
        peak, = peaks
        if beats > 1:
            largest = Signal(len(peak), reset_less=True)
            with m.If(step & (tags.first | (peak > largest))):
                m.d.sync += largest.eq(peak)
            peak, tags = largest, pipeline.flags("tags_largest", **vars(tags))
        code = find_scale(m, pipeline, data.View(KEY, peak), power)
        for stage in ("third", "scale"):
            tags = pipeline.flags(f"tags_{stage}", **vars(tags))

        # What the beats of a block have in common stands while they pass.
        opened = open_scale(m, code)
        k = Cat(opened.fraction, C(1, 1))
        place = Signal(range(max(beats, 2)))
        active = Signal()
        last = Signal()
        common = {name: Signal(width, name=f"common_{name}", reset_less=True) for name, width in (
            ("code", 7), ("base", 8), ("k", 4), ("k3", 6), ("k5", 7), ("k7", 7))}
        with m.If(step):
            m.d.sync += [place.eq(place + 1), active.eq(tags.final | (active & (place != beats - 1)))]
            with m.If(tags.final):
                m.d.sync += [place.eq(0), last.eq(tags.last)]
                m.d.sync += [common[name].eq(value) for name, value in (
                    ("code", code), ("base", opened.field + (ORIGIN - 3 + power)), ("k", k),
                    ("k3", k + (k << 1)), ("k5", k + (k << 2)), ("k7", (k << 3) - k))]

        # Three steps: where the number is beside its scale, what it reaches there, and the element.
        header = {"code": common["code"]}
        flags = {"valid": active, "first": active & (place == 0), "last": active & last & (place == beats - 1)}
        for stage in ("placed", "compared"):
            header = vars(pipeline.register(f"{stage}_header", **header))
            flags = vars(pipeline.flags(f"{stage}_flags", **flags))
        scale = pipeline.register("placed_scale", **{name: common[name] for name in ("k", "k3", "k5", "k7")})
        delayed = pipeline.delay("elements", Cat(*(Cat(lane.key, lane.sign) for lane in lanes)),
                                 _found(self._codec, self._lanes) + beats - 1)
        for lane in range(self._lanes):
            element = self._element(m, pipeline, lane, delayed.word_select(lane, len(delayed) // self._lanes),
                                    common["base"], scale)
            with m.If(step):
                m.d.sync += self.o.payload.codes[lane].eq(Mux(header["code"] == NAN_SCALE, 0, element))

        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(step):
            m.d.sync += [self.o.payload.exponent.eq(header["code"]), self.o.valid.eq(flags["valid"]),
                         self.o.payload.first.eq(flags["first"]), self.o.payload.last.eq(flags["last"])]
        return m

    def _open(self, pipeline, lane, present):
        """A sign, and a magnitude as far as it matters; +0 where there is no element."""
        opened = data.View(self._format.layout, self.i.payload.elements[lane])
        below = self._format.fraction_bits - 6
        key = Cat(opened.fraction[:below].any(), opened.fraction[below:], opened.exponent)
        return pipeline.register(f"opened_{lane}", key=Mux(present, key, 0), sign=opened.sign & present)

    def _element(self, m, pipeline, lane, delayed, base, scale):
        """A magnitude and its sign below a scale, two steps later."""
        key, sign = data.View(KEY, delayed[:-1]), delayed[-1]
        above = Signal(10, name=f"above_{lane}")
        m.d.comb += above.eq(key.exponent - base)
        placed = pipeline.register(
            f"placed_{lane}", sign=sign, number=Cat(key.rest, key.fraction, C(1, 1)),
            place=Mux(above[-1], 0, Mux(above[:-1] > _TOP, _TOP, above[:3])))

        # In halves of X, whose lowest bit tells whether a number is above X: with a one, it has to be.
        place, number = placed.place, placed.number
        reached = [
            number >= Mux(place == 3, Cat(C(0, 2), scale.k3), Cat(C(1, 1), scale.k5, C(0, 1))),
            number >= Mux(place == 1, Cat(C(1, 4), scale.k), Mux(
                place == 2, Cat(C(0, 3), scale.k3), Cat(C(0, 1), scale.k7))),
            number >= Cat(C(1, 2), scale.k5),
            number >= Cat(C(0, 2), scale.k7),
        ]
        start = Signal(3, name=f"start_{lane}")
        with m.Switch(place):
            for value, smallest in enumerate(_STARTS):
                with m.Case(value):
                    m.d.comb += start.eq(smallest)
        counted = pipeline.register(f"compared_{lane}", sign=placed.sign, start=start, **{
            f"reached_{index}": reaches & Cat(place == value for value in _COUNTS[index]).any()
            for index, reaches in enumerate(reached)})
        magnitude = Signal(3, name=f"magnitude_{lane}")
        m.d.comb += magnitude.eq(counted.start + sum(getattr(counted, f"reached_{index}") for index in range(4)))
        return Cat(magnitude, counted.sign)
