"""Floating-point square root unit."""

from amaranth.hdl import C, Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from .format import FP32, FloatFormat
from .stages import check_interval, fold, normalise, normalising_steps, register, shift_right, substitute, wait

__all__ = ["FloatSquareRoot"]

#: Index of the last trial that shares a stage with another trial.
IN_PAIRS = 16


class FloatSquareRoot(wiring.Component):
    """Extract the square root of a floating-point number, rounding to nearest even.

    The square root of negative zero is negative zero. The root of any other negative number is
    :attr:`FloatFormat.canonical_nan`, as is every NaN result. The result is on ``o`` :attr:`latency` cycles after the
    operand; one operand can be accepted every ``interval`` cycles. No register is reset.

    With an interval of 1, each trial of the recurrence has its own subtractor. With a longer interval, the recurrence
    is folded: a root passes ``interval`` times through a ring with ``1 / interval`` of the subtractors. An operand
    enters in each cycle of ``load``, which must be high every ``interval`` cycles, at least while roots are in
    flight.

    Parameters
    ----------
    format : FloatFormat
        Format of the operand and result.
    interval : int
        Cycles per operand: 1, 2, 4 or 8.

    Members
    -------
    load : In(1)
        Only with an interval above 1: an operand enters in this cycle.
    a : In(format.width)
    o : Out(format.width)
    """

    def __init__(self, *, format=FP32, interval=1):
        if not isinstance(format, FloatFormat):
            raise TypeError(f"Format must be a FloatFormat, not {format!r}")
        check_interval(interval)
        self._format = format
        self._interval = interval
        load = {"load": In(1)} if interval > 1 else {}
        super().__init__({**load, "a": In(format.width), "o": Out(format.width)})

    @property
    def format(self):
        """Format of the operand and of the result."""
        return self._format

    @property
    def interval(self):
        """Number of cycles per operand."""
        return self._interval

    @property
    def latency(self):
        """Latency in cycles from the operand to its root."""
        width = self._format.fraction_bits + 1
        if self._interval > 1:
            trials = self._interval * len(fold(width, self._interval))
        else:
            trials = sum(self._ends_stage(index) for index in range(1, width + 1))
        return len(normalising_steps(width)) + 1 + trials + self._deep + 1

    def _ends_stage(self, index):
        """Return whether a stage ends after this trial; two of the first, narrow trials share a stage."""
        return index > IN_PAIRS or index % 2 == 0 or index == self._format.fraction_bits + 1

    @property
    def _deep(self):
        """Whether a root can be subnormal, which requires that the fraction width is at least the bias."""
        return self._format.bias <= self._format.fraction_bits

    def elaborate(self, platform):
        if (replacement := substitute(self, platform)) is not None:
            return replacement
        m = Module()
        format = self._format
        width = format.fraction_bits + 1
        a = data.View(format.layout, self.a)
        stages = normalising_steps(width)

        # Unpack the operand and begin to normalise it. Subnormals use the exponent of the smallest normal number.
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

        # Halve the exponent; if it is odd, double the significand, so that the radicand is between 1 and 4. The sum
        # is twice the root's exponent, plus one if the significand was doubled. Zero and infinity use a radicand with
        # root 1, NaN one with root 1.5, so that roots have the fractions of the results.
        lifted = Cat(passing["exponent"][:-1], ~passing["exponent"][-1], passing["exponent"][-1])
        twice = Signal(signed(max(format.exponent_bits, len(normal.count)) + 2))
        m.d.comb += twice.eq(lifted + Cat(~normal.count, C(1, 1)).as_signed())
        pairs = width // 2 + 1
        significand = Signal(2 * pairs)
        m.d.comb += significand.eq(Cat(normal.significand[:-1], C(1, 1)).shift_left(2 * (pairs - 1) - (width - 1)))
        forced = passing["zero"] | passing["special"] | passing["nan"]
        constant = Cat(C(0, 2 * pairs - 4), passing["nan"], C(0, 1), ~passing["nan"], passing["nan"])
        doubled = Mux(twice[0], significand.shift_left(1), significand)[:2 * pairs]
        lowest = -(width + 1) if self._deep else 0
        exponent = Mux(passing["zero"], lowest, Mux(forced, format.exponent_ones, twice[1:].as_signed()))
        aligned = dict(
            radicand=Mux(forced, constant, doubled), sign=passing["sign"],
            exponent=exponent if self._deep else exponent[:format.exponent_bits])
        extract = self._extract if self._interval == 1 else self._extract_in_turns
        root, passing = extract(m, aligned)
        self._close(m, root, passing)
        return m

    def _extract_in_turns(self, m, aligned):
        """Compute the root by restoring trials; each root passes several times through a few subtractors."""
        width = self._format.fraction_bits + 1
        stages = fold(width, self._interval)
        trials = self._interval * sum(stages)
        load = wait(m, "load", self.load, len(normalising_steps(width)))

        # The first bit of the root is one. The subtrahend is four times the partial root, plus one.
        places = len(aligned["radicand"]) - 2
        first = aligned["radicand"][places:]
        enters = dict(radicand=aligned["radicand"][:places], remainder=Cat(~first[0], first.all()), root=C(1, 1))
        widths = dict(radicand=places, remainder=trials + 1, root=trials + 1)
        turn = {name: Signal(bits, name=f"turn0_{name}", reset_less=True) for name, bits in widths.items()}
        entry = turn
        for stage, rows in enumerate(stages):
            radicand, remainder, root = turn["radicand"], turn["remainder"], turn["root"]
            for row in range(rows):
                minuend = Signal(trials + 3, name=f"minuend{stage}_{row}")
                total = Signal(trials + 4, name=f"total{stage}_{row}")
                m.d.comb += [
                    minuend.eq(Cat(radicand[-2:], remainder)),
                    total.eq(minuend - Cat(C(1, 2), root[:trials])),
                ]
                radicand = Cat(C(0, 2), radicand)[:places]
                remainder = Mux(total[-1], minuend, total)[:trials + 1]
                root = Cat(~total[-1], root)[:trials + 1]
            if stage < len(stages) - 1:
                turn = vars(register(m, f"turn{stage + 1}", radicand=radicand, remainder=remainder, root=root))
        with m.If(load):
            m.d.sync += [entry[name].eq(value) for name, value in enters.items()]
        with m.Else():
            m.d.sync += [entry["radicand"].eq(radicand), entry["remainder"].eq(remainder), entry["root"].eq(root)]
        # Drop the bits of trials after the last bit of the root.
        ended = register(m, "ended", root=root[trials - width:])

        # Values that do not circulate in the ring advance when a new operand enters the ring.
        passing = dict(exponent=aligned["exponent"], sign=aligned["sign"])
        for number in range(len(stages) + 1):
            later = {}
            for name, value in passing.items():
                later[name] = Signal(Value.cast(value).shape(), name=f"waiting{number}_{name}", reset_less=True)
                with m.If(load):
                    m.d.sync += later[name].eq(value)
            passing = later
        return list(ended.root), passing

    def _extract(self, m, aligned):
        """Compute the root by non-restoring trials, with one subtractor per trial."""
        width = self._format.fraction_bits + 1
        pairs = len(aligned["radicand"]) // 2
        aligned = register(m, "aligned", **aligned)

        # Each root bit except the first, which is one, needs one trial. A trial with a negative result is not
        # restored: its root bit is zero, and the next trial adds instead of subtracting. The subtrahend is four times
        # the partial root, plus one; the addend is two more, so it is added by subtracting the complement of the
        # root, followed by the same one.
        passing = dict(exponent=aligned.exponent, sign=aligned.sign)
        radicand = aligned.radicand[:-2]
        remainder = Cat(~aligned.radicand[-2], aligned.radicand[-2:].all())
        root = [C(1, 1)]
        for index in range(1, width + 1):
            # The sign of the remainder is inverted in the minuend and the difference, so that it equals the new root
            # bit. When the complement of the root is subtracted, its lowest and highest bits are known.
            positive = root[0]
            subtrahend = Cat(C(1, 1), *(~(bit ^ positive) for bit in root[1:-1]), *[positive] * min(index, 2))
            total = Signal(index + 3, name=f"total{index}")
            if index < pairs:
                ones = 0
                m.d.comb += total.eq(Cat(radicand[-2:], remainder) - Cat(C(0b01, 2), subtrahend))
            else:
                # After the last bit pair of the radicand, zeros follow. Subtracting from them always borrows and
                # leaves ones in the lowest bits. From the second such trial on, the borrow is subtracted from a one,
                # so neither is computed.
                borrow = C(1, 1) if index == pairs else C(0, 0)
                ones = 2 if index == pairs else 3
                upper = Signal(index + len(borrow), name=f"upper{index}")
                m.d.comb += upper.eq(Cat(C(0, 1), remainder[2 - len(borrow):]) - Cat(borrow, subtrahend[1:]))
                m.d.comb += total.eq(Cat(C(0b11, 2), remainder[0], upper[len(borrow):]))
            radicand, remainder, root = radicand[:-2], total[:-1], [total[-1], *root]
            if self._ends_stage(index):
                values = dict(remainder=remainder[ones:], root=Cat(root[:-1]), **passing)
                if len(radicand):
                    values.update(radicand=radicand)
                trial = register(m, f"trial{index}", **values)
                passing = {name: getattr(trial, name) for name in passing}
                radicand = trial.radicand if len(radicand) else radicand
                remainder, root = Cat(C((1 << ones) - 1, ones), trial.remainder), [*trial.root, C(1, 1)]

        return root, passing

    def _close(self, m, root, passing):
        """Round the root and assemble the result."""
        format = self._format
        width = format.fraction_bits + 1
        root = Cat(root)
        if self._deep:
            subnormal = passing["exponent"] < 1
            missing = 1 - passing["exponent"]
            amount = Mux(subnormal, missing[:(width + 2).bit_length()], 0)
            window, _ = shift_right(m, root, amount, width=width + 1)
            shifted = register(
                m, "shifted", root=window, exponent=Mux(subnormal, 0, passing["exponent"]), sign=passing["sign"])
            root, passing = shifted.root, vars(shifted)

        # A root is never halfway between two numbers, so the guard bit decides. No root is rounded up to a power
        # of two, unless it is subnormal.
        result = Signal(format.layout, name="result", reset_less=True)
        m.d.sync += result.sign.eq(passing["sign"])
        if self._deep:
            magnitude = Cat(root[1:-1], passing["exponent"][:format.exponent_bits])
            m.d.sync += Cat(result.fraction, result.exponent).eq(magnitude + root[0])
        else:
            m.d.sync += [result.exponent.eq(passing["exponent"]), result.fraction.eq(root[1:-1] + root[0])]
        m.d.comb += self.o.eq(result)
