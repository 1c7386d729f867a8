"""The fixed-point optimizer agrees with values computed by hand, and with its definition in fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest

from sim.golden import fixed_point as golden
from sim.golden.fixed_point import (
    FRACTION_BITS,
    SCALAR_WIDTH,
    Fixed,
    FixedSettings,
    from_bits,
    quantise,
    saturate,
    to_bits,
    update,
)
from sim.golden.optimizer import Rule
from tests.refusals import refuses

ONE = 1 << FRACTION_BITS
RULES = [Rule.SGD, Rule.MOMENTUM]

# --- tests of number conversions


def test_quantise():
    assert quantise([0.5, -0.5, 1.5, -1.5, 0.49, -0.51], 8, 0).tolist() == [1, 0, 2, -1, 0, -1]
    assert quantise([127.4, 127.5, 1e300, np.inf, -128.5, -129, -np.inf], 8, 0).tolist() == [
        127, 127, 127, 127, -128, -128, -128]
    assert quantise([1.0, -2.0, 2.0, 0.9], SCALAR_WIDTH, FRACTION_BITS).tolist() == [
        1 << 16, -(1 << 17), (1 << 17) - 1, 58982]
    # This is the float64 number below one half. Adding one half and rounding down would give 1.
    assert quantise(0.49999999999999994, 8, 0) == 0
    refuses("Values must be numbers, not array(nan)", quantise, np.nan, 8, 0)


def test_dequantise():
    assert golden.dequantise([1 << 16, -1, -(1 << 17)], FRACTION_BITS).tolist() == [1.0, -(2.0 ** -16), -2.0]
    numbers = np.arange(-(1 << 17), 1 << 17)
    assert (quantise(golden.dequantise(numbers, 7), 18, 7) == numbers).all()


@pytest.mark.parametrize(("width", "fraction_bits"), [(2, 0), (4, 2), (8, 7), (8, 10)])
def test_quantised_by_definition(width, fraction_bits):
    """Every multiple of 1/16 step, within the range and around it, becomes floor(x + 1/2), clamped to the range."""
    steps = np.arange(-40 << width, 40 << width)
    values = np.ldexp(steps.astype(np.float64), -fraction_bits - 4)
    low, high = -(1 << width - 1), (1 << width - 1) - 1
    expected = [min(max(math.floor(Fraction(step, 16) + Fraction(1, 2)), low), high) for step in steps.tolist()]
    assert quantise(values, width, fraction_bits).tolist() == expected


@pytest.mark.parametrize("width", [2, 8, 11])
def test_every_pattern(width):
    """Two's complement by its definition, in which the highest bit has a negative weight."""
    patterns = np.arange(1 << width)
    expected = [sum(1 << bit for bit in range(width - 1) if bits >> bit & 1) - (bits >> width - 1 << width - 1)
                for bits in patterns.tolist()]
    assert from_bits(patterns, width).tolist() == expected
    assert from_bits(patterns + (5 << width), width).tolist() == expected
    assert to_bits(expected, width).tolist() == patterns.tolist()


def test_saturate():
    assert saturate([127, 128, 1 << 40, -128, -129, -(1 << 40)], 8).tolist() == [127, 127, 127, -128, -128, -128]


# --- tests of updates


