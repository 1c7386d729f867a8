"""Sequencer of the vector unit's program, which selects each frame's step and each thread's element."""

from amaranth.hdl import C, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.features.compute.vector_program import STEPS, THREADS, Factor, Loop, Take

__all__ = ["ProgramSequencer"]


def _mask(condition):
    """Return a mask with one bit per step, which is set if the step meets the condition."""
    return C(sum(bool(condition(step)) << number for number, step in enumerate(STEPS)), len(STEPS))


class ProgramSequencer(wiring.Component):
    """Sequence the steps of :data:`~hdl.features.compute.vector_program.STEPS` for a block of rows.

    A frame has one cycle per thread, with the thread's number on ``slot``. Frames run continuously, and restart with
    the first step in the cycle after ``start``. In a loop over elements each thread has one element, in ascending
    order within a frame; in a loop over columns and in all other steps, each has one row. The last step repeats while
    no program runs.

    Parameters
    ----------
    columns : int
        Maximum number of columns.
    sequences : bool
        Whether a program can end with the row totals.

    Members
    -------
    start : In(1)
    brief : In(1)
        Whether the program ends with the frame that takes the totals. Only with ``sequences``.
    columns, size : In
        Number of columns, valid from the cycle of ``start`` on, and of elements in all rows, from the next cycle on.
    slot, step : Out
    group, column, address : Out
        Row, column and address of the thread's element.
    opens : Out(1)
        Whether this is the first step of a loop over columns.
    again : Out(1)
        Whether the loop over elements has been completed once.
    done : Out(1)
        Last cycle of the program.
    """

    def __init__(self, *, columns, sequences=False):
        depth = THREADS * columns
        self._sequences = sequences
        super().__init__({
            **({"brief": In(1)} if sequences else {}),
            "start": In(1), "columns": In(range(columns + 1)), "size": In(range(depth + 1)),
            "slot": Out(range(THREADS)), "step": Out(range(len(STEPS)), init=len(STEPS) - 1),
            "group": Out(range(THREADS)), "column": Out(range(columns)), "address": Out(range(depth)),
            "opens": Out(1), "again": Out(1), "done": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        # Position and address of the next element (loop over elements) or of the current one (loop over columns).
        element = Signal(self.size.shape())
        group, column = Signal.like(self.group), Signal.like(self.column)
        address, turn = Signal.like(self.address), Signal.like(self.column)
        edge = Signal.like(self.column, reset_less=True)
        m.d.sync += edge.eq(self.columns - 1)
        ends = Signal()
        loops = {loop: Signal(name=f"loop_{loop.name.lower()}") for loop in (Loop.ELEMENTS, Loop.COLUMNS, Loop.END)}
        walks = Signal()
        for loop, signal in loops.items():
            m.d.comb += signal.eq(_mask(lambda step, loop=loop: step.loop == loop).bit_select(self.step, 1))
        elements = _mask(lambda step: step.a == Factor.ELEMENT and step.loop == Loop.NEXT and step is not STEPS[-1])
        ended = loops[Loop.END]
        if self._sequences:
            totals = _mask(lambda step: step.take == Take.TOTAL).bit_select(self.step, 1)
            ended = ended | (totals & self.brief)
        m.d.comb += [
            walks.eq(elements.bit_select(self.step, 1)),
            ends.eq(self.slot == THREADS - 1),
            self.group.eq(Mux(walks, group, self.slot)),
            self.column.eq(column),
            self.address.eq(Mux(walks, element, address)),
            self.opens.eq(loops[Loop.COLUMNS] & (turn == 0)),
            self.done.eq(ends & ended),
        ]
        m.d.sync += self.slot.eq(self.slot + 1)
        with m.If(walks):
            m.d.sync += [element.eq(element + 1), column.eq(column + 1)]
            with m.If(column == edge):
                m.d.sync += [column.eq(0), group.eq(group + 1)]
        with m.If(loops[Loop.COLUMNS]):
            m.d.sync += address.eq(address + self.columns)
        with m.If(ends & (self.step != len(STEPS) - 1)):
            m.d.sync += self.step.eq(self.step + 1)
            with m.If(loops[Loop.ELEMENTS]):
                m.d.sync += self.again.eq(1)
                with m.If(element < self.size):
                    m.d.sync += self.step.eq(0)
            with m.If(loops[Loop.COLUMNS]):
                m.d.sync += [turn.eq(turn + 1), address.eq(turn + 1)]
                with m.If(turn != edge):
                    m.d.sync += self.step.eq(self.step)
            if self._sequences:
                with m.If(ended):
                    m.d.sync += self.step.eq(len(STEPS) - 1)
        with m.If(self.start):
            m.d.sync += [self.slot.eq(0), self.step.eq(0), self.again.eq(0), element.eq(0), group.eq(0), column.eq(0),
                         address.eq(0), turn.eq(0)]
        return m
