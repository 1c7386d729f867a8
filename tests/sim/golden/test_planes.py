import numpy as np
import pytest

from sim.golden import planes
from tests.refusals import refuses

# --- tests of codes and words


def test_by_hand():
    """Eight 3-bit codes: the bits at each position form a byte."""
    codes = [0b001, 0b010, 0b100, 0b111, 0, 0, 0, 0b101]
    assert planes.pack(codes, 3).tolist() == [0b10001100 << 16 | 0b00001010 << 8 | 0b10001001, 0, 0]
    assert planes.unpack(planes.pack(codes, 3), 3).tolist() == codes + [0] * 24


def test_two_groups_by_hand():
    """Computed by hand for two groups: the bits at the same position of eight codes form a byte."""
    codes = [0] * 33
    codes[0] = codes[9] = codes[31] = 1
    codes[32] = 3
    assert planes.pack(codes, 2).tolist() == [0x0002_0001, 0x0080_0000, 0x0101, 0]
    # Codes of one bit are packed in the order of bits.
    assert planes.pack([1, 0, 1, 1, *[0] * 27, 1], 1).tolist() == [0x8000_000D]
    assert planes.pack([], 5).tolist() == planes.unpack([], 5).tolist() == []


@pytest.mark.parametrize("width", range(1, 17))
def test_round_trip(width):
    for count in (1, 8, 31, 32, 33, 100):
        codes = np.random.default_rng(count).integers(0, 1 << width, count)
        words = planes.pack(codes, width)
        assert len(words) == width * -(-count // 32)
        assert planes.unpack(words, width)[:count].tolist() == codes.tolist()


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 13, 17, 32])
def test_every_bit_has_a_place(width):
    """Bit b of code n is bit (8 b + n) mod 8 of the bytes for its eight codes, as in the definition."""
    codes = np.random.default_rng(width).integers(0, 1 << width, 64)
    number = 0
    for index, code in enumerate(codes.tolist()):
        for bit in range(width):
            number |= (code >> bit & 1) << index // 8 * 8 * width + 8 * bit + index % 8
    words = planes.pack(codes, width)
    assert words.tolist() == [number >> 32 * word & 0xFFFF_FFFF for word in range(2 * width)]
    assert planes.unpack(words, width).tolist() == codes.tolist()


def test_errors():
    refuses("Words must be a multiple of 5, not 6", planes.unpack, np.zeros(6), 5)
    refuses("Code width must be a positive integer, not 0", planes.unpack, [], 0)


def test_bytes():
    assert planes.bytes_to_words([1, 2, 3, 4, 5]).tolist() == [0x0403_0201, 0x05]
    assert planes.bytes_to_words([]).tolist() == []
    assert planes.bytes_to_words([255] * 4).tolist() == [0xFFFF_FFFF]


def test_fields_by_hand():
    """The three-bit numbers 1, 6, 5 are packed as 101_110_001."""
    assert planes.field_bytes([1, 6, 5], 3).tolist() == [0b0111_0001, 0b1]
    assert planes.fields([0b0111_0001, 0b1], 3, 3).tolist() == [1, 6, 5]
    assert planes.fields([0b0111_0001, 0b1], 3, 2).tolist() == [1, 6]
    assert planes.field_bytes([(1 << 40) - 2], 40).tolist() == [254, 255, 255, 255, 255]


def test_fields():
    values = np.random.default_rng(1).integers(0, 1 << 23, 32)
    data = planes.field_bytes(values, 23)
    assert len(data) == 92
    assert sum(int(byte) << 8 * index for index, byte in enumerate(data)) == sum(
        int(value) << 23 * index for index, value in enumerate(values))
    assert planes.fields(data, 23, 32).tolist() == values.tolist()


def test_word_count():
    for lanes in (1, 2, 4, 8):
        for width in range(1, 17):
            words = planes.word_count(lanes, width)
            assert words in (1, 2, 4)
            assert 32 * words >= lanes * width
            assert words == 1 or 16 * words < lanes * width
