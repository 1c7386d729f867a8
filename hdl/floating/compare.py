"""Floating-point comparator and clamp."""

from amaranth.hdl import Cat, Module, Mux
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from .format import FP32, FloatFormat
from .stages import register

__all__ = ["FloatComparator", "MagnitudeLimiter"]


class FloatComparator(wiring.Component):
    """Compare two floating-point numbers.

    Negative and positive zero are equal, and a NaN is unordered with every number, including itself. The outputs are
    valid :attr:`latency` cycle after the operands; a pair can be accepted in every cycle. If no output is high, ``a``
    is greater. Registers have no reset.

    Parameters
    ----------
    format : FloatFormat
        Format of both operands.

    Members
    -------
    a, b : In(format.width)
    less : Out(1)
        ``a`` is less than ``b``.
    equal : Out(1)
    unordered : Out(1)
        ``a`` or ``b`` is a NaN.
    """

    latency = 1

    def __init__(self, *, format=FP32):
        if not isinstance(format, FloatFormat):
            raise TypeError(f"Format must be a FloatFormat, not {format!r}")
        self._format = format
        super().__init__({
            "a": In(format.width), "b": In(format.width), "less": Out(1), "equal": Out(1), "unordered": Out(1)})

    @property
    def format(self):
        """Format of both operands."""
        return self._format

    def elaborate(self, platform):
        m = Module()
        a = data.View(self._format.layout, self.a)
        b = data.View(self._format.layout, self.b)
        below = self.a[:-1] < self.b[:-1]
        same = self.a[:-1] == self.b[:-1]
        zeros = same & ~(a.exponent.any() | a.fraction.any())
        unordered = (a.exponent.all() & a.fraction.any()) | (b.exponent.all() & b.fraction.any())
        relation = register(
            m, "relation",
            less=~unordered & Mux(a.sign, Mux(b.sign, ~(below | same), ~zeros), ~b.sign & below),
            equal=~unordered & same & (zeros | (a.sign == b.sign)),
            unordered=unordered)
        m.d.comb += [
            self.less.eq(relation.less), self.equal.eq(relation.equal), self.unordered.eq(relation.unordered)]
        return m


class MagnitudeLimiter(wiring.Component):
    """Clamp the magnitude of a floating-point number.

    A number with a magnitude above ``limit`` becomes ``limit`` with the number's sign; other numbers are unchanged.
    A NaN becomes :attr:`FloatFormat.canonical_nan`. If the limit is infinity or NaN, every number is unchanged.

    The result is on ``o`` :attr:`latency` cycles after the inputs; a pair can be accepted in every cycle. Registers
    have no reset.

    Parameters
    ----------
    format : FloatFormat
        Format of the number, the limit and the result.

    Members
    -------
    i : In(format.width)
    limit : In(format.width)
        Largest magnitude; the sign is ignored.
    o : Out(format.width)
    """

    latency = 2

    def __init__(self, *, format=FP32):
        if not isinstance(format, FloatFormat):
            raise TypeError(f"Format must be a FloatFormat, not {format!r}")
        self._format = format
        super().__init__({"i": In(format.width), "limit": In(format.width), "o": Out(format.width)})

    @property
    def format(self):
        """Format of the number, the limit and the result."""
        return self._format

    def elaborate(self, platform):
        m = Module()
        format = self._format
        i = data.View(format.layout, self.i)
        # The encoding of a NaN exceeds the encoding of every number.
        compared = register(
            m, "compared",
            magnitude=self.i[:-1], sign=i.sign, limit=self.limit[:-1], above=self.limit[:-1] < self.i[:-1],
            nan=i.exponent.all() & i.fraction.any())
        limited = register(
            m, "limited",
            magnitude=Mux(compared.nan, format.canonical_nan,
                          Mux(compared.above, compared.limit, compared.magnitude)),
            sign=compared.sign & ~compared.nan)
        m.d.comb += self.o.eq(Cat(limited.magnitude, limited.sign))
        return m
