import dataclasses
from fractions import Fraction

import numpy as np
import pytest

from hdl.features.mx import format as gateware_format
from hdl.features.mx import microscaling as mx_gateware
from hdl.features.mx import shared_exponent as gateware
from sim.golden.conversion import to_bfloat16
from sim.golden.features.mx import microscaling as mx
from sim.golden.features.mx import shared_exponent as model
from sim.golden.features.mx.block_format import Rounding
from sim.golden.features.mx.microscaling import Microscaling
from sim.golden.features.mx.random_bits import RANDOM_BITS, STATE_BITS, RandomBits, random_state
from sim.golden.features.mx.shared_exponent import SharedExponent
from tests.recorded import MODELS, gradients
from tests.refusals import refused, refuses
from tests.sim.golden.rounding import nearest
from tests.words import bits_of, values_of

NAMED = {"MX9": model.MX9, "MX6": model.MX6, "MX4": model.MX4, **{name: getattr(mx, name) for name in (
    "MXINT8", "MXFP8_E4M3", "MXFP8_E5M2", "MXFP6_E2M3", "MXFP6_E3M2", "MXFP4_E2M1")}}
OTHERS = {
    "flat": SharedExponent(difference_bits=0, mantissa_bits=4),
    "deep": SharedExponent(block=32, subset=4, difference_bits=2, mantissa_bits=5),
    "narrow": SharedExponent(block=16, subset=2, exponent_bits=4, mantissa_bits=3),
    "small": SharedExponent(block=8, subset=2, mantissa_bits=7),
    "long": SharedExponent(block=8, subset=8, exponent_bits=5, difference_bits=3, mantissa_bits=12),
    "single": SharedExponent(block=32, subset=1, difference_bits=1, mantissa_bits=1),
}
ALL = {**NAMED, **OTHERS}

KNOWN = [1.5, -.75, .3, .2, 3.9, .01, -2, .5]


def _elements(generator, count):
    """Draw numbers: random bits, zeros, and blocks of nearby exponents at both ends and in the middle."""
    bits = generator.integers(0, 1 << 32, count, dtype=np.uint32)
    blocks = np.arange(count) // 64
    center = generator.choice([0, 1, 5, 15, 30, 127, 240, 250, 254], len(bits))[blocks]
    exponent = np.clip(center - generator.integers(0, 12, count), 0, 254)
    near = generator.random(blocks.max() + 1)[blocks] < 0.8
    bits = np.where(near, bits & 0x807F_FFFF | exponent.astype(np.uint32) << np.uint32(23), bits)
    return np.where(generator.random(count) < 0.05, bits & np.uint32(0x8000_0000), bits).astype(np.uint32)


# --- parameters


WRONG = [
    ({"block": 12}, "Block must be a power of two between 2 and 256, not 12"),
    ({"block": 512}, "Block must be a power of two between 2 and 256, not 512"),
    ({"subset": 32}, "Subset must be a power of two between 1 and 16, not 32"),
    ({"subset": 2.0}, "Subset must be a power of two between 1 and 16, not 2.0"),
    ({"exponent_bits": 9}, "Exponent width must be an integer between 2 and 8, not 9"),
    ({"difference_bits": 5}, "Difference width must be an integer between 0 and 4, not 5"),
    ({"mantissa_bits": 0}, "Mantissa width must be an integer between 1 and 16, not 0"),
    ({"block": 2, "mantissa_bits": 7}, "Block must be of at least 32 bits, not 25"),
    ({"rounding": "nearest"}, "Rounding must be a Rounding, not 'nearest'"),
    ({"seed": -1}, "Seed must be an integer between 0 and 18446744073709551615, not -1"),
]
test_parameters = refused(SharedExponent, {}, WRONG, error=(TypeError, ValueError))
test_parameters_of_the_gateware = refused(gateware.SharedExponent, {}, WRONG, error=(TypeError, ValueError))


@pytest.mark.parametrize(("name", "bits", "header", "words"), [
    ("MX9", 144, 16, [5, 5, 9, 14, 32]), ("MX6", 96, 16, [3, 3, 6, 9, 21]), ("MX4", 64, 16, [2, 2, 4, 6, 14]),
    ("MXINT8", 264, 8, [9, 9, 9, 17, 33]), ("MXFP8_E4M3", 264, 8, [9, 9, 9, 17, 33]),
    ("MXFP8_E5M2", 264, 8, [9, 9, 9, 17, 33]), ("MXFP6_E2M3", 200, 8, [7, 7, 7, 13, 25]),
    ("MXFP6_E3M2", 200, 8, [7, 7, 7, 13, 25]), ("MXFP4_E2M1", 136, 8, [5, 5, 5, 9, 17])])
