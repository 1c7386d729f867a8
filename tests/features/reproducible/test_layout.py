# amaranth: UnusedElaboratable=no
"""Encoding of integers for the ring: hdl/features/reproducible/layout.py."""

import functools

import numpy as np
import pytest
from amaranth.hdl import Cat, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.features.reproducible.layout import SPARE, WIDTHS, check_width, codes_of, integers_layout, integers_of
from sim.golden.features.reproducible import packet
from sim.golden.features.reproducible.sums import Addend
from sim.verilated.vectors import Unit, pack
from tests.refusals import refused_values

LARGEST = {width: 2 ** (width - 1) - 1 for width in WIDTHS}
#: Codes that stand for +infinity, NaN and -infinity.
SPECIAL = {16: (0x7FFF, 0x8000, 0x8001), 32: (0x7FFF_FFFF, 0x8000_0000, 0x8000_0001)}


class Bench(wiring.Component):
    """Test unit that converts a word of integers to codes and a word of codes to integers, for each width."""

    def __init__(self):
        super().__init__({name: member for width in WIDTHS for name, member in (
            (f"word_{width}", In(integers_layout(width))), (f"encoded_{width}", Out(32)),
            (f"codes_{width}", In(32)), (f"decoded_{width}", Out(32)), (f"flags_{width}", Out(2 * 32 // width)))})

    def elaborate(self, platform):
        m = Module()
        for width in WIDTHS:
            word, encoded, codes, decoded, flags = (
                getattr(self, f"{name}_{width}") for name in ("word", "encoded", "codes", "decoded", "flags"))
            m.d.comb += [encoded.eq(codes_of(word, width)),
                         Cat(decoded, flags).eq(Cat(*integers_of(m, codes, width)))]
        return m


@functools.cache
def bench():
    return Unit(Bench(), name="CodesBench")


def split(words, count, width):
    """Split words into fields of ``width`` bits, lowest field first; return all fields in one array."""
    shifts = np.arange(0, count * width, width, dtype=np.uint64)
    return (words.astype(np.uint64)[:, np.newaxis] >> shifts & np.uint64((1 << width) - 1)).ravel().astype(np.int64)


def values(width, generator):
    """All 16-bit values, each once in either lane; or 32-bit corner cases and random values."""
    if width == 16:
        every = np.arange(-2 ** 15, 2 ** 15)
        return np.stack([every, generator.permutation(every)], axis=1).ravel()
    corners = [sign * (bit + near) for bit in (0, 1 << 15, 1 << 16, 1 << 30, 1 << 31) for near in range(-3, 4)
               for sign in (-1, 1)]
    inside = [value for value in corners if -2 ** 31 <= value < 2 ** 31]
    return np.array([*inside, *generator.integers(-2 ** 31, 2 ** 31, 1000)])


def encode(addend, width):
    """Encode an addend with the unit; return the codes."""
    lanes, bits = 32 // width, (1 << width) - 1
    special = addend.positive + 2 * addend.negative
    words = pack(integers_layout(width), {
        "data": packet.pack(addend.integers, width), "special": special.reshape(-1, lanes),
        "last": np.arange(len(special) // lanes) % 2})
    codes = split(bench().run({f"word_{width}": words})[f"encoded_{width}"], lanes, width)
    return np.where(codes > LARGEST[width], codes - bits - 1, codes)


@pytest.mark.parametrize("width", WIDTHS)
def test_integers_of_codes(width):
    """Every 16-bit code, and 32-bit corner cases, are decoded to the golden model's integers and flags."""
    codes = values(width, np.random.default_rng(1))
    words = packet.pack(codes, width)
    outputs = bench().run({f"codes_{width}": words})
    expected = packet.addend_of(codes, width)
    np.testing.assert_array_equal(outputs[f"decoded_{width}"], packet.pack(expected.integers, width))
    flags = split(outputs[f"flags_{width}"], 32 // width, 2)
    np.testing.assert_array_equal(flags, expected.positive + 2 * expected.negative)
    assert set(flags) == {0, 1, 2, 3}
    np.testing.assert_array_equal(encode(expected, width), codes)


@pytest.mark.parametrize("flags", range(4))
@pytest.mark.parametrize("width", WIDTHS)
def test_codes_of_integers(width, flags):
    """An integer is its own code, unless it has a flag; then the code depends only on the flags."""
    integers = values(width, np.random.default_rng(2))
    addend = Addend(integers, np.full(len(integers), bool(flags & 1)), np.full(len(integers), bool(flags & 2)))
    np.testing.assert_array_equal(encode(addend, width), packet.codes_of(addend, width))


@pytest.mark.parametrize("width", WIDTHS)
def test_lanes(width):
    """The flags of an element do not change the code of the other element in its word."""
    generator = np.random.default_rng(3)
    integers = values(width, generator)
    positive, negative = generator.integers(0, 2, (2, len(integers))).astype(bool)
    addend = Addend(integers, positive, negative)
    np.testing.assert_array_equal(encode(addend, width), packet.codes_of(addend, width))


@pytest.mark.parametrize("width", WIDTHS)
def test_known_codes(width):
    codes = encode(Addend(np.zeros(4, int), np.array([1, 1, 0, 0], bool), np.array([0, 1, 1, 0], bool)), width)
    assert (codes & (1 << width) - 1).tolist() == [*SPECIAL[width], 0]


def test_layout():
    for width in WIDTHS:
        layout = integers_layout(width)
        assert [name for name, _ in layout] == ["data", "special", "last"]
        assert layout.size == 32 + 2 * 32 // width + 1
    assert max(SPARE) == 8


test_width = refused_values(check_width, {}, "width", [0, 8, 24, 64, "16", None], "Integer width must be 16 or 32")


def test_widths():
    for width in WIDTHS:
        check_width(width)
