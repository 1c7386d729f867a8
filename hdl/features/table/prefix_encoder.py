# amaranth: UnusedElaboratable=no
# The constructor creates codecs only to read their latencies and widths, even if nothing is elaborated.
"""Encoder of prefix-coded packets; see :mod:`hdl.features.table.prefix_code`."""

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.features.table.prefix_code import LONGEST, SYMBOLS, WORDS, CodeNumbering, longest_first
from hdl.streams.stream import beat_layout, word_layout

__all__ = ["Encoder"]


class Encoder(wiring.Component):
    """Compress packets of elements, each preceded by its table.

    One element is accepted per cycle. The table takes :attr:`table_cycles` cycles before the elements. The word that
    an element completes is offered :attr:`latency` cycles after the element was accepted. ``i.ready`` depends
    combinationally on ``o.ready``.

    Members
    -------
    table : In(stream of {data, last})
        Six words per packet, as they are sent.
    i : In(stream of beat_layout(1, 16))
    o : Out(stream of {data, last})
    error : Out(1)
        Pulse: a table did not have six words, or its lengths do not form a prefix code. A packet is still produced.
    """

    latency = 5
    #: Latency in cycles from the last word of a table to the first element.
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
        m.submodules.numbering = numbering = CodeNumbering()
        m.submodules.codes = codes = Memory(
            shape=data.StructLayout({"code": LONGEST, "length": 4}), depth=SYMBOLS, init=[])
        write = codes.write_port()
        read = codes.read_port(domain="comb")
        exponents = Signal(data.ArrayLayout(8, SYMBOLS))
        m.d.comb += [
            write.addr.eq(numbering.symbol), write.data.code.eq(numbering.code),
            write.data.length.eq(numbering.length),
            write.en.eq(numbering.active), numbering.lengths.eq(self.table.payload.data),
        ]

        # The pipeline has four registers, for element, symbol, code and bits; a packet ends with an escape.
        accepting = Signal()
        free = [Signal(name=f"free_{stage}") for stage in range(5)]
        held = Signal(data.StructLayout({"element": 16, "last": 1, "end": 1, "valid": 1}))
        matched = Signal(data.StructLayout({
            "raw": 8, "exponent": 8, "symbol": 4, "end": 1, "valid": 1}))
        coded = Signal(data.StructLayout({"raw": 8, "exponent": 8, "code": LONGEST, "length": 4, "escape": 1,
                                          "end": 1, "valid": 1}))
        bits = Signal(data.StructLayout({
            "bits": 16 + LONGEST, "count": range(16 + LONGEST + 1), "end": 1, "valid": 1}))
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
        hits = Signal(SYMBOLS - 1)
        m.d.comb += hits.eq(Cat(exponent == exponents[position] for position in range(SYMBOLS - 1)))
        # If nothing matches, all bits of the symbol are ones: the escape.
        number = Cat(Cat(hits[position] for position in range(SYMBOLS - 1) if not position >> bit & 1).any()
                     for bit in range(4))
        with m.If(free[1]):
            m.d.sync += [
                matched.raw.eq(Cat(held.element[:7], held.element[15])), matched.exponent.eq(exponent),
                matched.symbol.eq(Mux(held.end, SYMBOLS - 1, ~number)),
                matched.end.eq(held.end), matched.valid.eq(held.valid),
            ]
        m.d.comb += read.addr.eq(matched.symbol)
        with m.If(free[2]):
            m.d.sync += [
                coded.raw.eq(matched.raw), coded.exponent.eq(matched.exponent), coded.code.eq(read.data.code),
                coded.length.eq(read.data.length), coded.escape.eq(matched.symbol.all()), coded.end.eq(matched.end),
                coded.valid.eq(matched.valid),
            ]
        suffix = Signal(8 + LONGEST)
        m.d.comb += suffix.eq(Mux(coded.escape, coded.exponent, 0) << coded.length)
        with m.If(free[3]):
            m.d.sync += [
                bits.bits.eq(Cat(coded.raw, longest_first(coded.code) | suffix)),
                bits.count.eq(8 + coded.length + coded.escape.shift_left(3)),
                bits.end.eq(coded.end), bits.valid.eq(coded.valid),
            ]

        # Pack bits into words, which follow the words of the table.
        position = Signal(5)
        waiting = Signal(32)
        tail = Signal()
        shifted = Signal(64)
        total = Signal(6)
        output_free = Signal()
        emit = Signal()
        move = Signal()
        m.d.comb += [
            shifted.eq((bits.bits << position) | waiting),
            total.eq(position + bits.count),
            output_free.eq(self.o.ready | ~self.o.valid),
            emit.eq(total[5] | bits.end),
        ]
        words = Signal(range(WORDS))
        m.d.sync += self.error.eq(numbering.active & ~numbering.sound)
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
                        m.d.comb += numbering.load.eq(1)
                    with m.If(words == WORDS - 1):
                        m.d.comb += numbering.start.eq(1)
                        m.d.sync += words.eq(0)
                        m.next = "Walk"
                    with m.If(self.table.payload.last != (words == WORDS - 1)):
                        m.d.sync += self.error.eq(1)
            with m.State("Walk"):
                with m.If(numbering.final):
                    m.d.sync += accepting.eq(1)
                    m.next = "Elements"
            with m.State("Elements"):
                m.d.comb += [
                    move.eq(Mux(tail, output_free, bits.valid & (output_free | ~emit))),
                    free[4].eq(~tail & (output_free | ~emit)),
                ]
                with m.If(move):
                    m.d.sync += [
                        position.eq(total), waiting.eq(Mux(total[5], shifted[32:], shifted)),
                        tail.eq(bits.end & total[5] & total[:5].any()),
                    ]
                    with m.If(emit):
                        give(shifted, bits.end & (total <= 32))
                    with m.If(tail):
                        give(waiting, 1)
                        m.d.sync += [tail.eq(0), position.eq(0), waiting.eq(0)]
                        m.next = "Table"
                    with m.Elif(bits.end & (total <= 32)):
                        m.d.sync += [position.eq(0), waiting.eq(0)]
                        m.next = "Table"
        return m
