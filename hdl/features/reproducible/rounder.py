"""Rounder for reproducible sums, which converts integers with an exponent per group to binary32."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.reproducible.layout import SPARE, check_width, integers_layout
from hdl.floating.format import FP32
from hdl.floating.stages import register
from hdl.group import GROUP
from hdl.streams.stream import beat_layout

__all__ = ["Rounder"]

#: Number of shift steps for normalisation in stages 2, 3 and 4, keyed by the width of integers.
_STAGES = {16: (1, 1, 2), 32: (1, 2, 2)}


class Rounder(wiring.Component):
    """Convert packets of integers to binary32, rounding each integer once to nearest even.

    An integer q of a group with field F becomes q * 2**(F - 125 - (width - spare)). Subnormal results are correct, a
    result too large for the format is an infinity, and integer 0 is +0.0; a negative integer that rounds to zero is
    -0.0. A flagged element is +infinity, -infinity or, with both flags, the canonical NaN, whatever its integer.

    Latency is :attr:`latency` cycles while ``o`` is not stalled; throughput is one beat per cycle. All stages advance
    together, unless ``o`` holds a beat that is not taken. ``i.ready`` depends combinationally on ``o.ready`` and
    ``fields.valid``, and ``fields.ready`` on ``o.ready`` and ``i``. No ready signal passes through the arithmetic;
    the output is a register.

    Parameters
    ----------
    width : int
        Width of the integers in bits: 16 or 32. A beat has 32 // width elements.

    Members
    -------
    i : In(stream of integers_layout(width))
    fields : In(stream of 8 bits)
        Agreed exponent field of each group, 1 to 254. Groups have 32 elements and are counted from the beginning of
        each packet; the last group of a packet may be shorter. Taken with the last beat of the group.
    spare : In(range(9))
        Number of bits by which a sum is wider than an addend; stable while beats are taken.
    o : Out(stream of beat_layout(32 // width))
        ``keep`` is all ones; ``last`` is copied from the integers.
    """

    latency = 5

    def __init__(self, *, width):
        check_width(width)
        self._width = width
        super().__init__({
            "i": In(stream.Signature(integers_layout(width))),
            "fields": In(stream.Signature(8)),
            "spare": In(SPARE),
            "o": Out(stream.Signature(beat_layout(32 // width))),
        })

    @property
    def width(self):
        """Width of the integers in bits."""
        return self._width

    def elaborate(self, platform):
        m = Module()
        lanes = 32 // self._width
        beats = GROUP // lanes
        i, fields, o = self.i, self.fields, self.o

        advance = Signal()
        ends = Signal()  # this beat is the last one of its group
        position = Signal(range(beats))
        m.d.comb += [
            advance.eq(o.ready | ~o.valid),
            ends.eq(i.payload.last | (position == beats - 1)),
            i.ready.eq(advance & fields.valid),
            fields.ready.eq(advance & i.valid & ends),
        ]
        with m.If(i.valid & i.ready):
            m.d.sync += position.eq(Mux(ends, 0, position + 1))

        # Valid bits must be defined after reset, so their flip-flops have a reset, unlike the payload's.
        valid = Signal(self.latency)
        with m.If(advance):
            m.d.sync += valid.eq(Cat(i.valid & fields.valid, valid))
        last = i.payload.last
        for cycle in range(self.latency):
            last = self._register(m, advance, f"framing_{cycle + 1}", last=last).last
        m.d.comb += [o.valid.eq(valid[-1]), o.payload.last.eq(last), o.payload.keep.eq(~0)]

        # Stage 1: one more than the exponent field of a result whose integer has no leading zeros. The lowest bit of
        # this sum only generates a carry.
        total = (Cat(Const(1, 1), fields.payload) + Cat(Const(1, 1), self.spare))[1:]
        scale = self._register(m, advance, "scale", highest=total).highest
        for lane in range(lanes):
            self._lane(m, advance, lane, scale, o.payload.elements[lane])
        return m

    @staticmethod
    def _register(m, advance, stage, **values):
        with m.If(advance):
            return register(m, stage, **values)

    def _lane(self, m, advance, lane, scale, o):
        """Add the pipeline of one lane, with its result on ``o``; ``scale`` is used in the second stage."""
        width = self._width
        integer = self.i.payload.data.word_select(lane, width)
        sign = integer[-1]

        # Stage 1: look for ones in the upper half of the magnitude. For a negative integer, the magnitude is its
        # complement followed by an infinite string of ones after the point: the same number without an addition.
        upper = Signal(width // 2, name=f"upper_{lane}")
        m.d.comb += upper.eq(integer[width // 2 - 1:-1] ^ sign.replicate(width // 2))
        now = self._register(
            m, advance, f"opened_{lane}", integer=integer, sign=sign, empty=~upper.any(),
            flags=self.i.payload.special[lane])

        # Stages 2, 3 and 4: normalise. The shift is the smaller of the number of leading zeros (the count) and the
        # shift to exponent field 1 (the limit), which are compared bit by bit, starting with the highest bit. While
        # their bits are equal, a step is only allowed if the limit's bit is set; `free` means that the count is
        # already smaller.
        value = Cat(now.sign, now.integer[:-1] ^ now.sign.replicate(width - 1))
        count = width.bit_length() - 1  # number of shift steps
        limit, free = self._limit(m, scale, count, lane)
        highest, fill, flags, empty = scale, now.sign, now.flags, now.empty
        shift = []  # bits of the shift, highest first
        for number, steps in enumerate(_STAGES[width], start=2):
            for _ in range(steps):
                step = width >> len(shift) + 1
                bits, shifted = (Signal(width, name=f"{name}{step}_{lane}") for name in ("unshifted", "normal"))
                shifts, smaller = (Signal(name=f"{name}{step}_{lane}") for name in ("shifts", "smaller"))
                m.d.comb += bits.eq(value)
                if empty is None:
                    empty = ~bits[-step:].any()
                m.d.comb += [
                    shifts.eq(empty & (free | limit[-1])),
                    smaller.eq(free | (limit[-1] & ~empty)),
                    shifted.eq(Mux(shifts, Cat(fill.replicate(step), bits), bits)),
                ]
                value, free, limit, empty = shifted, smaller, limit[:-1], None
                shift.append(shifts)
            if len(shift) < count:
                now = self._register(m, advance, f"shifted_{number}_{lane}", value=value, free=free, limit=limit,
                                     shift=Cat(shift), highest=highest, fill=fill, flags=flags)
                value, free, limit, highest = now.value, now.free, now.limit, now.highest
                fill, flags, shift = now.fill, now.flags, list(now.shift)

        # Without a hidden bit the number is zero or subnormal, and its exponent field is 0.
        hidden = value[-1]
        final = self._register(
            m, advance, f"normal_{lane}", value=value[:-1], highest=Mux(hidden, highest, 0),
            lowered=Mux(hidden, ~Cat(reversed(shift), Const(0, 8 - count)), 0), sign=fill, flags=flags)
        self._round(m, advance, final, o, lane)

    @staticmethod
    def _limit(m, scale, count, lane):
        """Return the lowest ``count`` bits of the largest shift, scale - 2, and whether it exceeds every possible
        count.

        The scale is at least 2. The shift's lowest bit equals the scale's; the other bits are decremented.
        """
        limit = Signal(count, name=f"limit_{lane}")
        free = Signal(name=f"free_{lane}")
        m.d.comb += [
            limit.eq(Cat(scale[0], (scale[bit] ^ ~scale[1:bit].any() for bit in range(1, count)))),
            free.eq(scale[count + 1:].any() | (scale[count] & scale[1:count].any())),
        ]
        return limit, free

    def _round(self, m, advance, final, o, lane):
        """Build stage 5, which rounds and packs. One addition combines fraction, rounding carry and exponent
        field."""
        fraction = min(FP32.fraction_bits, self._width - 1)
        lost = self._width - 1 - fraction
        up = final.sign
        if lost:
            value = final.value
            guard, odd = value[lost - 1], value[lost]
            # The bits after the guard bit are all zeros or, for a negative integer, all ones: incrementing these
            # ones leaves zeros and a carry into the guard bit.
            plain = Signal(name=f"plain_{lane}")
            m.d.comb += plain.eq(~(value[:lost - 1] ^ final.sign.replicate(lost - 1)).any())
            up = Signal(name=f"up_{lane}")
            m.d.comb += up.eq(Mux(final.sign, guard | (plain & odd), guard & (~plain | odd)))
        # The lowest bit of this sum only generates the carry.
        total = Signal(1 + fraction + FP32.exponent_bits, name=f"total_{lane}")
        m.d.comb += total.eq(Cat(Const(1, 1), final.value[lost:], final.highest[:8]) +
                             Cat(up, Const(0, fraction), final.lowered))
        # The field exceeds 254 if the shift is at most highest - 256, which is less than 8.
        small = final.lowered[3:].all() & (~final.lowered[:3] <= final.highest[:3])
        infinite = Signal(name=f"infinite_{lane}")
        m.d.comb += infinite.eq(final.highest[8] & small)
        special = final.flags.any()
        result = Signal(FP32.layout, name=f"result_{lane}", reset_less=True)
        with m.If(advance):
            m.d.sync += result.sign.eq(Mux(special, final.flags[1] & ~final.flags[0], final.sign))
            with m.If(special | infinite):
                m.d.sync += [
                    result.exponent.eq(FP32.exponent_ones),
                    result.fraction.eq(final.flags.all().shift_left(FP32.fraction_bits - 1)),
                ]
            with m.Else():
                m.d.sync += [
                    result.exponent.eq(total[-FP32.exponent_bits:]),
                    result.fraction.eq(total[1:1 + fraction].shift_left(FP32.fraction_bits - fraction)),
                ]
        m.d.comb += o.eq(result)
