"""Wires of a link that take as many cycles as an input says."""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

__all__ = ["FORWARD", "Wires"]

#: Wires that lead forward on a link with replay.
FORWARD = ("valid", "data", "last", "kind", "check")


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
