# amaranth: UnusedElaboratable=no
# Some units are created only because their latencies are needed, and are never elaborated.
"""bfloat16 operands: rounded when they enter the array, and multiplied exactly in its units."""

from amaranth.hdl import C, Cat, Module, Mux, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.floating.format import BF16, FP32
from hdl.floating.product import Product
from hdl.floating.stages import register

__all__ = ["BFloat16Multiplier", "BFloat16Rounder", "factor_layout", "multiplier"]

#: Number of bits by which binary32 is longer than bfloat16.
_LOWER = FP32.width - BF16.width


def factor_layout(*, exact):
    """Layout of an unpacked bfloat16 in the array.

    ``normal`` is set unless the number is zero, ``special`` for infinities and NaNs, and ``nan`` only for NaNs. With
    ``exact``, used for columns, the exponent is unbiased, so that units need not subtract the bias, and there are two
    more fields: the lower half of a binary32, and a bit ``exact``. If this bit is set, the number is not a factor but
    is added unchanged; ``normal``, ``special`` and ``nan`` are then zero.
    """
    column = {"exponent": signed(BF16.exponent_bits + 1)}
    return data.StructLayout({
        **({"lower": _LOWER} if exact else {}), "fraction": BF16.fraction_bits,
        **(column if exact else {"exponent": BF16.exponent_bits}), "sign": 1, "normal": 1, "special": 1, "nan": 1,
        **({"exact": 1} if exact else {})})


class BFloat16Rounder(wiring.Component):
    """Round elements to bfloat16, to nearest even.

    A number that would round to more than the largest finite bfloat16 becomes an infinity, and one that would round
    to a subnormal number becomes a zero with the same sign. An element that ``opens`` a sum is not rounded: its
    factor is exact if factors can be exact, and zero otherwise. Latency is one cycle, throughput is one element per
    cycle. No register is reset.

    Parameters
    ----------
    exact : bool
        Whether factors can be exact; see :func:`factor_layout`.

    Members
    -------
    i : In(32)
        Element in binary32.
    opens : In(1)
        The element is the initial value of a sum.
    o : Out(factor_layout(exact=exact))
    """

    latency = 1

    def __init__(self, *, exact):
        if not isinstance(exact, bool):
            raise ValueError(f"exact must be True or False, not {exact!r}")
        self._exact = exact
        super().__init__({"i": In(FP32.width), "opens": In(1), "o": Out(factor_layout(exact=exact))})

    def elaborate(self, platform):
        m = Module()
        element = data.View(FP32.layout, self.i)
        lower, upper = element.fraction[:_LOWER], Cat(element.fraction[_LOWER:], element.exponent)
        up = lower[-1] & (lower[:-1].any() | upper[0])
        # A single addition, with a lowest bit that only creates the carry.
        bias = FP32.bias << BF16.fraction_bits if self._exact else 0
        width = len(upper) + self._exact
        rounded = Signal(width)
        m.d.comb += rounded.eq((Cat(C(1, 1), upper) + Cat(up, C(-bias, signed(width))))[1:])
        # Computed without the sum: rounding increases the exponent only if all kept bits and the next one are ones.
        carries = element.fraction[_LOWER - 1:].all()
        normal, special = Signal(), Signal()
        m.d.comb += [
            normal.eq(element.exponent.any() | carries),
            special.eq(element.exponent.all() | (element.exponent[1:].all() & carries)),
        ]
        result = Signal(self.o.shape(), reset_less=True)
        m.d.comb += self.o.eq(result)
        m.d.sync += [
            result.fraction.eq(Mux(normal, rounded, 0)), result.exponent.eq(rounded[BF16.fraction_bits:]),
            result.sign.eq(element.sign), result.normal.eq(normal), result.special.eq(special),
            result.nan.eq(element.exponent.all() & element.fraction.any())]
        if not self._exact:
            with m.If(self.opens):
                m.d.sync += result.eq(0)
            return m
        m.d.sync += [result.lower.eq(0), result.exact.eq(self.opens)]
        with m.If(self.opens):
            m.d.sync += [
                Cat(result.lower, result.fraction).eq(element.fraction), result.exponent.eq(element.exponent),
                result.normal.eq(0), result.special.eq(0), result.nan.eq(0)]
        return m


