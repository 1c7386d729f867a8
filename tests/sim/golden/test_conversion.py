"""Conversions of formats agree with numpy and ml_dtypes or, if neither supports a format, with exact fractions."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from hdl.floating.format import BF16, FP16, FP32
from sim.golden import conversion
from tests.hdl.floating import operands

HALVES = [(FP16, conversion.to_half, conversion.from_half, np.float16),
          (BF16, conversion.to_bfloat16, conversion.from_bfloat16, ml_dtypes.bfloat16)]
#: Types of numpy and ml_dtypes, keyed by their number of exponent and fraction bits.
NARROW = {(4, 3): ml_dtypes.float8_e4m3, (5, 2): ml_dtypes.float8_e5m2, (3, 4): ml_dtypes.float8_e3m4}
WIDE = {(5, 10): np.float16, (8, 7): ml_dtypes.bfloat16}
TYPES = {**NARROW, **WIDE}


def canonical(values, format):
    exponent_bits, fraction_bits = format
    bits = values.view(np.uint8 if values.dtype.itemsize == 1 else np.uint16).astype(np.uint64)
    nan = (1 << exponent_bits + 1) - 1 << fraction_bits - 1
    return np.where(np.isnan(values), np.uint64(nan), bits)


def every(format):
    """All encodings of a format of at most 16 bits, and their values."""
    bits = np.arange(1 << 1 + sum(format), dtype=np.uint32)
    return bits, bits.astype(np.uint8 if sum(format) < 8 else np.uint16).view(TYPES[format])


# --- conversions between formats


@pytest.mark.parametrize(("format", "narrow", "widen", "dtype"), HALVES)
def test_halves(format, narrow, widen, dtype):
    bits_of = (format.exponent_bits, format.fraction_bits)
    every = np.arange(1 << 16, dtype=np.uint16)
    with np.errstate(all="ignore"):
        values = every.view(dtype).astype(np.float32)
    np.testing.assert_array_equal(
        widen(every), np.where(np.isnan(values), FP32.canonical_nan, values.view(np.uint32)))
    np.testing.assert_array_equal(widen(every), conversion.convert_exact(every, source=bits_of, target=(8, 23)))
    i = operands.borders(widen)
    with np.errstate(all="ignore"):
        values = i.view(np.float32).astype(dtype)
    np.testing.assert_array_equal(narrow(i), np.where(np.isnan(values), format.canonical_nan, values.view(np.uint16)))
    np.testing.assert_array_equal(narrow(i), conversion.convert_exact(i, source=(8, 23), target=bits_of))


@pytest.mark.parametrize("low", [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
def test_every_bfloat16(low):
    """Numbers with any upper half, and a lower half near a tie, are rounded correctly; bfloat16 numbers convert back
    exactly."""
    bits = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16) | np.uint32(low)
    with np.errstate(invalid="ignore"):
        expected = bits.view(np.float32).astype(ml_dtypes.bfloat16)
    got = conversion.to_bfloat16(bits)
    assert got.dtype == np.uint16
    np.testing.assert_array_equal(got, canonical(expected, (8, 7)))
    np.testing.assert_array_equal(conversion.to_bfloat16(conversion.from_bfloat16(got)), got)


@pytest.mark.parametrize("target", TYPES)
@pytest.mark.parametrize("source", TYPES)
def test_every_pair_of_formats(source, target):
    """All numbers of narrow formats, and every fifth number of 16-bit formats, are converted to the nearest number of
    the target format."""
    bits, values = (column[::1 if source in NARROW else 5] for column in every(source))
    with np.errstate(all="ignore"):
        expected = canonical(values.astype(np.float32).astype(TYPES[target]), target)
    got = conversion.convert_exact(bits, source=source, target=target)
    np.testing.assert_array_equal(got, expected)


def fraction(bits, exponent_bits, fraction_bits):
    """Return the exact value of an encoding, or None for infinities and NaNs."""
    field, rest = bits >> fraction_bits & (1 << exponent_bits) - 1, bits & (1 << fraction_bits) - 1
    if field == (1 << exponent_bits) - 1:
        return None
    scale = Fraction(2) ** (max(field, 1) - (1 << exponent_bits - 1) + 1 - fraction_bits)
    return (-1) ** (bits >> exponent_bits + fraction_bits) * ((field > 0) << fraction_bits | rest) * scale


@pytest.mark.parametrize("source", [(2, 1), (2, 5), (3, 2), (6, 1)])
@pytest.mark.parametrize("target", [(2, 1), (2, 3), (3, 1), (5, 2)])
def test_formats_of_no_library(source, target):
    """Numbers round to nearest, ties to even. From half a step above the largest number on, they become infinity."""
    largest = ((1 << target[0]) - 1 << target[1]) - 1
    candidates = [fraction(bits, *target) for bits in range(largest + 1)]
    candidates.append(2 * candidates[-1] - candidates[-2])
    patterns = np.arange(1 << 1 + sum(source))
    for bits, got in zip(patterns.tolist(), conversion.convert_exact(patterns, source=source, target=target).tolist(),
                         strict=True):
        number, sign = fraction(bits, *source), bits >> sum(source)
        if number is None:
            infinite = bits & (1 << source[1]) - 1 == 0
            best = largest + 1 if infinite else largest + 1 | 1 << target[1] - 1
            sign = sign and infinite
        else:
            beyond = min(abs(number), candidates[-1])
            best = min(range(largest + 2), key=lambda index: (abs(beyond - candidates[index]), index % 2))
        assert got == sign << sum(target) | best, (bits, number)


# --- conversions to and from integers


def test_integers_by_hand():
    i = np.array([0x3F000000, 0x3FC00000, 0x40200000, 0xC0200000, 0x4F000000, 0xCF000000, 0x7FC00000], np.uint32)
    integers, invalid = conversion.to_integer(i)
    assert integers.tolist() == [0, 2, 2, -2, (1 << 31) - 1, -1 << 31, 0]
    assert invalid.tolist() == [False, False, False, False, True, False, True]
    # 127.5 rounds to 128, which exceeds 8 bits; -128.5 rounds to -128, which does not; infinities saturate.
    i = np.array([0x42FF_0000, 0x42FE_FFFF, 0xC300_8000, 0xC300_8001, 0x7F80_0000, 0xFF80_0000], np.uint32)
    integers, invalid = conversion.to_integer(i, width=8)
    assert integers.tolist() == [127, 127, -128, -128, 127, -128]
    assert invalid.tolist() == [True, False, False, True, True, True]
    assert [hex(bits) for bits in conversion.from_integer([0, 1, -1, (1 << 24) + 1, (1 << 24) + 3, -1 << 63])] == [
        "0x0", "0x3f800000", "0xbf800000", "0x4b800000", "0x4b800002", "0xdf000000"]


def test_integers():
    i = operands.numbers(np.random.default_rng(1), 20_000)
    for width in (2, 8, 32):
        for got, want in zip(conversion.to_integer(i, width=width), conversion.to_integer_exact(
                i, exponent_bits=8, fraction_bits=23, width=width), strict=True):
            np.testing.assert_array_equal(got, want)
    integers = operands.integer_cases(32, np.random.default_rng(1), 20_000)
    np.testing.assert_array_equal(conversion.from_integer(integers), conversion.from_integer_exact(
        integers, exponent_bits=8, fraction_bits=23))


@pytest.mark.parametrize("width", [2, 5, 8, 64])
@pytest.mark.parametrize("source", [(4, 3), (2, 5), (5, 2), (6, 1)])
def test_every_number_as_an_integer(source, width):
    """Every number rounds to the same integer as Python's exact fractions, with ties to even."""
    bits = np.arange(1 << 1 + sum(source))
    low, high = -1 << width - 1, (1 << width - 1) - 1
    integers, invalid = conversion.to_integer_exact(
        bits, exponent_bits=source[0], fraction_bits=source[1], width=width)
    for pattern, (integer, wrong) in enumerate(zip(integers.tolist(), invalid.tolist(), strict=True)):
        number = fraction(pattern, *source)
        if number is not None:
            assert (integer, wrong) == (min(max(round(number), low), high), not low <= round(number) <= high)
        elif pattern & (1 << source[1]) - 1:
            assert (integer, wrong) == (0, True)
        else:
            assert (integer, wrong) == (low if pattern >> sum(source) else high, True)


@pytest.mark.parametrize("target", TYPES)
def test_integers_as_numbers(target):
    beside = [(1 << 24) - 1, 65519, 65520, 65521]
    integers = np.concatenate([np.arange(-3000, 3000), (1 << np.arange(24)) + 1, beside])
    with np.errstate(over="ignore"):
        expected = integers.astype(np.float32).astype(TYPES[target])
    got = conversion.from_integer_exact(integers, exponent_bits=target[0], fraction_bits=target[1])
    np.testing.assert_array_equal(got, canonical(expected, target))
