"""Delay line for the words of a link, with a delay that can be set at run time."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

__all__ = ["DELAY_BITS", "WireDelay"]

#: Width of a delay, in bits.
DELAY_BITS = 8


class WireDelay(wiring.Component):
    """Delay the words of a link by 0 to 255 cycles, to emulate longer wires.

    Throughput is one word per cycle. Words stay in order, and each is delayed by ``delay`` cycles; with a delay of 0,
    ``o`` equals ``i``. Backward wires are not delayed. A new delay takes effect only after :attr:`quiet` cycles
    without a word, so a change never loses or duplicates words.

    Parameters
    ----------
    signature : wiring.Signature
        Wires of the link as seen by the transmitter. The forward wires must include ``valid``.

    Members
    -------
    i : In(signature)
        Wires from the transmitter.
    o : Out(signature)
    delay : In(8)
    """

    #: Number of cycles without a word before a new delay takes effect.
    quiet = 1 << DELAY_BITS

    def __init__(self, *, signature):
        self._signature = signature
        super().__init__({"i": In(signature), "o": Out(signature), "delay": In(DELAY_BITS)})

    def elaborate(self, platform):
        m = Module()
        forward = {name: member for name, member in self._signature.members.items() if member.flow is Out}
        m.d.comb += [getattr(self.i, name).eq(getattr(self.o, name)) for name in self._signature.members
                     if name not in forward]
        width = {name: getattr(self.i, name).shape().width for name in forward}

        m.submodules.memory = memory = Memory(
            shape=sum(width.values()), depth=1 << DELAY_BITS, init=[], attrs={"no_rw_check": 1})
        write, read = memory.write_port(), memory.read_port(transparent_for=())
        address, still = Signal(DELAY_BITS), Signal(DELAY_BITS)
        delay, following = Signal(DELAY_BITS), Signal(DELAY_BITS)
        m.d.comb += following.eq(delay)
        m.d.sync += [address.eq(address + 1), delay.eq(following)]
        with m.If(self.i.valid):
            m.d.sync += still.eq(0)
        with m.Elif(still != self.quiet - 1):
            m.d.sync += still.eq(still + 1)
        with m.Else():
            m.d.comb += following.eq(self.delay)

        # The value to output in the next cycle was written `delay` cycles before it.
        latest = Signal(len(write.data))
        m.d.sync += latest.eq(write.data)
        m.d.comb += [write.en.eq(1), write.addr.eq(address), read.en.eq(1), read.addr.eq(address + 1 - following)]
        begin, late = 0, Mux(delay == 1, latest, read.data)
        for name in forward:
            end = begin + width[name]
            m.d.comb += [
                write.data[begin:end].eq(getattr(self.i, name)),
                getattr(self.o, name).eq(Mux(delay == 0, getattr(self.i, name), late[begin:end])),
            ]
            begin = end
        return m
