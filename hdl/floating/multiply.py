"""Floating-point multiplication."""

from amaranth.hdl import C, Cat, Module, Mux, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from . import product
from .format import FP32, FloatFormat
from .stages import Mark, leading_zeros, register, round_and_pack, shift_right

__all__ = ["FloatMultiplier"]


class FloatMultiplier(wiring.Component):
    """Multiply two floating-point numbers, rounding to nearest even.

    Subnormal numbers, signed zeros and infinities are as in IEEE 754; every NaN result is
    :attr:`FloatFormat.canonical_nan`. The result of the operands of one cycle is on ``o`` :attr:`latency` cycles
    later; a pair can be given in every cycle. Nothing is reset, and nothing needs to be.

    Parameters
    ----------
    format : FloatFormat
        Format of both operands and of the result; at most 35 bits of fraction.
    dsps : int
        Number of 18 by 18 multiplier blocks to use at most: 4, 2 or 1. The rest of the product is made of logic.

    Members
    -------
    a, b : In(format.width)
    o : Out(format.width)
    """

    def __init__(self, *, format=FP32, dsps=4):
        if not isinstance(format, FloatFormat):
            raise TypeError(f"Format must be a FloatFormat, not {format!r}")
        if format.fraction_bits > 35:
            raise ValueError(f"Fraction width must be at most 35, not {format.fraction_bits!r}")
        if dsps not in (1, 2, 4):
            raise ValueError(f"DSP block count must be 4, 2 or 1, not {dsps!r}")
        self._format = format
        self._dsps = dsps
        super().__init__({"a": In(format.width), "b": In(format.width), "o": Out(format.width)})

    @property
    def format(self):
        """Format of both operands and of the result."""
        return self._format

    @property
    def dsps(self):
        """Number of multiplier blocks used at most."""
        return self._dsps

    @property
    def latency(self):
        """Cycles from the operands to their product."""
        return 4 + product.latency(width=self._format.fraction_bits + 1, dsps=self._dsps)

    def elaborate(self, platform):
        m = Module()
        format = self._format
        width = format.fraction_bits + 1
        a = data.View(format.layout, self.a)
        b = data.View(format.layout, self.b)

        # Open the operands. Subnormal numbers have the exponent of the smallest normal one.
        a_normal = a.exponent.any()
        b_normal = b.exponent.any()
        opened = register(
            m, "opened",
            a=Cat(a.fraction, a_normal), a_exponent=Cat(a.exponent[0] | ~a_normal, a.exponent[1:]),
            b=Cat(b.fraction, b_normal), b_exponent=Cat(b.exponent[0] | ~b_normal, b.exponent[1:]),
            sign=a.sign ^ b.sign,
            a_special=a.exponent.all(), a_fraction=a.fraction.any(),
            b_special=b.exponent.all(), b_fraction=b.fraction.any())

        # Multiply the significands. Meanwhile, add the exponents: the sum is that of a product whose highest bit is
        # its leading one, less one.
        m.submodules.product = multiplier = product.Product(width=width, dsps=self._dsps)
        m.d.comb += [multiplier.a.eq(opened.a), multiplier.b.eq(opened.b)]
        a_zero = ~(opened.a[-1] | opened.a_fraction)
        b_zero = ~(opened.b[-1] | opened.b_fraction)
        passing = register(
            m, "passing",
            exponent=(Cat(C(1, 1), opened.a_exponent) + Cat(C(1, 1), opened.b_exponent))[1:], sign=opened.sign,
            infinite=opened.a_special | opened.b_special,
            nan=(opened.a_special & (opened.a_fraction | b_zero)) | (opened.b_special & (opened.b_fraction | a_zero)))
        for _ in range(multiplier.latency - 2):
            passing = register(m, "passing", **vars(passing))
        # The bias is one less than a power of two.
        split = format.exponent_bits - 1
        exponent = Signal(signed(format.exponent_bits + 2))
        m.d.comb += exponent.eq(Cat(passing.exponent[:split], passing.exponent[split:] - 1))

        # Where to stop normalising. A negative exponent asks for a shift to the right instead.
        highest = width + 1
        count_bits = (highest - 1).bit_length()
        mark = Mark(exponent[:-1], highest)
        negative = exponent[-1]
        beyond = ~exponent[count_bits:].all()
        located = register(
            m, "located",
            rows=Mux(negative, 0, mark.rows), columns=mark.columns, negative=negative,
            right=Mux(negative, ~exponent[:count_bits] | beyond.replicate(count_bits), 0),
            exponent=exponent, sign=passing.sign, infinite=passing.infinite, nan=passing.nan)

        # How far to normalise.
        top = multiplier.o[-highest:]
        marked = Mux(located.negative, 0, top) | mark.place(located.rows, located.columns)
        zeros, none = leading_zeros(m, marked)
        counted = register(
            m, "counted",
            product=multiplier.o, zeros=zeros, right=Cat(~zeros | located.right, located.negative),
            none=none, exponent=located.exponent, sign=located.sign, infinite=located.infinite, nan=located.nan)

        # Normalise.
        window, sticky = shift_right(
            m, Cat(C(0, (1 << count_bits) - width), counted.product), counted.right, width=highest)
        base = Signal(signed(len(exponent)))
        m.d.comb += base.eq(counted.exponent - counted.zeros)
        normalised = register(
            m, "normalised",
            window=window, sticky=sticky, exponent=Mux(counted.none, 0, base[:format.exponent_bits]),
            sign=counted.sign, infinite=counted.infinite | (base >= format.exponent_ones - 1), nan=counted.nan)

        # Round.
        m.d.comb += self.o.eq(round_and_pack(
            m, format, sign=normalised.sign, exponent=normalised.exponent, significand=normalised.window,
            sticky=normalised.sticky, infinite=normalised.infinite, nan=normalised.nan))
        return m