def test_sizes(name, bits, header, words):
    codec = NAMED[name]
    assert (codec.block_bits, codec.header_bits) == (bits, header)
    counts = [1, 16, 17, 48, 97]
    assert [codec.words(count) for count in counts] == words
    assert [len(codec.encode(np.ones(count, np.uint32))) for count in counts] == words
    assert codec.words(0) == len(codec.encode([])) == 0


# --- known answers


@pytest.mark.parametrize(("mantissa", "expected"), [
    (7, [96, -48, 19, 13, 125, 0, -64, 16]), (4, [12, -6, 2, 2, 15, 0, -8, 2]), (2, [3, -2, 1, 0, 3, 0, -2, 0])])
def test_known(mantissa, expected):
    codec = SharedExponent(block=8, subset=2, mantissa_bits=mantissa)
    blocks = codec.quantise(bits_of(KNOWN))
    assert blocks.exponents.tolist() == [128]
    assert blocks.differences.tolist() == [[1, 1, 0, 0]]
    assert codec.integers(blocks.codes).tolist() == [expected]
    if mantissa == 4:
        decoded = values_of(codec.decode(codec.encode(bits_of(KNOWN))))
        assert decoded.tolist() == [1.5, -.75, .25, .25, 3.75, 0, -2, .5]


def test_saturation():
    codec = SharedExponent(block=8, subset=2, mantissa_bits=4)
    blocks = codec.quantise(bits_of([1.99999, 1.0]))
    assert blocks.codes[0, :2].tolist() == [15, 8]
    assert values_of(codec.dequantise(blocks))[:2].tolist() == [1.875, 1.0]


def test_layout():
    """Exponent, differences and codes are packed from the lowest bit, and blocks follow without gaps."""
    codec = SharedExponent(block=8, subset=2, mantissa_bits=7)
    number = 128 | 0b0011 << 8
    for index, value in enumerate([96, 128 + 48, 19, 13, 125, 0, 128 + 64, 16]):
        number |= value << 12 + 8 * index
    number |= number << 76
    expected = [number >> 32 * word & 0xFFFF_FFFF for word in range(5)]
    assert codec.encode(bits_of(KNOWN * 2)).tolist() == expected


def test_differences_saturate():
    codec = SharedExponent(block=16, subset=2, difference_bits=2)
    blocks = codec.quantise(bits_of([8, 0, 4, 0, 2, 0, 1, 0, .5, 0, 2 ** -20, 0, 0, 0, 7, 1]))
    assert blocks.differences.tolist() == [[0, 1, 2, 3, 3, 3, 3, 1]]


def test_narrow_exponents():
    """Outside the range of a narrow exponent field, large numbers saturate and small ones lose bits."""
    codec = SharedExponent(block=8, subset=8, difference_bits=0, exponent_bits=4, mantissa_bits=4)
    assert (codec.lowest, codec.highest) == (120, 134)
    for value, decoded in ((255, 240), (256, 240), (1e30, 240), (2 ** -7, 2 ** -7), (2 ** -9, 2 ** -9),
                           (2 ** -10, 2 ** -10), (2 ** -11, 0), (2 ** -30, 0)):
        assert values_of(codec.decode(codec.encode(bits_of([value] * 8)))).tolist() == [decoded] * 8
    assert np.isnan(values_of(codec.decode(codec.encode(bits_of([1] * 7 + [np.inf]))))).all()


# --- edges, for all formats


@pytest.mark.parametrize("name", ALL)
def test_zeros(name):
    codec = ALL[name]
    blocks = codec.quantise(np.zeros(codec.block, np.uint32))
    assert blocks.exponents.tolist() == [0]
    assert not blocks.codes.any()
    assert codec.decode(codec.encode(np.zeros(3, np.uint32)), 3).tolist() == [0, 0, 0]
    signed = 0 if codec.complement else 0x8000_0000
    assert codec.decode(codec.encode([0x8000_0000] * 2), 2).tolist() == [signed] * 2


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", ALL)
def test_specials(name, special):
    codec = ALL[name]
    values = np.ones(3 * codec.block)
    values[codec.block + 3] = special
    blocks = codec.quantise(bits_of(values))
    assert blocks.exponents[1] == codec.nan == (1 << codec.exponent_bits) - 1
    assert not blocks.codes[1].any()
    assert not blocks.differences[1].any()
    decoded = codec.decode(codec.encode(bits_of(values)))
    assert (decoded.reshape(3, -1)[1] == 0x7FC0_0000).all()
    assert not np.isnan(values_of(decoded).reshape(3, -1)[[0, 2]]).any()


