"""Converters between floating-point formats, and between floating-point numbers and integers."""

from amaranth.hdl import C, Cat, Module, Mux, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from .format import FP32, FloatFormat
from .stages import leading_zeros, register, round_and_pack, shift_left, shift_right

__all__ = ["FloatConverter", "FloatToInteger", "IntegerToFloat", "shorten"]


class FloatConverter(wiring.Component):
    """Convert numbers from one floating-point format to another, rounding to nearest even.

    Subnormal numbers, signed zeros and infinities are as in IEEE 754. A number too large for the target becomes
    infinity, and every NaN becomes :attr:`FloatFormat.canonical_nan`. If the target's exponent and fraction are at
    least as wide as the source's, every number keeps its value.

    The result is on ``o`` :attr:`latency` cycles after the number; one number can be accepted per cycle. No register
    is reset.

    Parameters
    ----------
    source, target : FloatFormat
        Formats of the input and of the result.

    Members
    -------
    i : In(source.width)
    o : Out(target.width)
    """

    def __init__(self, *, source, target):
        if not isinstance(source, FloatFormat):
            raise TypeError(f"Source must be a FloatFormat, not {source!r}")
        if not isinstance(target, FloatFormat):
            raise TypeError(f"Target must be a FloatFormat, not {target!r}")
        self._source = source
        self._target = target
        super().__init__({"i": In(source.width), "o": Out(target.width)})

    @property
    def source(self):
        """Format of the number."""
        return self._source

    @property
    def target(self):
        """Format of the result."""
        return self._target

    @property
    def latency(self):
        """Latency in cycles: 1 for equal exponent widths, otherwise 2 or 3."""
        if self._source.exponent_bits == self._target.exponent_bits:
            return 1
        exact = self._source.exponent_bits < self._target.exponent_bits and self._lost <= 0
        return 2 if exact else 3

    @property
    def _lost(self):
        """Number of fraction bits that the conversion drops, which is negative if the target has more."""
        return self._source.fraction_bits - self._target.fraction_bits

    def elaborate(self, platform):
        m = Module()
        if self._source.exponent_bits == self._target.exponent_bits:
            self._elaborate_fraction(m)
        elif self._source.exponent_bits < self._target.exponent_bits:
            self._elaborate_wider(m)
        else:
            self._elaborate_narrower(m)
        return m

    def _elaborate_fraction(self, m):
        source, target = self._source, self._target
        if self._lost > 0:
            result = shorten(m, self.i, source=source, target=target)
        else:
            i = data.View(source.layout, self.i)
            nan = i.exponent.all() & i.fraction.any()
            magnitude = Cat(C(0, -self._lost), self.i[:-1])
            result = Cat(Mux(nan, target.canonical_nan, magnitude), i.sign & ~nan)
        m.d.comb += self.o.eq(register(m, "converted", o=result).o)

    def _elaborate_wider(self, m):
        source, target = self._source, self._target
        i = data.View(source.layout, self.i)
        normal = i.exponent.any()
        special = i.exponent.all()
        significand = Cat(i.fraction, normal)
        # Normal numbers stay normal. Subnormal numbers are normalised as far as the target's exponent allows; a one
        # inserted at this limit stops the leading-zero count.
        offset = target.bias - source.bias
        mark = source.fraction_bits - offset
        amount, _ = leading_zeros(m, significand | (1 << mark if mark >= 0 else 0))
        counted = register(
            m, "counted",
            significand=significand, amount=amount, exponent=i.exponent, normal=normal, sign=i.sign,
            infinite=special, nan=special & i.fraction.any())

        shifted = Signal(len(significand))
        # Exponent field minus one, unless the result is subnormal or zero.
        exponent = Signal(target.exponent_bits)
        m.d.comb += [
            shifted.eq(shift_left(m, counted.significand, counted.amount)),
            exponent.eq(Mux(counted.normal, counted.exponent + (offset - 1),
                            Mux(shifted[-1], offset - counted.amount, 0))),
        ]
        if self._lost <= 0:
            result = Signal(target.layout, reset_less=True)
            m.d.sync += [
                result.fraction.eq(shifted[:-1].shift_left(-self._lost)),
                result.exponent.eq(exponent + shifted[-1]),
                result.sign.eq(counted.sign & ~counted.nan),
            ]
            with m.If(counted.infinite):
                m.d.sync += [
                    result.fraction.eq(counted.nan.shift_left(target.fraction_bits - 1)),
                    result.exponent.eq(target.exponent_ones),
                ]
        else:
            guard = self._lost - 1
            normalised = register(
                m, "normalised",
                significand=shifted[guard:], sticky=shifted[:guard].any(), exponent=exponent, sign=counted.sign,
                infinite=counted.infinite, nan=counted.nan)
            result = round_and_pack(
                m, target, sign=normalised.sign, exponent=normalised.exponent, significand=normalised.significand,
                sticky=normalised.sticky, infinite=normalised.infinite, nan=normalised.nan)
        m.d.comb += self.o.eq(result)

    def _elaborate_narrower(self, m):
        source, target = self._source, self._target
        i = data.View(source.layout, self.i)
        normal = i.exponent.any()
        special = i.exponent.all()
        # Exponent field minus one. If the result is subnormal, this is minus the distance from the normal numbers.
        offset = source.bias - target.bias
        exponent = Signal(signed(source.exponent_bits + 1))
        below = Signal(signed(source.exponent_bits + 1))
        m.d.comb += [
            exponent.eq((Cat(C(0, 1), i.exponent) - Cat(normal, C(offset, source.exponent_bits)))[1:]),
            below.eq((Cat(C(0, 1), C(offset + 1, source.exponent_bits)) - Cat(~normal, i.exponent))[1:]),
        ]
        opened = register(
            m, "opened",
            significand=Cat(i.fraction, normal), exponent=exponent, below=below, sign=i.sign,
            infinite=special, nan=special & i.fraction.any())

        # Shift right, leaving the hidden bit, fraction and guard bit. Numbers that are shifted out become zero.
        width = target.fraction_bits + 2
        excess = max(source.fraction_bits + 1 - width, 0)
        value = Cat(C(0, width - (source.fraction_bits + 1 - excess)), opened.significand[excess:])
        negative = opened.exponent[-1]
        amount = opened.below[:min(width.bit_length(), source.exponent_bits)]
        far = opened.below[len(amount):-1].any()
        window, lost = shift_right(m, value, Mux(negative, amount, 0), width=width)
        aligned = register(
            m, "aligned",
            window=Mux(negative & far, 0, window), lost=Cat(lost, opened.significand[:excess].any()),
            exponent=Mux(negative, 0, opened.exponent[:target.exponent_bits]), sign=opened.sign,
            infinite=opened.infinite | (~negative & (opened.exponent[:-1] >= target.exponent_ones - 1)),
            nan=opened.nan)
        m.d.comb += self.o.eq(round_and_pack(
            m, target, sign=aligned.sign, exponent=aligned.exponent, significand=aligned.window,
            sticky=aligned.lost.any(), infinite=aligned.infinite, nan=aligned.nan))


