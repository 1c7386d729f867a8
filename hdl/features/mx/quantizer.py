"""Convert numbers to blocks with a shared exponent.

See :mod:`hdl.features.mx.format` for the scale rule.
"""

from types import SimpleNamespace

from amaranth.hdl import Array, C, Cat, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.mx.format import (
    ONES,
    RANDOM_BITS,
    STATE_BITS,
    Rounding,
    block_layout,
    check_among,
    check_codec,
    choice_port,
    random_state,
)
from hdl.features.mx.pipeline import Pipeline
from hdl.floating.format import FP32
from hdl.floating.stages import shift_right
from hdl.streams.stream import beat_layout

__all__ = ["Quantizer", "quantizer_latency"]


def _larger(a, b):
    return Mux(a > b, a, b)


def _saturated(value, width):
    """Saturate a number to ``width`` bits: all ones if it needs more."""
    if len(value) <= width:
        return value
    return value[:width] | value[width:].any().replicate(width)


def _levels(codec, lanes):
    """Number of comparison steps within a beat, and whether consecutive beats are compared too."""
    return lanes.bit_length() - 1, codec.block > lanes or codec.lowest > 0


def _found(codec, lanes):
    """Latency in cycles from when the first register holds a block's last beat until the values common to the block
    are known."""
    return sum(_levels(codec, lanes)) + (codec.subsets > 0) + (codec.block > lanes)


def quantizer_latency(codec, lanes):
    """Latency of a :class:`Quantizer`."""
    return 1 + _found(codec, lanes) + 3