def test_bit_patterns():
    """An update gives the same results for bit patterns in two's complement as for numbers."""
    model = Fixed(width=8, workers=2)
    total = model.reduce(to_bits([[-128, 127], [-128, 1]], 8))
    assert total.tolist() == [0x100, 0x080]
    settings = FixedSettings(Rule.MOMENTUM, ONE // 2, ONE, to_bits(-ONE, SCALAR_WIDTH))
    weights, (state,) = model.update(total, to_bits([1, -128], 8), [to_bits([-1, 0], 8)], settings)
    assert state.tolist() == to_bits([-127, 64], 8).tolist()
    assert weights.tolist() == [127, 128]
    assert model.finite(total).tolist() == [True, True]
    assert settings.planes == 1


def exactly(total, weight, velocity, rule, scale, rate, momentum, width):
    """Compute an update from its definition, with exact arithmetic."""
    def nearest(value):
        return math.floor(value + Fraction(1, 2))

    def fitting(value):
        return min(max(value, -(1 << width - 1)), (1 << width - 1) - 1)

    step = Fraction(scale * total, ONE)
    if rule == Rule.MOMENTUM:
        step += Fraction(momentum * velocity, ONE)
    step = fitting(nearest(step))
    return fitting(weight - nearest(Fraction(rate * step, ONE))), step


def compare(rule, width, total, weight, velocity, scale, rate, momentum):
    settings = FixedSettings(rule, scale, rate, momentum)
    weights, (state,) = update(total, weight, [velocity], settings, width=width)
    for n in range(len(total)):
        numbers = [int(values[n]) for values in (total, weight, velocity, scale, rate, momentum)]
        want, step = exactly(*numbers[:3], rule, *numbers[3:], width)
        assert (weights[n], state[n]) == (want, step if rule == Rule.MOMENTUM else velocity[n]), numbers


@pytest.mark.parametrize("rule", RULES)
def test_every_operand_of_8_bits(rule):
    """Updates match the definition for all values of each operand, and for corner cases of the scalars."""
    every = np.arange(-128, 128)
    for scale, rate, momentum in ((0x8000, ONE, 0x8000), (0x7FFF, 0x8000, -0x8000), (-2 * ONE, 2 * ONE - 1, ONE)):
        scalars = [np.full(256, scalar) for scalar in (scale, rate, momentum)]
        for fixed in (-128, -1, 0, 127):
            held = np.full(256, fixed)
            for operands in ((every, held, held), (held, every, held), (held, held, every)):
                compare(rule, 8, *operands, *scalars)


def draw(generator, width, count):
    """Draw numbers of ``width`` bits; a third of them are near zero or near an end of the range."""
    half = 1 << width - 1
    numbers = generator.integers(-half, half, count)
    corners = [-half, 1 - half, -half // 2, -1, 0, 1, half // 2, half - 2, half - 1]
    numbers[::3] = generator.choice(corners, len(numbers[::3]))
    return generator.permutation(numbers)


@pytest.mark.parametrize("width", [8, 16, 18])
@pytest.mark.parametrize("rule", RULES)
def test_against_integers(rule, width):
    generator = np.random.default_rng([rule, width])
    compare(rule, width, *(draw(generator, bits, 5_000) for bits in (width + 3, width, width, *[SCALAR_WIDTH] * 3)))


# --- tests of sums and latencies


@pytest.mark.parametrize("workers", range(1, 9))
def test_sums(workers):
    """Sums over workers are exact at both ends of the number range, and no wider than necessary."""
    model = Fixed(width=8, workers=workers)
    assert model.total_width == 8 + math.ceil(math.log2(workers))
    ends = to_bits([[-128, 127, -1]] * workers, 8)
    total = model.reduce(ends)
    assert from_bits(total, model.total_width).tolist() == [-128 * workers, 127 * workers, -workers]
    assert golden.reduce([[1, -2]] * workers).tolist() == [workers, -2 * workers]


@pytest.mark.parametrize(("rules", "expected"), [
    ((Rule.SGD,), (0, 6, 9, 12)), ((Rule.MOMENTUM,), (1, 7, 10, 13)), ((Rule.SGD, Rule.MOMENTUM), (1, 7, 10, 13))])
def test_times(rules, expected):
    """A product takes 3 cycles, rounding 1 and saturation 2. The state takes 1 more cycle; then another product,
    rounding and saturation follow."""
    model = Fixed(rules=rules)
    assert (model.planes, model.step, model.weight, model.latency) == expected
    assert (model.state, model.new_state) == ((0,) * expected[0], (expected[1],) * expected[0])
    assert [model.summing(workers) for workers in range(1, 9)] == [0, 1, 2, 2, 3, 3, 3, 3]


def test_planes_that_are_not_used():
    """Planes of state that a rule does not use stay unchanged."""
    settings = FixedSettings(Rule.SGD, ONE, ONE, ONE)
    _, (state,) = update([5], [0], [[7]], settings, width=8)
    assert state.tolist() == [7]
    assert settings.planes == 0
