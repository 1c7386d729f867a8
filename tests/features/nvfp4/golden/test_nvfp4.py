"""Test golden NVFP4 against exact fractions, and against binary32 quotients cast with ml_dtypes."""

import dataclasses
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from sim.golden.features.mx.block_format import Blocks
from sim.golden.features.nvfp4.nvfp4 import NVFP4
from tests.nvfp4 import every_place
from tests.recorded import gradients
from tests.refusals import refuses
from tests.sim.golden.rounding import nearest
from tests.words import bits_of, values_of

TENSOR_SCALES = [1.0, 2.0 ** -8, 2.0 ** -115, 2.0 ** 116]
SCALED = pytest.mark.parametrize("tensor_scale", TENSOR_SCALES)


def rounded(value, lowest, fraction_bits, largest):
    """Round a fraction, ties to even, to a format with the smallest normal number 2 ** lowest."""
    power = lowest
    while 2 * Fraction(2) ** power <= value:
        power += 1
    step = Fraction(2) ** (power - fraction_bits)
    return min(nearest(value, step) * step, Fraction(largest))


def defined(numbers, tensor_scale):
    """Compute the scale and elements of a block of finite numbers from the definition of the format."""
    numbers, tensor_scale = [Fraction(number) for number in numbers], Fraction(tensor_scale)
    scale = max(rounded(max(map(abs, numbers)) / 6 / tensor_scale, -6, 3, 448), Fraction(1, 512))
    return scale, [rounded(abs(number) / (scale * tensor_scale), 0, 1, 6) * (-1 if number < 0 else 1)
                   for number in numbers]


def numbers_of(blocks):
    """Return the scales and elements of blocks, converted with ml_dtypes."""
    scales = blocks.exponents.astype(np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    return scales, blocks.codes.astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)


def blocks_of(seed, count, tensor_scale):
    """Draw zeros, numbers inside and outside the range of scales, and numbers halfway between elements or scales."""
    generator = np.random.default_rng(seed)
    powers = generator.integers(-14, 14, (count, 1)) - generator.integers(0, 7, (count, 16))
    numbers = generator.uniform(1, 2, (count, 16))
    numbers = np.where(generator.random((count, 16)) < 0.5, np.round(numbers * 64) / 64, numbers)
    values = np.ldexp(numbers, powers) * generator.choice([-1, 1], (count, 16))
    values = np.where(generator.random((count, 16)) < 0.05, 0, values)
    values[::50] = 0
    with np.errstate(under="ignore", over="ignore"):
        values = np.clip(values * tensor_scale, -3e38, 3e38).astype(np.float32)
    return np.where(np.abs(values) < 2.0 ** -126, 0, values).astype(np.float32)


@pytest.mark.parametrize(("tensor_scale", "seed", "count"), [
    (1.0, 1, 5000), (2.0 ** -8, 2, 1000), (2.0 ** -115, 3, 500), (2.0 ** 116, 4, 500)])
def test_as_defined(tensor_scale, seed, count):
    """The scales, elements and decoded numbers of 7,000 blocks equal the definition in exact fractions."""
    codec, numbers = NVFP4(tensor_scale=tensor_scale), blocks_of(seed, count, tensor_scale)
    blocks = codec.quantise(bits_of(numbers.ravel()))
    scales, elements = numbers_of(blocks)
    assert {1, 126} <= set(blocks.exponents.tolist())
    assert set(blocks.codes.ravel().tolist()) == set(range(16))
    expected = [defined(row, tensor_scale) for row in numbers.tolist()]
    assert scales.tolist() == [float(scale) for scale, _ in expected]
    assert elements.tolist() == [[float(element) for element in row] for _, row in expected]
    decoded = values_of(codec.decode(codec.pack(blocks))).astype(np.float64).reshape(numbers.shape)
    assert decoded.tolist() == (elements * scales[:, np.newaxis] * tensor_scale).tolist()
    assert (np.signbit(decoded) == np.signbit(numbers)).all()


