import ml_dtypes
import numpy as np
import pytest

from hdl.floating.format import BF16, FP32
from host.features.codebook.codebooks import mantissa_centroids
from sim.golden import planes
from sim.golden.features.table.lookup_table import LookupTable
from tests.refusals import refuses

#: Zeros, infinities, NaNs and subnormal numbers of both signs, and their neighbours.
CORNERS = np.array([0, 1, 0x0000_0800, 0x0040_0000, 0x007F_FFFF, 0x0080_0000, 0x3F80_0000, 0x3FFF_FFFF, 0x7F7F_FFFF,
                    0x7F80_0000, 0x7F80_0001, 0x7FBF_FFFF, 0x7FC0_0000, 0x7FFF_FFFF], np.uint32)
CORNERS = np.concatenate([CORNERS, CORNERS | 0x8000_0000])


def gaussian(count=4096, sigma=0.02, seed=0):
    """Draw Gaussian weights as bit patterns."""
    return (np.random.default_rng(seed).standard_normal(count) * sigma).astype(np.float32).view(np.uint32)


def known_weights():
    """4,096 weights with 16 distinct exponents, as the expected ratios require."""
    seed = next(seed for seed in range(100) if len(np.unique(gaussian(seed=seed) >> 23 & 0xFF)) == 16)
    return gaussian(seed=seed)


def relative_error(elements, decoded):
    exact, got = (bits.view(np.float32).astype(np.float64) for bits in (elements, decoded))
    return (np.abs(got - exact) / np.abs(exact)).max()


# --- parameters


def test_parameters():
    refuses("Mantissa count must be 8, 16, 32, 64 or 128, not 12", LookupTable, mantissas=12)
    refuses("Loading must be False without centroids, not True", LookupTable, loaded=True)


def test_errors():
    table = LookupTable(mantissas=8, centroids=True, exponents=16)
    for centroids, message in (
            (None, "Centroids must be given for a table of centroids, not None"),
            ([0, 1, 2, 3, 4, 5, 7, 7], "Centroids must be 8 in ascending order, not [0, 1, 2, 3, 4, 5, 7, 7]"),
            ([0, 1, 2, 3, 4, 5, 6, 1 << 23], "Centroids must be of 23 bits, not 8388608")):
        refuses(message, table.encode, [1], centroids)
    plain = LookupTable(exponents=16)
    refuses("Elements must be at least one, not none", plain.encode, [])
    refuses("Distinct exponents must be at most 16, not 17", plain.encode, np.arange(17) << 23)
    refuses("Exponents must be at most 16 in ascending order, not [3, 2]", plain.decode, [0x0203])
    refuses("Stream must hold a table of exponents, not end inside of it", plain.decode, [0x0403_0201])
    refuses("Element count must end in the last group of 32 elements, not 33", plain.decode, plain.encode([1]), 33)
    refuses("Exponent index must be less than 3, not 3", plain.elements, [3 << 6], [1, 2, 3])


# --- known answers


@pytest.mark.parametrize(("mantissas", "ratio", "error"), [(8, 3.96, 0.054), (16, 3.51, 0.026), (32, 3.13, 0.015)])
def test_known_ratios(mantissas, ratio, error):
    """The formula and the encoder give the expected ratios; errors are close to known errors of similar weights."""
    weights = known_weights()
    table = LookupTable(mantissas=mantissas, centroids=True)
    words = table.encode(weights, mantissa_centroids(weights, table))
    assert len(words) == table.words(4096, 16)
    assert round(32 * 4096 / table.bits(4096, 16), 2) == round(4096 / len(words), 2) == ratio
    assert relative_error(weights, table.decode(words)) == pytest.approx(error, abs=0.006)


def test_32_centroids_reach_three():
    weights = known_weights()
    table = LookupTable(centroids=True)
    words = table.encode(weights, mantissa_centroids(weights, table))
    assert len(weights) / len(words) >= 3.0
    decoded = table.decode(words)
    np.testing.assert_array_equal(decoded >> 23, weights >> 23)


def test_one_group_by_hand():
    """Known group of 1.0, -1.5, 0.0 and 2.0: eight bins, 2-bit exponents (0, 127 and 128), 6-bit codes."""
    table = LookupTable(mantissas=8)
    words = table.encode(np.array([1, -1.5, 0, 2], np.float32).view(np.uint32))
    assert words[0] == 128 << 24 | 128 << 16 | 127 << 8 | 0
    sign, mantissa, exponent = [0, 1, 0, 0], [0, 4, 0, 0], [1, 1, 0, 2]
    codes = [s | m << 1 | e << 4 for s, m, e in zip(sign, mantissa, exponent, strict=True)]
    np.testing.assert_array_equal(words[1:], planes.pack(codes, 6))
    middle = 1 / 16
    assert table.decode(words, 4).view(np.float32).tolist() == [1 + middle, -1.5 - middle, 0, 2 + 2 * middle]


