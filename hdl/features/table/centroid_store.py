"""Store for the codebook that the host loads into a table encoder."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.features.table.format import check_table
from hdl.streams.stream import word_layout

__all__ = ["CentroidStore"]


class CentroidStore(wiring.Component):
    """Pass loaded bounds to the comparators, and store the centroids if packets contain them.

    One word is accepted per cycle while ``open``. ``load.ready`` equals ``open``; a bound is passed on in the same
    cycle as its word is accepted, and a centroid word is in the memory from the next cycle on. After a load of the
    wrong length, the next load starts from its first word.

    Parameters
    ----------
    table : LookupTable
        Parameters of the format, with centroids.

    Members
    -------
    load : In(stream of {data, last})
        :attr:`LookupTable.load_length` words: bounds, and then the centroids as they are sent.
    open : In(1)
        Words may be taken.
    busy : Out(1)
        A load has begun.
    write : Out(levels)
        One-hot: level of the bound that is written.
    number : Out(mantissa_bits)
        Number of the bound, from 1 on.
    bound : Out(compared_bits)
    step : In(1)
        Advance to the next word of the centroids, or from the last one to the first.
    word : Out(32)
        Word of the centroids. Both ``word`` and ``final`` are zero if packets contain no centroids.
    final : Out(1)
        ``word`` is the last one.
    error : Out(1)
        Pulse, one cycle after the last word of a load: it had the wrong length.
    """

    def __init__(self, *, table):
        check_table(table)
        if not table.centroids:
            raise ValueError(f"Table must have centroids, not {table!r}")
        self._table = table
        bits = table.mantissa_bits
        super().__init__({
            "load": In(stream.Signature(word_layout())), "open": In(1), "busy": Out(1),
            "write": Out(bits), "number": Out(bits), "bound": Out(table.compared_bits),
            "step": In(1), "word": Out(32), "final": Out(1), "error": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        table = self._table
        bits = table.mantissa_bits
        length = table.load_length
        count = length - (table.mantissas - 1)

        # Number of the next word to load. All words beyond the expected ones have the number after the last expected
        # word.
        number = Signal(range(1, length + 2), init=1)
        take = Signal()
        is_bound = Signal()
        m.d.comb += [
            self.load.ready.eq(self.open),
            take.eq(self.load.valid & self.open),
            self.busy.eq(number != 1),
            is_bound.eq(number < table.mantissas),
            self.number.eq(number),
            self.bound.eq(self.load.payload.data),
            *(self.write[level].eq(take & is_bound & number[bits - 1 - level] & ~number[:bits - 1 - level].any())
              for level in range(bits)),
        ]
        m.d.sync += self.error.eq(take & self.load.payload.last & (number != length))
        with m.If(take):
            with m.If(self.load.payload.last):
                m.d.sync += number.eq(1)
            with m.Elif(number != length + 1):
                m.d.sync += number.eq(number + 1)
        if count:
            m.submodules.words = memory = Memory(shape=32, depth=count, init=[])
            write = memory.write_port()
            read = memory.read_port(domain="comb")
            m.d.comb += [
                write.addr.eq(number - table.mantissas),
                write.data.eq(self.load.payload.data),
                write.en.eq(take & ~is_bound & (number != length + 1)),
                self.word.eq(read.data),
                self.final.eq(read.addr == count - 1),
            ]
            with m.If(self.step):
                m.d.sync += read.addr.eq(Mux(self.final, 0, read.addr + 1))
        return m
