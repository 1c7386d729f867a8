"""Checksums: the CRC-32 of words matches zlib, and each parity covers the selected bits."""

import random
import zlib

import pytest
from amaranth.hdl import Cat, Module, Signal

from hdl.checksum import crc_after, few_parities, parities
from tests.hdl import pysim

WORDS = 40


def played(source, values, expression):
    """Simulate an expression with ``source`` set to each of the given values; return the results."""
    m = Module()
    result = Signal(len(expression))
    m.d.comb += result.eq(expression)
    seen = []

    async def testbench(ctx):
        for value in values:
            ctx.set(source, value)
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
    actual = played(bits, values, Cat(shared(bits, chosen)))
    assert actual == [sum((sum(value >> bit & 1 for bit in positions) & 1) << n for n, positions in enumerate(chosen))
                      for value in values]
