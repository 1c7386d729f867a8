"""Floating-point divider."""

from types import SimpleNamespace

from amaranth.hdl import C, Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from .format import FP32, FloatFormat
from .stages import check_interval, fold, normalise, normalising_steps, register, shift_right, substitute, wait

__all__ = ["FloatDivider"]


class FloatDivider(wiring.Component):
    """Divide two floating-point numbers, rounding to nearest even.

    Subnormal numbers, signed zeros and infinities are as in IEEE 754; every NaN result is
    :attr:`FloatFormat.canonical_nan`. The result is on ``o`` :attr:`latency` cycles after its operands; a pair can be
    accepted every ``interval`` cycles. No register is reset.

    With an interval of 1, each trial of the recurrence has its own subtractor. With a longer interval, the recurrence
    is folded: a quotient passes ``interval`` times through a ring with ``1 / interval`` of the subtractors. A pair
    enters in each cycle with ``load``, which must be high every ``interval`` cycles, at least while pairs are in
    flight.

    Parameters
    ----------
    format : FloatFormat
        Format of both operands and of the result.
    interval : int
        Number of cycles per pair: 1, 2, 4 or 8.

    Members
    -------
    load : In(1)
        Only with an interval above 1: the operands of this cycle are a pair.
    a, b : In(format.width)
        Dividend and divisor.
    o : Out(format.width)
    """

    def __init__(self, *, format=FP32, interval=1):
        if not isinstance(format, FloatFormat):
            raise TypeError(f"Format must be a FloatFormat, not {format!r}")
        check_interval(interval)
        self._format = format
        self._interval = interval
        load = {"load": In(1)} if interval > 1 else {}
        super().__init__({**load, "a": In(format.width), "b": In(format.width), "o": Out(format.width)})

    @property
    def format(self):
        """Format of both operands and of the result."""
        return self._format

    @property
    def interval(self):
        """Number of cycles per pair of operands."""
        return self._interval

    @property
    def latency(self):
        """Latency in cycles from the operands to their quotient."""
        width = self._format.fraction_bits + 1
        if self._interval > 1:
            trials = 1 + self._interval * len(fold(width + 2, self._interval))
        else:
            trials = -(-(2 * width + 3) // 3)
        return len(normalising_steps(width)) + trials + 3

    @property
    def _exponent_bits(self):
        """Width of the exponent in the stages from the subtraction of the exponents to the rounding.

        The exponent is two less than the exponent field of a quotient below 1, so its inverted bits are the distance
        of a subnormal result from the normal numbers. The upper half of the positive numbers, which no sum reaches,
        encodes infinity; the lower half of the negative numbers encodes zero.
        """
        format = self._format
        width = format.fraction_bits + 1
        return 1 + max((format.exponent_ones + format.bias + width).bit_length(), (width + 1).bit_length() + 1)

    def elaborate(self, platform):
        if (replacement := substitute(self, platform)) is not None:
            return replacement
        m = Module()
        if self._interval == 1:
            trial, exact = self._divide(m, *self._open(m))
        else:
            trial, exact = self._divide_in_turns(m, *self._open_in_turns(m))
        self._close(m, trial, exact)
        return m

    def _open(self, m):
        """Normalise both operands."""
        format = self._format
        width = format.fraction_bits + 1
        a = data.View(format.layout, self.a)
        b = data.View(format.layout, self.b)
        stages = normalising_steps(width)

        # Unpack the operands, and begin to normalise them. Subnormal numbers have the exponent of the smallest normal
        # number.
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
            Cat(a.exponent[0] | ~a_normal, a.exponent[1:]) - Cat(b.exponent[0] | ~b_normal, b.exponent[1:]))
        opened = register(
            m, "opened",
            a=a_significand, b=b_significand, a_count=a_count, b_count=b_count, difference=difference,
            sign=a.sign ^ b.sign, a_zero=~(a_normal | a_fraction), b_zero=~(b_normal | b_fraction),
            a_special=a_special, b_special=b_special, a_fraction=a_fraction, b_fraction=b_fraction)

        passing = dict(
            a_count=opened.a_count, b_count=opened.b_count, exponent=opened.difference + (format.bias - 3),
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
        return normal, passing

    def _open_in_turns(self, m):
        """Normalise both operands with the same logic: first the divisor, then, one cycle later, the dividend."""
        format = self._format
        stages = normalising_steps(format.fraction_bits + 1)
        dividend = Signal(format.layout, reset_less=True)
        with m.If(self.load):
            m.d.sync += dividend.eq(self.a)
        i = Signal(format.layout)
        m.d.comb += i.eq(Mux(self.load, self.b, dividend))

        # Subnormal numbers have the same exponent as the smallest normal number.
        i_normal = i.exponent.any()
        significand, count = normalise(m, Cat(i.fraction, i_normal), stages[0])
        a = register(
            m, "opened",
            significand=significand, count=count, exponent=Cat(i.exponent[0] | ~i_normal, i.exponent[1:]),
            sign=i.sign, normal=i_normal, special=i.exponent.all(), fraction=i.fraction.any())
        for steps in stages[1:]:
            values = vars(a)
            significand, count = normalise(m, values.pop("significand"), steps)
            values["count"] = Cat(count, values["count"])
            a = register(m, "normal", significand=significand, **values)
        b = register(m, "divisor", **vars(a))
        a_zero, b_zero = ~(a.normal | a.fraction), ~(b.normal | b.fraction)
        passing = dict(
            a_count=a.count, b_count=b.count, exponent=a.exponent - b.exponent + (format.bias - 3),
            sign=a.sign ^ b.sign, infinite=a.special | b_zero, zero=b.special | a_zero,
            nan=(a.special & (a.fraction | b.special)) | (b.special & b.fraction) | (a_zero & b_zero))
        return SimpleNamespace(a=a.significand, b=b.significand), passing

    def _difference(self, m, passing):
        """Replace the two shift counts with their difference."""
        count = Signal(signed(len(passing["a_count"]) + 1))
        m.d.comb += count.eq(passing.pop("b_count") - passing.pop("a_count"))
        return {**passing, "count": count}

    def _locate(self, m, passing):
        """Add the difference of the shift counts to the exponent, and make it encode infinity and zero."""
        exponent = Signal(self._exponent_bits)
        m.d.comb += exponent.eq(passing["exponent"] + passing["count"])
        infinite, zero = passing["infinite"], passing["zero"]
        return dict(
            exponent=Cat(exponent[:-2], Mux(infinite | zero, Cat(infinite, zero), exponent[-2:])),
            sign=passing["sign"], nan=passing["nan"])

    def _divide_in_turns(self, m, normal, passing):
        """Divide by restoring trials; each quotient passes several times through a loop of a few subtractors."""
        width = self._format.fraction_bits + 1
        stages = fold(width + 2, self._interval)
        trials = self._interval * sum(stages)
        load = wait(m, "load", self.load, len(normalising_steps(width)) + 1)

        end = Signal(data.StructLayout({"remainder": width + 1, "divisor": width, "quotient": trials}))
        remainder = Mux(load, normal.a, end.remainder)
        divisor = Mux(load, normal.b, end.divisor)
        quotient = end.quotient
        for stage, rows in enumerate(stages):
            for row in range(rows):
                dividend = Signal(width + 1, name=f"dividend{stage}_{row}")
                total = Signal(width + 2, name=f"total{stage}_{row}")
                m.d.comb += [dividend.eq(remainder), total.eq(dividend - divisor)]
                # Restore the remainder if it is negative, and double it.
                remainder = Cat(C(0, 1), Mux(total[-1], dividend, total)[:width])
                quotient = Cat(~total[-1], quotient)[:trials]
            turn = register(m, f"turn{stage}", remainder=remainder, divisor=divisor, quotient=quotient)
            remainder, divisor, quotient = turn.remainder, turn.divisor, turn.quotient
        m.d.comb += [end.remainder.eq(remainder), end.divisor.eq(divisor), end.quotient.eq(quotient)]

        # Values that do not circulate in the subtractor ring advance when a new pair enters it.
        passing = self._difference(m, passing)
        for number in range(len(stages)):
            later = {}
            for name, value in passing.items():
                later[name] = Signal(Value.cast(value).shape(), name=f"waiting{number}_{name}", reset_less=True)
                with m.If(load):
                    m.d.sync += later[name].eq(value)
            passing = self._locate(m, later) if number == 0 else later
        beyond = trials - (width + 2)
        exact = ~Cat(end.quotient[:beyond], end.remainder).any()
        return SimpleNamespace(quotient=end.quotient[beyond:], **passing), exact

    def _divide(self, m, normal, passing):
        """Divide by non-restoring trials, with a separate subtractor for each trial."""
        width = self._format.fraction_bits + 1

        # The first trial subtracts the divisor from the dividend. A trial that ends below zero is not restored: its
        # quotient bit is zero, and the next trial adds the divisor to the doubled remainder instead. Adding is done
        # by subtracting the complement and one more, with a borrow into the lowest position. So a trial consists of
        # two steps, selecting the operand and subtracting, and a stage has room for three of these steps. The
        # lowest bit of the operand is always the divisor's, and its highest bit is omitted.
        passing = self._difference(m, passing)
        remainder, operand, quotient = normal.a, normal.b[:-1], []
        halves = [(index, choice) for index in range(width + 2) for choice in (True, False)][1:]
        for number, (index, choice) in enumerate(halves, 1):
            if choice:
                # The operand is still the one of the previous trial.
                before = quotient[1] if index > 1 else C(1, 1)
                operand = Cat(operand[0], *(bit ^ before ^ quotient[0] for bit in operand[1:]))
            elif index == 0:
                total = Signal(width + 1, name="total0")
                m.d.comb += total.eq(remainder - Cat(operand, C(0b11, 2)))
                remainder, quotient = total[:-1], [total[-1]]
            else:
                # The sign of the remainder is inverted in the minuend and in the difference, so that it equals the
                # new bit of the quotient. The two highest bits of the subtrahend, zero and one or their
                # complements, allow for this.
                positive = quotient[0]
                total = Signal(width + 2, name=f"total{index}")
                m.d.comb += total.eq(Cat(positive, C(0, 1), remainder) - Cat(C(1, 1), operand, positive, positive))
                remainder, quotient = Cat(operand[0], total[2:-1]), [total[-1], *quotient]
            if number % 3 == 0 or number == len(halves):
                trial = register(
                    m, f"trial{index}", remainder=remainder, operand=operand, quotient=Cat(quotient), **passing)
                remainder, operand, quotient = trial.remainder, trial.operand, list(trial.quotient)
                passing = {name: getattr(trial, name) for name in passing}
                if "count" in passing:
                    passing = self._locate(m, passing)

        # The quotient is exact if the last trial, which is beyond the last bit of any exact quotient, leaves the
        # negated divisor. Remainder plus divisor is then zero, which each position can check without carries.
        divisor = Cat(operand[0], *(bit ^ ~quotient[1] for bit in operand[1:]), C(1, 1))
        return trial, ~quotient[0] & ((remainder[1:] ^ divisor[1:]) == (remainder[:-1] | divisor[:-1]))

    def _close(self, m, trial, exact):
        """Shift, round and assemble the result."""
        format = self._format
        width = format.fraction_bits + 1

        # Shift a subnormal result right by its distance from the normal numbers, and other results by one bit if the
        # quotient is 1 or more.
        exponent = trial.exponent
        negative, carry = exponent[-1], trial.quotient[-1]
        normal = ~negative | exponent.all()
        amount = Signal((width + 2).bit_length())
        far = negative & ~exponent[len(amount):].all()
        below = (~exponent & negative.replicate(len(exponent)))[:len(amount)]
        m.d.comb += amount.eq(below | far.replicate(len(amount)) | (normal & carry))
        coarse, coarse_lost = shift_right(m, trial.quotient, Cat(C(0, 2), amount[2:]), width=width + 2)

        # Only subnormal results can be halfway between two numbers.
        largest = exponent[2:format.exponent_bits].all() & (exponent[:2].any() | carry)
        moved = register(
            m, "moved",
            quotient=coarse, lost=Cat(coarse_lost, ~exact), amount=amount[:2],
            exponent=Mux(normal, exponent[:format.exponent_bits], 0), normal=normal, carry=carry,
            sign=trial.sign, infinite=~negative & (exponent[format.exponent_bits:-1].any() | largest), nan=trial.nan)
        window, lost = shift_right(m, moved.quotient, moved.amount, width=width + 1)
        shifted = register(
            m, "shifted",
            window=window, lost=Cat(lost, moved.lost.any()), exponent=moved.exponent,
            increment=Cat(Mux(moved.normal, moved.carry, window[-1]), moved.normal),
            sign=moved.sign, infinite=moved.infinite, nan=moved.nan)

        # Round like `round_and_pack`, and add two to the exponent of a normal result, or three if the quotient is
        # 1 or more.
        result = Signal(format.layout, name="result", reset_less=True)
        rounded = Signal(1 + format.fraction_bits + format.exponent_bits)
        sticky = shifted.lost.any() | shifted.window[1]
        m.d.comb += rounded.eq(
            Cat(shifted.window[:-1], shifted.exponent) + Cat(sticky, C(0, format.fraction_bits), shifted.increment))
        with m.If(shifted.infinite | shifted.nan):
            m.d.sync += result.exponent.eq(format.exponent_ones)
            m.d.sync += result.fraction.eq(shifted.nan.shift_left(format.fraction_bits - 1))
        with m.Else():
            m.d.sync += Cat(result.fraction, result.exponent).eq(rounded[1:])
        m.d.sync += result.sign.eq(shifted.sign & ~shifted.nan)
        m.d.comb += self.o.eq(result)
