# amaranth: UnusedElaboratable=no
import numpy as np
import pytest

from hdl.floating.format import BF16, FP16, FP32
from hdl.floating.square_root import FloatSquareRoot
from sim.golden import floating
from tests.hdl.floating import operands, pipeline
from tests.refusals import refused_values

NARROW = [(4, 3), (5, 2), (2, 5), (2, 1), (3, 1), (3, 7), (4, 6)]
ONE, TWO, FOUR, NINE, ROOT = 0x3F800000, 0x40000000, 0x40800000, 0x41100000, 0x3FB504F3
SIGN, INFINITY, NAN = 0x80000000, 0x7F800000, 0x7FC00000
LARGEST, SMALLEST_NORMAL, SMALLEST = 0x7F7FFFFF, 0x00800000, 0x00000001

BY_HAND = [
    (ONE, ONE), (TWO, ROOT), (FOUR, TWO), (NINE, 0x40400000), (0x3F000000, 0x3F3504F3), (0x3E800000, 0x3F000000),
    (ONE + 1, ONE), (ONE + 2, ONE + 1), (ONE - 1, ONE - 1), (ONE - 2, ONE - 1), (FOUR - 1, TWO - 1),
    (0x4B7FFFFE, 0x457FFFFF), (SMALLEST, 0x1A3504F3), (2, 0x1A800000), (8, 0x1B000000), (SMALLEST_NORMAL, 0x20000000),
    (SMALLEST_NORMAL - 1, 0x1FFFFFFF), (LARGEST, 0x5F7FFFFF), (0, 0), (SIGN, SIGN), (INFINITY, INFINITY),
    (SIGN | INFINITY, NAN), (SIGN | SMALLEST, NAN), (SIGN | ONE, NAN), (SIGN | LARGEST, NAN), (NAN, NAN),
    (INFINITY + 1, NAN), (0xFFFFFFFF, NAN), (0xFF800001, NAN),
]


def squares():
    """Return the exact squares of all 12-bit numbers, in every scale, and their neighbours."""
    exact = np.arange(1, 1 << 12, dtype=np.float64) ** 2
    scales = 2.0 ** np.arange(-148, 104, 2)
    bits = np.outer(scales, exact).ravel().astype(np.float32).view(np.uint32)
    return np.concatenate([bits - np.uint32(1), bits, bits + np.uint32(1)])


def near_halves(generator, count=operands.COUNT):
    """Draw numbers next to the exact square of a midpoint between adjacent numbers."""
    half = 2 * generator.integers(1 << 23, 1 << 24, count) + 1
    square = half * half
    odd = square >> 49
    significand = (square >> (25 + odd)) + generator.integers(0, 2, count)
    # The exponent field is written minus one, since the hidden bit of the significand adds one.
    field = 2 * generator.integers(0, 127, count) + odd
    return ((field << 23) + significand).astype(np.uint32)


def golden_cases():
    """Return a smaller set of operands that covers all kinds of numbers."""
    generator = np.random.default_rng(1)
    random = operands.uniform(FP32, generator, 1 << 12)
    return np.concatenate([squares()[::97], near_halves(generator, 1 << 12), *random]),


def every_kind(generator):
    """Draw numbers of all kinds."""
    drawn = [np.array(BY_HAND, np.uint32).T[0], operands.corners(FP32), squares()[::7], near_halves(generator)[::7],
             *(draw(FP32, generator, 1 << 17)[0]
               for draw in (operands.uniform, operands.near_exponents, operands.near_borders)),
             np.arange(0, 1 << 23, 61, dtype=np.uint32)]
    return np.concatenate(drawn),


BENCH = pipeline.Operation(FloatSquareRoot, floating.square_root, floating.square_root_exact, np.sqrt, ports="a")
test_format = BENCH.formats()
test_interval = refused_values(FloatSquareRoot, {}, "interval", [0, 3, 16, None], "Interval must be 1, 2, 4 or 8")
test_latency = BENCH.latencies([(FP32, 21), (FP16, 11), (BF16, 8)])
test_by_hand = BENCH.by_hand(BY_HAND)
test_golden = BENCH.golden(golden_cases)
test_random = BENCH.random(operands.uniform, operands.near_exponents, operands.near_borders)
test_borders = BENCH.sets(lambda: (squares(),), lambda: (near_halves(np.random.default_rng(1)),))
test_exhaustive = BENCH.exhaustive(NARROW)
test_half = BENCH.halves()
test_other_format = BENCH.others([(5, 20), (9, 22), (2, 12), (3, 25)], operands.near_borders)
test_in_turns = BENCH.in_turns({2: 27, 4: 25, 8: 29}, every_kind)
test_exhaustive_in_turns = BENCH.exhaustive_in_turns([2, 4, 8], NARROW)
test_timing = BENCH.timing()


@pytest.mark.parametrize("first", [0, ONE, TWO], ids=["subnormal", "odd", "even"])
def test_every_significand(first):
    """Square roots are correct for all subnormals, and for every significand with an odd and an even exponent."""
    for begin in range(first, first + (1 << 23), operands.COUNT):
        a = np.arange(begin, begin + operands.COUNT, dtype=np.uint32)
        BENCH.check((a,), floating.square_root(a))