@pytest.mark.parametrize("name", ALL)
def test_subnormals(name):
    codec = ALL[name]
    bits = np.arange(1, 0x80_0000, 0x1357, dtype=np.uint32)[:4 * codec.block]
    assert not codec.decode(codec.encode(bits)).any()
    bits[::codec.block] = 0x0080_0000  # the smallest normal number
    zeros = np.where(bits == 0x0080_0000, bits, 0)
    assert codec.encode(bits).tolist() == codec.encode(zeros).tolist()
    if codec.exponent_bits == 8:
        assert codec.decode(codec.encode(bits)).tolist() == zeros.tolist()


@pytest.mark.parametrize("rounding", Rounding)
@pytest.mark.parametrize("name", ALL)
def test_idempotence(name, rounding):
    codec = dataclasses.replace(ALL[name], rounding=rounding)
    for seed in range(3):
        once = codec.encode(_elements(np.random.default_rng(seed), 64 * 64))
        decoded = codec.decode(once)
        again = codec.decode(codec.encode(decoded))
        np.testing.assert_array_equal(again, decoded, f"{seed=}")
        exponents = values_of(decoded).view(np.uint32) >> np.uint32(23) & np.uint32(255)
        assert ((exponents != 0) | (decoded & 0x7FFF_FFFF == 0)).all(), "an encoder's numbers are never subnormal"
        assert not np.isinf(values_of(decoded)).any()


