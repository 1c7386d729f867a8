# amaranth: UnusedElaboratable=no
"""Shared-exponent formats: blocks of numbers that have one exponent in common, encoded and decoded as streams.

A **block** is ``block`` elements. It holds one exponent; for each subset of ``subset`` elements a difference to it,
which tells how far the subset's own exponent lies below; and for each element a sign and a magnitude. The formats of
this module have integers as magnitudes; :mod:`hdl.compression.microscaling` has those of OCP MX, where magnitudes may
be small floating-point numbers.

The scale rule
--------------
Exponents are those of binary32, biased by 127, and e(x) is the exponent field of an element.

1. E is the largest e(x) of the block, or the codec's ``lowest`` where all are smaller. E - ``lowest`` is stored.
2. A block in which some e(x) is 255, an infinity or a NaN, is NaN as a whole: ones are stored as its exponent, and
   zeros as everything else.
3. D, for each subset, is E less the largest e(x) of the subset, but at most 2 ** ``difference_bits`` - 1.
4. The magnitude is that of x / 2 ** (E - D - 127) in the element's format, rounded, and at most the largest one: what
   would be rounded up beyond it is not, and no rounding changes E or D.
5. Subnormal numbers are zeros, before all of this when encoded, and after it when decoded; a number of 2 ** 128 or
   more, which no encoder makes, decodes as an infinity. A zero keeps its sign where the element's format has one.
6. Elements that the last block of a packet lacks are +0.

With integers of m bits the value is (-1) ** s * 2 ** (E - D - 127) * 2 ** (1 - m) * M. An exponent of d bits, fewer
than 8, is biased by 2 ** (d - 1) - 1 in place of 127; smaller numbers have fewer significant bits, and larger ones
saturate.

Stochastic rounding adds :data:`RANDOM_BITS` random bits below the last place, to what is left of the number when its
lower bits are cut off; they come from a shift register which makes as many bits for every element of every block, and
runs on from packet to packet.

On the wire
-----------
The bits of a block are its exponent, its differences, and its elements in order, each lowest bit first; an element
is its magnitude and then its sign. Block follows block without a gap, from bit 0 of the first word on; only the last
word of a packet is filled up, with zeros. So n elements take ceil(ceil(n / block) * block_bits / 32) words.
"""

import dataclasses
import enum
import math
from types import SimpleNamespace

from amaranth.hdl import C, Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.floating.format import BF16, FP32
from hdl.floating.stages import leading_zeros, shift_left, shift_right
from hdl.stream import beat_layout, connect_stream

__all__ = ["MX4", "MX6", "MX9", "RANDOM_BITS", "STATE_BITS", "BlockCodec", "Decoder", "Dequantizer", "Encoder",
           "Packer", "Quantizer", "Rounding", "SharedExponent", "Unpacker", "block_layout", "random_state"]

WORD = 32

#: Random bits per element of stochastic rounding.
RANDOM_BITS = 8

#: Width of the shift register of stochastic rounding: bit t is the exclusive or of bits t - 127 and t - 64.
STATE_BITS = 127

_BIAS = 127
_ONES = 255


class Rounding(enum.Enum):
    """What becomes of the bits below the last place."""

    NEAREST_EVEN = "nearest even"
    STOCHASTIC = "stochastic"


def random_state(seed):
    """What the shift register of stochastic rounding starts with: the seed, mixed by splitmix64."""
    state, mask = 0, (1 << 64) - 1
    for part in range(2):
        seed = (seed + 0x9E3779B97F4A7C15) & mask
        word = seed
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & mask
        word = (word ^ word >> 27) * 0x94D049BB133111EB & mask
        state |= (word ^ word >> 31) << 64 * part
    return state & ((1 << STATE_BITS) - 1) or 1


def _check(name, value, low, high):
    if not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name} must be an integer between {low} and {high}, not {value!r}")


