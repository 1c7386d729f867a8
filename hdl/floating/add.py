"""Floating-point adder."""

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .format import FP32, FloatFormat
from .stages import Mark, leading_zeros, register, round_and_pack, shift_left, shift_right, substitute

__all__ = ["FloatAdder"]


class FloatAdder(wiring.Component):
    """Add two floating-point numbers, rounding to nearest even.

    Subnormal numbers, signed zeros and infinities follow IEEE 754; every NaN result is
    :attr:`FloatFormat.canonical_nan`. The result is on ``o`` :attr:`latency` cycles after its operands; a pair can be
    accepted in every cycle. Registers have no reset.

    Parameters
    ----------
    format : FloatFormat
        Format of both operands and of the result.

    Members
    -------
    a, b : In(format.width)
    o : Out(format.width)
    """

    latency = 7

    def __init__(self, *, format=FP32):
        if not isinstance(format, FloatFormat):
            raise TypeError(f"Format must be a FloatFormat, not {format!r}")
        self._format = format
        super().__init__({"a": In(format.width), "b": In(format.width), "o": Out(format.width)})

    @property
    def format(self):
        """Format of the operands and the result."""
        return self._format

    def elaborate(self, platform):
        if (replacement := substitute(self, platform)) is not None:
            return replacement
        m = Module()
        format = self._format
        layout = format.layout

        # Stage 1: compare the magnitudes; with the larger operand first, a difference never has to be negated.
        ordered = register(m, "ordered", a=self.a, b=self.b, swap=self.a[:-1] < self.b[:-1])

        # Stage 2: order the operands and subtract their exponents. A subnormal number has the exponent of the
        # smallest normal number, so its exponent field is one too small, unless both operands are subnormal.
        large = Signal(layout)
        small = Signal(layout)
        large_normal = Signal()
        small_normal = Signal()
        borrow = Signal()
        distance = Signal(format.exponent_bits)
        m.d.comb += [
            large.eq(Mux(ordered.swap, ordered.b, ordered.a)),
            small.eq(Mux(ordered.swap, ordered.a, ordered.b)),
            large_normal.eq(large.exponent.any()),
            small_normal.eq(small.exponent.any()),
            borrow.eq(large_normal & ~small_normal),
            distance.eq((Cat(C(1, 1), large.exponent) + Cat(~borrow, ~small.exponent))[1:]),
        ]
        large_special = large.exponent.all()
        subtract = large.sign ^ small.sign
        opened = register(
            m, "opened",
            large=Cat(large.fraction, large_normal), small=Cat(small.fraction, small_normal), distance=distance,
            subtract=subtract, sign=large.sign, exponent=Cat(large.exponent[0] | ~large_normal, large.exponent[1:]),
            infinite=large_special,
            nan=large_special & (large.fraction.any() | (subtract & small.exponent.all())))

        # Stage 3: align the smaller operand, with a guard bit and a round bit below the larger operand's lowest
        # bit, and a sticky bit below them. An operand beyond the range of the shifter is too small to change the
        # rounded result, by itself or through the sticky bit.
        value = Cat(C(0, 2), opened.small)
        amount = opened.distance[:(len(value) - 1).bit_length()]
        shifted, lost = shift_right(m, value, amount, width=len(value))
        far = opened.distance[len(amount):].any()
        aligned = register(
            m, "aligned",
            large=opened.large, small=Mux(far, 0, shifted) ^ opened.subtract.replicate(len(value)),
            lost=lost, subtract=opened.subtract,
            sign=opened.sign, exponent=opened.exponent, infinite=opened.infinite, nan=opened.nan)

        # Stage 4: add or subtract. The sticky bit represents bits below the sum: subtracting them decrements the
        # sum and leaves a sticky bit again. The extra bit position below the sum generates the carry-in.
        sticky = aligned.lost.any()
        total = (Cat(C(1, 1), C(0, 2), aligned.large, C(0, 1)) +
                 Cat(aligned.subtract & ~sticky, aligned.small, aligned.subtract))[1:len(value) + 2]
        mark = Mark(aligned.exponent, len(total))
        summed = register(
            m, "summed",
            total=total, sticky=sticky, subtract=aligned.subtract,
            rows=mark.rows, columns=mark.columns,
            largest=aligned.exponent == format.exponent_ones - 1,
            sign=aligned.sign, exponent=aligned.exponent, infinite=aligned.infinite, nan=aligned.nan)

        # Stage 5: count the leading zeros. The exponent overflows only through a carry out of the sum.
        amount, none = leading_zeros(m, summed.total | mark.place(summed.rows, summed.columns))
        counted = register(
            m, "counted",
            total=summed.total, sticky=summed.sticky, amount=amount, none=none, exponent=summed.exponent,
            sign=summed.sign & (summed.total.any() | ~summed.subtract),
            infinite=summed.infinite | (summed.largest & summed.total[-1]), nan=summed.nan)

        # Stage 6: normalise.
        normalised = register(
            m, "normalised",
            total=shift_left(m, counted.total, counted.amount), sticky=counted.sticky,
            sign=counted.sign, exponent=Mux(counted.none, 0, counted.exponent - counted.amount),
            infinite=counted.infinite, nan=counted.nan)

        # Stage 7: round.
        m.d.comb += self.o.eq(round_and_pack(
            m, format, sign=normalised.sign, exponent=normalised.exponent[:format.exponent_bits],
            significand=normalised.total[2:],
            sticky=normalised.total[:2].any() | normalised.sticky,
            infinite=normalised.infinite, nan=normalised.nan))
        return m
