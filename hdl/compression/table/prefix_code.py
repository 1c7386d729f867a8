# amaranth: UnusedElaboratable=no
# Codecs are made here by their parameters, and asked for latencies and widths even where nothing is elaborated.
"""Compression of bfloat16 without loss: short codes for common exponents, and all else as it is.

The exponents of trained weights are few, and most are one of three or four. A packet has a canonical prefix code of
sixteen symbols: fifteen exponents, and an escape for all others. It is chosen by who knows the weights. Where all
codes have four bits, a weight takes 12 bits in place of 16.

A packet is, from its lowest bit on: the fifteen exponents, eight bits each, and eight zeros; the sixteen lengths,
four bits each, in ascending order, the escape's last; and for each element fraction and sign, eight bits, then the
code of the exponent, and behind an escape the exponent itself. An escape to the first of the fifteen is the end; in
front of it are eight zeros, and behind it those that the last word lacks.

Codes are canonical: numbers that ascend from symbol to symbol, the first of each length following the last of the one
before; their first bit is their highest. No length is above :attr:`PrefixCode.longest`, and all codes are used.
"""

from dataclasses import dataclass

from amaranth.hdl import Array, C, Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.streams.stream import beat_layout, word_layout

__all__ = ["Decoder", "Encoder", "PrefixCode"]

#: Words of a table: exponents, and lengths.
_WORDS = 6
_SYMBOLS = 16
#: Most bits of a code. Each one more costs a decoder speed, and saves half a percent at most.
_LONGEST = 6


