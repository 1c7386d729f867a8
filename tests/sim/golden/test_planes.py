import numpy as np
import pytest

from sim.golden import planes, stream

# --- codes and words


def test_by_hand():
    """Eight codes of three bits: the bits of each place are a byte."""
    codes = [0b001, 0b010, 0b100, 0b111, 0, 0, 0, 0b101]
    assert planes.pack(codes, 3).tolist() == [0b10001100 << 16 | 0b00001010 << 8 | 0b10001001, 0, 0]
    assert planes.unpack(planes.pack(codes, 3), 3).tolist() == codes + [0] * 24


def test_two_groups_by_hand():
    """Two groups: the bits of each place of 8 codes are a byte, those of a group as many words as a code has bits."""
    codes = [0] * 33
    codes[0] = codes[9] = codes[31] = 1
    codes[32] = 3
    assert planes.pack(codes, 2).tolist() == [0x0002_0001, 0x0080_0000, 0x0101, 0]
    # Of one bit, a code has its own place.
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
    """Bit b of code n is bit 8 b + n modulo 8 of the bytes of its eight codes: by definition."""
    codes = np.random.default_rng(width).integers(0, 1 << width, 64)
    number = 0
    for place, code in enumerate(codes.tolist()):
        for bit in range(width):
            number |= (code >> bit & 1) << place // 8 * 8 * width + 8 * bit + place % 8
    words = planes.pack(codes, width)
    assert words.tolist() == [number >> 32 * word & 0xFFFF_FFFF for word in range(2 * width)]
    assert planes.unpack(words, width).tolist() == codes.tolist()


def test_errors():
    with pytest.raises(ValueError, match=r"^Words must be a multiple of 5, not 6$"):
        planes.unpack(np.zeros(6), 5)
    with pytest.raises(ValueError, match=r"^Code width must be a positive integer, not 0$"):
        planes.unpack([], 0)


def test_bytes():
    assert planes.bytes_to_words([1, 2, 3, 4, 5]).tolist() == [0x0403_0201, 0x05]
    assert planes.bytes_to_words([]).tolist() == []
    assert planes.bytes_to_words([255] * 4).tolist() == [0xFFFF_FFFF]


def test_fields_by_hand():
    """Numbers of three bits: 1, 6, 5 are 101_110_001."""
    assert planes.field_bytes([1, 6, 5], 3).tolist() == [0b0111_0001, 0b1]
    assert planes.fields([0b0111_0001, 0b1], 3, 3).tolist() == [1, 6, 5]
    assert planes.fields([0b0111_0001, 0b1], 3, 2).tolist() == [1, 6]
    assert planes.field_bytes([(1 << 40) - 2], 40).tolist() == [254, 255, 255, 255, 255]


def test_fields():
    values = np.random.default_rng(1).integers(0, 1 << 23, 32)
    data = planes.field_bytes(values, 23)
    assert len(data) == 92
    assert sum(int(byte) << 8 * place for place, byte in enumerate(data)) == sum(
        int(value) << 23 * place for place, value in enumerate(values))
    assert planes.fields(data, 23, 32).tolist() == values.tolist()


def test_word_count():
    for lanes in (1, 2, 4, 8):
        for width in range(1, 17):
            words = planes.word_count(lanes, width)
            assert words in (1, 2, 4)
            assert 32 * words >= lanes * width
            assert words == 1 or 16 * words < lanes * width


# --- cycles


def test_packer_cycles():
    """Chunks of 5 bytes into beats of 8: by hand."""
    packer = planes.Packer(2, np.ones(20, bool))
    taken = [packer.take(0, 5), packer.take(1, 5), packer.take(2, 5, align=True), packer.take(3, 5, last=True)]
    assert taken == [0, 1, 2, 3]
    # 5, then 8 and 2, then 7 up to 8, then 5 up to 8.
    assert packer.output.offered[:7].tolist() == [-1, -1, -1, 0, 1, 2, -1]


@pytest.mark.parametrize(("count", "size", "sizes"), [(0, 4, []), (3, 4, [3]), (8, 4, [4, 4]), (9, 4, [4, 4, 1])])
def test_chunks(count, size, sizes):
    assert planes.chunks(count, size) == sizes


def test_a_packer_that_waits():
    """While a beat is on offer, the chunk behind it waits in the register, and no other is taken."""
    packer = planes.Packer(1, np.arange(20) >= 10)
    assert [packer.take(0, 4), packer.take(1, 4), packer.take(2, 4)] == [0, 1, 10]
    assert packer.output.offered[:14].tolist() == [-1, -1, *[0] * 9, 1, 2, -1]


def test_what_is_left_of_a_packet():
    """6 and 6 bytes in beats of 8: the rest is a beat of its own, and the chunk behind waits for it."""
    packer = planes.Packer(2, np.ones(20, bool))
    assert [packer.take(0, 6), packer.take(0, 6, last=True)] == [0, 1]
    assert [packer.take(0, 8, last=True), packer.take(0, 8, last=True)] == [2, 4]
    assert packer.output.offered[:8].tolist() == [-1, -1, -1, 0, 1, 2, 3, -1]
    packer = planes.Packer(2, np.ones(20, bool))
    assert [packer.take(0, 6), packer.take(0, 6, last=True), packer.take(0, 4), packer.take(0, 4)] == [0, 1, 2, 4]


def test_what_alignment_fills():
    """7 and 8 bytes, with the one that is filled in, are two beats of 8 within a packet."""
    packer = planes.Packer(2, np.ones(20, bool))
    assert [packer.take(0, 7), packer.take(1, 8, align=True), packer.take(2, 8)] == [0, 1, 2]
    assert packer.output.offered[:7].tolist() == [-1, -1, -1, 0, 1, 2, -1]


def test_unpacker_cycles():
    """Chunks of 5 bytes out of beats of 8: the second needs the second beat, the fourth the third."""
    always = np.ones(30, bool)
    unpacker = planes.Unpacker(2, 3, always)
    shown = []
    for number in range(4):
        shown.append(max(unpacker.shown(5), *[cycle + 1 for cycle in shown], 0))
        unpacker.take(shown[-1], 5, last=number == 3)
    # A beat is accepted in one cycle, in front in the next, and shown in the one behind.
    assert shown == [2, 3, 4, 5]
    late = planes.Unpacker(2, 3, np.array([cycle not in range(1, 10) for cycle in range(30)]))
    assert [late.shown(8), late.shown(9)] == [2, 11]
    # Taken late, a beat leaves then, and the one behind it is shown in the next cycle.
    slow = planes.Unpacker(2, 3, always)
    slow.take(10, 8)
    assert slow.shown(8) == 11
    assert np.flatnonzero(slow.feed.valid & slow.feed.ready).tolist() == [0, 1, 10]


def test_registers():
    """Beats of an encoder with two registers move on each cycle; with a last one that is left late, they queue up."""
    feed = stream.Feed(4, np.ones(30, bool))
    registers = planes.Registers(feed, 1)
    left = []

    def leave(cycle):
        left.append(max(cycle, 10, *[one + 1 for one in left]))
        return left[-1]

    for real in (True, True, True, False):
        registers.beat(0, leave, real=real)
    assert left == [10, 11, 12, 13]
    assert np.flatnonzero(feed.valid & feed.ready).tolist() == [0, 1, 10]
    assert registers.free == 12
