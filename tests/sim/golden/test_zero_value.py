import numpy as np
import pytest

from sim.golden import floating
from sim.golden import zero_value as model
from tests.refusals import refuses
from tests.words import bits_of

A = bits_of([0, 5, 0, -3, 0, 0, 7, 0])
B = bits_of([0, -5, 2, 4, 0, 0, 1, 0])


def _sparse(generator, count, density):
    elements = generator.integers(0, 1 << 32, count, dtype=np.uint32)
    elements[generator.random(count) >= density] = 0
    return elements


def test_known_answers():
    # Strings of mask bits start with element 0.
    assert model.encode(A).tolist() == [int("01010010"[::-1], 2), *bits_of([5, -3, 7])]
    assert model.encode(B).tolist() == [int("01110010"[::-1], 2), *bits_of([-5, 2, 4, 1])]
    total = model.add(model.encode(A), model.encode(B))
    assert total.tolist() == [int("00110010"[::-1], 2), *bits_of([2, 1, 8])]
    assert model.decode(total, 8).tolist() == bits_of([0, 0, 2, 1, 0, 0, 8, 0]).tolist()


@pytest.mark.parametrize("density", [0, 0.01, 0.1, 0.5, 0.9, 1])
@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 100, 1000])
def test_round_trip_and_size(count, density):
    elements = _sparse(np.random.default_rng(count), count, density)
    words = model.encode(elements)
    non_zero = int(np.count_nonzero(elements & 0x7FFF_FFFF))
    assert len(words) == -(-count // 32) + non_zero
    np.testing.assert_array_equal(model.decode(words, count), np.where(elements == 0x8000_0000, 0, elements))
    assert model.group_sizes(words).sum() == len(words)
    assert len(model.group_sizes(words)) == -(-count // 32)


def test_negative_zero_is_zero():
    assert model.encode([0x8000_0000, 0x8000_0001]).tolist() == [2, 0x8000_0001]


@pytest.mark.parametrize("seed", range(5))
def test_sums(seed):
    generator = np.random.default_rng(seed)
    a, b = _sparse(generator, 320, 0.6), _sparse(generator, 320, 0.6)
    cancelling = generator.random(320) < 0.3
    b[cancelling] = a[cancelling] ^ 0x8000_0000
    total = model.add(model.encode(a), model.encode(b))
    expected = floating.add(np.where(a == 0x8000_0000, 0, a), np.where(b == 0x8000_0000, 0, b))
    np.testing.assert_array_equal(model.decode(total), expected)
    masks = [model.decode(words) != 0 for words in (model.encode(a), model.encode(b), total)]
    assert not (masks[2] & ~(masks[0] | masks[1])).any()
    assert (masks[2] != (masks[0] | masks[1])).any()


def test_malformed_streams():
    refuses("Stream must end with a whole group, not inside of the one at word 2", model.decode, [1, 5, 3, 7])
    refuses("Element count must end in the last group of 32 elements, not 33", model.decode, [0], 33)
    refuses("Element count must end in the last group of 64 elements, not 32", model.decode, [0, 0], 32)
    refuses("Streams must have equally many groups, not 1 and 2", model.add, [0], [0, 0])


@pytest.mark.parametrize(("lanes", "cycles"), [
    (1, 32 + 33 + 32), (2, 16 + 33 + 16), (4, 8 + 33 + 8), (8, 4 + 33 + 6)])
def test_cycle_bounds(lanes, cycles):
    elements = np.zeros(96, np.uint32)
    elements[32:64] = 1
    elements[64:69] = 1
    words = model.encode(elements)
    assert model.code_cycles(words, lanes) == cycles
    assert model.add_cycles(words, words) == 1 + 33 + 6
    assert model.add_cycles(words, model.encode(elements[::-1])) == 6 + 33 + 6