@SCALED
def test_as_quotients_of_binary32(tensor_scale):
    """Rounding quotients to binary32 before the cast gives the same bits for all numbers."""
    codec = NVFP4(tensor_scale=tensor_scale)
    for bits in (every_place(codec), bits_of(blocks_of(5, 4000, tensor_scale))):
        numbers = np.where(bits & 0x7F80_0000, values_of(bits), 0).astype(np.float32)
        blocks = codec.quantise(bits.ravel())
        with np.errstate(under="ignore"):
            scales = np.abs(numbers).max(axis=1) / np.float32(6) / np.float32(tensor_scale)
        scales = np.clip(scales, np.float32(2.0 ** -9), np.float32(448)).astype(ml_dtypes.float8_e4m3fn)
        np.testing.assert_array_equal(blocks.exponents, scales.view(np.uint8))
        divisors = scales.astype(np.float32) * np.float32(tensor_scale)
        with np.errstate(under="ignore"):
            quotients = np.clip(numbers / divisors[:, np.newaxis], -6, 6)
        codes = quotients.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
        np.testing.assert_array_equal(blocks.codes & 7, codes & 7)
        np.testing.assert_array_equal(blocks.codes >> 3, bits >> 31)


def test_rounded_reciprocals():
    """Multiplying by a rounded reciprocal of the scale gives wrong elements only for numbers close to midpoints."""
    codec = NVFP4()
    numbers = values_of(every_place(codec))
    blocks = codec.quantise(bits_of(numbers).ravel())
    scales = numbers_of(blocks)[0].astype(np.float32)[:, np.newaxis]
    products = np.clip(numbers * (np.float32(1) / scales), -6, 6).astype(ml_dtypes.float4_e2m1fn)
    wrong = (products.view(np.uint8) & 7) != (blocks.codes & 7)
    assert 0 < wrong.sum() < numbers.size / 1000
    quotients = np.abs(numbers.astype(np.float64) / scales)[wrong]
    halfway = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5])
    assert (np.abs(quotients[:, np.newaxis] / halfway - 1).min(axis=1) < 2.0 ** -22).all()
    assert {1.25, 2.5, 5} <= set(quotients.tolist())


def test_by_hand():
    """With a maximum of 6 the scale is one, 0x38; codes 0 to 7 are 0, 0.5, 1, 1.5, 2, 3, 4, 6; ties go to even."""
    numbers = [6, -1.5, 0.25, 0.26, 0.75, 2.5, 3.5, -5.01, 1.25, 1.75, -0.25, 5]
    codes = [7, 8 | 3, 0, 1, 2, 4, 6, 8 | 7, 2, 4, 8 | 0, 6]
    number = 0x38 | sum(code << 8 + 4 * index for index, code in enumerate(codes))
    words = NVFP4().encode(bits_of(numbers))
    assert words.tolist() == [number >> 32 * word & 0xFFFF_FFFF for word in range(3)]
    assert values_of(NVFP4().decode(words, 12)).tolist() == [6, -1.5, 0, 0.5, 1, 2, 4, -6, 1, 2, -0.0, 4]
    # A tensor scale multiplies all numbers.
    small = NVFP4(tensor_scale=2.0 ** -8)
    assert small.encode(bits_of(np.array(numbers) / 256)).tolist() == words.tolist()


@pytest.mark.parametrize(("largest", "scale", "code"), [
    (0.0, 1, 0), (2.0 ** -13, 1, 0), (2.0 ** -11, 1, 0), (2.0 ** -11 * 1.01, 1, 1), (3 * 2.0 ** -9, 1, 5),
    (9 * 2.0 ** -9, 2, 6), (10 * 2.0 ** -9, 2, 6), (10.1 * 2.0 ** -9, 2, 7), (448 * 6, 126, 7), (464 * 6, 126, 7),
    (465 * 6, 126, 7), (1e38, 126, 7), (3.4e38, 126, 7)])
def test_ends_of_the_scale(largest, scale, code):
    """Scales are limited to 2 ** -9 for small blocks and to 448 for large blocks, which saturate."""
    blocks = NVFP4().quantise(bits_of([0, -largest]))
    assert (blocks.exponents.tolist(), blocks.codes[0, :3].tolist()) == ([scale], [0, 8 | code, 0])


def test_blocks_that_are_nan():
    """An infinity or NaN turns only its own block into NaNs."""
    for special in (0x7F80_0000, 0xFF80_0000, 0x7FC0_0000, 0xFF80_0001):
        bits = np.full(48, 0xC040_0000, np.uint32)
        bits[20] = special
        blocks = NVFP4().quantise(bits)
        assert blocks.exponents.tolist() == [0x30, 0x7F, 0x30]
        assert blocks.codes.tolist() == [[15] * 16, [0] * 16, [15] * 16]
        assert NVFP4().dequantise(blocks).tolist() == [0xC040_0000] * 16 + [0x7FC0_0000] * 16 + [0xC040_0000] * 16


