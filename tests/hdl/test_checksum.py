"""Checksums: the CRC-32 of words is zlib's, and parities are those of their places."""

import random
import zlib

import pytest
from amaranth.hdl import Cat, Module, Signal

from hdl.checksum import crc_after, few_parities, parities
from tests.hdl import pysim

WORDS = 40


def played(given, values, found):
    """Values of an expression of ``given``, for each of its values."""
    m = Module()
    result = Signal(len(found))
    m.d.comb += result.eq(found)
    seen = []

    async def testbench(ctx):
        for value in values:
            ctx.set(given, value)
            seen.append(ctx.get(result))

    pysim.simulate(m, testbench, clock=False)
    return seen


def test_crc_is_zlibs():
    generator, mixed, register, sent, values = random.Random(1), Signal(32), 0xFFFF_FFFF, b"", []
    expected = []
    for _ in range(WORDS):
        word = generator.getrandbits(32)
        values.append(register ^ word)
        sent += word.to_bytes(4, "little")
        register = zlib.crc32(sent) ^ 0xFFFF_FFFF
        expected.append(register)
    assert played(mixed, values, crc_after(mixed)) == expected


@pytest.mark.parametrize("shared", [parities, few_parities])
def test_parities(shared):
    generator, bits = random.Random(2), Signal(24)
    chosen = [set(generator.sample(range(24), generator.randint(1, 16))) for _ in range(8)]
    values = [generator.getrandbits(24) for _ in range(WORDS)]
    found = played(bits, values, Cat(shared(bits, chosen)))
    assert found == [sum((sum(value >> place & 1 for place in places) & 1) << n for n, places in enumerate(chosen))
                     for value in values]
