"""Unit that collects the arithmetic's results, which arrive in slices, into memory rows."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.floating.format import FP32
from hdl.optimizer.burst_controller import tag_layout
from hdl.streams.stream import beat_layout

__all__ = ["RowCollector"]


class RowCollector(wiring.Component):
    """Collect slices into rows; a row is complete in the same cycle as its last slice.

    Parameters
    ----------
    lanes : int
        Number of elements in a row.
    update_lanes : int
        Number of elements in a slice.
    width : int
        Number of bits per element.

    Members
    -------
    tag : In(tag_layout(lanes, update_lanes))
        Tag of the slice at ``i`` in this cycle.
    i : In(ArrayLayout(width, update_lanes))
    valid : Out(1)
        A row is complete.
    row : Out(beat_layout(lanes, width))
    """

    def __init__(self, *, lanes, update_lanes, width=FP32.width):
        self._lanes = lanes
        self._update_lanes = update_lanes
        self._width = width
        super().__init__(
            {
                "tag": In(tag_layout(lanes, update_lanes)),
                "i": In(data.ArrayLayout(width, update_lanes)),
                "valid": Out(1),
                "row": Out(beat_layout(lanes, width)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        parts = self._lanes // self._update_lanes
        m.d.comb += [self.valid.eq(self.tag.valid & self.tag.row_end), self.row.last.eq(self.tag.last)]
        for part in range(parts):
            here = self.tag.part == part
            for lane in range(self._update_lanes):
                index = part * self._update_lanes + lane
                element = self.row.elements[index]
                m.d.comb += self.row.keep[index].eq(Mux(here, self.tag.keep[lane], part < self.tag.part))
                # The last slice always ends its row, so it needs no register.
                if part == parts - 1:
                    m.d.comb += element.eq(self.i[lane])
                    continue
                held = Signal(self._width, name=f"held_{part}_{lane}", reset_less=True)
                with m.If(self.tag.valid & here):
                    m.d.sync += held.eq(self.i[lane])
                m.d.comb += element.eq(Mux(here, self.i[lane], held))
        return m
