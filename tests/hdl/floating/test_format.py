import dataclasses

import ml_dtypes
import numpy as np
import pytest

from hdl.floating.format import BF16, FP16, FP32, FloatFormat


@pytest.mark.parametrize(("format", "dtype", "unsigned"), [
    (FP32, np.float32, np.uint32), (FP16, np.float16, np.uint16), (BF16, ml_dtypes.bfloat16, np.uint16),
    (FloatFormat(exponent_bits=4, fraction_bits=3), ml_dtypes.float8_e4m3, np.uint8),
    (FloatFormat(exponent_bits=5, fraction_bits=2), ml_dtypes.float8_e5m2, np.uint8)])
def test_encodings(format, dtype, unsigned):
    def bits(value):
        return int(np.asarray(value, dtype).view(unsigned))

    assert format.width == 8 * np.dtype(dtype).itemsize == format.layout.size
    assert format.bias << format.fraction_bits == bits(1.0)
    assert format.infinity == bits(np.inf)
    assert format.canonical_nan == bits(np.nan) & ~(1 << (format.width - 1))
    minus_one = format.layout.from_bits(bits(-1.0))
    assert (minus_one.sign, minus_one.exponent, minus_one.fraction) == (1, format.bias, 0)


def test_canonical_nan():
    assert FP32.canonical_nan == 0x7FC00000
    assert FP32.exponent_ones == 255


@pytest.mark.parametrize("bits", [1, 0, 8.0, "8"])
def test_exponent(bits):
    with pytest.raises(ValueError, match=rf"^Exponent width must be an integer of at least 2, not {bits!r}$"):
        FloatFormat(exponent_bits=bits, fraction_bits=3)


@pytest.mark.parametrize("bits", [0, -1, 3.0, None])
def test_fraction(bits):
    with pytest.raises(ValueError, match=rf"^Fraction width must be a positive integer, not {bits!r}$"):
        FloatFormat(exponent_bits=4, fraction_bits=bits)


def test_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        FP32.exponent_bits = 5
