"""Properties that all shared-exponent formats have: hdl/features/mx/format.py."""

import pytest
from amaranth.lib import data

from hdl.features.mx.format import (
    BIAS,
    ONES,
    STATE_BITS,
    BlockCodec,
    Rounding,
    block_layout,
    check_codec,
    check_integer,
    check_power,
    random_state,
)
from hdl.features.mx.microscaling import MXFP8_E4M3, MXFP8_E5M2, MXINT8
from hdl.features.mx.shared_exponent import MX4, MX6, MX9, SharedExponent
from hdl.floating.format import BF16, FP16, FP32
from tests.refusals import refuses

FLAT = SharedExponent(block=8, difference_bits=0, exponent_bits=5, mantissa_bits=3)

# --- error messages


def test_check_integer():
    for value in (0, 9, -1, 2.0, "4", None):
        refuses(f"Width must be an integer between 1 and 8, not {value!r}", check_integer, "Width", value, 1, 8)
    for value in (1, 8):
        check_integer("Width", value, 1, 8)


def test_check_power():
    for value in (0, 1, 6, 32, -2, 4.0, "4", None):
        refuses(f"Block must be a power of two between 2 and 16, not {value!r}", check_power, "Block", value, 2, 16)
    for value in (2, 4, 8, 16):
        check_power("Block", value, 2, 16)


def test_check_codec():
    for codec, lanes, format in ((MX9, 16, FP32), (MX9, 1, BF16), (MXINT8, 32, BF16), (FLAT, 8, FP32)):
        check_codec(codec, lanes, format)
    for codec in ("MX9", SharedExponent, None):
        refuses(f"Codec must be a BlockCodec, not {codec!r}", check_codec, codec, 4, error=TypeError)
    refuses("Lane count must be a power of two between 1 and 8, not 16", check_codec, FLAT, 16)
    refuses(f"Format must be FP32 or BF16, not {FP16!r}", check_codec, MX9, 4, FP16)
    wide = SharedExponent(mantissa_bits=9)
    check_codec(wide, 4, FP32)
    refuses("Magnitudes must be of at most 8 bits, not 9", check_codec, wide, 4, BF16)


def test_parameters_of_rounding():
    refuses("Rounding must be a Rounding, not 'stochastic'", BlockCodec, error=TypeError, rounding="stochastic")
    for seed in (-1, 1 << 64, 1.0):
        refuses(f"Seed must be an integer between 0 and 18446744073709551615, not {seed!r}",
                BlockCodec, rounding=Rounding.STOCHASTIC, seed=seed)
    assert BlockCodec() == BlockCodec(rounding=Rounding.NEAREST_EVEN, seed=1)


# --- sizes


@pytest.mark.parametrize(("codec", "code", "subsets", "header", "block"), [
    (MX9, 8, 8, 16, 144), (MX6, 5, 8, 16, 96), (MX4, 3, 8, 16, 64), (FLAT, 4, 0, 5, 37),
    (MXINT8, 8, 0, 8, 264), (MXFP8_E4M3, 8, 0, 8, 264),
    (SharedExponent(block=32, subset=4, difference_bits=2), 8, 8, 24, 280),
])
def test_bits(codec, code, subsets, header, block):
    assert (codec.code_bits, codec.subsets, codec.header_bits, codec.block_bits) == (code, subsets, header, block)
    assert codec.block_words == block / 32
    # Blocks are stored without gaps, and the last word is padded.
    for count in (1, codec.block, codec.block + 1, 7 * codec.block - 1, 32 * codec.block):
        blocks = -(-count // codec.block)
        assert 32 * (codec.words(count) - 1) < blocks * block <= 32 * codec.words(count)
    assert codec.words(0) == 0


def test_bits_of_the_names():
    """Each format is named after its number of bits per element."""
    assert [codec.block_bits / codec.block for codec in (MX9, MX6, MX4)] == [9, 6, 4]
    assert MXINT8.block_bits / MXINT8.block == 8.25


@pytest.mark.parametrize(("codec", "lowest", "highest", "nan"), [
    (MX9, 0, 254, 255), (FLAT, BIAS - 15, BIAS + 15, 31), (SharedExponent(exponent_bits=2), BIAS - 1, BIAS + 1, 3),
    (MXINT8, 0, 254, 255), (MXFP8_E4M3, 8, ONES - 1, 255), (MXFP8_E5M2, 15, ONES - 1, 255),
])
def test_exponents(codec, lowest, highest, nan):
    assert (codec.lowest, codec.highest, codec.nan) == (lowest, highest, nan)
    assert codec.highest - codec.lowest < codec.nan


def test_layout():
    assert block_layout(MX9, 4) == data.StructLayout({
        "exponent": 8, "differences": data.ArrayLayout(1, 8), "codes": data.ArrayLayout(8, 4), "first": 1, "last": 1})
    assert block_layout(FLAT, 8) == data.StructLayout({
        "exponent": 5, "codes": data.ArrayLayout(4, 8), "first": 1, "last": 1})
    refuses("Lane count must be a power of two between 1 and 16, not 3", block_layout, MX9, 3)


# --- stochastic rounding


def test_random_state():
    """The initial state is two splitmix64 numbers; the known values are from the author of splitmix64."""
    mask = (1 << STATE_BITS) - 1
    assert random_state(0) == (0x6E78_9E6A_A1B9_65F4 << 64 | 0xE220_A839_7B1D_CDAF) & mask
    assert random_state(1234567) == (3203168211198807973 << 64 | 6457827717110365317) & mask
    states = {random_state(seed) for seed in (*range(200), (1 << 64) - 1)}
    assert len(states) == 201
    assert all(0 < state <= mask for state in states)
