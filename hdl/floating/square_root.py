"""Floating-point square root."""

from amaranth.hdl import C, Cat, Module, Mux, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from .format import FP32, FloatFormat
from .stages import normalise, normalising_steps, register, shift_right

__all__ = ["FloatSquareRoot"]


class FloatSquareRoot(wiring.Component):
    """Extract the square root of a floating-point number, rounding to nearest even.

    The root of a negative zero is a negative zero. That of any other negative number is
    :attr:`FloatFormat.canonical_nan`, as is every NaN result. The result of the operand of one cycle is on ``o``
    :attr:`latency` cycles later; an operand can be given in every cycle. Nothing is reset, and nothing needs to be.

    Parameters
    ----------
    format : FloatFormat
        Format of the operand and of the result.

    Members
    -------
    a : In(format.width)
    o : Out(format.width)
    """

    def __init__(self, *, format=FP32):
        if not isinstance(format, FloatFormat):
            raise TypeError(f"Format must be a FloatFormat, not {format!r}")
        self._format = format
        super().__init__({"a": In(format.width), "o": Out(format.width)})

    @property
    def format(self):
        """Format of the operand and of the result."""
        return self._format

    @property
    def latency(self):
        """Cycles from the operand to its root."""
        width = self._format.fraction_bits + 1
        return len(normalising_steps(width)) + 1 + width + self._deep + 1

    @property
    def _deep(self):
        """Whether roots can be subnormal: where the subnormal numbers reach down more than twice as far."""
        return self._format.bias <= self._format.fraction_bits

    def elaborate(self, platform):
        m = Module()
        format = self._format
        width = format.fraction_bits + 1
        a = data.View(format.layout, self.a)
        stages = normalising_steps(width)

        # Open the operand, and begin to normalise it. A subnormal number has the exponent of the smallest normal one.
        a_normal = a.exponent.any()
        a_special = a.exponent.all()
        a_fraction = a.fraction.any()
        significand, count = normalise(m, Cat(a.fraction, a_normal), stages[0])
        opened = register(
            m, "opened",
            significand=significand, count=count, exponent=Cat(a.exponent[0] | ~a_normal, a.exponent[1:]),
            sign=a.sign, zero=~(a_normal | a_fraction), special=a_special, fraction=a_fraction)
        normal = opened
        passing = dict(
            exponent=opened.exponent, sign=opened.sign & opened.zero, zero=opened.zero, special=opened.special,
            nan=(opened.sign & ~opened.zero) | (opened.special & opened.fraction))
        for steps in stages[1:]:
            significand, count = normalise(m, normal.significand, steps)
            normal = register(m, "normal", significand=significand, count=Cat(count, normal.count), **passing)
            passing = {name: getattr(normal, name) for name in passing}

        # Halve the exponent, and with it move the binary point to an even place: the radicand is from 1 to 4. The
        # bias is odd, so this doubles the significand where the sum, of twice the root's exponent, is odd.
        #
        # A zero, an infinity and NaN go on as radicands whose roots have the fractions of the results, 1 and 1.5.
        twice = Signal(signed(max(format.exponent_bits, len(normal.count)) + 2))
        m.d.comb += twice.eq(passing["exponent"] - normal.count + ((1 << (format.exponent_bits - 1)) - 1))
        pairs = width // 2 + 1
        significand = Signal(2 * pairs)
        m.d.comb += significand.eq(Cat(normal.significand[:-1], C(1, 1)).shift_left(2 * (pairs - 1) - (width - 1)))
        forced = passing["zero"] | passing["special"] | passing["nan"]
        radicand = Mux(twice[0], significand.shift_left(1), significand)[:2 * pairs]
        constant = Cat(C(0, 2 * pairs - 4), passing["nan"], C(0, 1), ~passing["nan"], passing["nan"])
        lowest = -(width + 1) if self._deep else 0
        exponent = Mux(passing["zero"], lowest, Mux(forced, format.exponent_ones, twice[1:].as_signed()))
        trial = register(
            m, "aligned",
            radicand=Mux(forced, constant, radicand), sign=passing["sign"],
            exponent=exponent if self._deep else exponent[:format.exponent_bits])

        # One trial per bit of the root but the first, which is a one. A trial that ends below zero is not undone: it
        # gives a zero of the root, and the next one adds instead of subtracting.
        passing = dict(exponent=trial.exponent, sign=trial.sign)
        high, radicand = trial.radicand[-2:], trial.radicand[:-2]
        remainder = Cat(~high[0], high.all(), C(0, 1))
        borrows = []
        for index in range(1, width + 1):
            # What is subtracted or added is four times the root so far, with a one or a three below it. Behind the
            # last pair of the radicand the lowest places of all remainders are ones.
            add = remainder[-1]
            operand = Cat(C(0, 1), *(borrow ^ add for borrow in borrows[1:]), *([add] if borrows else []), ~add)
            values = dict(passing)
            if len(radicand):
                low, first, second = 0, Cat(radicand[-2:], remainder[:-1]), Cat(C(0b11, 2), operand)
                radicand = radicand[:-2]
                if len(radicand):
                    values.update(radicand=radicand)
            else:
                start = min(low, 1)
                low, first, second = start + 2, remainder[start:-1], operand[start:]
            if borrows:
                values.update(borrows=Cat(borrows))
            total = Signal(index + 3 - low, name=f"total{index}")
            m.d.comb += total.eq(first + second)
            trial = register(m, f"trial{index}", remainder=total, **values)
            passing = {name: getattr(trial, name) for name in passing}
            remainder = Cat(C((1 << low) - 1, low), trial.remainder)
            radicand = trial.radicand if len(radicand) else radicand
            borrows = [remainder[-1], *(trial.borrows if borrows else [])]

        root = Signal(width + 1)
        m.d.comb += root.eq(Cat(~Cat(borrows), C(1, 1)))
        result = Signal(format.layout, name="result", reset_less=True)
        if self._deep:
            subnormal = passing["exponent"] < 1
            missing = 1 - passing["exponent"]
            amount = Mux(subnormal, missing[:(width + 2).bit_length()], 0)
            window, _ = shift_right(m, root, amount, width=width + 1)
            shifted = register(
                m, "shifted", window=window, exponent=Mux(subnormal, 0, passing["exponent"]), sign=passing["sign"])
            root, passing = shifted.window, vars(shifted)
        # A root is never halfway between two numbers: the bit below its last place alone decides.
        magnitude = Cat(root[1:-1], passing["exponent"][:format.exponent_bits])
        m.d.sync += [result.sign.eq(passing["sign"]), Cat(result.fraction, result.exponent).eq(magnitude + root[0])]
        m.d.comb += self.o.eq(result)
        return m
