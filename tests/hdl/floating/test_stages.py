# amaranth: UnusedElaboratable=no
"""Exhaustively test each part of the floating-point pipelines in hdl/floating/stages.py."""

import functools
import math

import numpy as np
import pytest
from amaranth.hdl import Cat, Module, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from hdl.floating.format import FloatFormat
from hdl.floating.stages import (
    Mark,
    check_interval,
    fold,
    leading_zeros,
    normalise,
    normalising_steps,
    register,
    round_and_pack,
    shift_left,
    shift_right,
    substitute,
    wait,
)
from sim.verilated.vectors import Unit
from tests.refusals import refuses

#: Widths for which every number is tested.
WIDTHS = (1, 2, 3, 5, 7, 8, 11)
#: Widths of the shift amount, for maximum shifts above and below the width of the number.
AMOUNTS = (4, 2)
WIDTH = 7
#: Number of low bits of a right shift's result that are compared.
WINDOW = 4
FORMAT = FloatFormat(exponent_bits=3, fraction_bits=2)


class _Parts(wiring.Component):
    """Test unit: independent parts that have no registers."""

    def __init__(self):
        super().__init__({
            **{f"value{width}": In(width) for width in WIDTHS},
            **{f"zeros{width}": Out(max(ceil_log2(width), 1)) for width in WIDTHS},
            **{f"none{width}": Out(1) for width in WIDTHS},
            **{f"amount{bits}": In(bits) for bits in AMOUNTS},
            **{f"left{bits}": Out(WIDTH) for bits in AMOUNTS},
            **{f"right{bits}": Out(WINDOW) for bits in AMOUNTS},
            **{f"lost{bits}": Out(1) for bits in AMOUNTS},
            "normal": Out(11), "taken": Out(4), "number": In(5), "mark": Out(19),
        })

    def elaborate(self, platform):
        m = Module()
        for width in WIDTHS:
            count, none = leading_zeros(m, getattr(self, f"value{width}"))
            m.d.comb += [getattr(self, f"zeros{width}").eq(count), getattr(self, f"none{width}").eq(none)]
        value = getattr(self, f"value{WIDTH}")
        for bits in AMOUNTS:
            amount = getattr(self, f"amount{bits}")
            window, lost = shift_right(m, value, amount, width=WINDOW)
            m.d.comb += [getattr(self, f"left{bits}").eq(shift_left(m, value, amount)),
                         getattr(self, f"right{bits}").eq(window), getattr(self, f"lost{bits}").eq(lost.any())]
        number, parts = self.value11, []
        for steps in normalising_steps(11):
            number, taken = normalise(m, number, steps)
            parts.append(taken)
        mark = Mark(self.number, 19)
        m.d.comb += [self.normal.eq(number), self.taken.eq(Cat(reversed(parts))),
                     self.mark.eq(mark.place(mark.rows, mark.columns))]
        return m


class _Stages(wiring.Component):
    """Test unit: independent parts that have registers."""

    def __init__(self):
        super().__init__({
            "a": In(8), "b": In(3), "a_later": Out(8), "b_later": Out(3), "a_waited": Out(8), "a_now": Out(8),
            "sign": In(1), "exponent": In(FORMAT.exponent_bits), "significand": In(FORMAT.fraction_bits + 2),
            "sticky": In(1), "infinite": In(1), "nan": In(1), "result": Out(FORMAT.width),
        })

    def elaborate(self, platform):
        m = Module()
        later = register(m, "stage", a=self.a, b=self.b)
        inputs = {name: getattr(self, name) for name in (
            "sign", "exponent", "significand", "sticky", "infinite", "nan")}
        m.d.comb += [
            self.a_later.eq(later.a), self.b_later.eq(later.b), self.a_waited.eq(wait(m, "wait", self.a, 3)),
            self.a_now.eq(wait(m, "none", self.a, 0)),
            self.result.eq(Value.cast(round_and_pack(m, FORMAT, **inputs))),
        ]
        return m


@functools.cache
def _unit(kind):
    return Unit(kind(), name=f"Floating{kind.__name__.strip('_')}")


# --- parts without registers


@pytest.mark.parametrize("width", WIDTHS)
def test_leading_zeros(width):
    numbers = np.arange(1 << width)
    got = _unit(_Parts).run({f"value{width}": numbers})
    bits = [f"{number:0{width}b}" for number in numbers.tolist()]
    ones = (1 << ceil_log2(width)) - 1
    assert got[f"zeros{width}"].tolist() == [number.index("1") if "1" in number else ones for number in bits]
    assert got[f"none{width}"].tolist() == [1] + [0] * (len(numbers) - 1)


@pytest.mark.parametrize("bits", AMOUNTS)
def test_shifts(bits):
    numbers, amounts = (part.ravel() for part in np.meshgrid(np.arange(1 << WIDTH), np.arange(1 << bits)))
    got = _unit(_Parts).run({f"value{WIDTH}": numbers, f"amount{bits}": amounts})
    np.testing.assert_array_equal(got[f"left{bits}"], numbers << amounts & ((1 << WIDTH) - 1))
    np.testing.assert_array_equal(got[f"right{bits}"], numbers >> amounts & ((1 << WINDOW) - 1))
    np.testing.assert_array_equal(got[f"lost{bits}"], numbers & ((1 << amounts) - 1) != 0)


