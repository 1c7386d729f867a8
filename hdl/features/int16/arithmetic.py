"""Arithmetic of the int16 node: one multiplier, rounding adder and saturation for all operations."""

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import enum, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.int16.memory import WIDTH
from hdl.optimizer.fixed_point import FRACTION_BITS, SCALAR_WIDTH

__all__ = ["Arithmetic", "Term"]

# Bits of a product from 1/2 up: the integer part and one guard bit.
_PRODUCT = SCALAR_WIDTH + WIDTH - FRACTION_BITS + 1


class Term(enum.Enum, shape=2):
    """Second operand of the addition: a product, a negated product, or the addend."""

    PLUS_PRODUCT = 0
    MINUS_PRODUCT = 1
    PLUS_ADDEND = 2


class Arithmetic(wiring.Component):
    """Add a term to a 16-bit number, or subtract it, with saturation to 16 bits.

    The product of ``factor`` and ``value`` in one cycle is a term in the next cycle, rounded half up to an integer.
    ``o`` depends combinationally on ``base``, ``addend`` and ``term``.

    Members
    -------
    factor : In(signed(18))
        Factor with 16 bits of fraction.
    value : In(signed(16))
    base, addend : In(signed(16))
    term : In(Term)
    o : Out(signed(16))
    """

    factor: In(signed(SCALAR_WIDTH))
    value: In(signed(WIDTH))
    base: In(signed(WIDTH))
    addend: In(signed(WIDTH))
    term: In(Term)
    o: Out(signed(WIDTH))

    def elaborate(self, platform):
        m = Module()
        product = Signal(signed(_PRODUCT))
        twice = Signal(signed(_PRODUCT))
        total = Signal(signed(_PRODUCT + 1))
        m.d.sync += product.eq((self.factor * self.value) >> FRACTION_BITS - 1)
        # The term is a number h of halves. Then floor((2 base + h + 1) / 2) is base plus h / 2 rounded half up, and
        # floor((2 base + ~h + 1) / 2) is base minus h / 2 rounded half up. For an addend, h is even.
        subtract = self.term == Term.MINUS_PRODUCT
        m.d.comb += [
            twice.eq(Mux(self.term == Term.PLUS_ADDEND, self.addend.shift_left(1),
                         product ^ subtract.replicate(_PRODUCT).as_signed())),
            total.eq(Cat(1, self.base).as_signed() + twice),
        ]
        value = total[1:]
        sign = value[-1]
        beyond = value[WIDTH - 1:-1] != sign.replicate(len(value) - WIDTH)
        m.d.comb += self.o.eq(
            Mux(beyond, Cat((~sign).replicate(WIDTH - 1), sign), value[:WIDTH]).as_signed())
        return m
