"""Codecs for weights and gradients: the words, elements and codebook of each one."""

import ml_dtypes
import numpy as np
import pytest

from hdl.compression.registry import CODECS as GATEWARE
from sim.golden.codecs import CODECS as ALL
from sim.golden.codecs import GRADIENT_CODECS, WEIGHT_CODECS, RawWords
from sim.golden.features.codebook.codec import CentroidCodec
from sim.golden.features.table.codec import TableCodec
from tests.refusals import refuses
from tests.words import bits_of, values_of

#: Number of elements and words in a block, for every codec with packets of fixed length.
BLOCKS = {
    "bf16": (2, 1), "mx9": (16, 4.5), "mx6": (16, 3), "mx4": (16, 2), "bfp8": (16, 4.25), "mxint8": (32, 8.25),
    "mxfp8_e4m3": (32, 8.25), "mxfp8_e5m2": (32, 8.25), "mxfp6_e2m3": (32, 6.25), "mxfp6_e3m2": (32, 6.25),
    "mxfp4_e2m1": (32, 4.25), "centroid16": (32, 4), "centroid64": (32, 6), "mxfp8_e4m3_up": (32, 8.25),
    "mxfp4_e2m1_up": (32, 4.25), "nvfp4": (16, 2.25)}
#: Codecs that come last in the order of codec numbers.
LAST = ["mxfp8_e4m3_up", "mxfp4_e2m1_up", "nvfp4"]
COUNTS = (1, 2, 15, 16, 17, 31, 32, 33, 100, 256)
#: Maximum relative error of numbers from 1/2 to 1: half of the last place, of a bin or of a step.
ERRORS = {"bf16": 2.0 ** -8, "mx9": 2.0 ** -7, "mx6": 2.0 ** -4, "mx4": 2.0 ** -2, "bfp8": 2.0 ** -7,
          "mxint8": 2.0 ** -7, "mxfp8_e4m3": 2.0 ** -3, "mxfp8_e5m2": 2.0 ** -3, "mxfp6_e2m3": 2.0 ** -4,
          "mxfp6_e3m2": 2.0 ** -3, "mxfp4_e2m1": 2.0 ** -2, "table32": 1 / 64,
          "centroid16": 2 / 15, "centroid64": 2 / 63, "mxfp8_e4m3_up": 2.0 ** -4, "mxfp4_e2m1_up": 2.0 ** -2,
          "nvfp4": 1 / 5}
SPECIAL = np.array([0, 0x8000_0000, 1, 0x807F_FFFF, 0x0080_0000, 0x7F7F_FFFF, 0x7F80_0000, 0xFF80_0000, 0x7FC0_0000,
                    0xFFC0_0001, 0x3F80_8000], np.uint32)


def codec_of(name):
    """Return the codec of the given name, with evenly spaced centroids if it uses a codebook."""
    codec = WEIGHT_CODECS[name]
    if isinstance(codec, TableCodec):
        return codec.bind((2 * np.arange(32) + 1) << 17)
    if isinstance(codec, CentroidCodec):
        return codec.bind(bits_of(np.linspace(-1, 1, codec.centroids)))
    return codec


def elements(seed, count):
    """Draw numbers between -1 and 1; every second vector also has some special values."""
    generator = np.random.default_rng(seed)
    values = bits_of(generator.uniform(-1, 1, count))
    if seed % 2:
        values = np.where(generator.random(count) < 0.05, generator.choice(SPECIAL, count), values)
    return values.astype(np.uint32)


#: Weight codecs that encode decoded numbers without any further change. NVFP4 changes them only below its scale.
REPEATABLE = [name for name in WEIGHT_CODECS if name != "raw" and (GATEWARE[name].repeatable or name == "nvfp4")]

# --- tests of every codec


def test_names():
    """Codecs are listed in the expected order, and formats that are added later come last."""
    first, tables = list(BLOCKS)[:11], ["table32", "centroid16", "centroid64"]
    for codecs, names in ((WEIGHT_CODECS, ["raw", *first, *tables, *LAST]),
                          (GRADIENT_CODECS, ["zero_value", "raw", *first, *LAST]),
                          (ALL, ["zero_value", "raw", *first, *tables, *LAST])):
        assert list(codecs)[:len(names)] == names
        assert len(codecs) == len(dict(codecs))
        for name, codec in codecs.items():
            assert codec is ALL[name]
            assert codec.exact is GATEWARE[name].exact
            assert codec.sums_coded is GATEWARE[name].sums_coded
            assert codec.agreed is GATEWARE[name].agreed
    for codecs, other in ((WEIGHT_CODECS, "zero_value"), (GRADIENT_CODECS, "table32")):
        assert other not in codecs
        with pytest.raises(KeyError):
            codecs[other]


