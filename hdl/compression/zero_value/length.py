"""Length counter that reads the masks of zero-value compressed packets."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring

from hdl.compression.length import counter_ports
from hdl.group import GROUP

__all__ = ["MaskedLength"]


class MaskedLength(wiring.Component):
    """Count the groups in a packet, each a mask followed by one word per set bit.

    A mask with a bit set beyond the packet's length is invalid.

    Members
    -------
    See :func:`hdl.compression.length.counter_ports`. A unit is a group.
    """

    def __init__(self):
        super().__init__(counter_ports())

    def elaborate(self, platform):
        m = Module()
        beyond = Signal(GROUP)  # bits of the last mask beyond the end of the packet
        values = Signal(range(GROUP + 1))  # values of the current group still expected
        masked = values == 0  # the word is a mask
        tail = self.length[:(GROUP - 1).bit_length()]
        m.d.comb += [
            self.units.eq((self.length + GROUP - 1) >> (GROUP - 1).bit_length()),
            self.ends.eq(Mux(masked, self.zero, values == 1)),
            self.wrong.eq(masked & self.last & (self.word & beyond).any()),
        ]
        with m.If(self.start):
            m.d.sync += [values.eq(0), beyond.eq(Cat((tail != 0) & (tail <= n) for n in range(GROUP)))]
        with m.Elif(self.take):
            m.d.sync += values.eq(Mux(masked, _population(self.word), values - 1))
        return m


def _population(bits):
    """Count the set bits with a balanced adder tree."""
    if len(bits) == 1:
        return bits
    half = len(bits) // 2
    return _population(bits[:half]) + _population(bits[half:])
