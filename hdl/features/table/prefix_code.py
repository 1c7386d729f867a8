# amaranth: UnusedElaboratable=no
# The constructor creates codecs only to read their latencies and widths, even if nothing is elaborated.
"""Lossless bfloat16 format: short codes for common exponents, everything else unchanged.

Trained weights have few distinct exponents, and most weights have one of only three or four. A packet has a
canonical prefix code of sixteen symbols: fifteen exponents, and an escape for all other exponents. The code is
chosen for the weights. If all codes have four bits, a weight takes 12 bits instead of 16.

A packet contains, from its lowest bit up: the fifteen exponents, eight bits each, and eight zeros; the sixteen code
lengths, four bits each, in ascending order, with the escape's length last; and for each element its fraction and
sign in eight bits, the code of its exponent and, after an escape, the exponent itself. An escape followed by the
first of the fifteen exponents marks the end; eight zeros precede it, and zeros after it fill the last word.

Codes are canonical: their numbers ascend from symbol to symbol, and the first code of each length follows the last
one of the previous length. The highest bit of a code comes first. No code is longer than
:attr:`PrefixCode.longest`, and all codes are used.
"""

from dataclasses import dataclass

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["LONGEST", "SYMBOLS", "WORDS", "CodeNumbering", "PrefixCode", "longest_first"]

#: Number of words in a table: the exponents and the lengths of their codes.
WORDS = 6

SYMBOLS = 16

#: Maximum number of bits in a code; each further bit slows down the decoder and saves at most half a percent.
LONGEST = 6


@dataclass(frozen=True, kw_only=True)
class PrefixCode:
    """Parameters of the format, which are fixed: elements are BF16, one per beat."""

    @property
    def symbols(self):
        """Number of codes: fifteen exponents and an escape."""
        return SYMBOLS

    @property
    def longest(self):
        """Maximum number of bits in a code."""
        return LONGEST

    @property
    def table_words(self):
        """Number of words in a table."""
        return WORDS

    def words(self, lengths):
        """Number of words in a packet with codes of these lengths, including escaped exponents and the end mark."""
        return WORDS + -(-sum(8 + length for length in lengths) // 32)


def longest_first(code):
    """Return the bits of a code in transmission order, highest bit first."""
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
        A symbol is being output.
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