@pytest.mark.parametrize("name", BLOCKS)
def test_words(name):
    """Vectors of any length have the expected number of words, rounded up to whole words."""
    codec, (block, size) = codec_of(name), BLOCKS[name]
    for count in COUNTS:
        expected = int(np.ceil(np.ceil(count / block) * size))
        assert codec.max_words(count) == len(codec.encode(elements(1, count))) == expected, count
    assert codec.max_words(0) == 0


@pytest.mark.parametrize("name", REPEATABLE)
def test_decoded_once_is_decoded_for_good(name):
    """After a vector has been decoded once, encoding and decoding it again does not change it."""
    codec = codec_of(name)
    for seed, count in enumerate((*COUNTS, 2000, 2000)):
        values = elements(seed, count)
        words = codec.encode(values)
        once = codec.decode(words, count)
        assert words.dtype == once.dtype == np.uint32
        assert len(once) == count
        again = codec.encode(once)
        np.testing.assert_array_equal(codec.decode(again, count), once, f"{seed=}")
        assert codec.decode(words)[:count].tolist() == once.tolist()


@pytest.mark.parametrize("name", [name for name in WEIGHT_CODECS if name != "raw"])
def test_none(name):
    codec = codec_of(name)
    assert codec.encode([]).tolist() == codec.decode([]).tolist() == codec.decode([], 0).tolist() == []
    assert codec.encode([]).dtype == codec.decode([]).dtype == np.uint32


@pytest.mark.parametrize("name", ERRORS)
def test_error(name):
    """For numbers of similar magnitude below one, the relative error is within the format's bound."""
    values = np.random.default_rng(3).uniform(0.5, 0.99, 256).astype(np.float32)
    values *= np.random.default_rng(4).choice([-1, 1], 256)
    decoded = values_of(codec_of(name).decode(codec_of(name).encode(bits_of(values)), 256))
    worst = (np.abs(decoded - values) / np.abs(values)).max()
    assert ERRORS[name] / 2 < worst <= ERRORS[name]
    assert (np.sign(decoded) == np.sign(values)).all()


# --- tests of each kind of codec


def test_raw():
    codec = GRADIENT_CODECS["raw"]
    assert isinstance(codec.format, RawWords)
    assert codec.exact
    assert [codec.max_words(count) for count in (0, 1, 33)] == [0, 1, 33]
    values = elements(1, 50)
    words = codec.encode(values)
    assert words.tolist() == codec.decode(words).tolist() == values.tolist()
    assert codec.decode(words, 7).tolist() == values[:7].tolist()
    words[0] ^= 1
    assert values[0] != words[0]  # decoded values must not be a view of the words


def test_bfloat16():
    """A bf16 word has two numbers. The lower half holds the element with the even index."""
    values = elements(1, 1001)
    words = ALL["bf16"].encode(values)
    with np.errstate(invalid="ignore"):
        halves = values_of(values).astype(ml_dtypes.bfloat16)
    expected = np.where(np.isnan(halves), 0x7FC0, halves.view(np.uint16)).astype(np.uint32)
    assert (words & 0xFFFF).tolist() == expected[0::2].tolist()
    assert (words >> 16).tolist() == [*expected[1::2].tolist(), 0]
    assert ALL["bf16"].decode(words, 1001).tolist() == (expected << np.uint32(16)).tolist()
    refuses("Element count must end in the last of 501 words, not 1003", ALL["bf16"].decode, words, 1003)


def test_bfp8_by_hand():
    """In mx9, sixteen elements share an 8-bit exponent, which is followed by a sign and seven bits for each
    element."""
    codec = WEIGHT_CODECS["bfp8"]
    words = codec.encode(bits_of([1.5, -1, 0.25]))
    number = 127 | 96 << 8 | (128 + 64) << 16 | 16 << 24
    assert words.tolist() == [number, 0, 0, 0, 0]
    assert values_of(codec.decode(words, 3)).tolist() == [1.5, -1, 0.25]