class BFloat16Multiplier(wiring.Component):
    """Multiply two bfloat16 numbers. The binary32 result holds all 16 bits of the product.

    A product with a magnitude below 2^-126 becomes a zero with the same sign, and one of at least 2^128 becomes an
    infinity. Every NaN is canonical. If ``b`` is exact, ``o`` is that number, with NaNs unchanged, and ``a`` must be
    zero.

    Latency is :attr:`latency` cycles, throughput is one pair per cycle. The unit uses one multiplier block. No
    register is reset.

    Members
    -------
    a : In(factor_layout(exact=False))
    b : In(factor_layout(exact=True))
    o : Out(32)
    """

    latency = 3

    def __init__(self):
        super().__init__({
            "a": In(factor_layout(exact=False)), "b": In(factor_layout(exact=True)), "o": Out(FP32.width)})

    def elaborate(self, platform):
        m = Module()
        width = BF16.fraction_bits + 1
        m.submodules.product = multiplier = Product(width=width, dsps=1)
        m.d.comb += [
            multiplier.a.eq(Cat(self.a.fraction, self.a.normal)),
            multiplier.b.eq(Cat(self.b.fraction, self.b.normal))]

        # The significand of an exact number is multiplied by zero, and its fraction is inserted by OR; the other
        # factor's exponent and sign are zero, so the sum has the exponent of the exact number.
        added = register(
            m, "added",
            exponent=self.a.exponent + self.b.exponent, sign=self.a.sign ^ self.b.sign,
            zero=~(self.a.normal & self.b.normal), infinite=self.a.special | self.b.special,
            nan=self.a.nan | self.b.nan | (self.a.special & ~self.b.normal) | (self.b.special & ~self.a.normal),
            exact=self.b.exact,
            number=Mux(self.b.exact, Cat(self.b.lower, self.b.fraction), 0))

        # Exponent and range of the product if its highest bit is zero. If this bit is one, the product may become
        # normal, or infinite.
        ones, exponent = FP32.exponent_ones, added.exponent
        counts = ~added.exact & ~added.infinite
        placed = register(
            m, "placed",
            exponent=exponent[:FP32.exponent_bits], flush=counts & (added.zero | exponent[-1]),
            edge=counts & (exponent == 0),
            infinite=added.infinite | (counts & ~added.zero & ~exponent[-1] & (exponent >= ones)),
            large=counts & ~added.zero & (exponent == ones - 1),
            nan=added.nan, sign=added.sign, number=added.number)

        highest = multiplier.o[-1]
        fraction = Mux(highest, multiplier.o[:-1], Cat(C(0, 1), multiplier.o[:-2]))
        result = Signal(FP32.layout, reset_less=True)
        m.d.comb += self.o.eq(result)
        m.d.sync += [
            result.fraction.eq(Cat(C(0, FP32.fraction_bits - len(fraction)), fraction) | placed.number),
            result.exponent.eq(placed.exponent + highest),
            result.sign.eq(placed.sign & ~placed.nan)]
        with m.If(placed.infinite | (placed.large & highest)):
            m.d.sync += [result.exponent.eq(FP32.exponent_ones),
                         result.fraction.eq(placed.nan.shift_left(FP32.fraction_bits - 1))]
        with m.Elif(placed.flush | (placed.edge & ~highest)):
            m.d.sync += [result.exponent.eq(0), result.fraction.eq(0)]
        return m


def multiplier(dsps):
    """Return a multiplier. It uses one DSP block, whatever ``dsps`` is."""
    return BFloat16Multiplier()
