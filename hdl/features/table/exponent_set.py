"""Set of the exponents that occur in a packet, stored as rows of bits."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.floating.format import FloatFormat
from hdl.streams.stream import beat_layout, check_lanes

__all__ = ["ROW", "ROWS", "ExponentSet"]

#: Number of exponents in a row, which share the same upper half.
ROW = 16
#: Number of rows needed for all exponents.
ROWS = 16


class ExponentSet(wiring.Component):
    """Collect the exponents that occur in a packet, then output them as rows of bits.

    One beat is taken per cycle. Each lane has its own rows, in LUT memory, and sets one bit per cycle; an output
    row is the union of all lanes' rows, and can be cleared. The set is complete :attr:`latency` cycles after the
    last beat is accepted. After a reset, one row is cleared per cycle. ``i.ready`` is a register; ``bits`` depends
    combinationally on ``row``.

    Parameters
    ----------
    lanes : int
        Elements per beat: 1, 2, 4 or 8.
    format : FloatFormat
        Format of the elements, with exponents of 8 bits.

    Members
    -------
    i : In(stream of beat_layout(lanes, format.width))
    full : Out(1)
        A packet is complete. No other packet is accepted until ``done``.
    row : In(range(16))
        Row to output.
    bits : Out(16)
        Exponents in this row that occur; valid while ``full``.
    clear : In(1)
        Clear the row, from the next cycle on; only while ``full``.
    done : In(1)
        Start again in the next cycle; only while ``full``. Rows that have not been cleared remain in the set.
    """

    #: Latency in cycles from when a packet's last beat is accepted until ``full``.
    latency = 2

    def __init__(self, *, lanes, format):
        check_lanes(lanes)
        if not isinstance(format, FloatFormat):
            raise TypeError(f"Format must be a FloatFormat, not {format!r}")
        if format.exponent_bits != 8:
            raise ValueError(f"Exponents must be of 8 bits, not {format.exponent_bits!r}")
        self._lanes = lanes
        self._format = format
        super().__init__({
            "i": In(stream.Signature(beat_layout(lanes, format.width))), "full": Out(1),
            "row": In(range(ROWS)), "bits": Out(ROW), "clear": In(1), "done": In(1),
        })

    def elaborate(self, platform):
        m = Module()
        fraction_bits = self._format.fraction_bits
        clearing = Signal(init=1)
        row = Signal(range(ROWS))
        open_ = Signal(name="open")
        ending = Signal()
        union = []
        m.d.comb += self.i.ready.eq(open_)
        m.d.sync += ending.eq(self.i.valid & open_ & self.i.payload.last)
        with m.If(clearing):
            m.d.sync += row.eq(row + 1)
            with m.If(row == ROWS - 1):
                m.d.sync += [clearing.eq(0), open_.eq(1)]
        with m.If(self.i.valid & open_ & self.i.payload.last):
            m.d.sync += open_.eq(0)
        with m.If(ending):
            m.d.sync += self.full.eq(1)
        with m.If(self.done):
            m.d.sync += [self.full.eq(0), open_.eq(1)]
        for lane in range(self._lanes):
            m.submodules[f"rows_{lane}"] = memory = Memory(shape=ROW, depth=ROWS, init=[])
            write = memory.write_port()
            read = memory.read_port(domain="comb")
            exponent = Signal(8, name=f"exponent_{lane}")
            present = Signal(name=f"present_{lane}")
            m.d.sync += [
                exponent.eq(self.i.payload.elements[lane][fraction_bits:-1]),
                present.eq(self.i.valid & open_ & self.i.payload.keep[lane]),
            ]
            m.d.comb += [
                read.addr.eq(Mux(present, exponent[4:], self.row)),
                write.addr.eq(Mux(clearing, row, read.addr)),
                write.en.eq(clearing | present | self.clear),
                write.data.eq(Mux(present, read.data | Cat(exponent[:4] == index for index in range(ROW)), 0)),
            ]
            union.append(read.data)
        while len(union) > 1:
            union = [left | right for left, right in zip(union[::2], union[1::2], strict=True)]
        m.d.comb += self.bits.eq(union[0])
        return m
