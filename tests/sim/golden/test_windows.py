import numpy as np
import pytest

from sim.golden.windows import fits, read, window


@pytest.mark.parametrize(("base", "length", "answer"), [
    (64, 0, True), (32, 32, True), (32, 33, False), (0xFFFFFFE0, 64, False), (0, 64, True), (0, 65, False),
    (96, 0, False), (0, 0xFFFFFFFF, False)])
def test_known_answers(base, length, answer):
    """Window 64 to 128."""
    assert fits(base, length, window(64, 128, 256)[1]) is answer


def test_wrapping_sums_would_differ():
    """A sum of 32 bits lets 64 elements from 0xFFFFFFE0 on into a window of 64."""
    assert (0xFFFFFFE0 + 64) % (1 << 32) <= 64
    assert not fits(0xFFFFFFE0, 64, 64)


def test_windows_in_no_memory_are_empty():
    assert window(64, 128, 256) == (64, 64)
    assert window(64, 64, 64) == (64, 0)
    assert window(128, 64, 256) == (0, 0)
    assert window(64, 288, 256) == (0, 0)


def test_every_small_window():
    for size in range(6):
        for base in range(8):
            for length in range(8):
                assert fits(base, length, size) == all(place < size for place in range(base, base + length)) & (
                    base <= size)


def test_read():
    memory = np.arange(1, 9, dtype=np.uint32)
    assert read(memory, 2, 3).tolist() == [3, 4, 5, 0, 0, 0, 0, 0]
    assert not read(memory, 8, 0).any()


def test_numbers_of_32_bits():
    with pytest.raises(ValueError, match=r"^Base and length must be numbers of 32 bits, not -32 and 64$"):
        fits(-32, 64, 64)