class FloatToInteger(wiring.Component):
    """Convert a floating-point number to a signed integer, rounding to nearest even.

    Numbers out of range saturate to the nearest integer, and NaN becomes zero. The result is on the outputs
    :attr:`latency` cycles after the number; a number can be accepted in every cycle. No register is reset.

    Parameters
    ----------
    format : FloatFormat
        Format of the number.
    width : int
        Width of the result; at least 2.

    Members
    -------
    i : In(format.width)
    o : Out(signed(width))
    invalid : Out(1)
        Whether the number is a NaN or out of range after rounding.
    """

    latency = 4

    def __init__(self, *, format=FP32, width=32):
        _check(format, width)
        self._format = format
        self._width = width
        super().__init__({"i": In(format.width), "o": Out(signed(width)), "invalid": Out(1)})

    @property
    def format(self):
        """Format of the number."""
        return self._format

    @property
    def width(self):
        """Width of the result."""
        return self._width

    def elaborate(self, platform):
        m = Module()
        format, width = self._format, self._width

        # Stage 1: unpack, and count the leading zeros relative to the integer's highest magnitude bit.
        i = data.View(format.layout, self.i)
        normal = i.exponent.any()
        special = i.exponent.all()
        highest = format.bias + width - 1
        below = Signal(signed(max(format.exponent_bits, highest.bit_length()) + 1))
        m.d.comb += below.eq(highest - Cat(i.exponent[0] | ~normal, i.exponent[1:]))
        opened = register(
            m, "opened",
            significand=Cat(i.fraction, normal), below=below, sign=i.sign, special=special,
            nan=special & i.fraction.any())

        # Stage 2: shift by this count, into magnitude and guard bit. Numbers that are shifted out become zero.
        places = width + 1
        excess = max(format.fraction_bits + 1 - places, 0)
        value = Cat(C(0, places - (format.fraction_bits + 1 - excess)), opened.significand[excess:])
        amount = opened.below[:min(places.bit_length(), len(below) - 1)]
        far = opened.below[len(amount):-1].any()
        window, lost = shift_right(m, value, amount, width=places)
        aligned = register(
            m, "aligned",
            window=Mux(far, 0, window), lost=Cat(lost, opened.significand[:excess].any()), sign=opened.sign,
            beyond=opened.below[-1] | opened.special, nan=opened.nan)

        # Stage 3: round and negate, in one addition.
        magnitude = aligned.window[1:]
        up = aligned.window[0] & (aligned.lost.any() | magnitude[0])
        integer = Signal(width)
        m.d.comb += integer.eq((magnitude ^ aligned.sign.replicate(width)) + (up ^ aligned.sign))
        rounded = register(
            m, "rounded",
            integer=integer, top=magnitude[-1], sign=aligned.sign, beyond=aligned.beyond, nan=aligned.nan)

        # Stage 4: saturate. If its highest magnitude bit is set, a negative number must be the smallest integer.
        outside = rounded.beyond | Mux(
            rounded.sign, rounded.top & ~rounded.integer[-1], rounded.top | rounded.integer[-1])
        limit = Cat((~rounded.sign).replicate(width - 1), rounded.sign)
        result = register(
            m, "result",
            o=Mux(rounded.nan, 0, Mux(outside, limit, rounded.integer)), invalid=outside)
        m.d.comb += [self.o.eq(result.o), self.invalid.eq(result.invalid)]
        return m