def test_normalise():
    """Every nonzero number is shifted until its top bit is set; the shift steps add up to the shift amount."""
    numbers = np.arange(1, 1 << 11)
    got = _unit(_Parts).run({"value11": numbers})
    assert (got["normal"] >> 10 == 1).all()
    np.testing.assert_array_equal(got["normal"], numbers << got["taken"])
    np.testing.assert_array_equal(got["taken"], [11 - number.bit_length() for number in numbers.tolist()])


def test_normalising_steps():
    assert normalising_steps(11) == [[8], [4, 2], [1]]
    assert normalising_steps(24) == [[16], [8, 4], [2, 1]]
    assert normalising_steps(2) == [[1]]
    for width in range(2, 60):
        assert sum(map(sum, normalising_steps(width))) >= width - 1


def test_mark():
    """``mark`` has only the bit set that is ``number`` places below the top bit; it is zero if there is no such bit.
    """
    numbers = np.arange(32)
    got = _unit(_Parts).run({"number": numbers})["mark"]
    assert got.tolist() == [1 << 18 - number if number < 19 else 0 for number in numbers.tolist()]


# --- parts with registers


def test_register_and_wait():
    """Each stage accepts a number in every cycle and outputs it one or more cycles later, even across a reset."""
    generator = np.random.default_rng(1)
    a, b = generator.integers(0, 256, 100), generator.integers(0, 8, 100)
    unit = _unit(_Stages)
    got = unit.run({"a": a, "b": b}, drain=3)
    assert got["a_later"][1:101].tolist() == a.tolist()
    assert got["b_later"][1:101].tolist() == b.tolist()
    assert got["a_waited"][3:].tolist() == a.tolist()
    assert got["a_now"][:100].tolist() == a.tolist()
    unit.run({"a": a[:2]})
    unit.reset()
    assert unit.run({"a": 0}, cycles=3)["a_waited"].tolist() == [a[0], a[1], 0]


def _rounded(sign, exponent, significand, sticky):
    """Encode a number by searching for the nearest number of the format, with ties to even."""
    low, high = 0, FORMAT.infinity
    encodings = np.arange(low, high + 1)
    fields, fractions = encodings >> FORMAT.fraction_bits, encodings & ((1 << FORMAT.fraction_bits) - 1)
    # Values in quarters of the smallest subnormal number; infinity counts as the number after the largest.
    hidden = np.where(fields > 0, 1 << FORMAT.fraction_bits, 0)
    values = 4 * (hidden + fractions << np.maximum(fields, 1) - 1)
    exact = (2 * significand + sticky) << exponent
    distance = np.abs(values - exact)
    nearest = np.flatnonzero(distance == distance.min())
    chosen = nearest[0] if len(nearest) == 1 else next(n for n in nearest if n % 2 == 0)
    return int(sign << FORMAT.width - 1 | encodings[chosen])


def test_round_and_pack():
    """Every possible number is rounded to nearest, ties to even; infinity and NaN flags take precedence."""
    cases = [(sign, exponent, significand, sticky, infinite, nan)
             for sign in (0, 1) for exponent in range(FORMAT.exponent_ones - 1) for significand in range(16)
             for sticky in (0, 1) for infinite in (0, 1) for nan in (0, 1)
             if significand >> 3 or exponent == 0]
    names = ("sign", "exponent", "significand", "sticky", "infinite", "nan")
    got = _unit(_Stages).run(dict(zip(names, map(np.array, zip(*cases, strict=True)), strict=True)), drain=1)
    for number, (sign, exponent, significand, sticky, infinite, nan) in enumerate(cases):
        expected = _rounded(sign, exponent, significand, sticky)
        if infinite:
            expected = sign << FORMAT.width - 1 | FORMAT.infinity
        if nan:
            expected = FORMAT.canonical_nan
        assert got["result"][number + 1] == expected, str(cases[number])


# --- recurrences


def test_check_interval():
    for interval in (1, 2, 4, 8):
        check_interval(interval)
    for interval in (0, 3, 16, "2", None):
        refuses(f"Interval must be 1, 2, 4 or 8, not {interval!r}", check_interval, interval)


@pytest.mark.parametrize("interval", [1, 2, 4, 8])
def test_fold(interval):
    """A recurrence is folded such that all of its trials fit into `interval` passes through the stages.

    The number of stages and `interval` are coprime.
    """
    assert [fold(26, n) for n in (1, 2, 4, 8)] == [[*[1] * 24, 2], [1] * 13, [1] * 7, [1, 1, 2]]
    for trials in range(16, 60):
        rows = fold(trials, interval)
        assert interval * sum(rows) >= trials
        assert math.gcd(len(rows), interval) == 1
        assert sum(rows) == -(-trials // interval)
        assert set(rows[:-1]) <= {1}
        assert rows[-1] in (1, 2)


def test_substitute():
    """A unit is replaced if the platform provides a replacement for it; otherwise it is used as it is."""
    class Platform:
        def get_floating_unit(self, unit):
            return replacements.get(unit)

    replacements = {"unit": Module()}
    assert substitute("unit", Platform()) is replacements["unit"]
    assert substitute("other", Platform()) is None
    assert substitute("unit", None) is substitute("unit", object()) is None
