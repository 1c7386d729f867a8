"""Dot products of blocks, in exact fractions."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from sim.golden import dot_product as model
from sim.golden import microscaling as mx
from sim.golden import shared_exponent
from sim.golden.block_format import Blocks
from sim.golden.shared_exponent import SharedExponent
from tests.words import bits_of

#: Formats, and the binary logarithm of their smallest number below the exponent 0 as stored: less 127 for the bias,
#: less the bits of a magnitude but one, or what OCP MX says of the smallest number, less the largest difference.
FORMATS = {
    "MX9": (shared_exponent.MX9, -127 - 6 - 1), "MX6": (shared_exponent.MX6, -127 - 3 - 1),
    "MX4": (shared_exponent.MX4, -127 - 1 - 1), "MXINT8": (mx.MXINT8, -127 - 6),
    "MXFP8_E4M3": (mx.MXFP8_E4M3, -127 - 9), "MXFP8_E5M2": (mx.MXFP8_E5M2, -127 - 16),
    "MXFP6_E2M3": (mx.MXFP6_E2M3, -127 - 3), "MXFP6_E3M2": (mx.MXFP6_E3M2, -127 - 4),
    "MXFP4_E2M1": (mx.MXFP4_E2M1, -127 - 1),
    "flat": (SharedExponent(difference_bits=0, mantissa_bits=5), -127 - 4),
    "deep": (SharedExponent(block=32, subset=4, difference_bits=2, mantissa_bits=3), -127 - 2 - 3),
}
TYPES = {"MXFP8_E4M3": ml_dtypes.float8_e4m3fn, "MXFP8_E5M2": ml_dtypes.float8_e5m2,
         "MXFP6_E2M3": ml_dtypes.float6_e2m3fn, "MXFP6_E3M2": ml_dtypes.float6_e3m2fn,
         "MXFP4_E2M1": ml_dtypes.float4_e2m1fn}


@pytest.mark.parametrize("name", FORMATS)
def test_of_decoded_numbers(name):
    """The total, scaled, is the dot product of the decoded numbers."""
    codec, power = FORMATS[name]
    generator = np.random.default_rng(1)
    a, b = (codec.quantise(bits_of(generator.standard_normal(8 * codec.block))) for _ in range(2))
    got = model.dot_product(codec, a, b)
    numbers = [codec.dequantise(blocks).view(np.float32).reshape(-1, codec.block).tolist() for blocks in (a, b)]
    for block, (left, right) in enumerate(zip(*numbers, strict=True)):
        exact = sum(Fraction(x) * Fraction(y) for x, y in zip(left, right, strict=True))
        assert got.totals[block] * Fraction(2) ** (int(got.exponents[block]) + 2 * power) == exact
    assert not got.nan.any()


def test_known():
    """One block of ones with itself, below exponents of 1 and 4: 64 is one, shifted for the differences of both."""
    ones, fours = (shared_exponent.MX9.quantise(bits_of([number] * 16)) for number in (1, 4))
    got = model.dot_product(shared_exponent.MX9, ones, fours)
    assert (got.exponents.tolist(), got.totals) == ([127 + 129], [16 * (64 * 64 << 2)])


def test_differences_by_hand():
    """Pairs of MX4 below their subsets' differences: a number of the second subset counts half."""
    codes = np.array([[3, 0, 2, 5, *[0] * 12]])
    a = Blocks(np.array([100]), np.array([[0, 1, *[0] * 6]]), codes)
    b = Blocks(np.array([90]), np.array([[1, 0, *[0] * 6]]), np.full((1, 16), 1))
    got = model.dot_product(shared_exponent.MX4, a, b)
    # 3 twice times 1, and 2 and -1 times 1 twice.
    assert (got.exponents.tolist(), got.totals, got.nan.tolist()) == ([190], [6 * 1 + 2 * 2 - 1 * 2], [False])
    assert model.dot_product(shared_exponent.MX4, b, a).totals == got.totals