class IntegerToFloat(wiring.Component):
    """Convert a signed integer to a floating-point number, rounding to nearest even.

    Integers too large for the format become infinity. The result is on ``o`` :attr:`latency` cycles after the
    integer; an integer can be accepted in every cycle. No register is reset.

    Parameters
    ----------
    width : int
        Width of the integer; at least 2.
    format : FloatFormat
        Format of the result.

    Members
    -------
    i : In(signed(width))
    o : Out(format.width)
    """

    latency = 4

    def __init__(self, *, width=32, format=FP32):
        _check(format, width)
        self._width = width
        self._format = format
        super().__init__({"i": In(signed(width)), "o": Out(format.width)})

    @property
    def width(self):
        """Width of the integer."""
        return self._width

    @property
    def format(self):
        """Format of the result."""
        return self._format

    def elaborate(self, platform):
        m = Module()
        format, width = self._format, self._width

        # Stage 1: take the magnitude.
        sign = self.i[-1]
        magnitude = Signal(width)
        m.d.comb += magnitude.eq((self.i.as_unsigned() ^ sign.replicate(width)) + sign)
        split = register(m, "split", magnitude=magnitude, sign=sign)

        # Stage 2: count the leading zeros.
        amount, none = leading_zeros(m, split.magnitude)
        counted = register(m, "counted", magnitude=split.magnitude, amount=amount, none=none, sign=split.sign)

        # Stage 3: normalise. The exponent here is the exponent field minus one.
        highest = width - 1 + format.bias - 1
        exponent = Signal(max(highest.bit_length(), format.exponent_bits))
        m.d.comb += exponent.eq(Mux(counted.none, 0, highest - counted.amount))
        shifted = shift_left(m, counted.magnitude, counted.amount)
        wanted = format.fraction_bits + 2
        excess = max(width - wanted, 0)
        normalised = register(
            m, "normalised",
            significand=Cat(C(0, wanted - (width - excess)), shifted[excess:]),
            lost=shifted[:excess] if excess else C(0, 1),
            exponent=exponent[:format.exponent_bits], infinite=exponent >= format.exponent_ones - 1,
            sign=counted.sign)

        # Stage 4: round.
        m.d.comb += self.o.eq(round_and_pack(
            m, format, sign=normalised.sign, exponent=normalised.exponent, significand=normalised.significand,
            sticky=normalised.lost.any(), infinite=normalised.infinite, nan=C(0, 1)))
        return m


def _check(format, width):
    if not isinstance(format, FloatFormat):
        raise TypeError(f"Format must be a FloatFormat, not {format!r}")
    if not isinstance(width, int) or width < 2:
        raise ValueError(f"Integer width must be an integer of at least 2, not {width!r}")


def shorten(m, value, *, source, target):
    """Round to a format with fewer fraction bits and the same exponent width, to nearest even.

    The logic is one addition without a register. A number that rounds to more than the target's largest number
    becomes infinity, and every NaN becomes canonical.

    Parameters
    ----------
    value : Value
        Encoding in ``source``.
    source, target : FloatFormat
        Formats with equal exponent widths; the target has fewer fraction bits.

    Returns
    -------
    Signal(target.width)
    """
    drop = source.fraction_bits - target.fraction_bits
    opened = data.View(source.layout, value)
    nan = opened.exponent.all() & opened.fraction.any()
    # The bits below the guard bit matter only as a sticky bit. Ones added in all of these positions, and one more if
    # the last fraction bit is odd, carry into the guard bit and round up; the carry may propagate into the exponent.
    groups = Cat(value[start:min(start + 4, drop - 1)].any() for start in range(0, drop - 1, 4))
    total = Signal(1 + len(groups) + target.width, name="total")
    result = Signal(target.width, name="shortened")
    m.d.comb += [
        total.eq(Cat(C(1, 1), groups, value[drop - 1:-1]) +
                 Cat(value[drop], C((1 << len(groups)) - 1, len(groups)))),
        result.eq(Cat(Mux(nan, target.canonical_nan, total[2 + len(groups):]), opened.sign & ~nan)),
    ]
    return result
