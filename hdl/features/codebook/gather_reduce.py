"""Matrix-vector products with weights stored as centroid indices, without expanding the weights.

For each output, inputs with the same centroid are first added up; only these few sums are then multiplied.
"""

from amaranth.hdl import C, Cat, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.features.codebook.format import check_table
from hdl.floating.stages import register
from hdl.streams.stream import check_lanes

__all__ = ["MatrixVector", "column_layout"]


def column_layout(lanes, index_bits, input_width):
    """Payload for one matrix column: an input, the index of its weight in each lane, and ``last``, which is set on
    the last column."""
    return data.StructLayout({
        "input": signed(input_width), "indices": data.ArrayLayout(index_bits, lanes), "last": 1})


class MatrixVector(wiring.Component):
    """Multiply rows of centroid weights by a vector of integers, with one row per lane.

    Each lane adds the input to the sum selected by its index. After the last column, the sums are multiplied by the
    centroids, one per cycle in a multiplier for each lane, while the next rows are added to a second set of sums.
    Results are exact if sums fit in ``accumulator_width`` bits; otherwise, sums wrap.

    One column is taken per cycle, without bubbles between rows of at least ``table.centroids`` + :attr:`overhead`
    columns, if results are taken immediately. A result is offered :attr:`latency` cycles after the last column was
    accepted. No ready depends combinationally on any input. After a reset, the sums are cleared first, one per cycle.

    Parameters
    ----------
    table : CentroidTable
    lanes : int
        Number of outputs computed in parallel: 1, 2, 4 or 8.
    input_width : int
        Number of bits of an input, 2 to 18; all numbers are signed.
    centroid_width : int
        Bits of a centroid, 2 to 18.
    accumulator_width : int
        Bits of a sum: 18 to 35, and at least ``input_width``.

    Members
    -------
    table : In(stream of {centroid, last})
        Accepted between products.
    i : In(stream of column_layout(lanes, table.index_bits, input_width))
    o : Out(stream of lanes of signed(accumulator_width + centroid_width))
    multiplied : Out(1)
        Pulse: each lane has made one multiplication.
    error : Out(1)
        Pulse: a table did not have ``table.centroids`` words.
    """

    #: Number of columns that a row needs, in addition to one per centroid, so that no bubble follows it.
    overhead = 5

    def __init__(self, *, table, lanes, input_width=16, centroid_width=16, accumulator_width=32):
        check_table(table)
        check_lanes(lanes)
        for name, value, least, most in (("Input", input_width, 2, 18), ("Centroid", centroid_width, 2, 18),
                                         ("Accumulator", accumulator_width, 18, 35)):
            if not isinstance(value, int) or not least <= value <= most:
                raise ValueError(f"{name} width must be an integer between {least} and {most}, not {value!r}")
        self._parameters = table
        self._lanes = lanes
        self._widths = input_width, centroid_width, accumulator_width
        super().__init__({
            "table": In(stream.Signature(data.StructLayout({"centroid": signed(centroid_width), "last": 1}))),
            "i": In(stream.Signature(column_layout(lanes, table.index_bits, input_width))),
            "o": Out(stream.Signature(data.ArrayLayout(signed(accumulator_width + centroid_width), lanes))),
            "multiplied": Out(1), "error": Out(1),
        })

    @property
    def latency(self):
        """Latency in cycles from the last column to the result."""
        return self._parameters.centroids + 6

    def elaborate(self, platform):
        m = Module()
        _, centroid_width, width = self._widths
        count = self._parameters.centroids

        # Two registers for a column and its bank: the first while the column's sums are read, the second while its
        # input is added to them.
        stage = data.StructLayout({"valid": 1, "bank": 1, "input": self.i.payload.input.shape()})
        column, addend = Signal(stage), Signal(stage)
        ended = Signal()  # ``column`` is the last one of its rows
        filling = Signal()  # bank of the next column
        begun = Signal()  # the next column is not the first one of its rows
        occupied = Signal(2)  # banks that contain all columns of their rows
        clearing = Signal(init=1)
        draining = Signal()
        drained = Signal()  # bank that is being drained, or will be drained next
        index = Signal(range(count))
        busy = Signal()  # a result is being computed or offered
        loading = Signal(range(count))
        start = Signal()
        taken = Signal()
        m.d.comb += [
            self.i.ready.eq(~clearing & ~occupied.bit_select(filling, 1) & (loading == 0)),
            self.table.ready.eq(~busy & ~occupied.any() & ~begun & ~ended),
            taken.eq(self.o.valid & self.o.ready),
            start.eq(occupied.bit_select(drained, 1) & (~busy | taken) & (loading == 0)),
        ]
        m.d.sync += [
            column.valid.eq(self.i.valid & self.i.ready), column.bank.eq(filling),
            column.input.eq(self.i.payload.input), addend.eq(column),
            ended.eq(self.i.valid & self.i.ready & self.i.payload.last),
            self.error.eq(0), self.multiplied.eq(draining),
        ]
        with m.If(clearing | draining):
            m.d.sync += index.eq(index + 1)
            with m.If(index.all()):
                m.d.sync += [clearing.eq(0), draining.eq(0), drained.eq(drained ^ draining)]
                with m.If(draining):
                    m.d.sync += occupied.eq(occupied & Mux(drained, 0b01, 0b10))
        with m.If(taken):
            m.d.sync += busy.eq(0)
        with m.If(start):
            m.d.sync += [draining.eq(1), busy.eq(1)]
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += begun.eq(~self.i.payload.last)
            with m.If(self.i.payload.last):
                m.d.sync += filling.eq(~filling)
        # The last column is being added now, and is included by the time the first sum is read.
        with m.If(ended):
            m.d.sync += occupied.bit_select(column.bank, 1).eq(1)

        # All lanes drain the sum of the same centroid, so they can share one table.
        m.submodules.centroids = memory = Memory(shape=signed(centroid_width), depth=count, init=[])
        write = memory.write_port()
        read = memory.read_port(domain="comb")
        m.d.comb += [
            write.addr.eq(loading), write.data.eq(self.table.payload.centroid),
            write.en.eq(self.table.valid & self.table.ready), read.addr.eq(index),
        ]
        with m.If(write.en):
            m.d.sync += [loading.eq(loading + 1), self.error.eq(self.table.payload.last ^ loading.all())]
            with m.If(self.table.payload.last):
                m.d.sync += loading.eq(0)
        centroid = register(m, "centroid", value=read.data).value
        # Flags that accompany the terms: valid, first term of a result, last term of a result.
        marks = Signal(data.StructLayout({"term": 1, "first": 1, "last": 1}))
        m.d.comb += [marks.term.eq(draining), marks.first.eq(index == 0), marks.last.eq(draining & index.all())]
        for stage in range(3):
            following = Signal.like(marks, name=f"marks_{stage}")
            m.d.sync += following.eq(marks)
            marks = following
        with m.If(taken):
            m.d.sync += self.o.valid.eq(0)
        with m.If(marks.last):
            m.d.sync += self.o.valid.eq(1)

        # Registers address the rows of sums: the row of the column, or the row to be drained or cleared.
        next_index = Signal.like(index)
        m.d.comb += next_index.eq(index + (clearing | draining))
        for lane in range(self._lanes):
            sums, rows = [], []
            before = Signal(signed(width), name=f"before_{lane}")
            total = Signal(signed(width), name=f"total_{lane}")
            again = Signal(name=f"again_{lane}")  # same sum as in the previous column; not yet in memory
            target = Signal.like(index, name=f"target_{lane}")
            for bank in range(2):
                m.submodules[f"sums_{lane}_{bank}"] = memory = Memory(shape=signed(width), depth=count, init=[])
                write = memory.write_port()
                read = memory.read_port(domain="comb")
                add = Signal(name=f"add_{lane}_{bank}")
                row = Signal.like(index, name=f"row_{lane}_{bank}")
                m.d.sync += row.eq(
                    Mux(self.i.valid & self.i.ready & (filling == bank), self.i.payload.indices[lane], next_index))
                m.d.comb += [
                    add.eq(addend.valid & (addend.bank == bank)),
                    read.addr.eq(row),
                    write.addr.eq(Mux(add, target, row)),
                    write.data.eq(Mux(add, total, 0)),
                    write.en.eq(add | clearing | (draining & (drained == bank))),
                ]
                sums.append(read.data)
                rows.append(row)
            m.d.sync += [
                again.eq(column.valid & (column.bank == filling)
                         & (self.i.payload.indices[lane] == Mux(filling, rows[1], rows[0]))),
                before.eq(Mux(again, total, Mux(column.bank, sums[1], sums[0]))),
                target.eq(Mux(column.bank, rows[1], rows[0])),
            ]
            m.d.comb += total.eq(before + addend.input)

            # A sum is wider than a multiplier input: its lower and upper halves are multiplied separately.
            half = width // 2
            operand = register(m, f"sum_{lane}", value=Mux(drained, sums[1], sums[0])).value
            products = register(
                m, f"products_{lane}",
                low=Cat(operand[:half], C(0, 1)).as_signed() * centroid, high=operand[half:].as_signed() * centroid)
            term = register(m, f"term_{lane}", value=products.low + products.high.shift_left(half)).value
            with m.If(marks.term):
                m.d.sync += self.o.payload[lane].eq(Mux(marks.first, 0, self.o.payload[lane]) + term)
        return m
