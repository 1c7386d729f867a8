"""Converters between memory rows and the slices that enter the arithmetic."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.streams.stream import beat_layout, check_lanes

__all__ = ["RowJoiner", "RowSplitter"]


def _signatures(lanes, slice_lanes, width):
    """Check both lane counts; return the stream signatures of rows and slices."""
    check_lanes(lanes)
    if slice_lanes not in (1, 2, 4, 8) or slice_lanes > lanes:
        raise ValueError(f"Slice lane count must be 1, 2, 4 or 8 and at most {lanes}, not {slice_lanes!r}")
    return [stream.Signature(beat_layout(count, width)) for count in (lanes, slice_lanes)]


class RowSplitter(wiring.Component):
    """Split rows into slices, lowest lane first.

    Every row becomes ``lanes / slice_lanes`` slices, regardless of ``keep``, so ``i.ready`` depends combinationally
    only on ``o.ready``. Elements that are not kept are zero.

    Latency is :attr:`latency` cycles; throughput is one slice per cycle. A row is accepted together with its last
    slice, so this unit need not store it.

    Parameters
    ----------
    lanes : int
        Elements in a row: 1, 2, 4 or 8.
    slice_lanes : int
        Elements in a slice: 1, 2, 4 or 8, at most ``lanes``.
    width : int
        Bits per element.

    Members
    -------
    i : In(stream of beat_layout(lanes, width))
    o : Out(stream of beat_layout(slice_lanes, width))
        ``last`` marks the last slice of a row with ``last``, even if none of its elements is kept.
    """

    latency = 0

    def __init__(self, *, lanes, slice_lanes, width=32):
        rows, slices = _signatures(lanes, slice_lanes, width)
        self._lanes = lanes
        self._slice_lanes = slice_lanes
        self._width = width
        super().__init__({"i": In(rows), "o": Out(slices)})

    def elaborate(self, platform):
        m = Module()
        row, parts = self.i.payload, self._lanes // self._slice_lanes
        part = Signal(range(max(parts, 2)))
        final = Signal(init=parts == 1)  # the current slice is the last of its row
        m.d.comb += [
            self.o.valid.eq(self.i.valid),
            self.i.ready.eq(self.o.ready & final),
            self.o.payload.last.eq(row.last & final),
        ]
        if parts > 1:
            with m.If(self.o.valid & self.o.ready):
                m.d.sync += [part.eq(part + 1), final.eq(part == parts - 2)]
        for lane in range(self._slice_lanes):
            indices = range(lane, self._lanes, self._slice_lanes)
            keep = Signal(name=f"keep_{lane}")
            element = Cat(row.elements[index] for index in indices).word_select(part, self._width)
            m.d.comb += [
                keep.eq(Cat(row.keep[index] for index in indices).bit_select(part, 1)),
                self.o.payload.keep[lane].eq(keep),
                self.o.payload.elements[lane].eq(Mux(keep, element, 0)),
            ]
        return m


class RowJoiner(wiring.Component):
    """Join slices into rows, the first slice in the lowest lanes.

    Latency is :attr:`latency` cycle from the slice that completes a row. Throughput is one slice per cycle, except
    while a row waits to be accepted, which takes at least one cycle per row, because ``i.ready`` is a register.

    Parameters
    ----------
    lanes : int
        Elements in a row: 1, 2, 4 or 8.
    slice_lanes : int
        Elements in a slice: 1, 2, 4 or 8, at most ``lanes``.
    width : int
        Bits per element.

    Members
    -------
    i : In(stream of beat_layout(slice_lanes, width))
        A slice with ``last`` completes its row; every other slice is full.
    o : Out(stream of beat_layout(lanes, width))
    """

    latency = 1

    def __init__(self, *, lanes, slice_lanes, width=32):
        rows, slices = _signatures(lanes, slice_lanes, width)
        self._parts = lanes // slice_lanes
        super().__init__({"i": In(slices), "o": Out(rows)})

    def elaborate(self, platform):
        m = Module()
        incoming, parts = self.i.payload, self._parts
        # The values of elements that are not kept are irrelevant, so they are not reset.
        row = Signal.like(self.o.payload, name="row", reset_less=True)
        m.d.comb += self.o.payload.eq(row)
        here = Signal(parts, init=1)  # position of the next slice, one-hot
        m.d.comb += self.i.ready.eq(~self.o.valid)
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [row.last.eq(incoming.last), self.o.valid.eq(incoming.last | here[-1])]
            m.d.sync += here.eq(Mux(incoming.last | here[-1], 1, here << 1))
            for part in range(parts):
                with m.If(here[part]):
                    m.d.sync += row.elements.as_value().word_select(part, len(incoming.elements.as_value())).eq(
                        incoming.elements)
                # The first slice of a row clears the keep bits of all later slices.
                with m.If(here[part] | here[0]):
                    m.d.sync += row.keep.word_select(part, len(incoming.keep)).eq(Mux(here[part], incoming.keep, 0))
        return m