class Quantizer(wiring.Component):
    """Align the elements of each block to the block's exponent.

    One beat is taken and one is output per cycle. The first beat of a block is offered :attr:`latency` cycles after
    its last beat is accepted: elements are delayed by exactly the time needed to determine the largest exponent. A
    partial last block is filled up with +0, one beat per cycle; ``i.ready`` is low then.

    All stages move together when the output is free; while the latest block is incomplete, they move only when one of
    its beats arrives. A block with late beats therefore delays the previous block. ``i.ready`` depends
    combinationally on ``o.ready``.

    Parameters
    ----------
    codec : BlockCodec
    lanes : int
        Number of elements per beat: a power of two, at most the block size.
    format : FloatFormat
        Format of the elements, FP32 or BF16.
    among : sequence of SharedExponent
        Formats for ``choice`` at run time, see :func:`~hdl.features.mx.format.check_among`; by default, only the
        codec.

    Members
    -------
    i : In(stream of beat_layout(lanes, format.width))
    choice : In, if there is ``among``
    o : Out(stream of block_layout(codec, lanes))
        A magnitude with fewer bits than the codec's uses the lowest bits.
    """

    def __init__(self, *, codec, lanes, format=FP32, among=()):
        check_codec(codec, lanes, format)
        self._codec = codec
        self._lanes = lanes
        self._format = format
        self._among = check_among(codec, among)
        super().__init__({
            **choice_port(self._among),
            "i": In(stream.Signature(beat_layout(lanes, format.width))),
            "o": Out(stream.Signature(block_layout(codec, lanes))),
        })

    @property
    def beats(self):
        """Number of beats of a block."""
        return self._codec.block // self._lanes

    @property
    def latency(self):
        """Latency in cycles from when a block's last beat is accepted until its first beat is offered."""
        return quantizer_latency(self._codec, self._lanes)

    def elaborate(self, platform):
        m = Module()
        codec, format, beats = self._codec, self._format, self.beats
        stochastic = codec.rounding is Rounding.STOCHASTIC
        source = self.i.payload

        # Incoming beats: from the input, or zeros that fill up a partial block.
        beat = Signal(range(max(beats, 2)))
        padding = Signal()
        final = Signal()
        free = Signal()
        advance = Signal()
        entering = Signal()
        m.d.comb += [
            final.eq(beat == beats - 1),
            free.eq(self.o.ready | ~self.o.valid),
            advance.eq(free & (self.i.valid | padding | (beat == 0))),
            entering.eq(self.i.valid | padding),
            self.i.ready.eq(free & ~padding),
        ]
        pipeline = Pipeline(m, advance)
        if beats > 1:
            with m.If(advance & entering):
                m.d.sync += [beat.eq(Mux(final, 0, beat + 1)), padding.eq((padding | source.last) & ~final)]

        # Truncate the elements, keeping guard bits below the last place of the format's largest magnitude, and a
        # sticky bit.
        guard = RANDOM_BITS if stochastic else 1
        wanted = codec.fraction_bits + guard
        kept = min(wanted, format.fraction_bits)
        lost = 0 if stochastic else format.fraction_bits - kept
        lanes = []
        for lane in range(self._lanes):
            opened = data.View(format.layout, source.elements[lane])
            present = source.keep[lane] & ~padding
            exponent = Mux(present, opened.exponent, 0)
            fraction, sticky = opened.fraction[format.fraction_bits - kept:], opened.fraction[:lost].any()
            if codec.highest < ONES - 1:
                above = (opened.exponent > codec.highest) & ~opened.exponent.all()
                exponent = Mux(present, Mux(above, codec.highest, opened.exponent), 0)
                fraction, sticky = fraction | above.replicate(kept), sticky | above
            if codec.rounds_up:
                # The scale of a block is derived from the largest of these values.
                raises = present & self._is_above(opened.fraction) & opened.exponent.any() & (
                    opened.exponent < ONES - 1)
                peak = {"peak": (exponent + raises)[:8]}
            else:
                peak = {}
            lanes.append(pipeline.register(
                f"opened_{lane}", exponent=exponent, **peak,
                rest=Cat(fraction, opened.sign & present, *([sticky] if lost else []))))
        entered = pipeline.flags("entered", valid=entering, first=beat == 0, final=final & entering,
                                 last=padding | source.last)

        # The largest exponent of each subset in the beat and of the whole beat.
        peaks = [lane.peak if codec.rounds_up else lane.exponent for lane in lanes]
        subsets = None
        tags = entered
        levels, has_top = _levels(codec, self._lanes)
        for level in range(levels):
            if codec.subsets and self._lanes // len(peaks) == codec.subset:
                subsets = peaks
            current = pipeline.register(f"level_{level}", **{
                f"peak_{position}": _larger(*peaks[position:position + 2]) for position in range(0, len(peaks), 2)})
            peaks = list(vars(current).values())
            if subsets is not None:
                subsets = list(vars(pipeline.register(f"subsets_{level}", **{
                    f"peak_{position}": peak for position, peak in enumerate(subsets)})).values())
            tags = pipeline.flags(f"tags_{level}", **vars(tags))
        top, = peaks
        if subsets is None:
            subsets = peaks

        # The largest exponent in the block so far.
        before = C(codec.lowest, 8)
        if has_top:
            peak = top
            top = Signal(8, name="top", reset_less=True)
            if beats > 1:
                before = Signal(8, name="before")
                m.d.comb += before.eq(Mux(tags.first, codec.lowest, top))
            with m.If(advance):
                m.d.sync += top.eq(_larger(peak, before))
            carried = pipeline.register("carried", before=before, **{
                f"peak_{position}": subset for position, subset in enumerate(subsets)})
            before, *subsets = vars(carried).values()
            tags = pipeline.flags("tags_top", **vars(tags))
        common = {"top": top}

        # Differences between the subset exponents and the largest exponent; they grow with the latter.
        if codec.subsets:
            width = codec.difference_bits

            def below(high, low, name):
                difference = Signal(8, name=name)
                m.d.comb += difference.eq(high - low)
                return (high != low) if width == 1 else _saturated(difference, width)

            current = Signal(data.ArrayLayout(width, codec.subsets), name="found", reset_less=True)
            risen = below(top, before, "rise")
            raised = []
            for position in range(codec.subsets):
                total = Signal(width + 1, name=f"raised_{position}")
                m.d.comb += total.eq(current[position] + risen)
                raised.append((current[position] | risen) if width == 1 else _saturated(total, width))
            fresh = [below(top, subset, f"below_{position}") for position, subset in enumerate(subsets)]
            per_subset = codec.subset // self._lanes
            if per_subset > 1:
                position = Signal(range(per_subset))
                with m.If(advance & tags.valid):
                    m.d.sync += position.eq(position + 1)
                joined = Signal(width, name="joined")
                m.d.comb += joined.eq(Mux((position == 0) | (fresh[0] < raised[-1]), fresh[0], raised[-1]))
                following = Mux(position == 0, Cat(*raised[1:], joined), Cat(*raised[:-1], joined))
            else:
                following = Cat(*raised[len(fresh):], *fresh) if beats > 1 else Cat(*fresh)
            with m.If(advance):
                m.d.sync += current.as_value().eq(following)
            common = {"top": pipeline.register("below", top=top).top, "differences": current.as_value()}
            if self._among:  # narrower magnitudes are shifted further to the right
                reach = Signal(9, name="reach")
                m.d.comb += reach.eq(common["top"] + self._chosen(
                    m, 3, [codec.mantissa_bits - other.mantissa_bits for other in self._among]))
                common["reach"] = reach
            tags = pipeline.flags("tags_below", **vars(tags))

        # The block's common values are held while its beats pass.
        if beats > 1:
            index = Signal(range(beats))
            active = Signal()
            held = {}
            with m.If(advance):
                with m.If(tags.final):
                    m.d.sync += [index.eq(0), active.eq(1)]
                with m.Else():
                    m.d.sync += index.eq(index + 1)
                    with m.If(index == beats - 1):
                        m.d.sync += active.eq(0)
            for name, value in {**common, "last": tags.last}.items():
                held[name] = Signal(len(value), name=f"held_{name}", reset_less=True)
                with m.If(advance & tags.final):
                    m.d.sync += held[name].eq(value)
            block = SimpleNamespace(**held, valid=active, first=index == 0, end=held["last"] & (index == beats - 1))
        else:
            block = SimpleNamespace(**common, valid=tags.final, first=C(1, 1), end=tags.last)
        nan = Signal()
        m.d.comb += nan.eq(block.top.all())

        delayed = pipeline.delay("elements", Cat(*(Cat(lane.rest, lane.exponent) for lane in lanes)),
                                 _found(codec, self._lanes) + beats - 1)
        size = len(delayed) // self._lanes

        # Differences of the subsets in this beat.
        lowered = [C(0, 1)] * self._lanes
        if codec.subsets:
            width = codec.difference_bits
            ahead = block.differences
            if beats > 1:
                step = max(self._lanes // codec.subset, 1) * width
                ahead = Signal(len(block.differences), name="ahead", reset_less=True)
                with m.If(advance):
                    with m.If(tags.final):
                        m.d.sync += ahead.eq(common["differences"])
                    with m.Elif((index & (per_subset - 1)) == per_subset - 1 if per_subset > 1 else C(1, 1)):
                        m.d.sync += ahead.eq(ahead[step:])
            lowered = [ahead[lane // codec.subset * width:][:width] for lane in range(self._lanes)]

        # Three steps: compute the shift amount, shift, and round.
        exponent = Signal(codec.exponent_bits, name="exponent")
        m.d.comb += exponent.eq(Mux(nan, codec.nan, block.top - codec.lowest))
        header = {"exponent": exponent}
        if codec.subsets:
            header["differences"] = Mux(nan, 0, block.differences)
        flags = {"valid": block.valid, "first": block.first, "last": block.end & block.valid, "nan": nan}
        for stage in ("aimed", "shifted"):
            header = vars(pipeline.register(f"{stage}_header", **header))
            flags = vars(pipeline.flags(f"{stage}_flags", **flags))
        noise = self._noise(m, advance & flags["valid"]) if stochastic else [None] * self._lanes

        if codec.top_field > 1:
            pivot = Signal(signed(9), name="pivot")
            m.d.comb += pivot.eq(block.top - (codec.top_field - 1))
        for lane in range(self._lanes):
            rest = delayed[lane * size:(lane + 1) * size]
            own = Signal(8, name=f"own_{lane}")
            m.d.comb += own.eq(rest[-8:])
            fraction, sign = rest[:kept], rest[kept]
            sticky = rest[kept + 1] if lost else C(0, 1)

            # Number of bits to shift right, and exponent field of the magnitude.
            limit = codec.fraction_bits + guard
            places = limit.bit_length()
            if codec.top_field == 1:
                width = len(lowered[lane])
                right = Signal(8 + width if codec.subsets else 8, name=f"right_{lane}")
                if not codec.subsets:
                    m.d.comb += right.eq(block.top - own)
                elif width == 1:
                    # The subset's difference has one bit, which is subtracted as a borrow.
                    start = block.reach if self._among else block.top
                    chain = Signal(1 + len(start), name=f"chain_{lane}")
                    m.d.comb += [chain.eq(Cat(C(0, 1), start) - Cat(lowered[lane], own)), right.eq(chain[1:])]
                else:
                    m.d.comb += right.eq(block.top - own - lowered[lane])
                far = right[places:9 if self._among else 8].any()
                aimed = pipeline.register(f"aimed_{lane}", amount=right[:places], sign=sign, fraction=fraction,
                                          sticky=sticky, zero=far | ~own.any())
                window_in = Cat(C(0, wanted - kept), aimed.fraction, C(1, 1))
                base = C(0, 1)
            else:
                field = Signal(signed(10), name=f"field_{lane}")
                m.d.comb += field.eq(own - pivot)
                negative = field[-1]
                places = (limit - 1).bit_length()
                far = negative & ~field[places:9].all()
                base_bits = (codec.top_field - 1).bit_length()
                aimed = pipeline.register(
                    f"aimed_{lane}", amount=Mux(negative, ~field[:places], 0), negative=negative, sign=sign,
                    fraction=fraction, sticky=sticky, zero=far | ~own.any(),
                    base=Mux(negative, 0, field[:base_bits]))
                # A number below the format's smallest normal number has a negative field. It is shifted right by one
                # bit, and then by the bitwise complement of its field.
                opened = Cat(C(0, wanted - kept), aimed.fraction, C(1, 1))
                window_in = Signal(wanted + 1, name=f"lowered_{lane}")
                m.d.comb += window_in.eq(Mux(aimed.negative, opened[1:], opened))
                base = aimed.base
            window, dropped = shift_right(m, window_in, aimed.amount, width=wanted + 1)
            ones = Cat(dropped, aimed.sticky)
            if codec.top_field > 1:
                ones = Cat(ones, aimed.negative & opened[0])
            shifted = pipeline.register(
                f"shifted_{lane}", window=Mux(aimed.zero, 0, window), base=Mux(aimed.zero, 0, base), sign=aimed.sign,
                **({} if stochastic else {"sticky": ones.any() & ~aimed.zero}))

            # The largest magnitude is not rounded up.
            window, low = shifted.window, codec.largest & ((1 << codec.fraction_bits) - 1)
            mantissa = window[guard:-1]
            full = Signal(name=f"full_{lane}")
            # The largest element's fraction consists of ones followed by at most one zero.
            odd = low & 1 if codec.fraction_bits else 1
            ones = window[-1] & mantissa[1 - odd:].all()
            if self._among:
                ones = self._chosen(m, 1, [window[guard:][:other.mantissa_bits].all() for other in self._among])
            m.d.comb += full.eq(ones & (
                (shifted.base == codec.top_field - 1) if codec.top_field > 1 else C(1, 1)))
            if not odd:
                mantissa = Cat(mantissa[0] & ~full, mantissa[1:])
            magnitude = Cat(mantissa, shifted.base)[:codec.magnitude_bits]
            hidden = Cat(C(0, codec.fraction_bits), window[-1])
            result = Signal(codec.code_bits, name=f"code_{lane}")
            if stochastic:
                total = Signal(guard + codec.magnitude_bits, name=f"total_{lane}")
                added = Cat(noise[lane] & ~full.replicate(guard), hidden)
                m.d.comb += total.eq(Cat(window[:guard], magnitude) + added)
                rounded = total[guard:]
                up = C(0, 1)
            else:
                up = window[0] & (shifted.sticky | window[1]) & ~full
                if codec.complement:
                    rounded = window[1:]
                else:
                    rounded = Signal(codec.magnitude_bits, name=f"rounded_{lane}")
                    m.d.comb += rounded.eq(magnitude + Cat(up, hidden[1:]) if codec.fraction_bits else
                                           window[1:] + up)
            if codec.complement:
                m.d.comb += result.eq(Cat(rounded ^ shifted.sign.replicate(codec.magnitude_bits), shifted.sign)
                                      + (up ^ shifted.sign))
            else:
                m.d.comb += result.eq(Cat(rounded, shifted.sign))
            with m.If(advance):
                m.d.sync += self.o.payload.codes[lane].eq(Mux(flags["nan"], 0, result))

        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(advance):
            m.d.sync += [self.o.valid.eq(flags["valid"]), self.o.payload.first.eq(flags["first"]),
                         self.o.payload.last.eq(flags["last"])]
            m.d.sync += [self.o.payload[name].eq(value) for name, value in header.items()]
        return m

    def _chosen(self, m, width, values):
        """Select the value for the chosen format."""
        value = Signal(width, name="chosen")
        m.d.comb += value.eq(Array(values)[self.choice])
        return value

    def _is_above(self, fraction):
        """Whether a fraction exceeds the fraction of the format's largest number."""
        codec = self._codec
        low, high = fraction[:-codec.fraction_bits], fraction[-codec.fraction_bits:]
        largest = codec.largest & ((1 << codec.fraction_bits) - 1)
        return (high > largest) | ((high == largest) & low.any())

    def _noise(self, m, step):
        """Return random bits for each lane, which change with each step."""
        count = self._lanes * RANDOM_BITS
        state = Signal(STATE_BITS, init=random_state(self._codec.seed), name="random")
        bits = list(state)
        for bit in range(count):
            bits.append(bits[bit] ^ bits[bit + 63])
        with m.If(step):
            m.d.sync += state.eq(Cat(*bits[count:]))
        return [Cat(*bits[lane * RANDOM_BITS:][:RANDOM_BITS]) for lane in range(self._lanes)]
