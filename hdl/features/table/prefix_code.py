# amaranth: UnusedElaboratable=no
# The constructor creates codecs only to read their latencies and widths, even if nothing is elaborated.
"""Lossless compression of bfloat16: short codes for common exponents, everything else unchanged.

Trained weights use few exponents, and most weights have one of only three or four. A packet has a canonical prefix
code of sixteen symbols: fifteen exponents, and an escape for all other exponents. The code is chosen for the weights.
If all codes have four bits, a weight takes 12 bits instead of 16.

A packet contains, from its lowest bit up: the fifteen exponents, eight bits each, and eight zeros; the sixteen
lengths, four bits each, in ascending order, the escape's last; and for each element fraction and sign, eight bits,
then the code of the exponent, and after an escape the exponent itself. An escape to the first of the fifteen marks
the end; eight zeros precede it, and zeros fill the last word after it.

Codes are canonical: numbers that ascend from symbol to symbol, the first of each length following the last of the
previous one; their first bit is their highest. No length is above :attr:`PrefixCode.longest`, and all codes are used.
"""

from dataclasses import dataclass

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["LONGEST", "SYMBOLS", "WORDS", "CodeNumbering", "PrefixCode", "longest_first"]

#: Number of words of a table: the exponents and the lengths of their codes.
WORDS = 6

SYMBOLS = 16

#: Maximum number of bits of a code; each further bit slows down the decoder and saves at most half a percent.
LONGEST = 6


@dataclass(frozen=True, kw_only=True)
class PrefixCode:
    """Fixed parameters of the format: elements are BF16, one per beat."""

    @property
    def symbols(self):
        """Number of codes: exponents and an escape."""
        return SYMBOLS

    @property
    def longest(self):
        """Maximum number of bits of a code."""
        return LONGEST

    @property
    def table_words(self):
        """Number of words of a table."""
        return WORDS

    def words(self, lengths):
        """Number of words of a packet with codes of these lengths, including escaped exponents and the end."""
        return WORDS + -(-sum(8 + length for length in lengths) // 32)


def longest_first(code):
    """Bits of a code in transmission order: the highest bit comes first."""
    return Cat(reversed([code[bit] for bit in range(LONGEST)]))


class CodeNumbering(wiring.Component):
    """Number the codes, one symbol per cycle.

    Members
    -------
    load : In(1)
        Load eight lengths, first for the lower half of the symbols, then for the upper half.
    lengths : In(32)
    start : In(1)
        Begin in the next cycle.
    active : Out(1)
        A symbol is output.
    symbol : Out(4)
    length : Out(4)
    code : Out(6)
        Code, aligned to the highest bit.
    after : Out(7)
        The next symbol's code; 64 after the last one.
    sound : Out(1)
        The length is one to six, and at least the previous length; and the codes end with the last symbol.
    final : Out(1)
        The symbol is the last one.
    """

    load: In(1)
    lengths: In(32)
    start: In(1)
    active: Out(1)
    symbol: Out(4)
    length: Out(4)
    code: Out(LONGEST)
    after: Out(LONGEST + 1)
    sound: Out(1)
    final: Out(1)

    def elaborate(self, platform):
        m = Module()
        left = Signal(4 * SYMBOLS)
        before = Signal(4)
        m.d.comb += [
            self.length.eq(left),
            self.final.eq(self.symbol.all()),
            self.after.eq(self.code + Cat(self.length == LONGEST - bit for bit in range(LONGEST))),
            self.sound.eq((self.length >= before) & (self.length != 0) & (self.length <= LONGEST)
                          & (self.after[-1] == self.final) & (~self.after[-1] | ~self.after[:-1].any())),
        ]
        with m.If(self.load):
            m.d.sync += left.eq(Cat(left[32:], self.lengths))
        with m.If(self.active):
            m.d.sync += [
                left.eq(left >> 4), before.eq(self.length), self.code.eq(self.after), self.symbol.eq(self.symbol + 1),
                self.active.eq(~self.final),
            ]
        with m.If(self.start):
            m.d.sync += [self.active.eq(1), self.symbol.eq(0), self.code.eq(0), before.eq(0)]
        return m