@pytest.mark.parametrize("name", TYPES)
def test_every_code(name):
    """Each code of a format with 16 or 32 of them, alone in their blocks, against the numbers of ml_dtypes."""
    codec, power = FORMATS[name]
    count = 1 << codec.code_bits
    values = np.arange(count, dtype=np.uint8).view(TYPES[name]).astype(np.float64)
    exponents, none = np.full(count, 127), np.zeros((count, 0), np.int64)
    for place, code in enumerate(range(0, count, max(1, count // 32))):
        one, every = np.zeros((count, 32), np.int64), np.zeros((count, 32), np.int64)
        one[:, place % 32], every[:, place % 32] = code, np.arange(count)
        got = model.dot_product(codec, Blocks(exponents, none, one), Blocks(exponents, none, every))
        finite = np.isfinite(values) & np.isfinite(values[code])
        assert got.nan.tolist() == (~finite).tolist()
        totals = np.array(got.totals, object)[finite]
        assert [Fraction(int(total)) * Fraction(2) ** (254 + 2 * power) for total in totals] == [
            Fraction(values[code]) * Fraction(value) for value in values[finite].tolist()]


@pytest.mark.parametrize("name", FORMATS)
def test_nan(name):
    """A block whose exponent says so, on either side; it makes no other one so."""
    codec, _ = FORMATS[name]
    ones = np.ones(3 * codec.block)
    spoilt = ones.copy()
    spoilt[codec.block + 1] = np.inf
    sound, wrong = codec.quantise(bits_of(ones)), codec.quantise(bits_of(spoilt))
    for a, b in ((sound, wrong), (wrong, sound), (wrong, wrong)):
        assert model.dot_product(codec, a, b).nan.tolist() == [False, True, False]
    assert not model.dot_product(codec, sound, sound).nan.any()


def test_totals_of_any_width():
    """32 squares of the largest number of E5M2: more than 64 bits, exactly."""
    codec = mx.MXFP8_E5M2
    codes = np.full((1, 32), codec.largest)
    blocks = Blocks(np.array([254]), np.zeros((1, 0), np.int64), codes)
    assert model.dot_product(codec, blocks, blocks).totals == [32 * (57344 << 16) ** 2]
    negative = Blocks(np.array([0]), np.zeros((1, 0), np.int64), codes | 0x80)
    got = model.dot_product(codec, blocks, negative)
    assert (got.exponents.tolist(), got.totals) == ([254], [-32 * (57344 << 16) ** 2])


# --- cycles


def test_cycles():
    """A pair in every cycle; a result behind the last pair of each block, its latency later."""
    always = np.ones(20, bool)
    trace = model.trace_dot_product(shared_exponent.MX9, 12, lanes=4, latency=5, a_willing=always, b_willing=always,
                                    ready=always)
    for valid, ready in ((trace.a_valid, trace.a_ready), (trace.b_valid, trace.b_ready)):
        assert np.flatnonzero(valid & ready).tolist() == list(range(12))
    assert np.flatnonzero(trace.o_valid).tolist() == [3 + 5, 7 + 5, 11 + 5]
    assert trace.offered[[8, 12, 16]].tolist() == [0, 1, 2]


def test_each_side_waits_for_the_other():
    """A beat is taken when both are on offer."""
    always, late = np.ones(20, bool), np.arange(20) >= 6
    trace = model.trace_dot_product(shared_exponent.MX9, 4, lanes=16, latency=2, a_willing=always, b_willing=late,
                                    ready=always)
    assert trace.a_valid[:6].all()
    assert not trace.a_ready[:6].any()
    assert trace.b_ready[:6].all()
    assert np.flatnonzero(trace.a_valid & trace.a_ready).tolist() == [6, 7, 8, 9]
    assert np.flatnonzero(trace.b_valid & trace.b_ready).tolist() == [6, 7, 8, 9]
    assert np.flatnonzero(trace.o_valid).tolist() == [8, 9, 10, 11]


def test_a_result_that_waits():
    """A result that waits stays on offer, and the pipeline behind it stands still."""
    always, ready = np.ones(20, bool), np.arange(20) >= 10
    trace = model.trace_dot_product(shared_exponent.MX9, 6, lanes=16, latency=2, a_willing=always, b_willing=always,
                                    ready=ready)
    assert trace.offered.tolist()[:16] == [-1, -1, *[0] * 9, 1, 2, 3, 4, 5]
    assert np.flatnonzero(trace.a_valid & trace.a_ready).tolist() == [0, 1, 10, 11, 12, 13]
