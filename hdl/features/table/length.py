"""Length counter for table-based compression, which reads the exponent table before the codes."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring

from hdl.compression.length import counter_ports
from hdl.group import GROUP

__all__ = ["TableLength"]


class TableLength(wiring.Component):
    """Count the groups of a packet, in which the number of exponents determines the word count of a group.

    A table is invalid unless its exponents ascend.

    Parameters
    ----------
    table : LookupTable
        Parameters of the format, with centroids loaded into decoders.

    Members
    -------
    See :func:`hdl.compression.length.counter_ports`. The unit is a group; words of the table do not end a unit.
    """

    def __init__(self, *, table):
        self._table = table
        super().__init__(counter_ports())

    def elaborate(self, platform):
        m = Module()
        tabling = Signal()  # the word belongs to the table
        begun = Signal()  # a word of the table has been accepted
        latest = Signal(8)  # last byte of the most recent table word
        last_index = Signal(8)  # number of exponents before this word; after the table, index of the last one
        left = Signal(range(GROUP + 1))  # number of remaining words of the current group
        group_words = Signal(range(GROUP + 1))
        parts = [self.word[8 * index:8 * index + 8] for index in range(4)]
        same, falls = Signal(4), Signal(4)
        for index, (part, before) in enumerate(zip(parts, [latest, *parts], strict=False)):
            known = 1 if index else begun
            m.d.comb += [same[index].eq(known & (part == before)), falls[index].eq(known & (part < before))]
        disordered = Cat(falls[index] & ~same[:index].any() for index in range(4)).any()
        stops = same.any()
        count = Mux(same[0], 0, Mux(same[1], 1, Mux(same[2], 2, 3)))
        m.d.comb += [
            self.units.eq((self.length + GROUP - 1) >> (GROUP - 1).bit_length()),
            group_words.eq(self._table.code_size(last_index)),
            self.ends.eq(~tabling & (left == 1)),
            self.wrong.eq(tabling & disordered),
        ]
        with m.If(self.start):
            m.d.sync += [tabling.eq(1), begun.eq(0), last_index.eq(0), left.eq(0)]
        with m.Elif(self.take & tabling):
            m.d.sync += [
                begun.eq(1),
                latest.eq(parts[3]),
                tabling.eq(~stops),
                last_index.eq(Mux(stops, last_index + count - 1, last_index + 4)),
            ]
        with m.Elif(self.take):
            m.d.sync += left.eq(Mux(left == 0, group_words, left) - 1)
        return m
