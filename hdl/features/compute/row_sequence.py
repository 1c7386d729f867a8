"""Generates the sequence of memory rows of a submatrix."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.compute.loop_nest import SIZE_BITS

__all__ = ["RowSequence", "row_sequence_layout", "step_layout", "tagged"]


def tagged(tag):
    """Layout member for a tag, if there is one."""
    return {} if tag is None else {"tag": tag}


def row_sequence_layout(rows, most, lanes, tag):
    """Layout of a sequence: the first memory row, and the ``pitch`` between lines in rows.

    ``line`` and ``group`` are the numbers of the last line and the last group, starting at 0. Lines from ``lines`` on
    and groups after ``edge`` are outside the submatrix; ``mask`` selects the elements inside group ``edge``. The
    ``tag``, if any, is returned with every step.
    """
    return data.StructLayout({
        "row": range(rows), "pitch": range(rows), "line": range(most), "group": range(most),
        "lines": SIZE_BITS, "edge": SIZE_BITS, "mask": lanes, **tagged(tag)})


def step_layout(rows, most, lanes, tag):
    """Layout of a step: a memory row, a mask of its elements inside the submatrix, and whether it is the ``last``
    row."""
    return data.StructLayout({
        "row": range(rows), "line": range(most), "group": range(most), "keep": lanes, "last": 1,
        **tagged(tag)})


class RowSequence(wiring.Component):
    """Output the memory rows of a submatrix, line by line and group by group.

    A line consists of groups of ``lanes`` adjacent elements, each in one memory row. The first step is offered in the
    cycle after the sequence is accepted, followed by one step per cycle, even across sequences. ``o`` depends only on
    registers; ``i.ready`` depends combinationally on ``o.ready``.

    Parameters
    ----------
    rows : int
        Number of rows of the memory.
    most : int
        Maximum number of lines, and of groups per line.
    lanes : int
        Number of elements per row.
    tag : ShapeLike or None
        Shape of the tag.

    Members
    -------
    i : In(stream of row_sequence_layout(rows, most, lanes, tag))
    o : Out(stream of step_layout(rows, most, lanes, tag))
    """

    latency = 1

    def __init__(self, *, rows, most, lanes, tag=None):
        for name, value in (("Row", rows), ("Line", most)):
            if not isinstance(value, int) or value < 2:
                raise ValueError(f"{name} count must be an integer of at least 2, not {value!r}")
        self._walk = row_sequence_layout(rows, most, lanes, tag)
        super().__init__({
            "i": In(stream.Signature(self._walk)),
            "o": Out(stream.Signature(step_layout(rows, most, lanes, tag))),
        })

    def elaborate(self, platform):
        m = Module()
        walk = Signal(self._walk, reset_less=True)
        start = Signal.like(walk.row, reset_less=True)  # first row of the line
        line, group = Signal.like(walk.line, reset_less=True), Signal.like(walk.group, reset_less=True)
        following = Signal.like(walk.row)
        ends_line = Signal()
        step = self.o.payload
        m.d.comb += [
            ends_line.eq(group == walk.group),
            following.eq(start + walk.pitch),
            step.row.eq(walk.row), step.line.eq(line), step.group.eq(group),
            step.last.eq(ends_line & (line == walk.line)),
            self.i.ready.eq(~self.o.valid | (self.o.ready & step.last)),
        ]
        if "tag" in self._walk.members:
            m.d.comb += step.tag.eq(walk.tag)
        with m.If((line < walk.lines) & (group <= walk.edge)):
            m.d.comb += step.keep.eq(Mux(group == walk.edge, walk.mask, ~0))
        with m.If(self.i.ready):
            m.d.sync += [self.o.valid.eq(self.i.valid), walk.eq(self.i.payload), start.eq(self.i.p.row),
                         line.eq(0), group.eq(0)]
        with m.Elif(self.o.ready):
            m.d.sync += [walk.row.eq(walk.row + 1), group.eq(group + 1)]
            with m.If(ends_line):
                m.d.sync += [walk.row.eq(following), start.eq(following), group.eq(0), line.eq(line + 1)]
        return m