# --- exact components


@pytest.mark.parametrize("centroids", [False, True])
@pytest.mark.parametrize("mantissas", [8, 32, 128])
def test_exact_parts(mantissas, centroids):
    """Exponents, signs, zeros and infinities are preserved; no other number becomes zero or infinite."""
    generator = np.random.default_rng(mantissas)
    elements = np.concatenate([CORNERS, generator.integers(0, 1 << 32, 20_000, dtype=np.uint32), gaussian()])
    table = LookupTable(mantissas=mantissas, centroids=centroids)
    chosen = None
    if centroids:
        spacing = (1 << 23) // mantissas
        chosen = np.arange(mantissas) * spacing + generator.integers(0, spacing // 2, mantissas)
        chosen[0] = 0  # a centroid of 0 does not make a number zero
    words = table.encode(elements, chosen)
    assert len(words) == table.words(len(elements), len(np.unique(elements >> 23 & 0xFF)))
    decoded = table.decode(words, len(elements))
    np.testing.assert_array_equal(decoded >> 23, elements >> 23)
    exponents = elements >> 23 & 0xFF
    special = (exponents == 0) | (exponents == 255)
    np.testing.assert_array_equal((decoded & 0x7F_FFFF == 0)[special], (elements & 0x7F_FFFF == 0)[special])
    np.testing.assert_array_equal(table.decode(table.encode(decoded, chosen), len(elements)), decoded)


@pytest.mark.parametrize("mantissas", [8, 16, 32, 64, 128])
def test_bins_are_bounded(mantissas):
    """The relative error of a decoded number is at most half the width of its bin."""
    elements = gaussian()
    assert relative_error(elements, LookupTable(mantissas=mantissas).decode(
        LookupTable(mantissas=mantissas).encode(elements))) <= 1 / (2 * mantissas)


def test_bf16_is_without_loss():
    """With 128 bins, one per bfloat16 fraction, all 65,536 encodings are restored."""
    elements = np.arange(1 << 16, dtype=np.uint32)
    table = LookupTable(format=BF16, mantissas=128)
    np.testing.assert_array_equal(table.decode(table.encode(elements)), elements)
    assert table.code_width(256) == 16


def test_bf16_against_ml_dtypes():
    """Decoded bfloat16 weights are within half a bin of the originals."""
    weights = (np.random.default_rng(1).standard_normal(4096) * 0.02).astype(ml_dtypes.bfloat16)
    table = LookupTable(format=BF16, mantissas=16)
    decoded = table.decode(table.encode(weights.view(np.uint16))).astype(np.uint16).view(ml_dtypes.bfloat16)
    assert (np.abs(decoded.astype(np.float64) - weights.astype(np.float64))
            <= np.abs(weights.astype(np.float64)) / 32).all()


@pytest.mark.parametrize("format", [FP32, BF16])
def test_nearest_centroid(format):
    """The chosen centroid is the nearest one, up to the precision of the compared bits."""
    table = LookupTable(format=format, mantissas=16, centroids=True)
    generator = np.random.default_rng(1)
    for _ in range(20):
        centroids = np.sort(generator.choice(1 << format.fraction_bits, 16, replace=False)).astype(np.int64)
        fractions = generator.integers(0, 1 << format.fraction_bits, 3_000)
        indices = table.mantissa_indices(fractions | 1 << format.fraction_bits, centroids)
        distances = np.abs(fractions[:, np.newaxis] - centroids)
        chosen = distances[np.arange(len(fractions)), indices]
        assert (chosen - distances.min(axis=1) <= (1 << table.compared_shift) * (format is FP32)).all()


def test_loaded_centroids():
    """Packets with and without centroids are decoded identically; before a load, all centroids are zero."""
    generator = np.random.default_rng(1)
    weights = (generator.standard_normal(300) * 0.02).astype(np.float32).view(np.uint32)
    centroids = np.sort(generator.choice(1 << 23, 32, replace=False)).astype(np.uint32)
    sent, loaded = LookupTable(centroids=True), LookupTable(centroids=True, loaded=True)
    words = loaded.encode(weights, centroids)
    exponents = len(np.unique(loaded.exponents_of(weights)))
    assert len(words) == loaded.words(300, exponents) < sent.words(300, exponents)
    expected = sent.decode(sent.encode(weights, centroids), 300)
    assert loaded.decode(words, 300, centroids).tolist() == expected.tolist()
    zeros = np.zeros(32, np.uint32)
    assert loaded.bounds(zeros).tolist() == [0] * 31
    powers = loaded.decode(loaded.encode(weights, zeros), 300, zeros)
    assert (powers == weights & np.uint32(0xFF80_0000)).all()
    with pytest.raises(ValueError, match=r"^Centroids must be 32 in ascending order, not \["):
        loaded.bounds(centroids[::-1])
