from fractions import Fraction

import numpy as np
import pytest

from sim.golden.features.codebook.centroid import CentroidTable
from tests.refusals import refuses
from tests.words import bits_of

COUNTS = (4, 8, 16, 32, 64)


# --- packets


def test_packet_by_hand():
    """A packet has four table words, then two index words; each byte holds low or high bits of eight indices."""
    indices = [0, 1, 2, 3, 3, 0, 0, 1]  # low bits 0101_1001 and high bits 0011_1000, first index in the lowest bit
    words = CentroidTable(centroids=4).encode(indices, [0xAAAA_AAAA, 7, 0, 0xFFFF_FFFF])
    assert words.dtype == np.uint32
    assert words.tolist() == [0xAAAA_AAAA, 7, 0, 0xFFFF_FFFF, 0b0001_1100 << 8 | 0b1001_1010, 0]
    loaded = CentroidTable(centroids=4, loaded=True)
    assert loaded.encode(indices).tolist() == words[4:].tolist()
    # The 17th index is in the third group of eight, which starts at the lowest bits of the second word.
    assert loaded.encode([0] * 16 + [2]).tolist() == [0, 1 << 8]
    # With six-bit indices, each bit of indices 0 and 32 is in the expected byte.
    wide = CentroidTable(centroids=64, loaded=True).encode([0b100101, *[0] * 31, 0b000010])
    assert wide.tolist() == [1 | 1 << 16, 1 << 8, 0, 0, 0, 0, 1 << 8, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("centroids", COUNTS)
def test_round_trip(centroids):
    generator = np.random.default_rng(centroids)
    sent, loaded = CentroidTable(centroids=centroids), CentroidTable(centroids=centroids, loaded=True)
    log = COUNTS.index(centroids) + 2
    for count in (1, 7, 31, 32, 33, 64, 200):
        table = generator.integers(0, 1 << 32, centroids, dtype=np.uint32)
        indices = generator.integers(0, centroids, count)
        indices[0] = centroids - 1
        words = sent.encode(indices, table)
        groups = -(-count // 32)
        assert len(words) == sent.words(count) == centroids + log * groups
        assert loaded.words(count) == log * groups
        assert (sent.bits(count), loaded.bits(count)) == (count * log + 32 * centroids, count * log)
        assert words[:centroids].tolist() == table.tolist()
        assert loaded.encode(indices).tolist() == words[centroids:].tolist()
        assert sent.indices(words).tolist() == [*indices.tolist(), *[0] * (32 * groups - count)]
        expected = [int(table[index]) for index in indices]
        assert sent.decode(words, count).tolist() == expected
        assert loaded.decode(words[centroids:], count, table).tolist() == expected
        assert sent.decode(words).tolist() == expected + [int(table[0])] * (32 * groups - count)


@pytest.mark.parametrize(("centroids", "count", "bits", "words"), [
    (4, 1024, 2176, 68), (16, 1024, 4608, 144), (16, 1, 516, 20), (64, 1000, 8048, 256), (32, 33, 1189, 42)])
def test_sizes(centroids, count, bits, words):
    """Known sizes match the formulas: n log2 k + 32 k bits and k + log2 k ceil(n / 32) words."""
    table = CentroidTable(centroids=centroids)
    assert (table.bits(count), table.words(count)) == (bits, words)
    if count % 32 == 0:
        assert bits == 32 * words


def test_ratio():
    """The compression ratio is 32 n / (n log2 k + 32 k): 7.88 for 128 by 64 weights with 16 centroids."""
    count = 128 * 64
    generator = np.random.default_rng(1)
    words = CentroidTable().encode(generator.integers(0, 16, count), np.zeros(16, np.uint32))
    assert Fraction(count, len(words)) == Fraction(32 * count, 4 * count + 32 * 16) == Fraction(512, 65)


def test_parameters():
    for centroids in (2, 12, 128, "16", None):
        refuses(f"Centroid count must be 4, 8, 16, 32 or 64, not {centroids!r}", CentroidTable, centroids=centroids)
    refuses("Loading must be True or False, not 2", CentroidTable, loaded=2)


def test_errors():
    table, loaded = CentroidTable(centroids=4), CentroidTable(centroids=4, loaded=True)
    for centroids, count in ((None, 0), ([1, 2, 3], 3), ([1, 2, 3, 4, 5], 5)):
        refuses(f"Centroids must be 4, not {count}", table.encode, [0], centroids)
    refuses("Centroids must be 0, not 4", loaded.encode, [0], [1, 2, 3, 4])
    refuses("Indices must be at least one, not none", loaded.encode, [])
    refuses("Indices must be less than 4, not 0 to 4", loaded.encode, [0, 4, 1])
    refuses("Indices must be less than 4, not -1 to 2", loaded.encode, [2, -1])
    words = table.encode([0] * 33, [1, 2, 3, 4])
    for count in (32, 65):
        refuses(f"Element count must end in the last group of 64 elements, not {count}", table.decode, words, count)
    refuses("Packet must be of more than 4 words, not 4", table.decode, words[:4])
    refuses("Packet must be of more than 0 words, not 0", loaded.decode, [], centroids=[1, 2, 3, 4])
    refuses("Words must be a multiple of 2, not 3", table.decode, words[:7])


# --- nearest centroids


@pytest.mark.parametrize(("values", "expected"), [
    # The upper bounds are just above -0.5, 0.5 and 2, since each midpoint belongs to the lower centroid.
    ([-1, 0, 1, 3], [0xBEFF_FFFF, 0x3F00_0001, 0x4000_0001]),
    # The midpoint is zero with either sign, so the bound is the smallest positive number.
    ([-3, -1, 1, 3], [0xBFFF_FFFF, 0x0000_0001, 0x4000_0001]),
    # The midpoints between zero and the smallest numbers are not representable, so one of the bounds is -0.0.
    (np.array([0x8000_0002, 0x8000_0001, 0, 1], np.uint32), [0x8000_0001, 0x8000_0000, 0x0000_0001]),
    # There is no number between the two largest numbers, and their sum is not representable.
    (np.array([0xFF7F_FFFF, 0, 0x7F7F_FFFE, 0x7F7F_FFFF], np.uint32), [0xFEFF_FFFE, 0x7EFF_FFFF, 0x7F7F_FFFF]),
])
def test_bounds_by_hand(values, expected):
    bits = values if isinstance(values, np.ndarray) else bits_of(values)
    assert [hex(bound) for bound in CentroidTable(centroids=4).bounds(bits)] == [hex(bound) for bound in expected]


def exactly(value, centroids):
    """Exact index of the nearest centroid; ties go to the lower centroid. Centroids must be distinct."""
    return min(range(len(centroids)), key=lambda index: (abs(value - centroids[index]), centroids[index]))


def tables(count):
    """Yield codebooks of distinct centroids: Gaussian, evenly spaced, subnormal, and of all magnitudes."""
    generator = np.random.default_rng(count)
    return [np.sort(generator.standard_normal(count)).astype(np.float32), np.linspace(-1, 1, count, dtype=np.float32),
            np.sort(generator.choice(range(-500, 500), count, replace=False).astype(np.float32) * np.float32(2e-45)),
            np.sort(generator.standard_normal(count) * 10.0 ** generator.integers(-40, 38, count)).astype(np.float32)]


@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize("count", COUNTS)
def test_nearest_against_all(count, index):
    """The nearest centroid is correct for random numbers and on both sides of each bound and midpoint."""
    values = tables(count)[index]
    assert len(np.unique(values)) == count
    table = CentroidTable(centroids=count)
    bounds = table.bounds(bits_of(values))
    middles = ((values[1:].astype(np.float64) + values[:-1]) / 2).astype(np.float32)
    near = np.concatenate([bounds.view(np.float32), middles])
    neighbours = [np.nextafter(near, np.float32(end)) for end in (-np.inf, np.inf)]
    any_bits = np.random.default_rng(index).integers(0, 1 << 32, 100, dtype=np.uint32)
    numbers = np.concatenate([near, *neighbours, values, any_bits.view(np.float32)])
    numbers = numbers[np.isfinite(numbers)]
    exact = [Fraction(value) for value in values.tolist()]
    expected = [exactly(Fraction(value), exact) for value in numbers.tolist()]
    assert table.nearest(numbers.view(np.uint32), bounds).tolist() == expected


def test_nearest_of_equal_centroids():
    """If several centroids are equal, any of them may be chosen."""
    values = np.array([-1, -1, 0.5, 0.5, 0.5, 0.5, 2, 2], np.float32)
    table = CentroidTable(centroids=8)
    numbers = np.array([-5, -1, -0.25, -0.2, 0.5, 0.6, 1.25, 1.3, 2, 9], np.float32)
    indices = table.nearest(bits_of(numbers), table.bounds(bits_of(values)))
    assert values[indices].tolist() == [-1, -1, -1, 0.5, 0.5, 0.5, 0.5, 2, 2, 2]


def test_nearest_of_no_numbers():
    """Positive infinities and NaNs map to the last centroid, negative infinities and NaNs to the first."""
    table = CentroidTable(centroids=4)
    bounds = table.bounds(bits_of([-3e38, -1, 1, 3e38]))
    specials = [0x7F80_0000, 0x7FC0_0000, 0x7FFF_FFFF, 0xFF80_0000, 0xFFC0_0000, 0xFFFF_FFFF]
    assert table.nearest(specials, bounds).tolist() == [3, 3, 3, 0, 0, 0]


def test_errors_of_bounds():
    table = CentroidTable(centroids=4)
    refuses("Centroids must be 4, not 3", table.bounds, bits_of([1, 2, 3]))
    for values in ([1, 3, 2, 4], [0, 1, 2, np.inf], [-np.inf, 0, 1, 2], [0, 1, 2, np.nan]):
        refuses("Centroids must be finite numbers in ascending order, not others", table.bounds, bits_of(values))
