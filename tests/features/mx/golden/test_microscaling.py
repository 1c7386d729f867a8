import dataclasses
import itertools
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from sim.golden.features.mx import microscaling as mx
from sim.golden.features.mx.block_format import Blocks
from sim.golden.features.mx.microscaling import Element, Microscaling, Scale
from tests.refusals import refuses
from tests.sim.golden.rounding import nearest
from tests.words import bits_of, values_of

TYPES = {Element.FP8_E4M3: ml_dtypes.float8_e4m3fn, Element.FP8_E5M2: ml_dtypes.float8_e5m2,
         Element.FP6_E2M3: ml_dtypes.float6_e2m3fn, Element.FP6_E3M2: ml_dtypes.float6_e3m2fn,
         Element.FP4_E2M1: ml_dtypes.float4_e2m1fn}


def _block(codes, width, scale):
    """Encode a block as an integer: the scale is in the lowest byte, followed by the codes, first code lowest."""
    return scale | sum(code << 8 + width * index for index, code in enumerate(codes))


# --- the formats of the specification


@pytest.mark.parametrize(("name", "bits", "emax", "largest", "smallest"), [
    ("MXFP8_E5M2", 8, 15, 57344, 2.0 ** -16), ("MXFP8_E4M3", 8, 8, 448, 2.0 ** -9),
    ("MXFP6_E3M2", 6, 4, 28, 0.0625), ("MXFP6_E2M3", 6, 2, 7.5, 0.125), ("MXFP4_E2M1", 4, 2, 6, 0.5),
    ("MXINT8", 8, 0, 127 / 64, 1 / 64)])
def test_specified_formats(name, bits, emax, largest, smallest):
    """Each format has 8 scale bits, 32 elements, and the specified widths and extreme numbers."""
    codec = getattr(mx, name)
    assert (codec.code_bits, codec.block, codec.block_bits) == (bits, 32, 8 + 32 * bits)
    assert codec.lowest == emax
    assert codec == Microscaling(element=Element[name[2:]])
    numbers = codec.integers(np.array([codec.largest, 1]))
    assert [smallest * number for number in numbers.tolist()] == [largest, smallest]


def test_element():
    refuses("Element must be an Element, not 'INT8'", Microscaling, error=TypeError, element="INT8")
    refuses("Scale must be a Scale, not 'up'", Microscaling, error=TypeError, element=Element.INT8, scale="up")


# --- known answers


def test_fp4_by_hand():
    """A maximum below 8 gives a scale of 1; codes 0 to 7 are 0, 0.5, 1, 1.5, 2, 3, 4, 6; ties go to even."""
    values = [5, -1.5, 0.25, 0.26, 0.75, 2.5, 3.5, -5.01, 1.25, 1.75, -0.25, 7.9]
    codes = [6, 8 | 3, 0, 1, 2, 4, 6, 8 | 7, 2, 4, 8 | 0, 7]
    number = _block(codes, 4, 127)
    words = mx.MXFP4_E2M1.encode(bits_of(values))
    assert words.tolist() == [number >> 32 * word & 0xFFFF_FFFF for word in range(5)]
    decoded = values_of(mx.MXFP4_E2M1.decode(words, 12))
    assert decoded.tolist() == [4, -1.5, 0, 0.5, 1, 2, 4, -6, 1, 2, -0.0, 6]
    assert np.signbit(decoded).tolist() == [value < 0 for value in values]
    # Multiplying all numbers by eight gives the same codes, with a scale of 8.
    eight = mx.MXFP4_E2M1.encode(bits_of(8 * np.array(values)))
    assert eight.tolist() == [words[0] + 3, *words[1:]]


@pytest.mark.parametrize(("name", "bits", "values", "codes"), [
    ("MXFP6_E3M2", 6, [28, 31, 0.0625, 0.03125, 0.09375, -1, 1.125], [31, 31, 1, 0, 2, 32 | 12, 12]),
    ("MXFP6_E2M3", 6, [7.5, 7.9, 0.125, 0.0625, 0.1875, -1, 1.0625], [31, 31, 1, 0, 2, 32 | 8, 8]),
    ("MXFP8_E4M3", 8, [448, 511, -464, 2.0 ** -9, 2.0 ** -10, 1], [0x7E, 0x7E, 0xFE, 1, 0, 0x38]),  # code 0x7F is NaN
    ("MXFP8_E5M2", 8, [57344, 65535, -61440, 2.0 ** -16, 2.0 ** -17, 1], [0x7B, 0x7B, 0xFB, 1, 0, 0x3C])])
def test_ends_of_elements(name, bits, values, codes):
    """The smallest and largest numbers, saturated numbers, and ties to even have the correct codes."""
    number = _block(codes, bits, 127)
    words = getattr(mx, name).encode(bits_of(values))
    assert words.tolist() == [number >> 32 * word & 0xFFFF_FFFF for word in range(1 + bits)]


