"""Packets of reproducible sums: integers of growing widths, and the words of an all-reduce."""

import numpy as np
import pytest

from sim.golden.reproducible import GROUP, addend_bits
from sim.golden.reproducible_packet import hop_bits, pack, payload_words, unpack


def integers(seed, count, bits):
    generator = np.random.default_rng(seed)
    values = generator.integers(-2 ** (bits - 1), 2 ** (bits - 1), count)
    values[:2] = -2 ** (bits - 1), 2 ** (bits - 1) - 1
    return values


def test_bits_of_hops():
    assert [hop_bits(32, 4, count) for count in (1, 2, 3, 4)] == [30, 31, 32, 32]
    assert [hop_bits(16, 8, count) for count in (1, 2, 3, 5, 8)] == [13, 14, 15, 16, 16]
    assert [hop_bits(24, 4, count) for count in (1, 4)] == [24, 24]


@pytest.mark.parametrize(("width", "bits"), [
    *((32, bits) for bits in range(25, 33)), *((16, bits) for bits in range(9, 17)), (24, 24), (12, 12), (20, 20)])
@pytest.mark.parametrize("count", [1, 32, 33, 256])
def test_packing(width, bits, count):
    """A group of integers takes as many words as each has bits, and is unpacked without loss."""
    values = integers(bits + count, max(count, 2), bits)[:count]
    words = pack(values, bits, width)
    assert len(words) == -(-count // GROUP) * bits
    assert (unpack(words, count, bits, width) == values).all()


def test_layout():
    """Integers are in the lowest bits of their lanes, and the last of a group in the upper bits of all lanes."""
    values = np.arange(1, 33)
    values[30:] = 0b10, 0b11
    words = pack(values, 30, 32)
    assert (words & 0x3FFF_FFFF == np.arange(1, 31)).all()
    assert (words >> 30).tolist() == [0b10, *[0] * 14, 0b11, *[0] * 14]
    words = pack(values, 15, 16)
    halves = words.view(np.uint16)
    assert (halves & 0x7FFF == np.arange(1, 31)).all()
    assert (halves >> 15).tolist() == [0, 1, *[0] * 13, 1, 1, *[0] * 13]


@pytest.mark.parametrize(("width", "ratio"), [(32, 1.01), (16, 0.51)])
def test_words_of_an_all_reduce(width, ratio):
    """An all-reduce of 16,384 elements on four nodes, with exponents and checksums, takes few words more than raw."""
    nodes, segment = 4, 256
    assert addend_bits(width, nodes) == width - 2
    block = 16_384 // nodes
    lengths = [segment] * (block // segment)
    ahead = [*lengths, 0, 0]
    words = raw = 0
    for count in [*range(1, nodes), *[nodes] * (nodes - 1)]:
        bits = hop_bits(width, nodes, count)
        words += sum(payload_words(*pair, bits) for pair in zip([0, 0, *lengths], ahead, strict=True))
        raw += block
    print(f"sum{width}: {words / raw:.4f} of raw words")
    assert words <= ratio * raw
