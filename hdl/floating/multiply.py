"""Floating-point multiplication."""

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from .format import FP32, FloatFormat
from .stages import leading_zeros, register, round_and_pack, shift_right

__all__ = ["FloatMultiplier"]


class FloatMultiplier(wiring.Component):
    """Multiply two floating-point numbers, rounding to nearest even.

    Subnormal numbers, signed zeros and infinities are as in IEEE 754; every NaN result is
    :attr:`FloatFormat.canonical_nan`. The result of the operands of one cycle is on ``o`` :attr:`latency` cycles
    later; a pair can be given in every cycle. Nothing is reset, and nothing needs to be.

    Parameters
    ----------
    format : FloatFormat
        Format of both operands and of the result.
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

    latency = 7

    def elaborate(self, platform):
        m = Module()
        format = self._format
        a = data.View(format.layout, self.a)
        b = data.View(format.layout, self.b)
        width = format.fraction_bits + 1

        # 1: open the operands.
        a_normal = a.exponent.any()
        b_normal = b.exponent.any()
        opened = register(
            m, "opened",
            a=Cat(a.fraction, a_normal), b=Cat(b.fraction, b_normal), sign=a.sign ^ b.sign,
            a_exponent=a.exponent, b_exponent=b.exponent,
            a_special=a.exponent.all(), b_special=b.exponent.all(),
            a_fraction=a.fraction.any(), b_fraction=b.fraction.any())

        # 2, 3, 4: product (placeholder split), exponent.
        a_zero = ~opened.a[-1] & ~opened.a_fraction
        b_zero = ~opened.b[-1] & ~opened.b_fraction
        nan = ((opened.a_special & opened.a_fraction) | (opened.b_special & opened.b_fraction) |
               (opened.a_special & b_zero) | (opened.b_special & a_zero))
        exponent = Signal(range(-format.bias, 2 * format.exponent_ones))
        m.d.comb += exponent.eq(opened.a_exponent + opened.b_exponent + ~opened.a[-1] + ~opened.b[-1] - format.bias)
        partial = register(m, "partial", product=opened.a * opened.b, exponent=exponent, sign=opened.sign,
                           infinite=opened.a_special | opened.b_special, nan=nan)
        crossed = register(m, "crossed", **vars(partial))
        zeros_bits = width.bit_length()
        reach = Signal(range(-(1 << len(exponent)), 1 << len(exponent)))
        m.d.comb += reach.eq((1 << zeros_bits) - 1 - crossed.exponent)
        limit = Signal(zeros_bits + 1)
        m.d.comb += limit.eq(Mux(reach[zeros_bits + 1:].any(), ~0, reach))
        product = register(m, "product", limit=limit, **vars(crossed))

        # 5
        zeros, none = leading_zeros(m, product.product[width - 1:])
        left = Signal(reach.shape())
        m.d.comb += left.eq(product.exponent - zeros)
        subnormal = left[-1]
        counted = register(
            m, "counted",
            product=product.product,
            amount=Mux(subnormal, product.limit, ~zeros & ((1 << zeros_bits) - 1)),
            exponent=Mux(subnormal | none, 0, left[:format.exponent_bits]),
            sign=product.sign,
            infinite=product.infinite | (left >= format.exponent_ones - 1), nan=product.nan)

        # 6
        window, sticky = shift_right(
            m, Cat(C(0, (1 << zeros_bits) - width), counted.product), counted.amount, width=width + 1)
        shifted = register(m, "shifted", window=window, sticky=sticky, exponent=counted.exponent,
                           sign=counted.sign, infinite=counted.infinite, nan=counted.nan)

        m.d.comb += self.o.eq(round_and_pack(
            m, format, sign=shifted.sign, exponent=shifted.exponent, significand=shifted.window,
            sticky=shifted.sticky, infinite=shifted.infinite, nan=shifted.nan))
        return m
