"""Wires of a link that take as many cycles as an input says, and packets for them."""

import dataclasses

import numpy as np
from amaranth.hdl import Cat, Const, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.streams.stream import word_layout

#: Wires that lead forward on a link with replay.
FORWARD = ("valid", "data", "last", "kind", "check")
#: Type of packets that are no messages.
PACKET = 1


class Wires(wiring.Component):
    """Signals that come out 1 to 63 cycles later."""

    def __init__(self, width):
        super().__init__({"i": In(width), "o": Out(width), "delay": In(6)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory = memory = Memory(shape=len(self.i), depth=64, init=[])
        write, read = memory.write_port(), memory.read_port(domain="comb")
        place = Signal(6)
        m.d.sync += place.eq(place + 1)
        m.d.comb += [write.en.eq(1), write.addr.eq(place), write.data.eq(self.i), read.addr.eq(place - self.delay),
                     self.o.eq(read.data)]
        return m


class Source(wiring.Component):
    """Packets of words with running numbers, above a type and a destination."""

    def __init__(self, *, type):
        self._type = type
        super().__init__({"o": Out(stream.Signature(word_layout())), "on": In(1), "words": In(9), "to": In(4)})

    def elaborate(self, platform):
        m = Module()
        number, place, sending = Signal(24), Signal(9), Signal()
        words = Signal(9)
        m.d.comb += [self.o.valid.eq(sending), self.o.payload.last.eq(place == words - 1),
                     self.o.payload.data.eq(Cat(Const(self._type, 4), self.to, number))]
        with m.If(~sending | (self.o.ready & self.o.payload.last)):
            m.d.sync += [sending.eq(self.on), words.eq(self.words), place.eq(0)]
        with m.Elif(self.o.ready):
            m.d.sync += place.eq(place + 1)
        m.d.sync += number.eq(number + (sending & self.o.ready))
        return m


def note_wires(columns, generator, model, came, own, line):
    """Note a node's wires in a cycle: those that come, its transmitter's, and the lines back."""
    back = generator.getrandbits(1)
    heard = dataclasses.replace(came, valid=came.valid & came.kind)
    for name, wires in (("ring_i", came), ("ring_o", model.wires), ("transmitter", own), ("receiver", heard)):
        columns.note(**{f"{name}__{wire}": getattr(wires, wire) for wire in FORWARD})
    columns.note(ring_i__line=model.line, receiver__line=line, ring_o__line=back, transmitter__line=back)


def in_order(found, to, type):
    """Words of packets or of messages that have come to a node, without checks; each must have the next number."""
    prefix, words = ("valid", "data") if type == PACKET else ("heard", "word")
    data = found[f"{words}_{to}"][found[f"{prefix}_{to}"] != 0]
    data = data[data >> np.uint64(32) == 0] if type != PACKET else data
    assert (data & 15 == type).all(), to
    assert (data >> 8 == np.arange(len(data))).all(), to
    return len(data)
