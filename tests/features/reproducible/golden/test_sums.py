"""Reproducible sums: known sums, exact fractions, and independence of order, splits and number of nodes."""

from fractions import Fraction

import numpy as np
import pytest

from sim.golden import ring
from sim.golden.codecs import CODECS
from sim.golden.features.reproducible.sums import (
    GROUP,
    Addend,
    addend_bits,
    checksum,
    exponent_fields,
    group_starts,
    quantize,
    residual,
    round_sum,
    special_flags,
    sum_of,
)
from tests.recorded import MODELS, gradients

#: Relative squared errors for sums of Gaussian numbers, keyed by width and number of addends: design figures.
ERRORS = {32: {2: 7.7e-16, 4: 6.8e-16, 8: 6.5e-16, 16: 7.0e-16, 32: 9.1e-16},
          24: {2: 8.1e-14, 4: 3.8e-13, 8: 1.9e-12, 16: 7.6e-12, 32: 2.9e-11},
          16: {2: 5.1e-9, 4: 2.4e-8, 8: 1.2e-7, 16: 4.9e-7, 32: 1.9e-6},
          12: {2: 1.3e-6, 4: 6.4e-6, 8: 3.1e-5, 16: 1.3e-4, 32: 4.8e-4}}


def bits(values):
    return np.asarray(values, np.float32).view(np.uint32)


def numbers(seed, shape):
    """Draw numbers of all exponents, including subnormals, zeros of both signs, and similar exponents."""
    generator = np.random.default_rng(seed)
    patterns = generator.integers(0, 2 ** 32, shape, dtype=np.uint32)
    similar = generator.standard_normal(shape).astype(np.float32).view(np.uint32)
    values = np.where(generator.random(shape) < 0.5, patterns, similar)
    values[generator.random(shape) < 0.1] &= 0x8000_0000
    values[generator.random(shape) < 0.1] &= 0x807F_FFFF
    return np.where(np.isfinite(values.view(np.float32)), values, 0).astype(np.uint32)


def nearest_even(number):
    """Round a fraction to the nearest integer, with ties to even."""
    return round(number)


def test_bits_of_addends():
    assert [addend_bits(32, count) for count in (1, 2, 3, 4, 5, 8)] == [32, 31, 30, 30, 29, 29]
    for width, count, text in ((3, 1, "Width of a sum must be an integer between 4 and 32, not 3"),
                               (33, 1, "Width of a sum must be an integer between 4 and 32, not 33"),
                               (12, 0, "Number of addends must be an integer between 1 and 1024, not 0"),
                               (12, 1025, "Number of addends must be an integer between 1 and 1024, not 1025")):
        with pytest.raises(ValueError, match=f"^{text}$"):
            addend_bits(width, count)


def test_by_hand():
    """Known four-bit integers for numbers below 2**1: in units of 1/4, with ties to even and a limit of 7/4."""
    values = bits([1.0, 0.125, 0.375, -0.875, 1.96875, -1.9999, 0.0])
    starts = group_starts([len(values)])
    fields = exponent_fields(values, starts)
    assert fields.tolist() == [127]
    integers = quantize(values, fields, starts, 4)
    assert integers.tolist() == [4, 0, 2, -4, 7, -7, 0]
    lost = residual(values, integers, fields, starts, 4).view(np.float32)
    assert lost.tolist() == [0, 0.125, -0.125, 0.125, 0.21875, np.float32(-1.9999) + 1.75, 0]
    assert round_sum(integers, fields, starts, 4).view(np.float32).tolist() == [1, 0, 0.5, -1, 1.75, -1.75, 0]


def test_groups():
    """The first element of each parameter starts a group."""
    assert group_starts([64, 33, 0, 1]).tolist() == [0, 32, 64, 96, 97]
    assert group_starts([]).tolist() == []
    values = bits([1.0] * 32 + [4.0, 2.0])
    assert exponent_fields(values, group_starts([34])).tolist() == [127, 129]
    assert exponent_fields(values, group_starts([1, 33])).tolist() == [127, 129, 128]


