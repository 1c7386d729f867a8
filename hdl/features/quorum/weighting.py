"""Multiplier of gradients by weights that are multiples of 1/16."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.floating.format import FP32
from hdl.floating.stages import leading_zeros, register, round_and_pack, shift_left

__all__ = ["Weighting"]


class Weighting(wiring.Component):
    """Multiply a binary32 number by 1/16 to 16/16, rounding to nearest even.

    Results match :class:`~hdl.floating.multiply.FloatMultiplier`: subnormal numbers, zeros and infinities are as in
    IEEE 754, and every NaN result is canonical. The product is no larger than the number and its leading one is at
    most four bits lower, so it never overflows and needs only a short left shift.

    The result appears on ``o`` :attr:`latency` cycles after its operands; a new pair can be supplied in every cycle.
    No register is reset.

    Members
    -------
    a : In(32)
    weight : In(5)
        Weight in sixteenths; the result is undefined for 0 and for more than 16.
    o : Out(32)
    """

    format = FP32
    latency = 5

    a: In(32)
    weight: In(5)
    o: Out(32)

    #: Width of a multiplier block's operands in bits.
    _BLOCK = 18
    #: Maximum difference between the exponents of number and product, since weights are at least 1/16.
    _PLACES = 4

    def elaborate(self, platform):
        m = Module()
        places, block = self._PLACES, self._BLOCK
        a = data.View(FP32.layout, self.a)

        # Stage 1: unpack the number. Subnormal numbers get the smallest normal exponent.
        normal = a.exponent.any()
        opened = register(
            m, "opened", significand=Cat(a.fraction, normal), weight=self.weight, sign=a.sign,
            exponent=Cat(a.exponent[0] | ~normal, a.exponent[1:]), special=a.exponent.all(),
            fraction=a.fraction.any())

        # Stage 2: partial products.
        passing = {"sign": opened.sign, "infinite": opened.special, "nan": opened.special & opened.fraction}
        parts = register(
            m, "parts", low=opened.significand[:block] * opened.weight,
            high=opened.significand[block:] * opened.weight, exponent=opened.exponent - 1, **passing)

        # Stage 3: add the partial products. ``mark`` limits the later left shift so that the exponent stays
        # representable.
        width = FP32.fraction_bits + 1 + places
        total = Cat(parts.low[:block], (parts.low[block:] + parts.high)[:width - block])
        passing = {"sign": parts.sign, "infinite": parts.infinite, "nan": parts.nan}
        joined = register(
            m, "joined", total=total, mark=Cat(parts.exponent == places - 1 - n for n in range(places)),
            exponent=parts.exponent, **passing)

        # Stage 4: normalise.
        zeros, none = leading_zeros(m, joined.total[-places:] | joined.mark)
        amount = Signal(range(places + 1))
        m.d.comb += amount.eq(Mux(none, places, zeros))
        passing = {"sign": joined.sign, "infinite": joined.infinite, "nan": joined.nan}
        normalised = register(
            m, "normalised", total=shift_left(m, joined.total, amount), exponent=joined.exponent - amount, **passing)

        # Stage 5: round.
        m.d.comb += self.o.eq(round_and_pack(
            m, FP32, sign=normalised.sign, exponent=normalised.exponent, significand=normalised.total[places - 1:],
            sticky=normalised.total[:places - 1].any(), infinite=normalised.infinite, nan=normalised.nan))
        return m
