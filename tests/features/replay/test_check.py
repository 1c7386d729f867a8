"""Tests of the check field of words, hdl/features/replay/check.py: golden model and Hamming distance."""

import itertools

import numpy as np
from amaranth.hdl import Module
from amaranth.lib.wiring import Component, In, Out

from hdl.features.replay.check import INITIAL, after_bit, check_of
from hdl.features.replay.signature import ReplayLinkSignature
from sim.verilated.vectors import Unit
from tests.features.replay.check_model import crc8, word_check


class Checks(Component):
    """Unit that computes the check field of a complete word, and the CRC register after another bit."""

    word: In(34)
    check: Out(8)
    held: In(8)
    entering: In(1)
    shifted: Out(8)

    def elaborate(self, platform):
        m = Module()
        m.d.comb += [self.check.eq(check_of(self.word)), self.shifted.eq(after_bit(self.held, self.entering))]
        return m


def test_check():
    words = np.concatenate([[0, (1 << 34) - 1], np.uint64(1) << np.arange(34, dtype=np.uint64),
                            np.random.default_rng(1).integers(1 << 34, size=500)]).astype(np.uint64)
    registers = np.arange(len(words)) % 256
    bits = np.arange(len(words)) // 256 % 2
    trace = Unit(Checks()).run({"word": words, "held": registers, "entering": bits})
    due = [word_check(word & 0xffffffff, word >> 32 & 1, word >> 33, 0) for word in words.tolist()]
    assert trace["check"].tolist() == due
    assert trace["shifted"].tolist() == [crc8([bit], register) for register, bit in zip(registers, bits, strict=True)]


def test_golden_check():
    # CRC catalogues list this value for the variant that processes bytes MSB first and inverts the result.
    text = [byte >> n & 1 for byte in b"123456789" for n in range(7, -1, -1)]
    assert crc8(text) ^ 0xFF == 0xDF
    for word in (0, 0x2_DEADBEEF, 0x3_FFFFFFFF):
        bits = [word >> n & 1 for n in range(34)]
        check = crc8(bits, INITIAL)
        assert word_check(word & 0xffffffff, word >> 32 & 1, word >> 33, 256) == check
        assert word_check(word & 0xffffffff, word >> 32 & 1, word >> 33, 0x3a5) == check ^ 0xa5
        assert crc8([*bits, *(check >> n & 1 for n in range(7, -1, -1))]) == 0


def test_distance():
    """Up to three wrong bits in a word and its check are detected, for any word."""
    changes = [word_check(1 << n & 0xffffffff, n == 32, n == 33, 0) ^ word_check(0, 0, 0, 0) for n in range(34)]
    changes += [1 << n for n in range(8)]
    for count in (1, 2, 3):
        for chosen in itertools.combinations(changes, count):
            assert np.bitwise_xor.reduce(chosen)


def test_wires():
    members = ReplayLinkSignature().members
    widths = {name: members[name].shape if isinstance(members[name].shape, int) else members[name].shape.width
              for name in members}
    assert sum(widths[name] for name in ("valid", "data", "last", "kind", "check")) == 43
    assert widths["line"] == 1