@dataclass(frozen=True, kw_only=True)
class PrefixCode:
    """Parameters of the format, of which there are none to choose: elements are BF16, one per beat."""

    @property
    def symbols(self):
        """Codes: exponents and an escape."""
        return _SYMBOLS

    @property
    def longest(self):
        """Most bits of a code."""
        return _LONGEST

    @property
    def table_words(self):
        """Words of a table."""
        return _WORDS

    def words(self, lengths):
        """Words of a packet of elements whose codes have given lengths, escaped exponents included, and end."""
        return _WORDS + -(-sum(8 + length for length in lengths) // 32)


def _longest_first(code):
    """A code, of which the highest bit comes first, as bits in the order in which they are sent."""
    return Cat(reversed([code[place] for place in range(_LONGEST)]))


class _Walk(wiring.Component):
    """Number the codes: one symbol per cycle.

    Members
    -------
    load : In(1)
        Take eight lengths, of the lower half of the symbols and then of the upper one.
    lengths : In(32)
    start : In(1)
        Begin, in the next cycle.
    active : Out(1)
        A symbol is given.
    symbol : Out(4)
    length : Out(4)
    code : Out(6)
        Its bits are the highest ones.
    after : Out(7)
        The next symbol's code; 64 after the last one.
    sound : Out(1)
        Its length is one to six, and not less than the one before; and the codes end with the last symbol.
    final : Out(1)
        It is the last one.
    """

    load: In(1)
    lengths: In(32)
    start: In(1)
    active: Out(1)
    symbol: Out(4)
    length: Out(4)
    code: Out(_LONGEST)
    after: Out(_LONGEST + 1)
    sound: Out(1)
    final: Out(1)

    def elaborate(self, platform):
        m = Module()
        left = Signal(4 * _SYMBOLS)
        before = Signal(4)
        m.d.comb += [
            self.length.eq(left),
            self.final.eq(self.symbol.all()),
            self.after.eq(self.code + Cat(self.length == _LONGEST - place for place in range(_LONGEST))),
            self.sound.eq((self.length >= before) & (self.length != 0) & (self.length <= _LONGEST)
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


class Encoder(wiring.Component):
    """Compress packets of elements, each with the table that comes first.

    One element is taken per cycle. A table takes :attr:`table_cycles` cycles before them. The word that an element
    completes is offered :attr:`latency` cycles after it was accepted. ``i.ready`` depends combinationally on
    ``o.ready``.

    Members
    -------
    table : In(stream of {data, last})
        Per packet six words, as they are sent.
    i : In(stream of beat_layout(1, 16))
    o : Out(stream of {data, last})
    error : Out(1)
        Pulse: a table was not of six words, or its lengths are not those of a code. What comes of it is a packet
        nevertheless.
    """

    latency = 5
    #: Cycles from the last word of a table to the first element.
    table_cycles = 18

    def __init__(self):
        super().__init__({
            "table": In(stream.Signature(word_layout())),
            "i": In(stream.Signature(beat_layout(1, 16))),
            "o": Out(stream.Signature(word_layout())),
            "error": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.walk = walk = _Walk()
        m.submodules.codes = codes = Memory(
            shape=data.StructLayout({"code": _LONGEST, "length": 4}), depth=_SYMBOLS, init=[])
        write = codes.write_port()
        read = codes.read_port(domain="comb")
        exponents = Signal(data.ArrayLayout(8, _SYMBOLS))
        m.d.comb += [
            write.addr.eq(walk.symbol), write.data.code.eq(walk.code), write.data.length.eq(walk.length),
            write.en.eq(walk.active), walk.lengths.eq(self.table.payload.data),
        ]

        # Four registers: the element, which symbol it is, its code, and its bits; a packet ends with an escape.
        accepting = Signal()
        free = [Signal(name=f"free_{stage}") for stage in range(5)]
        held = Signal(data.StructLayout({"element": 16, "last": 1, "end": 1, "valid": 1}))
        matched = Signal(data.StructLayout({
            "raw": 8, "exponent": 8, "symbol": 4, "end": 1, "valid": 1}))
        coded = Signal(data.StructLayout({"raw": 8, "exponent": 8, "code": _LONGEST, "length": 4, "escape": 1,
                                          "end": 1, "valid": 1}))
        bits = Signal(data.StructLayout({
            "bits": 16 + _LONGEST, "count": range(16 + _LONGEST + 1), "end": 1, "valid": 1}))
        for stage, value in enumerate((held, matched, coded, bits)):
            m.d.comb += free[stage].eq(free[stage + 1] | ~value.valid)
        ending = Signal()
        m.d.comb += [ending.eq(held.valid & held.last & ~held.end), self.i.ready.eq(accepting & free[0] & ~ending)]
        with m.If(free[0]):
            m.d.sync += [
                held.element.eq(self.i.payload.elements[0]), held.last.eq(self.i.payload.last),
                held.valid.eq((self.i.valid & accepting) | ending), held.end.eq(ending),
            ]
            with m.If(ending):
                m.d.sync += held.element.eq(Cat(C(0, 7), exponents[0], C(0, 1)))
        with m.If(self.i.valid & self.i.ready & self.i.payload.last):
            m.d.sync += accepting.eq(0)
        exponent = held.element[7:15]
        hits = Signal(_SYMBOLS - 1)
        m.d.comb += hits.eq(Cat(exponent == exponents[place] for place in range(_SYMBOLS - 1)))
        # No symbol is the escape, of which all bits are ones.
        number = Cat(Cat(hits[place] for place in range(_SYMBOLS - 1) if not place >> bit & 1).any()
                     for bit in range(4))
        with m.If(free[1]):
            m.d.sync += [
                matched.raw.eq(Cat(held.element[:7], held.element[15])), matched.exponent.eq(exponent),
                matched.symbol.eq(Mux(held.end, _SYMBOLS - 1, ~number)),
                matched.end.eq(held.end), matched.valid.eq(held.valid),
            ]
        m.d.comb += read.addr.eq(matched.symbol)
        with m.If(free[2]):
            m.d.sync += [
                coded.raw.eq(matched.raw), coded.exponent.eq(matched.exponent), coded.code.eq(read.data.code),
                coded.length.eq(read.data.length), coded.escape.eq(matched.symbol.all()), coded.end.eq(matched.end),
                coded.valid.eq(matched.valid),
            ]
        behind = Signal(8 + _LONGEST)
        m.d.comb += behind.eq(Mux(coded.escape, coded.exponent, 0) << coded.length)
        with m.If(free[3]):
            m.d.sync += [
                bits.bits.eq(Cat(coded.raw, _longest_first(coded.code) | behind)),
                bits.count.eq(8 + coded.length + coded.escape.shift_left(3)),
                bits.end.eq(coded.end), bits.valid.eq(coded.valid),
            ]

        # Collect bits to words, behind the words of the table.
        place = Signal(5)
        waiting = Signal(32)
        tail = Signal()
        shifted = Signal(64)
        total = Signal(6)
        output_free = Signal()
        emit = Signal()
        move = Signal()
        m.d.comb += [
            shifted.eq((bits.bits << place) | waiting),
            total.eq(place + bits.count),
            output_free.eq(self.o.ready | ~self.o.valid),
            emit.eq(total[5] | bits.end),
        ]
        words = Signal(range(_WORDS))
        m.d.sync += self.error.eq(walk.active & ~walk.sound)
        with m.If(output_free):
            m.d.sync += self.o.valid.eq(0)

        def give(word, last):
            m.d.sync += [self.o.valid.eq(1), self.o.payload.data.eq(word), self.o.payload.last.eq(last)]

        with m.FSM():
            with m.State("Table"):
                m.d.comb += self.table.ready.eq(output_free)
                with m.If(self.table.valid & output_free):
                    give(self.table.payload.data, 0)
                    m.d.sync += words.eq(words + 1)
                    with m.If(words < 4):
                        m.d.sync += Cat(*exponents).eq(Cat(Cat(*exponents)[32:], self.table.payload.data))
                    with m.Else():
                        m.d.comb += walk.load.eq(1)
                    with m.If(words == _WORDS - 1):
                        m.d.comb += walk.start.eq(1)
                        m.d.sync += words.eq(0)
                        m.next = "Walk"
                    with m.If(self.table.payload.last != (words == _WORDS - 1)):
                        m.d.sync += self.error.eq(1)
            with m.State("Walk"):
                with m.If(walk.final):
                    m.d.sync += accepting.eq(1)
                    m.next = "Elements"
            with m.State("Elements"):
                m.d.comb += [
                    move.eq(Mux(tail, output_free, bits.valid & (output_free | ~emit))),
                    free[4].eq(~tail & (output_free | ~emit)),
                ]
                with m.If(move):
                    m.d.sync += [
                        place.eq(total), waiting.eq(Mux(total[5], shifted[32:], shifted)),
                        tail.eq(bits.end & total[5] & total[:5].any()),
                    ]
                    with m.If(emit):
                        give(shifted, bits.end & (total <= 32))
                    with m.If(tail):
                        give(waiting, 1)
                        m.d.sync += [tail.eq(0), place.eq(0), waiting.eq(0)]
                        m.next = "Table"
                    with m.Elif(bits.end & (total <= 32)):
                        m.d.sync += [place.eq(0), waiting.eq(0)]
                        m.next = "Table"
        return m


class Decoder(wiring.Component):
    """Expand packets, one element per cycle; an escape takes two.

    A table takes :attr:`table_cycles` cycles. An element is given when it is known whether another one follows it.
    ``i.ready`` depends on registers alone.

    A packet raises ``error`` whose table is not that of a code, which then gives nothing; one that ends before its
    end is told, or later; and one that has no elements. What was expanded is given, the last of it marked as such,
    and the next packet is sound again.

    Members
    -------
    i : In(stream of {data, last})
    o : Out(stream of beat_layout(1, 16))
    error : Out(1)
        Pulse: this packet is malformed.
    """

    #: Cycles from the first word of a table to the first element, as long as words come.
    table_cycles = 24

    def __init__(self):
        super().__init__({
            "i": In(stream.Signature(word_layout())),
            "o": Out(stream.Signature(beat_layout(1, 16))),
            "error": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.walk = walk = _Walk()
        m.submodules.exponents = memory = Memory(shape=data.ArrayLayout(unsigned(8), 4), depth=4, init=[])
        write = memory.write_port()
        read = memory.read_port(domain="comb")

        # Hold one word, and give it in halves.
        word = Signal(word_layout())
        word_valid = Signal()
        upper = Signal()  # its lower half was given
        take_word = Signal()
        take_half = Signal()
        final = Signal()  # the last word of the packet was given
        m.d.comb += self.i.ready.eq(~word_valid | take_word | (take_half & upper))
        with m.If(self.i.ready):
            m.d.sync += [word.eq(self.i.payload), word_valid.eq(self.i.valid), upper.eq(0)]
        with m.Elif(take_half):
            m.d.sync += [upper.eq(1), word.data.eq(word.data[16:])]

        # The bits that come next: a half is put behind them, and those of one element are taken away.
        window = Signal(48)
        fill = Signal(range(49))
        extended = Signal(48)
        raw = window[:8]
        code = Signal(_LONGEST)
        limits = [Signal(_LONGEST + 1, name=f"limit_{length}") for length in range(1, _LONGEST + 1)]
        below = Signal(_LONGEST)
        less = Signal(3)  # length less one
        escape_code = Signal(_LONGEST)
        first_exponent = Signal(8)
        enough = Signal()
        consume_code = Signal()
        consume_byte = Signal()
        clear = Signal()
        m.d.comb += [
            code.eq(_longest_first(window[8:])),
            # The lower bits of a limit are zeros. No code is longer than the longest.
            below.eq(Cat(1 if length == _LONGEST else code[_LONGEST - length:] < limit[_LONGEST - length:]
                         for length, limit in enumerate(limits, 1))),
            less[2].eq(~below[3]),
            less[1].eq(below[3] & ~below[1]),
            less[0].eq(Mux(below[3], Mux(below[1], ~below[0], ~below[2]), ~below[4])),
            extended.eq(window | Mux(take_half, word.data[:16] << fill[:5], 0)),
            enough.eq(fill >= 8 + _LONGEST),
        ]
        # The length, and whether anything is taken, come late: they choose among what was counted for each case.
        filled = Signal(range(65))
        m.d.comb += filled.eq(Cat(fill[:4], fill[4:] + take_half))
        counts = [Signal.like(fill, name=f"count_{taken}") for taken in range(8, 9 + _LONGEST)]
        m.d.comb += [count.eq(filled - taken) for taken, count in enumerate(counts, 8)]
        m.d.sync += [
            window.eq(Mux(consume_code, extended[9:] >> less, Mux(consume_byte, extended[8:], extended))),
            fill.eq(Mux(consume_code, Array(counts[1:])[less], Mux(consume_byte, counts[0], filled))),
        ]
        with m.If(clear):
            m.d.sync += [window.eq(0), fill.eq(0), final.eq(0)]
        with m.Elif(take_half & upper & word.last):
            m.d.sync += final.eq(1)

        # Symbols of each length follow each other, and so do their codes.
        offsets = [Signal(4, name=f"offset_{length}") for length in range(1, _LONGEST + 1)]
        fresh = Signal(_LONGEST)  # lengths without symbols as yet
        for length, (limit, offset) in enumerate(zip(limits, offsets, strict=True), 1):
            with m.If(walk.active & (walk.length <= length)):
                m.d.sync += limit.eq(walk.after)
            with m.If(walk.active & (walk.length == length)):
                m.d.sync += fresh[length - 1].eq(0)
                with m.If(fresh[length - 1]):
                    m.d.sync += offset.eq(walk.symbol - walk.code[_LONGEST - length:])
            with m.If(walk.start):
                m.d.sync += limit.eq(0)
        with m.If(walk.start):
            m.d.sync += fresh.eq(~0)
        with m.If(walk.active & walk.final):
            m.d.sync += escape_code.eq(walk.code)

        # An element waits until another one follows or the packet ends; then its exponent is looked up.
        pending = Signal(data.StructLayout({
            "raw": 8, "code": _LONGEST, "less": 3, "exponent": 8, "escaped": 1, "valid": 1}))
        found = Signal(data.StructLayout({
            "raw": 8, "symbol": 4, "exponent": 8, "escaped": 1, "last": 1, "valid": 1}))
        output_free = Signal()
        room = Signal()
        forward = Signal()
        ending = Signal()
        m.d.comb += [output_free.eq(self.o.ready | ~self.o.valid), room.eq(output_free | ~found.valid)]
        prefix = Signal(4)
        offset = Signal(4)
        with m.Switch(pending.less):
            for length in range(1, _LONGEST + 1):
                with m.Case(length - 1):
                    m.d.comb += [prefix.eq(pending.code[_LONGEST - length:]), offset.eq(offsets[length - 1])]
        with m.If(room):
            m.d.sync += [
                found.raw.eq(pending.raw), found.symbol.eq(prefix + offset), found.exponent.eq(pending.exponent),
                found.escaped.eq(pending.escaped), found.last.eq(ending), found.valid.eq(forward & pending.valid),
            ]
        m.d.comb += read.addr.eq(found.symbol[2:])
        with m.If(output_free):
            m.d.sync += [
                self.o.valid.eq(found.valid),
                self.o.payload.elements[0].eq(Cat(
                    found.raw[:7], Mux(found.escaped, found.exponent, read.data[found.symbol[:2]]), found.raw[7])),
                self.o.payload.keep.eq(1),
                self.o.payload.last.eq(found.last),
            ]
        with m.If(ending):
            m.d.sync += pending.valid.eq(0)

        words = Signal(range(_WORDS))
        bad = Signal()
        escape_raw = Signal(8)
        m.d.comb += [
            write.addr.eq(words), write.data.eq(word.data), write.en.eq(take_word & (words < 4)),
            walk.lengths.eq(word.data),
        ]
        m.d.sync += self.error.eq(0)

        def end(*, error):
            """The packet is over; what is left of it goes unseen."""
            m.d.comb += [forward.eq(1), ending.eq(1)]
            m.d.sync += self.error.eq(error | ~pending.valid)
            with m.If(~final & ~(take_half & upper & word.last)):
                m.d.sync += self.error.eq(1)
                m.next = "Rest"
            with m.Else():
                m.next = "Table"

        with m.FSM():
            with m.State("Table"):
                # The exponents of the packet before are looked up until its last element is given.
                m.d.comb += [take_word.eq(word_valid & ~found.valid), clear.eq(1)]
                with m.If(take_word):
                    m.d.sync += [words.eq(words + 1), bad.eq(0)]
                    m.d.comb += walk.load.eq(words >= 4)
                    with m.If(words == 0):
                        m.d.sync += first_exponent.eq(word.data[:8])
                    with m.If(words == _WORDS - 1):
                        m.d.comb += walk.start.eq(~word.last)
                        m.d.sync += words.eq(0)
                        m.next = "Walk"
                    with m.If(word.last):
                        m.d.sync += [self.error.eq(1), words.eq(0)]
                        m.next = "Table"
            with m.State("Walk"):
                with m.If(walk.active):
                    m.d.sync += bad.eq(bad | ~walk.sound)
                    with m.If(walk.final):
                        m.next = "Elements"
                        with m.If(bad | ~walk.sound):
                            m.d.sync += self.error.eq(1)
                            m.next = "Rest"
            with m.State("Elements"):
                m.d.comb += take_half.eq(word_valid & (fill < 32) & ~final)
                with m.If(enough & room):
                    with m.If(code >= escape_code):
                        m.d.comb += consume_code.eq(1)
                        m.d.sync += escape_raw.eq(raw)
                        m.next = "Escape"
                    with m.Else():
                        m.d.comb += [consume_code.eq(1), forward.eq(1)]
                        m.d.sync += [pending.raw.eq(raw), pending.code.eq(code), pending.less.eq(less),
                                     pending.escaped.eq(0), pending.valid.eq(1)]
                with m.Elif(~enough & final & room):
                    end(error=1)
            with m.State("Escape"):
                m.d.comb += take_half.eq(word_valid & (fill < 32) & ~final)
                with m.If((fill >= 8) & room):
                    m.d.comb += consume_byte.eq(1)
                    m.next = "Elements"
                    with m.If(raw == first_exponent):
                        end(error=0)
                    with m.Else():
                        m.d.comb += forward.eq(1)
                        m.d.sync += [pending.raw.eq(escape_raw), pending.exponent.eq(raw), pending.escaped.eq(1),
                                     pending.valid.eq(1)]
                with m.Elif((fill < 8) & final & room):
                    end(error=1)
            with m.State("Rest"):
                m.d.comb += [take_word.eq(word_valid), clear.eq(1)]
                with m.If(word_valid & word.last):
                    m.next = "Table"
        return m