@SCALED
def test_every_code(tensor_scale):
    """Every code at every scale decodes to the product of ml_dtypes' numbers; the scale's top bit is ignored."""
    codec = NVFP4(tensor_scale=tensor_scale)
    blocks = Blocks(np.arange(256), np.zeros((256, 0), np.int64), np.tile(np.arange(16), (256, 1)))
    scales, elements = numbers_of(Blocks(np.arange(256) & 127, blocks.differences, blocks.codes))
    expected = (elements * scales[:, np.newaxis] * tensor_scale).astype(np.float32)
    expected = np.where(np.isnan(expected), np.uint32(0x7FC0_0000), bits_of(expected))
    np.testing.assert_array_equal(codec.dequantise(blocks), expected.ravel())
    np.testing.assert_array_equal(codec.dequantise(blocks, bf16=True), expected.ravel() >> 16)


@SCALED
def test_decoded_once_is_decoded_for_good(tensor_scale):
    """Re-encoding is lossless, except that a maximum of 9 / 512 to 10 / 512 becomes 8 / 512."""
    codec = NVFP4(tensor_scale=tensor_scale)
    bits = every_place(codec)
    once = codec.decode(codec.encode(bits.ravel()))
    again = codec.decode(codec.encode(once))
    kept = (once == again).reshape(-1, 16).all(axis=1)
    largest = values_of(bits & 0x7FFF_FFFF).max(axis=1) / np.float32(tensor_scale) * 512
    np.testing.assert_array_equal(kept, (largest < 9) | (largest > 10))
    assert not kept.all()


def test_bfloat16():
    """bfloat16 numbers give the same blocks as binary32 numbers of the same values."""
    halves = bits_of(blocks_of(6, 200, 1.0)).ravel() >> 16
    blocks, whole = NVFP4().quantise(halves, bf16=True), NVFP4().quantise(halves << 16)
    assert blocks.exponents.tolist() == whole.exponents.tolist()
    assert blocks.codes.tolist() == whole.codes.tolist()


def test_parameters():
    codec = NVFP4()
    assert (codec.block, codec.code_bits, codec.block_bits, codec.words(256)) == (16, 4, 72, 36)
    assert dataclasses.replace(codec, tensor_scale=0.25).power == -2
    for wrong in (0.0, 3.0, -1.0, 2.0 ** -116, 2.0 ** 117, float("inf"), float("nan"), "1", None):
        message = f"Tensor scale must be a power of two between 2 ** -115 and 2 ** 116, not {wrong!r}"
        refuses(message, NVFP4, tensor_scale=wrong)


def _qsnr(values):
    decoded = values_of(NVFP4().decode(NVFP4().encode(bits_of(values)))).astype(np.float64)
    exact = values.astype(np.float64)
    return 10 * np.log10((exact ** 2).sum() / ((exact - decoded) ** 2).sum())


@pytest.mark.parametrize(("power", "expected"), [
    (12, 5.1), (10, 19.7), (9, 20.4), (0, 20.4), (-4, 20.4), (-6, 19.3), (-8, 18.9), (-9, 16.3), (-10, 10.8)])
def test_qsnr(power, expected):
    """Gaussian numbers of various standard deviations give known signal-to-error ratios at tensor scale 1."""
    values = np.random.default_rng(1).standard_normal(1 << 18) * 2.0 ** power
    assert abs(_qsnr(values.astype(np.float32)) - expected) < 0.1


@pytest.mark.parametrize(("model", "plain", "scaled"), [("digits", 17.9, 20.4), ("text", 2.3, 20.4)])
def test_qsnr_of_recorded_gradients(model, plain, scaled):
    """The median of recorded gradients is that of Gaussian numbers only if they are scaled to the range of scales."""
    for scale, expected in ((1, plain), (1024, scaled)):
        values, starts = gradients(model, scale=scale).vector()
        assert abs(np.median([_qsnr(part) for part in np.split(values, starts[1:])]) - expected) < 0.1