@pytest.mark.parametrize("width", [4, 12, 16, 24, 25, 26, 32])
def test_exact(width):
    """Integers, residuals and sums equal the results computed with exact fractions."""
    addends = numbers(width, (3, 96))
    starts, count = group_starts([40, 56]), addend_bits(width, 3)
    fields = exponent_fields(addends, starts).max(axis=0)
    each = np.repeat(fields, np.diff([*starts, 96]))
    integers = np.array([quantize(addend, fields, starts, count) for addend in addends])
    limit = 2 ** (count - 1) - 1
    for addend, row in zip(addends, integers, strict=True):
        lost = residual(addend, row, fields, starts, count).view(np.float32)
        for value, integer, field, rest in zip(addend.view(np.float32), row, each, lost, strict=True):
            unit = Fraction(2) ** (int(field) - 125 - count)
            exact = Fraction(float(value)) / unit
            assert integer == max(-limit, min(limit, nearest_even(exact)))
            assert Fraction(float(rest)) == Fraction(float(value)) - int(integer) * unit
    totals = round_sum(integers.sum(axis=0), fields, starts, count).view(np.float32)
    for total, exact, field in zip(totals, integers.sum(axis=0), each, strict=True):
        unit = Fraction(2) ** (int(field) - 125 - count)
        assert abs(int(exact)) < 2 ** (width - 1)
        if np.isfinite(total):
            error = abs(Fraction(float(total)) - int(exact) * unit)
            assert error * 2 <= Fraction(float(np.spacing(np.abs(total))))
        else:
            assert abs(int(exact)) * unit >= (2 - Fraction(1, 2 ** 24)) * 2 ** 127


def test_exponents():
    """A group's exponent is the exponent of its largest finite element; zeros have the exponent of subnormals."""
    for values, field in (([0.0, -0.0], 1), ([1e-45], 1), ([np.inf, np.nan, -0.75], 126), ([3e38], 254)):
        assert exponent_fields(bits(values), group_starts([len(values)])).tolist() == [field]
    with pytest.raises(ValueError, match=r"^Exponent of a group must be at least that of each of its elements$"):
        quantize(bits([1.0]), np.array([126]), group_starts([1]), 16)


def test_infinities():
    """Infinities and NaNs affect only their own elements; neighbouring elements are unchanged."""
    addends = numbers(5, (4, 2 * GROUP)) & 0xBFFF_FFFF  # all magnitudes are below 2
    plain = sum_of(addends, width=16)
    for row, column, value in ((0, 3, np.inf), (1, 4, -np.inf), (2, 5, np.nan), (0, 6, np.inf), (3, 6, -np.inf)):
        addends[row, column] = bits([value])[0]
    expected = plain.copy()
    expected[3:7] = bits([np.inf, -np.inf, np.nan, np.nan])
    others = np.delete(np.arange(GROUP), [3, 4, 5, 6])
    finite = np.where(np.isfinite(addends.view(np.float32)), addends, 0).astype(np.uint32)
    assert (sum_of(addends, width=16)[3:7] == expected[3:7]).all()
    assert (sum_of(addends, width=16)[others] == sum_of(finite, width=16)[others]).all()
    assert (sum_of(addends, width=16)[GROUP:] == plain[GROUP:]).all()


def test_overflow():
    """Sums above the largest number become infinities, and zero sums become +0."""
    largest = bits([3.4028235e38, -3.4028235e38, 1.5, -0.0])
    pairs = np.array([largest, largest])
    pairs[1, 2] ^= 0x8000_0000
    assert sum_of(pairs, width=32).view(np.float32).tolist() == [np.inf, -np.inf, 0, 0]
    assert not sum_of(pairs, width=32)[2:].any()


@pytest.mark.parametrize("count", range(2, 9))
def test_orders(count):
    """Sums have the same bits for twenty permutations of the nodes, both in tree order and in ring order."""
    generator = np.random.default_rng(count)
    addends = numbers(count, (count, 333))
    starts, size = group_starts([333]), addend_bits(16, count)
    fields = exponent_fields(addends, starts).max(axis=0)
    expected = sum_of(addends, width=16)
    parts = [Addend(quantize(addend, fields, starts, size), *special_flags(addend)) for addend in addends]
    for _ in range(20):
        assert (sum_of(generator.permutation(addends), width=16) == expected).all()
        trees = [parts[index] for index in generator.permutation(count)]
        while len(trees) > 1:
            first, second = (trees.pop(int(generator.integers(len(trees)))) for _ in range(2))
            trees.append(first + second)
        assert (round_sum(trees[0].integers, fields, starts, size) == expected).all()


@pytest.mark.parametrize("cut", [32, 160, 1_000, 4_000])
def test_cuts(cut):
    """Parameters of odd sizes give the same sums, however they are assigned to buckets and ordered."""
    generator = np.random.default_rng(cut)
    lengths = [int(size) for size in generator.integers(1, 700, 40)]
    addends = numbers(cut, (4, sum(lengths)))
    expected = sum_of(addends, width=24, lengths=lengths)
    ends = np.cumsum([0, *lengths])
    order = generator.permutation(len(lengths))
    buckets, filled = [[]], 0
    for parameter in order:
        buckets[-1].append(parameter)
        filled += lengths[parameter]
        if filled >= cut:
            buckets, filled = [*buckets, []], 0
    for bucket in filter(None, buckets):
        index = np.concatenate([np.arange(ends[parameter], ends[parameter + 1]) for parameter in bucket])
        sums = sum_of(addends[:, index], width=24, lengths=[lengths[parameter] for parameter in bucket])
        assert (sums == expected[index]).all()


