"""Floating-point division."""

from amaranth.hdl import C, Cat, Module, Mux, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from .format import FP32, FloatFormat
from .stages import normalise, normalising_steps, register, round_and_pack, shift_right

__all__ = ["FloatDivider"]


class FloatDivider(wiring.Component):
    """Divide two floating-point numbers, rounding to nearest even.

    Subnormal numbers, signed zeros and infinities are as in IEEE 754; every NaN result is
    :attr:`FloatFormat.canonical_nan`. The result of the operands of one cycle is on ``o`` :attr:`latency` cycles
    later; a pair can be given in every cycle. Nothing is reset, and nothing needs to be.

    Parameters
    ----------
    format : FloatFormat
        Format of both operands and of the result.

    Members
    -------
    a, b : In(format.width)
        Dividend and divisor.
    o : Out(format.width)
    """

    def __init__(self, *, format=FP32):
        if not isinstance(format, FloatFormat):
            raise TypeError(f"Format must be a FloatFormat, not {format!r}")
        self._format = format
        super().__init__({"a": In(format.width), "b": In(format.width), "o": Out(format.width)})

    @property
    def format(self):
        """Format of both operands and of the result."""
        return self._format

    @property
    def latency(self):
        """Cycles from the operands to their quotient."""
        width = self._format.fraction_bits + 1
        return len(normalising_steps(width)) + (width + 2) + 2

    def elaborate(self, platform):
        m = Module()
        format = self._format
        width = format.fraction_bits + 1
        ones = format.exponent_ones
        a = data.View(format.layout, self.a)
        b = data.View(format.layout, self.b)
        stages = normalising_steps(width)

        # Open the operands, and begin to normalise them. Subnormal numbers have the exponent of the smallest normal
        # one.
        a_normal = a.exponent.any()
        b_normal = b.exponent.any()
        a_special = a.exponent.all()
        b_special = b.exponent.all()
        a_fraction = a.fraction.any()
        b_fraction = b.fraction.any()
        a_significand, a_count = normalise(m, Cat(a.fraction, a_normal), stages[0])
        b_significand, b_count = normalise(m, Cat(b.fraction, b_normal), stages[0])
        difference = Signal(signed(format.exponent_bits + 1))
        m.d.comb += difference.eq(
            Cat(b.exponent[0] | ~b_normal, b.exponent[1:]) - Cat(a.exponent[0] | ~a_normal, a.exponent[1:]))
        opened = register(
            m, "opened",
            a=a_significand, b=b_significand, a_count=a_count, b_count=b_count, difference=difference,
            sign=a.sign ^ b.sign, a_zero=~(a_normal | a_fraction), b_zero=~(b_normal | b_fraction),
            a_special=a_special, b_special=b_special, a_fraction=a_fraction, b_fraction=b_fraction)

        # How many places the quotient's second bit lies below the hidden bit of the smallest normal number: the
        # distance. Beyond the sum of these, a quarter of its range at each end stands for infinity and for zero.
        distance_bits = 1 + max((ones + format.bias + width).bit_length(), (width + 1).bit_length() + 1)
        passing = dict(
            a_count=opened.a_count, b_count=opened.b_count, distance=opened.difference + (2 - format.bias),
            sign=opened.sign, infinite=opened.a_special | opened.b_zero, zero=opened.b_special | opened.a_zero,
            nan=((opened.a_special & (opened.a_fraction | opened.b_special)) | (opened.b_special & opened.b_fraction)
                 | (opened.a_zero & opened.b_zero)))
        normal = opened
        for steps in stages[1:]:
            a_significand, a_count = normalise(m, normal.a, steps)
            b_significand, b_count = normalise(m, normal.b, steps)
            passing.update(a_count=Cat(a_count, passing["a_count"]), b_count=Cat(b_count, passing["b_count"]))
            normal = register(m, "normal", a=a_significand, b=b_significand, **passing)
            passing = {name: getattr(normal, name) for name in passing}

        # The first trial subtracts the divisor from the dividend. A trial that ends below zero is not undone: it
        # gives a zero of the quotient, and the next trial, of the doubled remainder, adds the divisor instead.
        #
        # Meanwhile, the sums that make the distance.
        remainder = Signal(signed(width + 1))
        count = Signal(signed(len(passing["a_count"]) + 1))
        m.d.comb += remainder.eq(normal.a - normal.b)
        m.d.comb += count.eq(passing["a_count"] - passing["b_count"])
        trial = register(
            m, "trial0",
            remainder=remainder, divisor=normal.b[:-1], distance=passing["distance"], count=count,
            sign=passing["sign"], infinite=passing["infinite"], zero=passing["zero"], nan=passing["nan"])
        summed = Signal(signed(distance_bits))
        m.d.comb += summed.eq(trial.distance + trial.count)
        passing = dict(
            distance=Cat(summed[:-2], Mux(trial.infinite | trial.zero, Cat(trial.zero, trial.infinite), summed[-2:])),
            sign=trial.sign, nan=trial.nan)
        borrows = trial.remainder[-1]
        for index in range(1, width + 2):
            subtract = ~trial.remainder[-1]
            divisor = Cat(trial.divisor, C(1, 1))
            # The lowest position makes the carry into the one above: the divisor's lowest bit goes to that of the
            # remainder in any case, and carries only if it is subtracted and is a zero.
            total = Signal(width + 2, name=f"total{index}")
            m.d.comb += total.eq(
                Cat(subtract, trial.remainder[:width]) +
                Cat(~divisor[0], divisor[1:] ^ subtract.replicate(width - 1), subtract))
            trial = register(
                m, f"trial{index}",
                remainder=Cat(divisor[0], total[1:width + 1]), divisor=trial.divisor, borrows=borrows, **passing)
            passing = {name: getattr(trial, name) for name in passing}
            borrows = Cat(trial.remainder[-1], trial.borrows)

        quotient = Signal(width + 2)
        m.d.comb += quotient.eq(~borrows)
        distance = trial.distance.as_signed()
        amount_bits = (width + 2).bit_length()
        subnormal = distance > 0
        far = distance >= 1 << amount_bits
        amount = Mux(subnormal, distance[:amount_bits] | far.replicate(amount_bits), quotient[-1])
        base = Signal(signed(distance_bits + 1))
        m.d.comb += base.eq(quotient[-1] - distance)
        window, lost = shift_right(m, quotient, amount, width=width + 1)
        full = Cat(trial.divisor, C(1, 1))
        exact = (trial.remainder + full)[:width + 1] == 0
        shifted = register(
            m, "shifted",
            window=window, lost=Cat(lost, ~exact), exponent=Mux(subnormal, 0, base[:format.exponent_bits]),
            sign=trial.sign, infinite=base >= ones - 1, nan=trial.nan)

        m.d.comb += self.o.eq(round_and_pack(
            m, format, sign=shifted.sign, exponent=shifted.exponent, significand=shifted.window,
            sticky=shifted.lost.any(), infinite=shifted.infinite, nan=shifted.nan))
        return m
