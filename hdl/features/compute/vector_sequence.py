"""Order of visiting the elements of a block of rows: row by row."""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.features.compute.vector_program import THREADS

__all__ = ["VectorSequence"]


class VectorSequence(wiring.Component):
    """Step through the elements of up to ``16 · units`` rows; row r is row r // ``units`` of a unit.

    The position of an element is its unit, the row (``group``) there, and the address row · columns + column. In the
    cycle after ``start``, it is the position of the first element; each cycle of ``step`` advances it to the next.
    ``left`` is high until the last element has been passed. All outputs are functions of registers.

    Parameters
    ----------
    units : int
        Number of memories, 2 or 4.
    columns : int
        Maximum number of columns.

    Members
    -------
    start : In(1)
    rows, columns : In
        Size of the block, at least 1 each: ``rows`` in the cycle of ``start``, ``columns`` from then on.
    step : In(1)
    unit, group, column, address : Out
        Position of the element.
    last, ends : Out(1)
        The element is the last one of its row, and of the block.
    left : Out(1)
        There is an element.
    """

    def __init__(self, *, units, columns):
        self._columns = columns
        super().__init__({
            "start": In(1), "rows": In(range(THREADS * units + 1)), "columns": In(range(columns + 1)), "step": In(1),
            "unit": Out(range(units)), "group": Out(range(THREADS)), "column": Out(range(columns)),
            "address": Out(range(THREADS * columns)), "last": Out(1), "ends": Out(1), "left": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        base = Signal.like(self.address)
        rows = Signal.like(self.rows)
        edge = Signal.like(self.column, reset_less=True)
        m.d.sync += edge.eq(self.columns - 1)
        m.d.comb += [
            self.last.eq(self.column == edge),
            self.ends.eq(self.last & (rows == 1)),
            self.left.eq(rows != 0),
        ]
        with m.If(self.step):
            m.d.sync += [self.column.eq(self.column + 1), self.address.eq(self.address + 1)]
            with m.If(self.last):
                m.d.sync += [self.column.eq(0), self.address.eq(base), rows.eq(rows - 1)]
                m.d.sync += self.unit.eq(self.unit + 1)
                with m.If(self.unit.all()):
                    m.d.sync += [
                        base.eq(self.address + 1), self.address.eq(self.address + 1), self.group.eq(self.group + 1)]
        with m.If(self.start):
            m.d.sync += [rows.eq(self.rows), base.eq(0), self.address.eq(0), self.column.eq(0), self.group.eq(0),
                         self.unit.eq(0)]
        return m