@pytest.mark.parametrize("cut", [32, 160, 1_000, 4_000])
def test_cut_vector(cut):
    """A vector that is split at multiples of whole groups gives the same sums."""
    addends = numbers(cut + 1, (3, 4_321))
    step = cut // GROUP * GROUP
    parts = [sum_of(addends[:, first:first + step], width=32) for first in range(0, 4_321, step)]
    assert (np.concatenate(parts) == sum_of(addends, width=32)).all()


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 8, 16])
def test_numbers_of_nodes(nodes):
    """Sixteen microbatches give the same sum on any number of nodes, even with unequal shares."""
    generator = np.random.default_rng(7)
    addends = numbers(7, (16, 500))
    starts, size = group_starts([500]), addend_bits(24, 16)
    shares = np.array_split(generator.permutation(16), nodes)
    fields = np.max([exponent_fields(addends[share], starts).max(axis=0) for share in shares], axis=0)
    totals = [sum(quantize(addend, fields, starts, size) for addend in addends[share]) for share in shares]
    assert (round_sum(np.sum(totals, axis=0), fields, starts, size) == sum_of(addends, width=24)).all()


@pytest.mark.parametrize("width", ERRORS)
def test_errors(width):
    """Relative squared errors are below 1.2 times the values in ``ERRORS``."""
    for count, figure in ERRORS[width].items():
        values = np.random.default_rng(count).standard_normal((count, 64 * 1024)).astype(np.float32)
        exact = values.astype(np.float64).sum(axis=0)
        error = sum_of(values.view(np.uint32), width=width).view(np.float32) - exact
        assert (error ** 2).sum() / (exact ** 2).sum() < 1.2 * figure, count


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("width", ERRORS)
def test_errors_of_recorded_gradients(width, model):
    """The median error of sums of recorded gradients is below 1.2 times that of four Gaussian addends; the largest
    error is below 6 times that."""
    rows, starts = gradients(model).rows()
    total = sum_of(rows.view(np.uint32), width=width).view(np.float32)
    exact = rows.astype(np.float64).sum(axis=0)
    errors = [((total - exact)[part] ** 2).sum() / (exact[part] ** 2).sum()
              for part in map(slice, starts, [*starts[1:], None])]
    assert np.median(errors) < 1.2 * ERRORS[width][4]
    assert max(errors) < 6 * ERRORS[width][4]


@pytest.mark.parametrize("count", [2, 4, 8, 16])
def test_errors_of_floats(count):
    """Squared errors of 32-bit sums are at most those of binary32 sums, or 1.1 times those for two addends."""
    values = np.random.default_rng(count).standard_normal((count, 64 * 1024)).astype(np.float32)
    exact = values.astype(np.float64).sum(axis=0)
    floats = values[0]
    for row in values[1:]:
        floats = floats + row
    error = ((sum_of(values.view(np.uint32), width=32).view(np.float32) - exact) ** 2).sum()
    assert error <= (1.1 if count == 2 else 1) * ((floats - exact) ** 2).sum()


def test_checksums():
    """The checksum of a sum is the sum of the addends' checksums, and every flipped bit changes it."""
    generator = np.random.default_rng(3)
    parts = generator.integers(-2 ** 29, 2 ** 29, (4, 64))
    total = parts.sum(axis=0)
    sums = [sum(column) % 2 ** 32 for column in zip(*map(checksum, parts), strict=True)]
    assert [*checksum(total)] == sums
    assert checksum(np.array([1, 2, 3])) == (6, 1 + 3 + 6)
    for index in range(64):
        for bit in range(32):
            flipped = total.copy()
            flipped[index] ^= 1 << bit
            assert checksum(flipped) != checksum(total)
    swapped = total.copy()
    swapped[[3, 4]] = swapped[[4, 3]]
    assert checksum(swapped)[0] == checksum(total)[0]
    assert checksum(swapped) != checksum(total)


def test_sums_in_a_fixed_order():
    """If sums are rounded at each addition, about half depend on the order and on the number of nodes."""
    values = np.random.default_rng(0).standard_normal((8, 8192)).astype(np.float32)

    def sums(rows):
        return ring.all_reduce(rows.view(np.uint32), gradient_codec=CODECS["raw"])[0]

    rotated = sums(np.roll(values[:4], 1, axis=0)) != sums(values[:4])
    fewer = sums(values) != sums(values[:4] + values[4:])
    assert 0.35 < rotated.mean() < 0.65
    assert 0.35 < fewer.mean() < 0.65
