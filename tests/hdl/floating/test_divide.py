# amaranth: UnusedElaboratable=no
import functools
import operator

import numpy as np

from hdl.floating.divide import FloatDivider
from hdl.floating.format import BF16, FP16, FP32
from sim.golden import floating
from tests.hdl.floating import operands, pipeline
from tests.refusals import refused_values

NARROW = [(4, 3), (5, 2), (2, 5), (2, 1)]
ONE, TWO, THREE, HALF, THIRD = 0x3F800000, 0x40000000, 0x40400000, 0x3F000000, 0x3EAAAAAB
SIGN, INFINITY, NAN = 0x80000000, 0x7F800000, 0x7FC00000
LARGEST, SMALLEST_NORMAL, SMALLEST = 0x7F7FFFFF, 0x00800000, 0x00000001

BY_HAND = [
    (ONE, THREE, THIRD), (THREE, TWO, 0x3FC00000), (SIGN | ONE, TWO, SIGN | HALF), (0x3FFFFFFF, 0x3FFFFFFE, ONE | 1),
    (SMALLEST, TWO, 0), (3, TWO, 2), (5, TWO, 2), (SMALLEST, 0x3FFFFFFF, SMALLEST), (SIGN | SMALLEST, LARGEST, SIGN),
    (SMALLEST_NORMAL, TWO, 0x00400000), (0x00FFFFFF, TWO, SMALLEST_NORMAL), (0x00FFFFFD, TWO, 0x007FFFFE),
    (SMALLEST, SMALLEST, ONE), (3, SMALLEST, THREE), (SMALLEST, SMALLEST_NORMAL, 0x34000000),
    (LARGEST, HALF, INFINITY), (LARGEST, 0x3F7FFFFF, INFINITY), (LARGEST, SIGN | SMALLEST, SIGN | INFINITY),
    (0x7F7FFFFE, 0x3F7FFFFF, LARGEST), (0x7F000000, 0x3F800001, 0x7EFFFFFE),
    (0, ONE, 0), (SIGN, ONE, SIGN), (0, SIGN | INFINITY, SIGN), (ONE, SIGN | INFINITY, SIGN),
    (ONE, 0, INFINITY), (ONE, SIGN, SIGN | INFINITY), (INFINITY, 0, INFINITY),
    (SIGN | INFINITY, LARGEST, SIGN | INFINITY), (0, 0, NAN), (SIGN, 0, NAN), (INFINITY, SIGN | INFINITY, NAN),
    (0xFFFFFFFF, ONE, NAN), (INFINITY, 0x7F800001, NAN),
    (0, 0x7F800001, NAN),
]


def near_quotients(generator, count=operands.COUNT):
    """Pairs with quotients near the smallest subnormal, the smallest normal and the largest number."""
    format = FP32
    a, b = operands.near_borders(format, generator, count)
    # Negate the exponent of the second factor, so that the quotient instead of the product is near a border.
    field = b >> np.uint32(format.fraction_bits) & np.uint32(format.exponent_ones)
    mirrored = np.clip(2 * format.bias - field.astype(np.int64), 0, format.exponent_ones - 1).astype(np.uint32)
    rest = np.uint32(1 << (format.width - 1) | ((1 << format.fraction_bits) - 1))
    return a, b & rest | mirrored << np.uint32(format.fraction_bits)


def near_halves(generator, count=operands.COUNT):
    """Pairs with quotients just above or below a number or the midpoint of two numbers.

    The lowest bit of a 25-bit quotient is half a unit in the last place. A small remainder is chosen, and the inverse
    of the divisor modulo 2 ** 25 then gives the quotient.
    """
    divisor = generator.integers(1 << 22, 1 << 23, count).astype(np.uint64) * np.uint64(2) + np.uint64(1)
    remainder = generator.integers(1, 8, count) * generator.choice([-1, 1], count)
    inverse = divisor.copy()
    for _ in range(4):
        inverse *= np.uint64(2) - divisor * inverse
    quotient = (-remainder).astype(np.uint64) * inverse % np.uint64(1 << 25)
    dividend = (quotient.astype(np.int64) * divisor.astype(np.int64) + remainder) >> 25
    scale = 2.0 ** generator.integers(-20, 20, (2, count))
    return tuple((significand * factor).astype(np.float32).view(np.uint32)
                 for significand, factor in ((dividend, scale[0]), (divisor.astype(np.int64), scale[1])))


def halves(generator, count=operands.COUNT):
    """Pairs with quotients halfway between two subnormal numbers, and the same with neighbouring dividends.

    The quotient has few bits, with a one below the last place; the dividend is the quotient times a short divisor.
    """
    bits = generator.integers(2, 13, count)
    quotient = 2 * generator.integers(0, 1 << (bits - 1)) + 1
    divisor = 2 * generator.integers(0, 1 << 11, count) + 1
    a = (quotient * divisor).astype(np.float64) * 2.0 ** -80
    b = divisor.astype(np.float64) * 2.0 ** (150 - 80)
    offset = generator.integers(-1, 2, count).astype(np.int64)
    return ((a.astype(np.float32).view(np.uint32) + offset).astype(np.uint32), b.astype(np.float32).view(np.uint32))


def itself():
    """Pairs of equal or neighbouring numbers, whose quotients are 1 or next to 1."""
    b = np.random.default_rng(1).integers(1, FP32.infinity - 1, operands.COUNT, dtype=np.uint32)
    return np.concatenate([b - np.uint32(1), b, b + np.uint32(1)]), np.tile(b, 3)


def every_kind(generator):
    """Draw pairs of operands of all kinds."""
    count = 1 << 17
    drawn = [np.array(BY_HAND, np.uint32).T[:2], operands.pairs(operands.corners(FP32)[::3]),
             *(draw(FP32, generator, count)
               for draw in (operands.uniform, operands.near_exponents, operands.near_borders)),
             *(draw(generator, count) for draw in (near_quotients, near_halves, halves))]
    return [np.concatenate(values) for values in zip(*drawn, strict=True)]


BORDERS = (near_quotients, near_halves, halves)
BENCH = pipeline.Operation(FloatDivider, floating.divide, floating.divide_exact, operator.truediv)
test_format = BENCH.formats()
test_interval = refused_values(FloatDivider, {}, "interval", [0, 3, 16, None], "Interval must be 1, 2, 4 or 8")
test_latency = BENCH.latencies([(FP32, 23), (FP16, 15), (BF16, 12)])
test_by_hand = BENCH.by_hand(BY_HAND)
test_golden = BENCH.golden(*(functools.partial(draw, np.random.default_rng(1), 1 << 12) for draw in BORDERS))
test_random = BENCH.random(operands.uniform, operands.near_exponents, operands.near_borders)
test_borders = BENCH.sets(*(functools.partial(lambda draw: draw(np.random.default_rng(2)), draw) for draw in BORDERS))
test_divided_by_itself = BENCH.sets(itself)
test_exhaustive = BENCH.exhaustive(NARROW)
test_half = BENCH.halves(operands.uniform, operands.near_exponents, operands.near_borders)
test_other_format = BENCH.others([(5, 20), (9, 22), (2, 12), (3, 25)], operands.near_exponents,
                                 operands.near_borders)
test_in_turns = BENCH.in_turns({2: 33, 4: 35, 8: 31}, every_kind)
test_exhaustive_in_turns = BENCH.exhaustive_in_turns([2, 4, 8], NARROW)
test_timing = BENCH.timing()