@pytest.mark.parametrize(("name", "emax"), [("MXFP8_E5M2", 15), ("MXFP4_E2M1", 2), ("MXINT8", 0)])
def test_ends_of_the_scale(name, emax):
    """The scale field is the largest exponent in the block minus emax plus 127, but at least 0."""
    codec = getattr(mx, name)
    for power in (-126, emax - 127, emax - 126, 0, 127):
        if power >= -126:
            blocks = codec.quantise(bits_of([2.0 ** power]))
            assert blocks.exponents.tolist() == [max(power - emax + 127, 0)]
            assert codec.decode(codec.encode(bits_of([2.0 ** power])), 1).tolist() == bits_of([2.0 ** power]).tolist()


# --- compared with ml_dtypes


@pytest.mark.parametrize("element", TYPES)
def test_blocks_are_those_of_ml_dtypes(element):
    """For blocks of all magnitudes, scales match their definition and elements match ml_dtypes."""
    codec, dtype = Microscaling(element=element), TYPES[element]
    largest = float(ml_dtypes.finfo(dtype).max)
    emax = np.frexp(largest)[1] - 1
    generator = np.random.default_rng(1)
    powers = generator.integers(-110, 127, (300, 1)) - generator.integers(0, 12, (300, 32))
    values = np.ldexp(generator.uniform(1, 2, (300, 32)), powers) * generator.choice([-1, 1], (300, 32))
    values = np.where(generator.random((300, 32)) < 0.05, 0, values).astype(np.float32)
    scales = np.maximum(np.frexp(np.abs(values).max(axis=1))[1] - 1 - emax, -127)
    shares = np.ldexp(values.astype(np.float64), -scales[:, np.newaxis]).astype(np.float32)
    expected = np.clip(shares, -largest, largest).astype(dtype)
    words = codec.encode(bits_of(values.reshape(-1)))
    data = sum(int(word) << 32 * index for index, word in enumerate(words))
    for row, (scale, codes) in enumerate(zip(scales.tolist(), expected.view(np.uint8).tolist(), strict=True)):
        block = data >> row * codec.block_bits & (1 << codec.block_bits) - 1
        assert block == _block(codes, codec.code_bits, scale + 127), row
    numbers = np.ldexp(expected.astype(np.float64), scales[:, np.newaxis]).astype(np.float32)
    numbers = np.where(np.abs(numbers) < 2.0 ** -126, np.copysign(np.float32(0), numbers), numbers)
    np.testing.assert_array_equal(codec.decode(words), bits_of(numbers.reshape(-1)))


@pytest.mark.parametrize("element", TYPES)
def test_scales_rounded_up(element):
    """The scale is the smallest power of two, up to 2^127, at which no number of the block saturates."""
    codec, dtype = Microscaling(element=element, scale=Scale.UP), TYPES[element]
    largest = float(ml_dtypes.finfo(dtype).max)
    generator = np.random.default_rng(2)
    powers = generator.integers(-110, 127, (3200, 1)) - generator.integers(0, 12, (3200, 32))
    numbers = generator.uniform(1, 2, (3200, 32)).astype(np.float32)
    # A block gets another scale when its maximum is close to the format's largest number.
    edge = np.float32(largest / 2.0 ** codec.lowest)
    near = np.array([edge, np.nextafter(edge, np.float32(0)), np.nextafter(edge, np.float32(4))])
    numbers[:1600, 5] = generator.choice(near, 1600)
    powers[:1600, 5] = np.maximum(powers[:1600].max(axis=1), -110)
    values = np.ldexp(numbers, powers).astype(np.float32) * generator.choice([-1, 1], (3200, 32)).astype(np.float32)
    ratio, power = np.frexp(np.abs(values).max(axis=1).astype(np.float64) / largest)
    scales = np.maximum(power - (ratio == 0.5), -127)
    shares = np.ldexp(values.astype(np.float64), -scales[:, np.newaxis])
    assert (np.abs(shares) <= largest).all()
    blocks = codec.quantise(bits_of(values.reshape(-1)))
    np.testing.assert_array_equal(blocks.exponents, scales + 127)
    np.testing.assert_array_equal(blocks.codes, shares.astype(np.float32).astype(dtype).view(np.uint8))
    floor = dataclasses.replace(codec, scale=Scale.FLOOR).quantise(bits_of(values.reshape(-1)))
    raised = blocks.exponents - floor.exponents
    assert set(raised.tolist()) == {0, 1}
    np.testing.assert_array_equal(blocks.codes[raised == 0], floor.codes[raised == 0])


def test_scale_rounded_up_by_hand():
    """A number above the largest element doubles the scale, unless it is subnormal or the scale is the largest."""
    for number, exponent, code in ((6, 127, 7), (6.0000005, 128, 5), (7, 128, 6), (7.99, 128, 6), (8, 128, 6)):
        blocks = mx.MXFP4_E2M1_UP.quantise(bits_of([number]))
        assert (blocks.exponents.tolist(), blocks.codes[0, 0]) == ([exponent], code), number
    integer = Microscaling(element=Element.INT8, scale=Scale.UP)
    for bits, exponent in ((0x7F_FFFF, 0), (0x7F7F_FFFF, 254), (0x00FF_FFFF, 2), (0x7F80_0000, 255)):
        assert integer.quantise([bits]).exponents.tolist() == [exponent], hex(bits)


