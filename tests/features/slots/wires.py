"""Link wires with adjustable latency, and packet sources."""

import dataclasses

import numpy as np
from amaranth.hdl import Cat, Const, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.streams.stream import word_layout

#: Names of the forward wires of a link with replay.
FORWARD = ("valid", "data", "last", "kind", "check")
#: Type of ordinary packets, which are not messages.
PACKET = 1


class Wires(wiring.Component):
    """Delay line with an adjustable delay of 1 to 63 cycles."""

    def __init__(self, width):
        super().__init__({"i": In(width), "o": Out(width), "delay": In(6)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory = memory = Memory(shape=len(self.i), depth=64, init=[])
        write, read = memory.write_port(), memory.read_port(domain="comb")
        index = Signal(6)
        m.d.sync += index.eq(index + 1)
        m.d.comb += [write.en.eq(1), write.addr.eq(index), write.data.eq(self.i), read.addr.eq(index - self.delay),
                     self.o.eq(read.data)]
        return m


class Source(wiring.Component):
    """Packet source; each word consists of a type, a destination and a serial number."""

    def __init__(self, *, type):
        self._type = type
        super().__init__({"o": Out(stream.Signature(word_layout())), "on": In(1), "words": In(9), "to": In(4)})

    def elaborate(self, platform):
        m = Module()
        number, index, sending = Signal(24), Signal(9), Signal()
        words = Signal(9)
        m.d.comb += [self.o.valid.eq(sending), self.o.payload.last.eq(index == words - 1),
                     self.o.payload.data.eq(Cat(Const(self._type, 4), self.to, number))]
        with m.If(~sending | (self.o.ready & self.o.payload.last)):
            m.d.sync += [sending.eq(self.on), words.eq(self.words), index.eq(0)]
        with m.Elif(self.o.ready):
            m.d.sync += index.eq(index + 1)
        m.d.sync += number.eq(number + (sending & self.o.ready))
        return m


class WiredRing(wiring.Component):
    """A ring of nodes and wires, with forward and return latencies set by inputs.

    ``inputs`` and ``outputs`` map names to a shape and a function that returns a node's signal; port names are
    suffixed with the node number. ``ends`` returns a node's outgoing and incoming wires. ``damage`` is an input's
    shape and a function that returns the bits to invert in outgoing words.
    """

    def __init__(self, nodes, make, ends, inputs, outputs, damage):
        self._count, self._make, self._ends = nodes, make, ends
        self._inputs, self._outputs, self._damage = inputs, outputs, damage
        super().__init__({f"{name}_{n}": port for n in range(nodes) for name, port in (
            ("forward", In(6)), ("back", In(6)), ("damage", In(damage[0])),
            *((name, In(shape)) for name, (shape, _) in inputs.items()),
            *((name, Out(shape)) for name, (shape, _) in outputs.items()))})

    def elaborate(self, platform):
        m = Module()
        nodes = [self._make(n) for n in range(self._count)]
        ends = [self._ends(node) for node in nodes]
        words = [[Cat(getattr(wires, name) for name in FORWARD) for wires in pair] for pair in ends]
        ways = [(Wires(len(words[0][0])), Wires(1)) for _ in nodes]
        for n, (node, (forward, back)) in enumerate(zip(nodes, ways, strict=True)):
            m.submodules += [node, forward, back]

            def port(name, n=n):
                return getattr(self, f"{name}_{n}")

            m.d.comb += [
                forward.i.eq(words[n][0] ^ self._damage[1](port("damage"), ends[n][0])),
                forward.delay.eq(port("forward")), back.delay.eq(port("back")), words[n][1].eq(ways[n - 1][0].o),
                back.i.eq(ends[(n + 1) % self._count][1].line), ends[n][0].line.eq(back.o),
                *(of(node).eq(port(name)) for name, (_, of) in self._inputs.items()),
                *(port(name).eq(of(node)) for name, (_, of) in self._outputs.items()),
            ]
        return m


def note_wires(columns, generator, model, came, own, line):
    """Record a node's wires for one cycle: incoming and outgoing words, transmitter words and return lines."""
    back = generator.getrandbits(1)
    heard = dataclasses.replace(came, valid=came.valid & came.kind)
    for name, wires in (("ring_i", came), ("ring_o", model.wires), ("transmitter", own), ("receiver", heard)):
        columns.note(**{f"{name}__{wire}": getattr(wires, wire) for wire in FORWARD})
    columns.note(ring_i__line=model.line, receiver__line=line, ring_o__line=back, transmitter__line=back)


def in_order(trace, to, type):
    """Check that packet or message words arrive in order; return their number, excluding check words."""
    prefix, words = ("valid", "data") if type == PACKET else ("heard", "word")
    data = trace[f"{words}_{to}"][trace[f"{prefix}_{to}"] != 0]
    data = data[data >> np.uint64(32) == 0] if type != PACKET else data
    assert (data & 15 == type).all(), to
    assert (data >> 8 == np.arange(len(data))).all(), to
    return len(data)
