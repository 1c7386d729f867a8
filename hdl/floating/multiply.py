"""Floating-point multiplier."""

from amaranth.hdl import C, Cat, Module, Mux, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from . import product
from .format import FP32, FloatFormat
from .stages import Mark, leading_zeros, register, round_and_pack, shift_right, substitute

__all__ = ["FloatMultiplier"]


class FloatMultiplier(wiring.Component):
    """Multiply two floating-point numbers, rounding to nearest even.

    Subnormals, signed zeros and infinities are as in IEEE 754. Every NaN result is :attr:`FloatFormat.canonical_nan`.
    Latency is :attr:`latency` cycles, throughput is one pair per cycle. No register is reset.

    Parameters
    ----------
    format : FloatFormat
        Format of the operands and the result; its fraction may have at most 35 bits.
    dsps : int
        Maximum number of 18 by 18 multiplier blocks: 4, 2 or 1. The rest of the product is computed with logic.

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
        """Format of the operands and the result."""
        return self._format

    @property
    def dsps(self):
        """Maximum number of multiplier blocks."""
        return self._dsps

    @property
    def latency(self):
        """Latency in cycles from the operands to their product."""
        return 4 + product.latency(width=self._format.fraction_bits + 1, dsps=self._dsps)

    def elaborate(self, platform):
        if (replacement := substitute(self, platform)) is not None:
            return replacement
        m = Module()
        format = self._format
        width = format.fraction_bits + 1
        a = data.View(format.layout, self.a)
        b = data.View(format.layout, self.b)

        # Unpack the operands. Subnormals have the exponent of the smallest normal number.
        a_normal = a.exponent.any()
        b_normal = b.exponent.any()
        opened = register(
            m, "opened",
            a=Cat(a.fraction, a_normal), a_exponent=Cat(a.exponent[0] | ~a_normal, a.exponent[1:]),
            b=Cat(b.fraction, b_normal), b_exponent=Cat(b.exponent[0] | ~b_normal, b.exponent[1:]),
            sign=a.sign ^ b.sign,
            a_special=a.exponent.all(), a_fraction=a.fraction.any(),
            b_special=b.exponent.all(), b_fraction=b.fraction.any())

        # Multiply the significands. Meanwhile, add the exponents: the sum is the exponent, minus one, of a product
        # with its leading one in the highest bit.
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

        # The bias plus one, a power of two, is subtracted, since one was added to the exponent above.
        places = width + 1
        index_bits = (places - 1).bit_length()
        unbias = 1 << (format.exponent_bits - 1)
        exponent = Signal(signed(format.exponent_bits + 2))
        lowest = Signal(signed(max(format.exponent_bits, index_bits) + 3))
        m.d.comb += exponent.eq(passing.exponent - unbias)
        m.d.comb += lowest.eq(passing.exponent - (unbias + width))

        # The result is a window of the product, as wide as hidden bit, fraction and guard bit together. For normal
        # operands it begins at the product's highest or second-highest bit. A subnormal operand causes leading zeros,
        # and the window moves down by their number as far as the exponent allows: it begins at one of the highest
        # `places` bits. If the exponent is negative, the result is subnormal; then the window begins above the
        # product, and the product is shifted down below these bits instead, by the number of missing bits less one.
        negative = exponent[-1]
        mark = Mark(exponent[:-1], places)
        missing = ~exponent[:index_bits] | (~exponent[index_bits:].all()).replicate(index_bits)
        located = register(
            m, "located",
            negative=negative, missing=Mux(negative, missing, 0), rows=Mux(negative, 0, mark.rows),
            columns=mark.columns, lowest=lowest, sign=passing.sign, infinite=passing.infinite, nan=passing.nan)

        # Find the start of the window, relative to its lowest possible position; 0 if the exponent is negative.
        marked = Mux(located.negative, 0, multiplier.o[-places:]) | mark.place(located.rows, located.columns)
        zeros, none = leading_zeros(m, Cat(marked, C(0, (1 << index_bits) - places)))
        index = ~zeros
        extended = Cat(C(0, 1), multiplier.o)
        counted = register(
            m, "counted",
            low=Mux(located.negative, extended[places:], extended[:places]),
            high=Mux(located.negative, 0, extended[places:]),
            lost=located.negative & extended[:places].any(),
            right=index | located.missing, index=index, none=none, lowest=located.lowest,
            sign=located.sign, infinite=located.infinite, nan=located.nan)

        # Shift right to move the start of the window to bit 0. The window's position also gives the exponent.
        window, lost = shift_right(m, Cat(counted.low, counted.high), counted.right, width=places)
        base = Signal(counted.lowest.shape())
        m.d.comb += base.eq(counted.lowest + counted.index)
        normalised = register(
            m, "normalised",
            window=window, lost=Cat(lost, counted.lost),
            exponent=Mux(counted.none, 0, base[:format.exponent_bits]),
            sign=counted.sign, infinite=counted.infinite | (base >= format.exponent_ones - 1), nan=counted.nan)

        # Round.
        m.d.comb += self.o.eq(round_and_pack(
            m, format, sign=normalised.sign, exponent=normalised.exponent, significand=normalised.window,
            sticky=normalised.lost.any(), infinite=normalised.infinite, nan=normalised.nan))
        return m
