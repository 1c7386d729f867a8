"""Moments as they lie in memory, as fp32 or as pairs of bf16, and as the optimizer's arithmetic takes them."""

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.floating.convert import shorten
from hdl.floating.format import BF16, FP32
from hdl.stream import beat_layout, check_lanes

__all__ = ["MomentPacker", "MomentUnpacker"]


class MomentUnpacker(wiring.Component):
    """Rows of memory into beats of fp32 moments.

    With ``packed_state``, each word of a row holds two bf16 moments, the even element in its low half: a row of
    ``lanes`` words becomes two beats of ``lanes`` elements, whose low 16 bits are zero. A word's keep bit counts for
    both its elements. A row with ``last`` whose upper half is not kept becomes one beat. Without ``packed_state``, a
    row is a beat.

    Latency is :attr:`latency` cycle, throughput one beat per cycle in either mode. Every output is a register: no
    path runs from ``o.ready`` to ``i.ready``, nor from ``i`` to ``o``.

    Parameters
    ----------
    lanes : int
        Words in a row, and elements in a beat: 1, 2, 4 or 8.

    Members
    -------
    packed_state : In(1)
        May change only while nothing is inside: neither a row on offer at ``i`` nor a beat at ``o`` or still to come.
    i : In(stream of beat_layout(lanes))
    o : Out(stream of beat_layout(lanes))
        ``last`` marks the last beat of the row with ``last``.
    """

    latency = 1

    def __init__(self, *, lanes):
        check_lanes(lanes)
        self._lanes = lanes
        super().__init__(
            {
                "packed_state": In(1),
                "i": In(stream.Signature(beat_layout(lanes))),
                "o": Out(stream.Signature(beat_layout(lanes))),
            }
        )

    @property
    def lanes(self):
        return self._lanes

    def elaborate(self, platform):
        m = Module()
        lanes = self._lanes
        # A row of which a beat is still to be sent: the whole of it, or only its upper half.
        spare = Signal.like(self.i.payload)
        spare_valid = Signal()
        upper = Signal()

        row = Signal.like(self.i.payload)
        more = Signal()  # this row's upper half follows
        m.d.comb += [
            row.eq(Mux(spare_valid, spare, self.i.payload)),
            more.eq(self.packed_state & ~upper & (row.keep[lanes // 2] | ~row.last)),
            self.i.ready.eq(~spare_valid),
        ]
        # The spare register follows the input for as long as it is free, so that only one bit decides what it holds.
        with m.If(self.i.ready):
            m.d.sync += spare.eq(self.i.payload)
        with m.If(self.o.ready | ~self.o.valid):
            m.d.sync += [
                self.o.valid.eq(self.i.valid | spare_valid),
                self.o.payload.last.eq(row.last & ~more),
                spare_valid.eq((self.i.valid | spare_valid) & more),
                upper.eq((self.i.valid | spare_valid) & more),
            ]
            bits = row.elements.as_value()
            for n in range(lanes):
                moment = Mux(upper, bits[16 * (lanes + n):][:16], bits[16 * n:][:16])
                keep = Mux(upper, row.keep[(lanes + n) // 2], row.keep[n // 2])
                m.d.sync += [
                    self.o.payload.elements[n].eq(Mux(self.packed_state, Cat(C(0, 16), moment), row.elements[n])),
                    self.o.payload.keep[n].eq(Mux(self.packed_state, keep, row.keep[n])),
                ]
        with m.Elif(self.i.valid):
            m.d.sync += spare_valid.eq(1)
        return m


class MomentPacker(wiring.Component):
    """Beats of fp32 moments into rows of memory.

    With ``packed_state``, each element is rounded to bf16, to nearest even and with 0x7fc0 for every NaN; two beats
    make a row, whose words hold two elements each, the even one in the low half. A beat with ``last`` that would be
    the first of two makes a row alone. A word is kept if either of its elements is; the half of a word whose element
    is not kept is zero, and so is the upper half of a row that has only one beat. Without ``packed_state``, a beat is
    a row.

    Latency is :attr:`latency` cycles from the beat that completes a row; throughput is one beat per cycle in either
    mode. Every output is a register: no path runs from ``o.ready`` to ``i.ready``, nor from ``i`` to ``o``.

    Parameters
    ----------
    lanes : int
        Elements in a beat, and words in a row: 1, 2, 4 or 8.

    Members
    -------
    packed_state : In(1)
        May change only while nothing is inside: neither a beat on offer at ``i``, nor half a row, nor a row at ``o``
        or still to come.
    i : In(stream of beat_layout(lanes))
    o : Out(stream of beat_layout(lanes))
    """

    latency = 2

    def __init__(self, *, lanes):
        check_lanes(lanes)
        self._lanes = lanes
        super().__init__(
            {
                "packed_state": In(1),
                "i": In(stream.Signature(beat_layout(lanes))),
                "o": Out(stream.Signature(beat_layout(lanes))),
            }
        )

    @property
    def lanes(self):
        return self._lanes

    def elaborate(self, platform):
        m = Module()
        lanes = self._lanes
        # The rounded beat, in both halves of a row.
        beat = Signal.like(self.i.payload, reset_less=True)
        beat_valid = Signal()
        # The lower half of a row, and all of it when the output register was not free to take it.
        spare = Signal.like(self.i.payload, reset_less=True)
        staged = Signal()
        complete = Signal()

        given = self.i.payload
        moments = Signal(16 * lanes)
        for n in range(lanes):
            short = shorten(m, given.elements[n], source=FP32, target=BF16)
            m.d.comb += moments[16 * n:][:16].eq(Mux(given.keep[n], short, 0))
        kept = given.keep.replicate(2)
        with m.If(self.i.ready):
            m.d.sync += [beat_valid.eq(self.i.valid), beat.eq(given)]
            with m.If(self.packed_state):
                m.d.sync += [
                    beat.elements.as_value().eq(moments.replicate(2)),
                    beat.keep.eq(Cat(kept[n] | kept[n + 1] for n in range(0, 2 * lanes, 2))),
                ]

        row = Signal.like(given)
        completes = Signal()
        first = (1 << (lanes + 1) // 2) - 1  # words that a row's first beat has a part in
        second = (1 << lanes) - (1 << lanes // 2)
        kept_of_beat = Mux(self.packed_state, Mux(staged, second, first), (1 << lanes) - 1)
        beat_bits = beat.elements.as_value()
        m.d.comb += [
            self.i.ready.eq(~complete),
            completes.eq(~self.packed_state | staged | beat.last),
            row.elements.eq(Cat(
                Mux(staged, spare.elements.as_value()[:16 * lanes], beat_bits[:16 * lanes]),
                Mux(self.packed_state & ~staged, 0, beat_bits[16 * lanes:]))),
            row.keep.eq((beat.keep & kept_of_beat) | Mux(staged, spare.keep, 0)),
            row.last.eq(beat.last),
        ]

        with m.If(~complete & beat_valid):
            m.d.sync += [spare.eq(row), staged.eq(~completes)]
        with m.If(self.o.ready | ~self.o.valid):
            m.d.sync += [
                self.o.valid.eq((beat_valid & completes) | complete),
                self.o.payload.eq(Mux(complete, spare, row)),
                complete.eq(0),
            ]
        with m.Elif(beat_valid & completes):
            m.d.sync += complete.eq(1)
        return m
