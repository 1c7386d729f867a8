"""Converters between memory rows and slices of one or two elements, at one slice per cycle."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.streams.stream import beat_layout, check_lanes

__all__ = ["RowNarrower", "RowWidener"]


def _signatures(lanes, slice_lanes):
    """Check both lane counts; return the stream signatures of rows and slices."""
    check_lanes(lanes)
    if slice_lanes not in (1, 2) or slice_lanes > lanes:
        raise ValueError(f"Slice lane count must be 1 or 2 and at most {lanes}, not {slice_lanes!r}")
    return [stream.Signature(beat_layout(count)) for count in (lanes, slice_lanes)]


class RowNarrower(wiring.Component):
    """Split rows into slices, lowest lane first, and omit slices without kept elements.

    Latency is :attr:`latency` cycle; throughput is one slice per cycle, with no bubble between rows. ``i.ready``
    depends combinationally on ``o.ready``. Elements that are not kept are unspecified.

    Parameters
    ----------
    lanes : int
        Elements in a row: 1, 2, 4 or 8.
    slice_lanes : int
        Elements in a slice: 1 or 2, at most ``lanes``.

    Members
    -------
    i : In(stream of beat_layout(lanes))
        Rows with at least one kept element.
    o : Out(stream of beat_layout(slice_lanes))
        ``last`` marks the last slice of a row with ``last``.
    """

    latency = 1

    def __init__(self, *, lanes, slice_lanes):
        rows, slices = _signatures(lanes, slice_lanes)
        super().__init__({"i": In(rows), "o": Out(slices)})

    def elaborate(self, platform):
        m = Module()
        width, count = len(self.o.payload.elements.as_value()), len(self.o.payload.keep)
        row, last = Signal.like(self.i.payload.elements.as_value(), name="row", reset_less=True), Signal()
        keep = Signal.like(self.i.payload.keep)  # elements still to be offered, the next ones in the lowest lanes
        final = Signal()  # the offered slice is the last of its row
        advance = Signal()
        m.d.comb += [
            final.eq((keep >> count) == 0),
            advance.eq(self.o.ready | ~keep[0]),
            self.i.ready.eq(final & advance),
            self.o.valid.eq(keep[0]),
            self.o.payload.elements.eq(row),
            self.o.payload.keep.eq(keep),
            self.o.payload.last.eq(last & final),
        ]
        with m.If(advance):
            m.d.sync += [row.eq(row >> width), keep.eq(keep >> count)]
            with m.If(final):
                m.d.sync += [row.eq(self.i.payload.elements), last.eq(self.i.payload.last),
                             keep.eq(Mux(self.i.valid, self.i.payload.keep, 0))]
        return m


class RowWidener(wiring.Component):
    """Join slices into rows, the first slice in the lowest lanes.

    Latency is :attr:`latency` cycle from the slice that completes a row; throughput is one slice per cycle, with no
    bubble between rows. ``i.ready`` depends combinationally on ``o.ready``.

    Parameters
    ----------
    lanes : int
        Elements in a row: 1, 2, 4 or 8.
    slice_lanes : int
        Elements in a slice: 1 or 2, at most ``lanes``.

    Members
    -------
    i : In(stream of beat_layout(slice_lanes))
        A slice with ``last`` completes its row; every other slice is full.
    o : Out(stream of beat_layout(lanes))
    """

    latency = 1

    def __init__(self, *, lanes, slice_lanes):
        rows, slices = _signatures(lanes, slice_lanes)
        self._parts = lanes // slice_lanes
        super().__init__({"i": In(slices), "o": Out(rows)})

    def elaborate(self, platform):
        m = Module()
        parts, incoming, row = self._parts, self.i.payload, self.o.payload
        width, count = len(incoming.elements.as_value()), len(incoming.keep)
        # Slices waiting for the rest of their row, as in hdl.streams.rows.RowAssembler.
        staged = [Signal(width, name=f"staged_{part}", reset_less=True) for part in range(parts - 1)]
        filled = Signal(max(parts - 1, 1))
        completes = Signal()
        m.d.comb += [
            completes.eq(Cat(1, filled)[parts - 1] | incoming.last),
            self.i.ready.eq(~completes | ~self.o.valid | self.o.ready),
        ]
        for part, held in enumerate(staged):
            with m.If(~filled[part]):
                m.d.sync += held.eq(incoming.elements)
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += filled.eq(Mux(completes, 0, Cat(1, filled)))
            with m.If(completes):
                # Lanes after the last slice hold copies of it and are not kept.
                latest = incoming.elements.as_value()
                values = [*(Mux(filled[part], held, latest) for part, held in enumerate(staged)), latest]
                m.d.sync += [self.o.valid.eq(1), row.last.eq(incoming.last), row.elements.eq(Cat(values))]
                for part in range(parts):
                    here = filled[part - 1] if part else 1  # this slice or an earlier one has arrived
                    earlier = filled[part] if part < parts - 1 else 0
                    m.d.sync += row.keep.word_select(part, count).eq(
                        Mux(earlier, (1 << count) - 1, Mux(here, incoming.keep, 0)))
        return m
