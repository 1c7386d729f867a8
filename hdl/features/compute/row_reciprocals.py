"""Reciprocals of row totals, with which a softmax multiplies its elements."""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.floating.format import FP32

__all__ = ["RowReciprocals"]


class RowReciprocals(wiring.Component):
    """Step through the rows of a block while 1.0 is divided by their totals, and store the quotients.

    ``row`` and ``stored`` are functions of registers; ``ends`` and ``ready`` depend combinationally on ``rows`` and
    ``wanted``. ``factor`` is a register.

    Parameters
    ----------
    depth : int
        Maximum number of rows in a block, a power of two.
    latency : int
        Latency in cycles from ``divide`` to ``quotient``.

    Members
    -------
    clear : In(1)
        Start the next block.
    divide : In(1)
        Divide the total of ``row`` and advance ``row`` to the next row.
    rows : In(range(depth + 1))
        Number of rows in the block.
    row : Out(range(depth))
    ends : Out(1)
        Whether ``row`` is the last row.
    quotient : In(32)
    wanted : In(range(depth))
        Row of an element to check.
    ready : Out(1)
        Whether the reciprocal of ``wanted`` has been stored.
    chosen : In(range(depth))
        Row of the element to look up.
    factor : Out(32)
        Reciprocal of ``chosen``, one cycle later.
    """

    def __init__(self, *, depth, latency):
        self._depth = depth
        self._latency = latency
        super().__init__({
            "clear": In(1), "divide": In(1), "rows": In(range(depth + 1)), "row": Out(range(depth)), "ends": Out(1),
            "quotient": In(FP32.width), "wanted": In(range(depth)), "ready": Out(1), "chosen": In(range(depth)),
            "factor": Out(FP32.width),
        })

    def elaborate(self, platform):
        m = Module()
        stored = Signal.like(self.rows)
        under_way = Signal(self._latency)
        m.submodules.memory = memory = Memory(shape=FP32.width, depth=self._depth, init=[],
                                              attrs={"no_rw_check": 1, "ram_style": "distributed"})
        write, read = memory.write_port(), memory.read_port(domain="comb")
        m.d.comb += [
            self.ends.eq(self.row == self.rows - 1),
            self.ready.eq(self.wanted < stored),
            write.addr.eq(stored), write.data.eq(self.quotient), write.en.eq(under_way[-1]),
            read.addr.eq(self.chosen),
        ]
        m.d.sync += [
            self.factor.eq(read.data),
            under_way.eq((under_way << 1) | self.divide),
            self.row.eq(self.row + self.divide), stored.eq(stored + under_way[-1]),
        ]
        with m.If(self.clear):
            m.d.sync += [self.row.eq(0), stored.eq(0)]
        return m
