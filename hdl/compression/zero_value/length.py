"""Length counter for zero-value compression, which reads the masks."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring

from hdl.compression.length import counter_ports
from hdl.group import GROUP

__all__ = ["MaskedLength"]


class MaskedLength(wiring.Component):
    """Count the groups of a packet: a group is its mask, and one word for each bit set in the mask.

    A mask with a bit set beyond the packet's length is invalid.

    Members
    -------
    See :func:`hdl.compression.length.counter_ports`. A unit is a group.
    """

    def __init__(self):
        super().__init__(counter_ports())

    def elaborate(self, platform):
        m = Module()
        beyond = Signal(GROUP)  # bits of the last mask that are beyond the length
        values = Signal(range(GROUP + 1))  # values of the current group that are still expected
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
    """Return the number of ones, using a balanced tree of adders."""
    if len(bits) == 1:
        return bits
    half = len(bits) // 2
    return _population(bits[:half]) + _population(bits[half:])