def _check_power(name, value, low, high):
    if not isinstance(value, int) or not low <= value <= high or value & (value - 1):
        raise ValueError(f"{name} must be a power of two between {low} and {high}, not {value!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockCodec:
    """What all formats with one exponent per block have in common.

    A magnitude is a field, and ``fraction_bits`` below it, as in a floating-point number; that of an integer is its
    highest bit. Numbers with the field zero have no hidden bit.

    Parameters
    ----------
    rounding : Rounding
    seed : int
        Of stochastic rounding; at most 64 bits.
    """

    rounding: Rounding = Rounding.NEAREST_EVEN
    seed: int = 1

    def __post_init__(self):
        if not isinstance(self.rounding, Rounding):
            raise TypeError(f"Rounding must be a Rounding, not {self.rounding!r}")
        _check("Seed", self.seed, 0, (1 << 64) - 1)

    @property
    def code_bits(self):
        """Bits of an element."""
        return 1 + self.magnitude_bits

    @property
    def subsets(self):
        """Differences in a block."""
        return self.block // self.subset if self.difference_bits else 0

    @property
    def header_bits(self):
        """Bits of a block's exponent and differences."""
        return self.exponent_bits + self.subsets * self.difference_bits

    @property
    def block_bits(self):
        """Bits of a block."""
        return self.header_bits + self.block * self.code_bits

    @property
    def block_words(self):
        """Words of a block, which need not be a whole number."""
        return self.block_bits / WORD

    @property
    def highest(self):
        """The largest exponent a block can have: what is above saturates."""
        return min(self.lowest + (1 << self.exponent_bits) - 2, _ONES - 1)

    @property
    def nan(self):
        """Exponent of a block that is NaN, as stored."""
        return (1 << self.exponent_bits) - 1

    def words(self, count):
        """Words of a packet of ``count`` elements."""
        return -(-(-(-count // self.block) * self.block_bits) // WORD)

    def create_encoder(self, *, lanes, format=FP32, words=None):
        """The unit that encodes: an :class:`Encoder`."""
        return Encoder(codec=self, lanes=lanes, format=format, words=words)

    def create_decoder(self, *, lanes, format=FP32, words=None):
        """The unit that decodes: a :class:`Decoder`."""
        return Decoder(codec=self, lanes=lanes, format=format, words=words)

    def _check_block(self):
        if self.block_bits < WORD:
            raise ValueError(f"Block must be of at least {WORD} bits, not {self.block_bits!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedExponent(BlockCodec):
    """Integers with a sign, below a block's exponent and a subset's difference to it.

    Parameters
    ----------
    block : int
        Elements in a block: a power of two up to 256.
    subset : int
        Elements with a difference in common: a power of two, at most a block. Without effect if there are none.
    exponent_bits : int
        Width of the block's exponent; 2 to 8.
    difference_bits : int
        Width of a difference; 0 to 4. None, that is 0, makes flat block floating point.
    mantissa_bits : int
        Width of a magnitude; 1 to 16.
    """

    block: int = 16
    subset: int = 2
    exponent_bits: int = 8
    difference_bits: int = 1
    mantissa_bits: int = 7

    def __post_init__(self):
        super().__post_init__()
        _check_power("Block", self.block, 2, 256)
        _check_power("Subset", self.subset, 1, self.block)
        _check("Exponent width", self.exponent_bits, 2, 8)
        _check("Difference width", self.difference_bits, 0, 4)
        _check("Mantissa width", self.mantissa_bits, 1, 16)
        self._check_block()

    @property
    def magnitude_bits(self):
        """Bits of a magnitude."""
        return self.mantissa_bits

    @property
    def fraction_bits(self):
        """Bits of a magnitude below its highest."""
        return self.mantissa_bits - 1

    @property
    def top_field(self):
        """What is above the fraction in the largest magnitude."""
        return 1

    @property
    def largest(self):
        """The largest magnitude."""
        return (1 << self.mantissa_bits) - 1

    @property
    def lowest(self):
        """The smallest exponent a block can have."""
        return _BIAS - ((1 << (self.exponent_bits - 1)) - 1)

    @property
    def complement(self):
        """Whether elements are of two's complement."""
        return False

    @property
    def infinities(self):
        """Whether the highest field holds infinities and NaNs, as in IEEE 754."""
        return False

    @property
    def nan_magnitude(self):
        """Magnitude that is a NaN, or None."""
        return None


MX9 = SharedExponent(mantissa_bits=7)
MX6 = SharedExponent(mantissa_bits=4)
MX4 = SharedExponent(mantissa_bits=2)


def block_layout(codec, lanes):
    """A beat of a block: some of its elements, as codes, in order, and what they have in common.

    Exponent and differences are those of the whole block, and the same in all its beats. A block takes block / lanes
    beats; ``first`` marks the first of them, and ``last`` the last one of a packet.

    Parameters
    ----------
    codec : BlockCodec
    lanes : int
        Elements in one beat: a power of two, at most a block.
    """
    _check_power("Lane count", lanes, 1, codec.block)
    differences = {"differences": data.ArrayLayout(codec.difference_bits, codec.subsets)} if codec.subsets else {}
    return data.StructLayout({"exponent": codec.exponent_bits, **differences,
                              "codes": data.ArrayLayout(codec.code_bits, lanes), "first": 1, "last": 1})


def _check_codec(codec, lanes, format=FP32):
    if not isinstance(codec, BlockCodec):
        raise TypeError(f"Codec must be a BlockCodec, not {codec!r}")
    _check_power("Lane count", lanes, 1, codec.block)
    if format not in (FP32, BF16):
        raise ValueError(f"Format must be FP32 or BF16, not {format!r}")
    if codec.magnitude_bits > format.fraction_bits + 1:
        raise ValueError(f"Magnitudes must be of at most {format.fraction_bits + 1} bits, not "
                         f"{codec.magnitude_bits!r}")


class _Pipeline:
    """Registers of stages that move together, when they are told to."""

    def __init__(self, m, advance):
        self.m = m
        self.advance = advance

    def register(self, name, **values):
        """Values one step later, under the same names. Nothing is reset."""
        return self._register(name, values, reset_less=True)

    def flags(self, name, **values):
        """As :meth:`register`, but zero after reset."""
        return self._register(name, values, reset_less=False)

    def _register(self, name, values, *, reset_less):
        later = {}
        for key, value in values.items():
            later[key] = Signal(Value.cast(value).shape(), name=f"{name}_{key}", reset_less=reset_less)
            with self.m.If(self.advance):
                self.m.d.sync += later[key].eq(value)
        return SimpleNamespace(**later)

    def delay(self, name, value, steps):
        """A value some steps later: flip-flops, or a memory from where that is smaller."""
        rows = steps - 1
        if steps <= _SHORT:
            for age in range(steps):
                value = self.register(f"{name}_{age}", value=value).value
            return value
        spare = rows % _LUT_ROWS
        if rows > _LUT_ROWS and spare <= _SHORT // 2:
            value = self.delay(f"{name}_early", value, spare)
            rows -= spare
        m = self.m
        memory = Memory(shape=len(value), depth=rows, init=[])
        m.submodules[name] = memory
        write = memory.write_port()
        read = memory.read_port(domain="comb")
        place = Signal(range(rows), name=f"{name}_place")
        m.d.comb += [write.addr.eq(place), read.addr.eq(place), write.data.eq(value), write.en.eq(self.advance)]
        with m.If(self.advance):
            m.d.sync += place.eq(Mux(place == rows - 1, 0, place + 1))
        return self.register(f"{name}_read", value=read.data).value


#: Steps up to which flip-flops are taken to delay a value.
_SHORT = 8
#: Rows of one column of LUT memory.
_LUT_ROWS = 16


def _larger(a, b):
    return Mux(a > b, a, b)


def _saturated(value, width):
    """A number, or all ones of a width where it takes more bits."""
    if len(value) <= width:
        return value
    return value[:width] | value[width:].any().replicate(width)


def _tree(function, values):
    """Combine values two by two."""
    while len(values) > 1:
        values = [function(*values[start:start + 2]) for start in range(0, len(values), 2)]
    return values[0]


def _levels(codec, lanes):
    """Steps of the comparisons within a beat, and whether there is one from beat to beat."""
    return lanes.bit_length() - 1, codec.block > lanes or codec.lowest > 0


def _found(codec, lanes):
    """Steps from a block's last beat in the first register to all that its beats have in common."""
    return sum(_levels(codec, lanes)) + (codec.subsets > 0) + (codec.block > lanes)


def _quantizer_latency(codec, lanes):
    return 1 + _found(codec, lanes) + 3


def _dequantizer_latency(codec):
    return 3 if codec.complement else 2


class Quantizer(wiring.Component):
    """Bring blocks of elements to their exponent.

    One beat is taken per cycle and one given. The first beat of a block is offered :attr:`latency` cycles after its
    last one was accepted: that long, and no longer, elements are delayed, while the largest exponent is found. A
    partial last block is filled up with +0, one beat per cycle, in which ``i.ready`` is low.

    All stages move together: when the output is free, and, while a block has begun, with each of its beats. So a
    block whose beats are late holds up the one before it. ``i.ready`` depends combinationally on ``o.ready``.

    Parameters
    ----------
    codec : BlockCodec
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
        _check_codec(codec, lanes, format)
        self._codec = codec
        self._lanes = lanes
        self._format = format
        super().__init__({
            "i": In(stream.Signature(beat_layout(lanes, format.width))),
            "o": Out(stream.Signature(block_layout(codec, lanes))),
        })

    @property
    def beats(self):
        """Beats of a block."""
        return self._codec.block // self._lanes

    @property
    def latency(self):
        """Cycles from the acceptance of a block's last beat to the offer of its first."""
        return _quantizer_latency(self._codec, self._lanes)

    def elaborate(self, platform):
        m = Module()
        codec, format, beats = self._codec, self._format, self.beats
        stochastic = codec.rounding is Rounding.STOCHASTIC
        given = self.i.payload

        # What enters: beats of the input, or of zeros where a block is partial.
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
        pipeline = _Pipeline(m, advance)
        if beats > 1:
            with m.If(advance & entering):
                m.d.sync += [beat.eq(Mux(final, 0, beat + 1)), padding.eq((padding | given.last) & ~final)]

        # Elements as far as they matter: guard bits below the last place of the largest magnitude, and what is below.
        guard = RANDOM_BITS if stochastic else 1
        wanted = codec.fraction_bits + guard
        kept = min(wanted, format.fraction_bits)
        lost = 0 if stochastic else format.fraction_bits - kept
        lanes = []
        for lane in range(self._lanes):
            opened = data.View(format.layout, given.elements[lane])
            present = given.keep[lane] & ~padding
            exponent = Mux(present, opened.exponent, 0)
            fraction, sticky = opened.fraction[format.fraction_bits - kept:], opened.fraction[:lost].any()
            if codec.highest < _ONES - 1:
                above = (opened.exponent > codec.highest) & ~opened.exponent.all()
                exponent = Mux(present, Mux(above, codec.highest, opened.exponent), 0)
                fraction, sticky = fraction | above.replicate(kept), sticky | above
            lanes.append(pipeline.register(
                f"opened_{lane}", exponent=exponent,
                rest=Cat(fraction, opened.sign & present, *([sticky] if lost else []))))
        entered = pipeline.flags("entered", valid=entering, first=beat == 0, final=final & entering,
                                 last=padding | given.last)

        # The largest exponent of each subset in the beat, and of the beat.
        peaks = [lane.exponent for lane in lanes]
        subsets = None
        tags = entered
        levels, has_top = _levels(codec, self._lanes)
        for level in range(levels):
            if codec.subsets and self._lanes // len(peaks) == codec.subset:
                subsets = peaks
            found = pipeline.register(f"level_{level}", **{
                f"peak_{place}": _larger(*peaks[place:place + 2]) for place in range(0, len(peaks), 2)})
            peaks = list(vars(found).values())
            if subsets is not None:
                subsets = list(vars(pipeline.register(f"subsets_{level}", **{
                    f"peak_{place}": peak for place, peak in enumerate(subsets)})).values())
            tags = pipeline.flags(f"tags_{level}", **vars(tags))
        top, = peaks
        if subsets is None:
            subsets = peaks

        # The largest of the block so far.
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
                f"peak_{place}": subset for place, subset in enumerate(subsets)})
            before, *subsets = vars(carried).values()
            tags = pipeline.flags("tags_top", **vars(tags))
        common = {"top": top}

        # Differences to it, which grow with it.
        if codec.subsets:
            width = codec.difference_bits

            def below(high, low, name):
                difference = Signal(8, name=name)
                m.d.comb += difference.eq(high - low)
                return (high != low) if width == 1 else _saturated(difference, width)

            found = Signal(data.ArrayLayout(width, codec.subsets), name="found", reset_less=True)
            risen = below(top, before, "rise")
            raised = []
            for place in range(codec.subsets):
                total = Signal(width + 1, name=f"raised_{place}")
                m.d.comb += total.eq(found[place] + risen)
                raised.append((found[place] | risen) if width == 1 else _saturated(total, width))
            fresh = [below(top, subset, f"below_{place}") for place, subset in enumerate(subsets)]
            per_subset = codec.subset // self._lanes
            if per_subset > 1:
                place = Signal(range(per_subset))
                with m.If(advance & tags.valid):
                    m.d.sync += place.eq(place + 1)
                joined = Signal(width, name="joined")
                m.d.comb += joined.eq(Mux((place == 0) | (fresh[0] < raised[-1]), fresh[0], raised[-1]))
                following = Mux(place == 0, Cat(*raised[1:], joined), Cat(*raised[:-1], joined))
            else:
                following = Cat(*raised[len(fresh):], *fresh) if beats > 1 else Cat(*fresh)
            with m.If(advance):
                m.d.sync += found.as_value().eq(following)
            common = {"top": pipeline.register("below", top=top).top, "differences": found.as_value()}
            tags = pipeline.flags("tags_below", **vars(tags))

        # What the beats of a block have in common stands while they pass.
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

        # Three steps: how far to shift, shift, and round.
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

            # Places to the right, and the field.
            limit = codec.fraction_bits + guard
            places = limit.bit_length()
            if codec.top_field == 1:
                width = len(lowered[lane])
                right = Signal(8 + width if codec.subsets else 8, name=f"right_{lane}")
                if not codec.subsets:
                    m.d.comb += right.eq(block.top - own)
                elif width == 1:
                    # The difference is the borrow.
                    chain = Signal(9, name=f"chain_{lane}")
                    m.d.comb += [chain.eq(Cat(C(0, 1), block.top) - Cat(lowered[lane], own)), right.eq(chain[1:])]
                else:
                    m.d.comb += right.eq(block.top - own - lowered[lane])
                far = right[places:8].any()
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
                # One place for being below the smallest normal number at all, and as many as the complement says.
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
            # Its fraction is ones, above a zero at most.
            odd = low & 1 if codec.fraction_bits else 1
            m.d.comb += full.eq(window[-1] & mantissa[1 - odd:].all() & (
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

    def _noise(self, m, step):
        """Random bits for each lane; they change with a step."""
        count = self._lanes * RANDOM_BITS
        state = Signal(STATE_BITS, init=random_state(self._codec.seed), name="random")
        bits = list(state)
        for place in range(count):
            bits.append(bits[place] ^ bits[place + 63])
        with m.If(step):
            m.d.sync += state.eq(Cat(*bits[count:]))
        return [Cat(*bits[lane * RANDOM_BITS:][:RANDOM_BITS]) for lane in range(self._lanes)]


def _positions(codec, lanes):
    """Where beats begin in a word, the bits of each beat, and the most words that a beat completes."""
    beats = codec.block // lanes
    sizes = [codec.header_bits * (beat == 0) + lanes * codec.code_bits for beat in range(beats)]
    place, words, seen = 0, 1, []
    while not seen or place:
        for beat, size in enumerate(sizes):
            seen.append(place)
            after = place + size
            words = max(words, -(-after // WORD) if beat == beats - 1 else after // WORD)
            place = after % WORD
    return sorted(set(seen)), sizes, words


def _least_words(codec, lanes):
    """Words that a beat with the header of its block takes."""
    return -(-(codec.header_bits + lanes * codec.code_bits) // WORD)


def _check_words(words, least):
    if words is None:
        return least
    if not isinstance(words, int) or words < least:
        raise ValueError(f"Word count must be an integer of at least {least}, not {words!r}")
    return words


class Packer(wiring.Component):
    """Join blocks to words.

    One beat is taken per cycle, and the words that it completes are offered :attr:`latency` cycle later, if any; with
    the last beat of a packet all that is left. ``i.ready`` depends combinationally on ``o.ready``.

    Parameters
    ----------
    codec : BlockCodec
    lanes : int
        Elements in a beat of a block.
    words : int or None
        Words in a beat of the output; by default as many as a beat can complete.

    Members
    -------
    i : In(stream of block_layout(codec, lanes))
    o : Out(stream of beat_layout(words))
        At least one word is kept in each beat, but not all of them need be.
    """

    latency = 1

    def __init__(self, *, codec, lanes, words=None):
        _check_codec(codec, lanes)
        layout = block_layout(codec, lanes)
        self._codec = codec
        self._lanes = lanes
        self._words = _check_words(words, _positions(codec, lanes)[-1])
        super().__init__({"i": In(stream.Signature(layout)), "o": Out(stream.Signature(beat_layout(self._words)))})

    @property
    def words(self):
        """Words in a beat of the output."""
        return self._words

    def elaborate(self, platform):
        m = Module()
        places, sizes, most = _positions(self._codec, self._lanes)
        unit = math.gcd(WORD, *places)
        given = self.i.payload
        piece = Signal(sizes[0])
        body = given.codes.as_value()
        header = Cat(given.exponent, *([given.differences] if self._codec.subsets else []))
        if len(sizes) > 1:
            m.d.comb += piece.eq(Mux(given.first, Cat(header, body), body))
        else:
            m.d.comb += piece.eq(Cat(header, body))

        # What is left of the words so far, and how much in units of the positions; zeros above.
        left = Signal(max(places[-1], 1))
        count = Signal(range(max(WORD // unit, 2)))
        moved = Signal(len(left) + len(piece))
        m.d.comb += moved.eq(shift_left(m, Cat(piece, C(0, len(left))), (count * unit)[:5]) | left
                             if unit < WORD else piece)
        total = Signal(range((places[-1] + sizes[0]) // unit + 1))
        m.d.comb += total.eq(count + (Mux(given.first, sizes[0] // unit, sizes[-1] // unit)
                                      if len(sizes) > 1 else sizes[0] // unit))
        shift = (WORD // unit).bit_length() - 1
        whole = Signal(range(max(most, 1) + 1))
        rest = Signal.like(count)
        m.d.comb += [whole.eq(total >> shift), rest.eq(total[:shift] if shift else 0)]

        ready = Signal()
        m.d.comb += [ready.eq(self.o.ready | ~self.o.valid), self.i.ready.eq(ready)]
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(ready & self.i.valid):
            ends = given.last & (rest != 0)
            m.d.sync += [
                self.o.valid.eq((whole != 0) | ends),
                self.o.payload.last.eq(given.last),
                count.eq(Mux(given.last, 0, rest)),
            ]
            for word in range(most):
                m.d.sync += [
                    self.o.payload.elements[word].eq(moved[WORD * word:WORD * (word + 1)]),
                    self.o.payload.keep[word].eq((whole > word) | (ends & (whole == word))),
                ]
            with m.Switch(whole):
                for number in range(most + 1):
                    with m.Case(number):
                        m.d.sync += left.eq(Mux(given.last, 0, moved[WORD * number:WORD * number + len(left)]))
        return m


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
        _check_codec(codec, lanes, format)
        self._codec = codec
        self._lanes = lanes
        self._format = format
        self._words = _check_words(words, _positions(codec, lanes)[-1])
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
        return _quantizer_latency(self._codec, self._lanes) + Packer.latency

    def elaborate(self, platform):
        m = Module()
        m.submodules.quantizer = quantizer = Quantizer(codec=self._codec, lanes=self._lanes, format=self._format)
        m.submodules.packer = packer = Packer(codec=self._codec, lanes=self._lanes, words=self._words)
        connect_stream(m, self.i, quantizer.i)
        connect_stream(m, quantizer.o, packer.i)
        connect_stream(m, packer.o, self.o)
        return m


class Unpacker(wiring.Component):
    """Cut words into blocks.

    One beat is given per cycle, as long as words come; words are taken when a beat needs bits of them. A beat is
    offered :attr:`latency` cycle after its last word was accepted. ``i.ready`` depends combinationally on
    ``o.ready``.

    A packet whose words end inside a block is told by ``error``, with the first beat that lacks bits. That beat and
    the others of the block come out as NaN, with the exponent that says so, and the next packet is not affected. The
    bits behind the last block, fewer than 32, are ignored.

    Parameters
    ----------
    codec : BlockCodec
    lanes : int
        Elements in a beat of a block.
    words : int or None
        Words in a beat of the input; by default, and at least, as many as a beat of a block can need.

    Members
    -------
    i : In(stream of beat_layout(words))
        ``keep`` must be all ones except in the last beat, as usual.
    o : Out(stream of block_layout(codec, lanes))
    error : Out(1)
        Pulse: a block lacks bits.
    """

    latency = 1

    def __init__(self, *, codec, lanes, words=None):
        _check_codec(codec, lanes)
        layout = block_layout(codec, lanes)
        self._codec = codec
        self._lanes = lanes
        self._words = _check_words(words, _least_words(codec, lanes))
        super().__init__({
            "i": In(stream.Signature(beat_layout(self._words))), "o": Out(stream.Signature(layout)), "error": Out(1)})

    @property
    def words(self):
        """Words in a beat of the input."""
        return self._words

    def elaborate(self, platform):
        m = Module()
        codec, lanes = self._codec, self._lanes
        sizes = _positions(codec, lanes)[1]
        row = WORD * self._words
        unit = math.gcd(WORD, *sizes)
        given = self.i.payload

        # Of the words that were taken last: how far they are used, and whether they are a packet's last.
        held = Signal(row, reset_less=True)
        whole = row // unit
        place = Signal(range(whole), init=whole - 1)  # less one: what is used up is whole
        ended = Signal()
        count = Signal(range(self._words + 1))

        index = Signal(range(max(len(sizes), 2)))
        first = (index == 0) if len(sizes) > 1 else C(1, 1)
        final = (index == len(sizes) - 1) if len(sizes) > 1 else C(1, 1)
        stop = Signal(range(2 * whole + 1))
        crossing = Signal()
        taking = Signal()
        m.d.comb += [
            stop.eq(place + (Mux(first, sizes[0] // unit, sizes[-1] // unit) if len(sizes) > 1 else sizes[0] // unit)
                    + 1),
            crossing.eq(stop > whole),
            taking.eq(crossing & ~ended),
        ]

        # Where the packet ends, if that is known.
        fresh = Signal.like(count)
        known = Signal()
        behind = Signal(range(2 * self._words + 1))
        lacking = Signal()
        finished = Signal()
        word = WORD // unit
        m.d.comb += [
            fresh.eq(sum(given.keep)),
            known.eq(ended | (taking & given.last)),
            behind.eq(Mux(ended, count, fresh + self._words)),
            lacking.eq(known & (stop > behind * word)),
            finished.eq(final & known & (stop + word > behind * word)),
        ]

        free = Signal()
        go = Signal()
        m.d.comb += [
            free.eq(self.o.ready | ~self.o.valid),
            go.eq(free & (~taking | self.i.valid)),
            self.i.ready.eq(free & taking),
        ]
        window = Signal(row - unit + sizes[0])
        m.d.comb += window.eq(Cat(held[unit:], given.elements))
        for bit in reversed(range(len(place))):
            step = unit << bit
            remaining = sizes[0] + step - unit
            moved = Signal(min(remaining, len(window)), name=f"moved_{step}")
            m.d.comb += moved.eq(Mux(place[bit], window[step:], window))
            window = moved
        header = window[:codec.header_bits]
        body = window[codec.header_bits:sizes[0]]
        if len(sizes) > 1:
            body = Mux(first, body, window[:sizes[-1]])

        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        m.d.sync += self.error.eq(0)
        with m.If(go):
            m.d.sync += [
                self.o.valid.eq(1),
                self.o.payload.first.eq(first),
                self.o.payload.last.eq(finished),
                self.o.payload.codes.eq(body),
                place.eq(Mux(finished | lacking, whole - 1, stop - 1 - Mux(taking, whole, 0))),
                ended.eq(~finished & (known | lacking)),
            ]
            if len(sizes) > 1:
                m.d.sync += index.eq(Mux(final, 0, index + 1))
            with m.If(first):
                m.d.sync += self.o.payload.exponent.eq(header[:codec.exponent_bits])
                if codec.subsets:
                    m.d.sync += self.o.payload.differences.eq(header[codec.exponent_bits:])
            with m.If(lacking):
                m.d.sync += [self.o.payload.exponent.eq(codec.nan), self.error.eq(~ended | (count != 0))]
            with m.If(taking):
                m.d.sync += [held.eq(given.elements), count.eq(fresh)]
            with m.If(lacking):
                m.d.sync += count.eq(0)
        return m


class Dequantizer(wiring.Component):
    """Make numbers of blocks.

    Latency is :attr:`latency` cycles, throughput one beat per cycle. All stages move together when the output is
    free; ``i.ready`` depends combinationally on ``o.ready``.

    Parameters
    ----------
    codec : BlockCodec
    lanes : int
        Elements in a beat: a power of two, at most a block.
    format : FloatFormat
        Format of the elements, FP32 or BF16.

    Members
    -------
    i : In(stream of block_layout(codec, lanes))
    o : Out(stream of beat_layout(lanes, format.width))
        Whole blocks: all elements are kept.
    """

    def __init__(self, *, codec, lanes, format=FP32):
        _check_codec(codec, lanes, format)
        self._codec = codec
        self._lanes = lanes
        self._format = format
        super().__init__({
            "i": In(stream.Signature(block_layout(codec, lanes))),
            "o": Out(stream.Signature(beat_layout(lanes, format.width))),
        })

    @property
    def latency(self):
        """Cycles from a beat of a block to its elements."""
        return _dequantizer_latency(self._codec)

    def elaborate(self, platform):
        m = Module()
        codec, format, lanes = self._codec, self._format, self._lanes
        given = self.i.payload
        free = Signal()
        m.d.comb += [free.eq(self.o.ready | ~self.o.valid), self.i.ready.eq(free)]
        pipeline = _Pipeline(m, free)

        lowered = [C(0, 1)] * lanes
        if codec.subsets:
            beats = codec.block // lanes
            groups = [given.differences.as_value()]
            if beats > 1:
                index = Signal(range(beats))
                now = Signal(range(beats))
                m.d.comb += now.eq(Mux(given.first, 0, index))
                with m.If(free & self.i.valid):
                    m.d.sync += index.eq(now + 1)
                per_subset = max(codec.subset // lanes, 1)
                width = max(lanes // codec.subset, 1) * codec.difference_bits
                groups = given.differences.as_value().word_select(now >> (per_subset.bit_length() - 1), width)
            else:
                groups, = groups
            width = codec.difference_bits
            lowered = [groups[lane // codec.subset * width:][:width] for lane in range(lanes)]

        common = {"exponent": given.exponent, "nan": given.exponent == codec.nan}
        flags = {"valid": self.i.valid, "last": given.last}
        numbers = []
        for lane in range(lanes):
            code = given.codes[lane]
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
            # A number without a hidden bit is brought to have one.
            if codec.top_field == 1:
                amount, none = leading_zeros(m, magnitude)
                shifted = shift_left(m, magnitude, amount)
                # The magnitude of -2 is no zero, but all that is seen of it are zeros: its count becomes -1.
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
            large = ~total[-1] & (total[:9] >= _ONES)
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
                    m.d.sync += [result.exponent.eq(_ONES), result.fraction.eq(
                        number.nan.shift_left(format.fraction_bits - 1))]
            m.d.comb += self.o.payload.elements[lane].eq(result)
        m.d.comb += self.o.payload.keep.eq((1 << lanes) - 1)
        with m.If(free):
            m.d.sync += [self.o.valid.eq(flags["valid"]), self.o.payload.last.eq(flags["last"])]
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
        _check_codec(codec, lanes, format)
        self._codec = codec
        self._lanes = lanes
        self._format = format
        self._words = _check_words(words, _least_words(codec, lanes))
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
        return Unpacker.latency + _dequantizer_latency(self._codec)

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