@pytest.mark.parametrize("name", ALL)
def test_partial_block(name):
    codec = ALL[name]
    elements = _elements(np.random.default_rng(1), 3 * 64 + 5)
    padded = np.zeros(4 * 64, np.uint32)
    padded[:len(elements)] = elements
    count = -(-len(elements) // codec.block) * codec.block
    assert codec.encode(elements).tolist() == codec.encode(padded[:count]).tolist()
    assert codec.decode(codec.encode(elements), len(elements)).tolist() == codec.decode(
        codec.encode(padded[:count]))[:len(elements)].tolist()


def test_count():
    refuses("Element count must end in the last block of 16 elements, not 17",
            model.MX9.decode, model.MX9.encode([1, 2, 3]), 17)


@pytest.mark.parametrize("name", NAMED)
def test_bfloat16(name):
    codec = NAMED[name]
    halves = to_bfloat16(_elements(np.random.default_rng(3), 64 * 32))
    words = codec.encode(halves, bf16=True)
    assert words.tolist() == codec.encode(halves.astype(np.uint32) << np.uint32(16)).tolist()
    assert (codec.decode(words, bf16=True) == codec.decode(words) >> 16).all()
    assert not (codec.decode(words) & 0xFFFF).any()


# --- comparison with the definition in exact arithmetic


@pytest.mark.parametrize("name", ["MX9", "MX6", "MX4", *OTHERS])
def test_definition(name):
    codec = ALL[name]
    elements = _elements(np.random.default_rng(5), 64 * 16)
    elements = elements[(elements >> 23 & 255) != 255]
    elements = elements[:len(elements) // codec.block * codec.block]
    blocks = codec.quantise(elements)
    for row, block in enumerate(elements.reshape(-1, codec.block)):
        numbers = [Fraction(float(value)) if bits >> 23 & 255 else Fraction(0)
                   for bits, value in zip(block.tolist(), values_of(block), strict=True)]
        top = Fraction(2) ** (codec.highest - 126)
        peak = max(min(exponent, codec.highest) for exponent in (block >> 23 & 255).tolist())
        shared = max(peak, codec.lowest)
        assert blocks.exponents[row] == shared - codec.lowest
        for index, number in enumerate(numbers):
            subset = slice(index // codec.subset * codec.subset, (index // codec.subset + 1) * codec.subset)
            lowered = 0
            if codec.difference_bits:
                lowered = min(shared - min(max((block[subset] >> 23 & 255).tolist()), codec.highest),
                              (1 << codec.difference_bits) - 1)
                assert blocks.differences[row, index // codec.subset] == lowered
            step = Fraction(2) ** (shared - lowered - 127 + 1 - codec.mantissa_bits)
            magnitude = min(nearest(min(abs(number), top), step), codec.largest)
            sign = int(block[index]) >> 31
            assert blocks.codes[row, index] == sign << codec.mantissa_bits | magnitude


# --- rounding


def test_random_bits():
    """Random bits follow the recurrence x[n] = x[n-127] ^ x[n-64], starting with the seed's state."""
    state = random_state(5)
    bits = [state >> bit & 1 for bit in range(STATE_BITS)]
    for _ in range(2000):
        bits.append(bits[-127] ^ bits[-64])
    random = RandomBits(5)
    taken = np.concatenate([random.take(count) for count in (1, 16, 0, 40, 100, 7)])
    expected = [sum(bits[RANDOM_BITS * index + bit] << bit for bit in range(RANDOM_BITS))
                for index in range(len(taken))]
    assert taken.tolist() == expected
    assert random_state(5) != random_state(6)
    assert 0 < random_state(0) < 1 << STATE_BITS


@pytest.mark.parametrize("name", ["MX9", "MX4", "MXINT8", "MXFP8_E4M3", "MXFP4_E2M1"])
def test_stochastic_rounding_is_unbiased(name):
    """Stochastic rounding is unbiased: the mean of many roundings is the number itself."""
    codec = dataclasses.replace(NAMED[name], rounding=Rounding.STOCHASTIC, seed=3)
    top = 2.0 ** (codec.lowest if isinstance(codec, Microscaling) else 0)
    step = top / 2 ** codec.fraction_bits
    random = codec.random()
    for part in (0.125, 0.25, 0.5, 0.875):
        values = np.full(codec.block, top + part * step)
        codes = [codec.decode(codec.encode(bits_of(values), random=random)) for _ in range(400)]
        mean = values_of(np.concatenate(codes)).astype(np.float64).mean()
        expected = top + part * step
        assert abs(mean - expected) < 0.05 * step, (part, mean, expected)


def test_stochastic_rounding_depends_on_the_seed():
    codec = dataclasses.replace(model.MX9, rounding=Rounding.STOCHASTIC)
    elements = bits_of(np.random.default_rng(1).standard_normal(64))
    other = dataclasses.replace(codec, seed=2)
    assert codec.encode(elements).tolist() == codec.encode(elements).tolist()
    assert codec.encode(elements).tolist() != other.encode(elements).tolist()


# --- accuracy


def _qsnr(codec, values):
    decoded = values_of(codec.decode(codec.encode(bits_of(values)))).astype(np.float64)
    exact = values.astype(np.float64)
    return 10 * np.log10((exact ** 2).sum() / ((exact - decoded) ** 2).sum())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("mantissa", "two_levels", "flat"), [(7, 46.5, 42.8), (4, 28.3, 24.7), (2, 15.7, 12.5)])
def test_qsnr(mantissa, two_levels, flat, seed):
    """For Gaussian numbers, the second level of exponents gains at least 3 dB."""
    values = np.random.default_rng(seed).standard_normal(1 << 16).astype(np.float32)
    got = [_qsnr(SharedExponent(mantissa_bits=mantissa, difference_bits=bits), values) for bits in (1, 0)]
    assert got[0] - got[1] >= 3
    assert abs(got[0] - two_levels) < 0.2
    assert abs(got[1] - flat) < 0.2


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("mantissa", "two_levels", "flat"), [(7, 46.5, 42.8), (4, 28.3, 24.7), (2, 15.7, 12.5)])
def test_qsnr_of_recorded_gradients(mantissa, two_levels, flat, model):
    """The median of recorded gradients is at least that of Gaussian numbers, and at most 1.5 dB above; the second
    level of exponents gains 2.5 dB or more."""
    values, starts = gradients(model).vector()
    got = [np.median([_qsnr(SharedExponent(mantissa_bits=mantissa, difference_bits=bits), part)
                      for part in np.split(values, starts[1:])]) for bits in (1, 0)]
    assert got[0] - got[1] >= 2.5
    assert -0.1 < got[0] - two_levels < 1
    assert -0.1 < got[1] - flat < 1.5


# --- parameters of gateware and model


@pytest.mark.parametrize("name", NAMED)
def test_agrees_with_the_gateware(name):
    """Gateware and model, written independently from the specification, have the same parameters."""
    source, golden = getattr(gateware, name, None) or getattr(mx_gateware, name), NAMED[name]
    names = ("block", "subset", "exponent_bits", "difference_bits", "magnitude_bits", "fraction_bits", "code_bits",
             "header_bits", "block_bits", "top_field", "largest", "lowest", "highest", "nan", "complement",
             "infinities", "nan_magnitude", "seed")
    assert {field: getattr(source, field) for field in names} == {field: getattr(golden, field) for field in names}
    assert source.rounding.name == golden.rounding.name
    assert [source.words(count) for count in range(301)] == [golden.words(count) for count in range(301)]


def test_random_bits_agree_with_the_gateware():
    seeds = (0, 1, 5, 7, 1234567, (1 << 64) - 1)
    assert [random_state(seed) for seed in seeds] == [gateware_format.random_state(seed) for seed in seeds]
    assert (RANDOM_BITS, STATE_BITS) == (gateware_format.RANDOM_BITS, gateware_format.STATE_BITS)


def test_integers():
    assert model.MX4.integers(np.arange(8)).tolist() == [0, 1, 2, 3, 0, -1, -2, -3]
