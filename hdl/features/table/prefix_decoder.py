# amaranth: UnusedElaboratable=no
# The constructor creates codecs only to read their latencies and widths, even if nothing is elaborated.
"""Decoder of prefix-coded packets; see :mod:`hdl.features.table.prefix_code`."""

from amaranth.hdl import Array, Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.features.table.prefix_code import LONGEST, WORDS, CodeNumbering, longest_first
from hdl.streams.stream import beat_layout, word_layout

__all__ = ["Decoder"]


class Decoder(wiring.Component):
    """Expand packets, one element per cycle; an escape takes two cycles.

    A table takes :attr:`table_cycles` cycles. An element is output once it is known whether another one follows.
    ``i.ready`` depends only on registers.

    A packet raises ``error`` if its table is not a valid code (it then has no output), if it ends before or after its
    end symbol, or if it has no elements. Elements that were already expanded are output, with ``last`` set on the
    final one, and the next packet is decoded correctly.

    Members
    -------
    i : In(stream of {data, last})
    o : Out(stream of beat_layout(1, 16))
    error : Out(1)
        Pulse: this packet is malformed.
    """

    #: Latency in cycles from the first word of a table to the first element, as long as words arrive.
    table_cycles = 24

    def __init__(self):
        super().__init__({
            "i": In(stream.Signature(word_layout())),
            "o": Out(stream.Signature(beat_layout(1, 16))),
            "error": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.numbering = numbering = CodeNumbering()
        m.submodules.exponents = memory = Memory(shape=data.ArrayLayout(unsigned(8), 4), depth=4, init=[])
        write = memory.write_port()
        read = memory.read_port(domain="comb")

        # Store one word of a packet, and use its halves one after the other.
        word = Signal(word_layout())
        word_valid = Signal()
        upper = Signal()  # the lower half of the word has been used
        take_word = Signal()
        take_half = Signal()
        final = Signal()  # the last word of the packet has been used
        m.d.comb += self.i.ready.eq(~word_valid | take_word | (take_half & upper))
        with m.If(self.i.ready):
            m.d.sync += [word.eq(self.i.payload), word_valid.eq(self.i.valid), upper.eq(0)]
        with m.Elif(take_half):
            m.d.sync += [upper.eq(1), word.data.eq(word.data[16:])]

        # Window on the next bits: half words are appended, and the bits of decoded elements are removed.
        window = Signal(48)
        fill = Signal(range(49))
        extended = Signal(48)
        raw = window[:8]
        code = Signal(LONGEST)
        limits = [Signal(LONGEST + 1, name=f"limit_{length}") for length in range(1, LONGEST + 1)]
        below = Signal(LONGEST)
        less = Signal(3)  # length minus one
        escape_code = Signal(LONGEST)
        first_exponent = Signal(8)
        enough = Signal()
        consume_code = Signal()
        consume_byte = Signal()
        clear = Signal()
        m.d.comb += [
            code.eq(longest_first(window[8:])),
            # Limits of the code lengths are compared without their lower bits, which are zero. No code exceeds
            # LONGEST.
            below.eq(Cat(1 if length == LONGEST else code[LONGEST - length:] < limit[LONGEST - length:]
                         for length, limit in enumerate(limits, 1))),
            less[2].eq(~below[3]),
            less[1].eq(below[3] & ~below[1]),
            less[0].eq(Mux(below[3], Mux(below[1], ~below[0], ~below[2]), ~below[4])),
            extended.eq(window | Mux(take_half, word.data[:16] << fill[:5], 0)),
            enough.eq(fill >= 8 + LONGEST),
        ]
        # A code's length, and whether bits are taken, are known late in the cycle; they only select among precomputed
        # counts.
        filled = Signal(range(65))
        m.d.comb += filled.eq(Cat(fill[:4], fill[4:] + take_half))
        counts = [Signal.like(fill, name=f"count_{taken}") for taken in range(8, 9 + LONGEST)]
        m.d.comb += [count.eq(filled - taken) for taken, count in enumerate(counts, 8)]
        m.d.sync += [
            window.eq(Mux(consume_code, extended[9:] >> less, Mux(consume_byte, extended[8:], extended))),
            fill.eq(Mux(consume_code, Array(counts[1:])[less], Mux(consume_byte, counts[0], filled))),
        ]
        with m.If(clear):
            m.d.sync += [window.eq(0), fill.eq(0), final.eq(0)]
        with m.Elif(take_half & upper & word.last):
            m.d.sync += final.eq(1)

        # Symbols with codes of the same length are consecutive, as are their codes.
        offsets = [Signal(4, name=f"offset_{length}") for length in range(1, LONGEST + 1)]
        fresh = Signal(LONGEST)  # code lengths not yet used by any symbol
        for length, (limit, offset) in enumerate(zip(limits, offsets, strict=True), 1):
            with m.If(numbering.active & (numbering.length <= length)):
                m.d.sync += limit.eq(numbering.after)
            with m.If(numbering.active & (numbering.length == length)):
                m.d.sync += fresh[length - 1].eq(0)
                with m.If(fresh[length - 1]):
                    m.d.sync += offset.eq(numbering.symbol - numbering.code[LONGEST - length:])
            with m.If(numbering.start):
                m.d.sync += limit.eq(0)
        with m.If(numbering.start):
            m.d.sync += fresh.eq(~0)
        with m.If(numbering.active & numbering.final):
            m.d.sync += escape_code.eq(numbering.code)

        # An element is held until the next one arrives or the packet ends; then its exponent is looked up.
        pending = Signal(data.StructLayout({
            "raw": 8, "code": LONGEST, "less": 3, "exponent": 8, "escaped": 1, "valid": 1}))
        entry = Signal(data.StructLayout({
            "raw": 8, "symbol": 4, "exponent": 8, "escaped": 1, "last": 1, "valid": 1}))
        output_free = Signal()
        room = Signal()
        forward = Signal()
        ending = Signal()
        m.d.comb += [output_free.eq(self.o.ready | ~self.o.valid), room.eq(output_free | ~entry.valid)]
        prefix = Signal(4)
        offset = Signal(4)
        with m.Switch(pending.less):
            for length in range(1, LONGEST + 1):
                with m.Case(length - 1):
                    m.d.comb += [prefix.eq(pending.code[LONGEST - length:]), offset.eq(offsets[length - 1])]
        with m.If(room):
            m.d.sync += [
                entry.raw.eq(pending.raw), entry.symbol.eq(prefix + offset), entry.exponent.eq(pending.exponent),
                entry.escaped.eq(pending.escaped), entry.last.eq(ending), entry.valid.eq(forward & pending.valid),
            ]
        m.d.comb += read.addr.eq(entry.symbol[2:])
        with m.If(output_free):
            m.d.sync += [
                self.o.valid.eq(entry.valid),
                self.o.payload.elements[0].eq(Cat(
                    entry.raw[:7], Mux(entry.escaped, entry.exponent, read.data[entry.symbol[:2]]), entry.raw[7])),
                self.o.payload.keep.eq(1),
                self.o.payload.last.eq(entry.last),
            ]
        with m.If(ending):
            m.d.sync += pending.valid.eq(0)

        words = Signal(range(WORDS))
        bad = Signal()
        escape_raw = Signal(8)
        m.d.comb += [
            write.addr.eq(words), write.data.eq(word.data), write.en.eq(take_word & (words < 4)),
            numbering.lengths.eq(word.data),
        ]
        m.d.sync += self.error.eq(0)

        def end(*, error):
            """End the packet and skip its remaining words."""
            m.d.comb += [forward.eq(1), ending.eq(1)]
            m.d.sync += self.error.eq(error | ~pending.valid)
            with m.If(~final & ~(take_half & upper & word.last)):
                m.d.sync += self.error.eq(1)
                m.next = "Rest"
            with m.Else():
                m.next = "Table"

        with m.FSM():
            with m.State("Table"):
                # The exponents of the previous packet stay in use until its last element is output.
                m.d.comb += [take_word.eq(word_valid & ~entry.valid), clear.eq(1)]
                with m.If(take_word):
                    m.d.sync += [words.eq(words + 1), bad.eq(0)]
                    m.d.comb += numbering.load.eq(words >= 4)
                    with m.If(words == 0):
                        m.d.sync += first_exponent.eq(word.data[:8])
                    with m.If(words == WORDS - 1):
                        m.d.comb += numbering.start.eq(~word.last)
                        m.d.sync += words.eq(0)
                        m.next = "Walk"
                    with m.If(word.last):
                        m.d.sync += [self.error.eq(1), words.eq(0)]
                        m.next = "Table"
            with m.State("Walk"):
                with m.If(numbering.active):
                    m.d.sync += bad.eq(bad | ~numbering.sound)
                    with m.If(numbering.final):
                        m.next = "Elements"
                        with m.If(bad | ~numbering.sound):
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