@pytest.mark.parametrize("element", TYPES)
def test_elements_are_those_of_ml_dtypes(element):
    """At a scale of one, bfloat16 numbers and numbers near thresholds are encoded as in ml_dtypes."""
    codec, dtype = Microscaling(element=element), TYPES[element]
    largest = float(ml_dtypes.finfo(dtype).max)
    top = 2.0 ** (codec.lowest)  # numbers with exponent emax give a scale of one
    near = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    values = values_of(np.concatenate([near, near + 1, near - 1, near + 0x8000, near + 0x8001, near + 0x7FFF]))
    values = values[(np.abs(values) < 2 * top) & ((np.abs(values) >= 2.0 ** -126) | (values == 0))]
    values = values[:len(values) // (codec.block - 1) * (codec.block - 1)].reshape(-1, codec.block - 1)
    tops = np.full((len(values), 1), top, np.float32)
    blocks = codec.quantise(bits_of(np.concatenate([tops, values], axis=1).ravel()))
    assert (blocks.exponents == 127).all()
    expected = np.clip(values, -largest, largest).astype(dtype).view(np.uint8)
    np.testing.assert_array_equal(blocks.codes[:, 1:], expected)


@pytest.mark.parametrize("element", TYPES)
def test_scales_are_those_of_ml_dtypes(element):
    """All codes at all scales decode as in ml_dtypes, in binary64, except that subnormals become zero."""
    codec, dtype = Microscaling(element=element), TYPES[element]
    codes = np.tile(np.arange(1 << codec.code_bits), (255, 1)).reshape(255, -1)
    padded = -(-codes.shape[1] // codec.block) * codec.block
    codes = np.tile(codes, (1, -(-padded // codes.shape[1])))[:, :padded]
    scales = np.arange(255, dtype=np.uint8)
    blocks = Blocks(np.repeat(scales.astype(np.int64), padded // codec.block), np.zeros((0, 0), np.int64),
                          codes.reshape(-1, codec.block).astype(np.int64))
    numbers = codes.astype(np.uint8).view(dtype).astype(np.float64) * scales.view(
        ml_dtypes.float8_e8m0fnu).astype(np.float64)[:, np.newaxis]
    with np.errstate(over="ignore"):
        expected = numbers.astype(np.float32)
    expected = np.where(np.abs(expected) < 2.0 ** -126, np.copysign(np.float32(0), expected), expected)
    expected = np.where(np.isnan(expected), 0x7FC0_0000, bits_of(expected))
    np.testing.assert_array_equal(codec.dequantise(blocks), expected.reshape(-1))


def test_nan_scale_is_that_of_ml_dtypes():
    assert np.isnan(np.array([255], np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float32)[0])
    assert mx.MXFP8_E4M3.quantise(bits_of([np.nan])).exponents.tolist() == [255]


def test_int8():
    """All codes of MXINT8, including the one for -2, decode to code / 64 times the scale."""
    codec = mx.MXINT8
    codes = np.arange(256)
    blocks = Blocks(np.full(8, 127), np.zeros((8, 0), np.int64), codes.reshape(8, 32))
    assert values_of(codec.dequantise(blocks)).tolist() == (codes.astype(np.uint8).view(np.int8) / 64).tolist()
    numbers = [Fraction(number, 128) for number in range(-255, 256)]
    for start in range(0, len(numbers) - 31, 31):
        part = numbers[start:start + 31]
        codes = codec.quantise(bits_of([1.0, *map(float, part)])).codes[0, 1:]
        expected = [(1 if number >= 0 else -1) * min(nearest(abs(number), Fraction(1, 64)), 127) & 255
                    for number in part]
        assert codes.tolist() == expected


def test_integers():
    """All element values are integer multiples of the smallest positive value of the format."""
    for element, dtype in TYPES.items():
        codec = Microscaling(element=element)
        codes = np.arange(1 << codec.code_bits)
        numbers = codes.astype(np.uint8).view(dtype).astype(np.float64)
        finite = np.isfinite(numbers)
        smallest = float(ml_dtypes.finfo(dtype).smallest_subnormal)
        assert codec.integers(codes)[finite].tolist() == (numbers[finite] / smallest).tolist()
    assert mx.MXINT8.integers(np.arange(256)).tolist() == [*range(128), *range(-128, 0)]


def test_order_of_codes():
    """Larger magnitude codes represent larger numbers, and the sign bit negates a number."""
    for element in TYPES:
        codec = Microscaling(element=element)
        numbers = codec.integers(np.arange(1 << codec.code_bits)).tolist()
        half = 1 << codec.code_bits - 1
        assert all(low < high for low, high in itertools.pairwise(numbers[:codec.largest + 1]))
        assert numbers[half:] == [-number for number in numbers[:half]]
