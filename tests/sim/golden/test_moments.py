"""Packed moments: words are compared with ml_dtypes, rows and cycles with results computed by hand."""

import numpy as np
import pytest

from sim.golden import moments as model
from tests.refusals import refuses


def beats(elements, keep, last):
    return model.Beats(np.array(elements, np.uint32), np.array(keep, bool), np.array(last, bool))


# --- tests of words


def test_by_hand():
    words = model.pack([0x3F800000, 0xC0490FDB, 0x3F808000, 0x3F818000, 0xFFFFFFFF])
    assert words.tolist() == [0xC0493F80, 0x3F823F80, 0x00007FC0]
    assert model.unpack(words, 5).tolist() == [0x3F800000, 0xC0490000, 0x3F800000, 0x3F820000, 0x7FC00000]
    assert model.unpack(words).tolist()[5:] == [0]
    assert model.pack([]).tolist() == model.unpack([]).tolist() == []


def test_unpacking_keeps_all_bits():
    halves = np.arange(1 << 16, dtype=np.uint32)
    words = halves | (halves ^ np.uint32(0xFFFF)) << np.uint32(16)
    elements = model.unpack(words)
    np.testing.assert_array_equal(elements[0::2], halves << np.uint32(16))
    np.testing.assert_array_equal(elements[1::2], (halves ^ np.uint32(0xFFFF)) << np.uint32(16))


@pytest.mark.parametrize("count", range(6))
def test_odd_counts(count):
    """If the number of elements is odd, the upper half of the last word is zero."""
    words = model.pack([0x3F80_0000] * count)
    assert words.tolist() == [0x3F80_3F80] * (count // 2) + [0x3F80] * (count % 2)
    assert model.unpack(words, count).tolist() == [0x3F80_0000] * count


@pytest.mark.parametrize("count", [-1, 3, 4, 7])
def test_count(count):
    refuses(f"Element count must end in the last of 3 words, not {count}", model.unpack, [1, 2, 3], count)


# --- tests of beats


def test_beats_by_hand():
    """With two lanes, a vector of five elements and a vector of one element are packed and unpacked."""
    source = beats([[1 << 16, 2 << 16], [3 << 16, 4 << 16], [5 << 16, 9], [6 << 16, 9]],
                   [[1, 1], [1, 1], [1, 0], [1, 0]], [0, 0, 1, 1])
    rows, completes = model.pack_beats(source)
    assert completes.tolist() == [0, 1, 1, 1]
    assert rows.elements.tolist() == [[0x2_0001, 0x4_0003], [5, 0], [6, 0]]
    assert rows.keep.tolist() == [[True, True], [True, False], [True, False]]
    assert rows.last.tolist() == [False, True, True]
    unpacked, counts = model.unpack_beats(rows)
    assert counts.tolist() == [2, 1, 1]
    assert unpacked.elements.tolist() == [[1 << 16, 2 << 16], [3 << 16, 4 << 16], [5 << 16, 0], [6 << 16, 0]]
    assert unpacked.keep.tolist() == [[True, True]] * 4  # each word has a single keep bit for its two elements
    assert unpacked.last.tolist() == [False, False, True, True]


def test_beats_that_end_early():
    """With four lanes, elements that are not kept become zero, and words of packed rows have one or two elements."""
    source = beats([[1 << 16, 2 << 16, 3 << 16, 9], [4 << 16, 9, 9, 9], [5 << 16, 6 << 16, 7 << 16, 8 << 16],
                    [9 << 16, 10 << 16, 9, 9]],
                   [[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0]], [1, 1, 0, 1])
    rows, completes = model.pack_beats(source)
    assert completes.tolist() == [1, 1, 0, 1]
    assert rows.elements.tolist() == [[0x2_0001, 3, 0, 0], [4, 0, 0, 0], [0x6_0005, 0x8_0007, 0xA_0009, 0]]
    assert rows.keep.tolist() == [[True, True, False, False], [True, False, False, False], [True, True, True, False]]
    assert rows.last.tolist() == [True, True, True]
    unpacked, counts = model.unpack_beats(rows)
    # A row of two words is unpacked to one beat of four elements, and a row of three words to two beats.
    assert counts.tolist() == [1, 1, 2]
    assert unpacked.keep.tolist() == [[True] * 4, [True, True, False, False], [True] * 4, [True, True, False, False]]
    assert unpacked.last.tolist() == [True, True, False, True]
    assert unpacked.elements[2:].tolist() == [[5 << 16, 6 << 16, 7 << 16, 8 << 16], [9 << 16, 10 << 16, 0, 0]]


@pytest.mark.parametrize("lanes", [1, 2, 4, 8])
def test_beats_are_words(lanes):
    """For vectors of any length, packed rows have the same words as packed vectors, and unpacking restores
    elements."""
    generator = np.random.default_rng(lanes)
    for count in range(1, 6 * lanes + 1):
        vector = generator.integers(0, 1 << 16, count, dtype=np.uint32) << np.uint32(16)
        vector = np.where(np.isnan(vector.view(np.float32)), 0, vector)
        size = -(-count // lanes)
        padded = np.full(size * lanes, 0xFFFF_FFFF, np.uint32)
        padded[:count] = vector
        kept = (np.arange(size * lanes) < count).reshape(size, lanes)
        rows, completes = model.pack_beats(beats(padded.reshape(size, lanes), kept, np.arange(size) == size - 1))
        assert len(rows) == completes.sum() == -(-count // (2 * lanes))
        assert rows.elements[rows.keep].tolist() == model.pack(vector).tolist()
        unpacked, counts = model.unpack_beats(rows)
        # If at most half of the lanes of the last row hold words, the row is unpacked to a single beat.
        alone = 2 * int(rows.keep[-1].sum()) <= lanes
        assert len(unpacked) == counts.sum() == len(rows) * 2 - alone
        assert unpacked.elements[unpacked.keep][:count].tolist() == vector.tolist()
        assert unpacked.last.tolist() == [False] * (len(unpacked) - 1) + [True]
