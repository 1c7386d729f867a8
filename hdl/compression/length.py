"""Length counters, which find the end of a packet's payload from its words.

A depacketizer counts down the **units** of a payload. Depending on the format, a unit is a single word or all words
of a group of elements. Each format has a counter, which outputs the number of units in a packet and marks the last
word of each unit.
"""

import math

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["LENGTH_BITS", "WORD", "FixedLength", "count_words", "counter_ports"]

#: Width of a link word in bits.
WORD = 32

#: Width in bits of a packet's length, which is an element count.
LENGTH_BITS = 10


def counter_ports():
    """Return the members common to all length counters, as a dictionary for a signature.

    length : In
        Number of elements in the next packet; must be stable for two cycles before ``start`` falls.
    units : Out
        Number of units in that packet.
    start : In(1)
        Level: no word of the payload has arrived.
    word, zero : In
        A payload word, and whether it is zero.
    take : In(1)
        The word is taken.
    last : In(1)
        The unit is the last one of the packet.
    ends : Out(1)
        The word ends its unit.
    wrong : Out(1)
        No packet of the format has this word at this position.
    """
    return {
        "length": In(LENGTH_BITS), "units": Out(LENGTH_BITS), "start": In(1), "word": In(WORD), "zero": In(1),
        "take": In(1), "last": In(1), "ends": Out(1), "wrong": Out(1),
    }


def count_words(block, block_bits, count):
    """Number of words for ``count`` elements (a Value) in blocks of ``block`` elements and ``block_bits`` bits."""
    blocks = (count + (block - 1)) >> (block.bit_length() - 1)
    unit = math.gcd(WORD, block_bits)
    factor, shift = block_bits // unit, (WORD // unit).bit_length() - 1
    # Multiply by shifting and adding, since `*` would instantiate a multiplier.
    units = sum(blocks.shift_left(bit) for bit in range(factor.bit_length()) if factor >> bit & 1)
    return (units + ((1 << shift) - 1)) >> shift


class FixedLength(wiring.Component):
    """Count the words of a format with a fixed number of bits per block.

    Parameters
    ----------
    block : int
        Number of elements in a block: a power of two.
    block_bits : int
        Number of bits in a block; the blocks of a packet are contiguous.

    Members
    -------
    See :func:`counter_ports`. A unit is a word.
    """

    def __init__(self, *, block, block_bits):
        self._block = block
        self._block_bits = block_bits
        super().__init__(counter_ports())

    def elaborate(self, platform):
        m = Module()
        words = count_words(self._block, self._block_bits, self.length)
        if self._block_bits == WORD * self._block:  # one word per element: nothing to compute
            m.d.comb += self.units.eq(words)
        else:
            counted = Signal(LENGTH_BITS)
            m.d.sync += counted.eq(words)
            m.d.comb += self.units.eq(counted)
        m.d.comb += self.ends.eq(1)
        return m