def test_centroids_by_hand():
    """With centroids 1 to 16, each number is rounded to the nearest centroid; ties go to the lower one."""
    codec = WEIGHT_CODECS["centroid16"].bind(bits_of(np.arange(1, 17)))
    values = bits_of([1, 1.5, 1.6, -7, 16, 99, 8.5, 8.75])
    words = codec.encode(values)
    indices = [0, 0, 1, 0, 15, 15, 7, 8]
    planes = [sum((index >> bit & 1) << position for position, index in enumerate(indices)) for bit in range(4)]
    assert words.tolist() == [sum(plane << 8 * position for position, plane in enumerate(planes)), 0, 0, 0]
    assert values_of(codec.decode(words, 8)).tolist() == [index + 1 for index in indices]
    assert values_of(codec.decode(words)).tolist()[8:] == [1] * 24
    # All centroids of a codec are zero in the registry.
    assert WEIGHT_CODECS["centroid16"].decode(words, 8).tolist() == [0] * 8
    assert WEIGHT_CODECS["centroid16"].decode(WEIGHT_CODECS["centroid16"].encode(values), 8).tolist() == [0] * 8


def test_table_by_hand():
    """Packed by hand: 1.0 and -3.5 give two exponents, the second of which is repeated, and 7-bit codes of the
    nearest centroids."""
    codec = WEIGHT_CODECS["table32"].bind(np.arange(32) << 18)
    words = codec.encode(bits_of([1.0, -3.5]))
    assert len(words) == 1 + 7
    assert words[0] == 127 | 128 << 8 | 128 << 16
    assert values_of(codec.decode(words, 2)).tolist() == [1.0, -3.5]
    # 1.03125 is a centroid, and is nearer to 1.04 than the centroid 1.0625
    assert values_of(codec.decode(codec.encode(bits_of([1.03125, 1.04])), 2)).tolist() == [1.03125, 1.03125]
    # Until the host loads centroids, the codec of the registry represents only powers of two.
    listed = WEIGHT_CODECS["table32"]
    assert values_of(listed.decode(listed.encode(bits_of([1.0, -3.5])), 2)).tolist() == [1, -2]


@pytest.mark.parametrize(("count", "exponents", "words"), [
    (1, 1, 7), (256, 1, 49), (256, 16, 85), (256, 17, 93), (2048, 256, 961)])
def test_words_of_a_table(count, exponents, words):
    """A table32 packet has one byte per exponent, an end byte, and codes with a sign, an exponent index and five more
    bits."""
    values = (np.arange(count, dtype=np.uint32) % exponents) << np.uint32(23)
    index = int(np.ceil(np.log2(exponents)))
    assert words == (exponents + 4) // 4 + (1 + index + 5) * -(-count // 32)
    assert len(WEIGHT_CODECS["table32"].encode(values)) == words


@pytest.mark.parametrize(("name", "count"), [("table32", 32), ("centroid16", 16), ("centroid64", 64)])
def test_codebooks(name, count):
    codec = WEIGHT_CODECS[name]
    assert codec.codebook == ()
    book = np.arange(count)
    bound = codec.bind(book)
    assert bound.codebook == tuple(range(count))
    assert bound != codec
    assert codec.codebook == ()
    assert bound.bind(book + 1).codebook == tuple(range(1, count + 1))
    for wrong in (book[:-1], [*book, count], []):
        refuses(f"Centroids must be {count}, not {len(wrong)}", codec.bind, wrong)


def test_codebooks_in_disorder():
    with pytest.raises(ValueError, match=r"^Centroids must be 32 in ascending order, not \["):
        WEIGHT_CODECS["table32"].bind(range(31, -1, -1))
    with pytest.raises(ValueError, match=r"^Centroids must be finite numbers in ascending order, not others$"):
        WEIGHT_CODECS["centroid16"].bind(bits_of(np.arange(16)[::-1]))


def test_span_of_a_packet():
    """For a packet with a table, ``span`` returns the number of words known so far to be in it, the number of missing
    words, and an error flag."""
    codec = WEIGHT_CODECS["table32"]
    two = [0x60_60_50_40, *range(16)]  # three exponents, and codes of 8 bits
    assert codec.span(two, 64) == (17, 0, False)
    assert codec.span([*two, 5, 6], 64) == (17, 0, False)
    assert codec.span(two, 32) == (9, 0, False)
    assert codec.span(two[:-1], 64) == (16, 1, False)
    assert codec.span(two[:1], 64) == (1, 2, False)
    assert codec.span([], 64) == (0, 2, False)
    assert codec.span([0x43_42_41_40], 40) == (1, 2, False)
    assert codec.span([0x43_42_41_40, 0x60_60_50_42, *range(30)], 40) == (1, 2, True)
    assert codec.span([0x60_60_40_50, *range(30)], 40) == (0, 2, True)
