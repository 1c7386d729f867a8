"""Converters of moments between memory (fp32 or pairs of bf16) and the optimizer's arithmetic."""

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.floating.convert import shorten
from hdl.floating.format import BF16, FP32
from hdl.streams.stream import beat_layout, check_lanes

__all__ = ["MomentPacker", "MomentUnpacker"]


class MomentUnpacker(wiring.Component):
    """Unpack rows of memory into beats of fp32 moments.

    With ``packed_state``, each word of a row holds two bf16 moments, the even element in its low half: a row of
    ``lanes`` words becomes two beats of ``lanes`` elements, with zeros in the low 16 bits. A word's keep bit applies
    to both of its elements. A row with ``last`` and no kept word in its upper half becomes one beat. Without
    ``packed_state``, a row is a beat.

    Latency is :attr:`latency` cycle, throughput one beat per cycle in either mode. A row is accepted together with
    its last beat: ``i.ready`` depends combinationally on ``i`` and on ``o.ready``. No path runs from ``i`` to ``o``.

    Parameters
    ----------
    lanes : int
        Number of words per row, and number of elements per beat: 1, 2, 4 or 8.

    Members
    -------
    packed_state : In(1)
        May change only while the unit is empty: no row is offered at ``i``, and no beat is at ``o`` or pending.
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
        row = self.i.payload
        moments = Signal.like(self.o.payload, name="moments", reset_less=True)
        m.d.comb += self.o.payload.eq(moments)
        upper = Signal()  # the offered row's lower half has been accepted
        more = Signal()  # the upper half of the row follows
        m.d.comb += more.eq(self.packed_state & ~upper & (row.keep[lanes // 2] | ~row.last))
        with m.If(self.o.ready | ~self.o.valid):
            m.d.comb += self.i.ready.eq(self.i.valid & ~more)
            m.d.sync += [
                self.o.valid.eq(self.i.valid),
                moments.last.eq(row.last & ~more),
                upper.eq(self.i.valid & more),
            ]
            bits = row.elements.as_value()
            for n in range(lanes):
                moment = Mux(upper, bits[16 * (lanes + n):][:16], bits[16 * n:][:16])
                keep = Mux(upper, row.keep[(lanes + n) // 2], row.keep[n // 2])
                m.d.sync += [
                    moments.elements[n].eq(Mux(self.packed_state, Cat(C(0, 16), moment), row.elements[n])),
                    moments.keep[n].eq(Mux(self.packed_state, keep, row.keep[n])),
                ]
        return m


class MomentPacker(wiring.Component):
    """Pack beats of fp32 moments into rows of memory.

    With ``packed_state``, each element is rounded to bf16 (to nearest even, every NaN to 0x7fc0), and two beats form
    a row of words with two elements each, the even one in the low half. If the first of two beats has ``last``, it
    forms a row on its own. A word is kept if either element is. Half words of elements that are not kept are zero,
    and so is the upper half of a row with only one beat. Without ``packed_state``, a beat is a row.

    Latency is :attr:`latency` cycles from the beat that completes a row; throughput is one beat per cycle in either
    mode. ``i.ready`` depends combinationally on ``o.ready``. No path runs from ``i`` to ``o``.

    Parameters
    ----------
    lanes : int
        Number of elements per beat, and number of words per row: 1, 2, 4 or 8.

    Members
    -------
    packed_state : In(1)
        May change only while the unit is empty: no beat is offered at ``i``, no half row is stored, and no row is
        offered at ``o`` or pending.
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
        half = 16 * lanes
        incoming = self.i.payload
        rounded = Signal(half)
        for n in range(lanes):
            short = shorten(m, incoming.elements[n], source=FP32, target=BF16)
            m.d.comb += rounded[16 * n:][:16].eq(Mux(incoming.keep[n], short, 0))

        # A beat or, if `packed_state`, half a row: rounded elements fill the lower half; the upper half is ignored.
        beat = Signal.like(incoming, reset_less=True)
        beat_valid = Signal()
        advance = Signal()
        m.d.comb += self.i.ready.eq(~beat_valid | advance)
        with m.If(self.i.ready):
            m.d.sync += [beat_valid.eq(self.i.valid), beat.eq(incoming)]
            with m.If(self.packed_state):
                m.d.sync += beat.elements.as_value()[:half].eq(rounded)

        # The spare register holds the lower half of a row. It loads every beat unless it waits for an upper half.
        lower, upper = beat.elements.as_value()[:half], beat.elements.as_value()[half:]
        spare = Signal(half, reset_less=True)
        spare_keep = Signal(lanes, reset_less=True)
        staged = Signal()
        completes = Signal()
        m.d.comb += [
            completes.eq(~self.packed_state | staged | beat.last),
            advance.eq(~completes | self.o.ready | ~self.o.valid),
        ]
        with m.If(~staged):
            m.d.sync += [spare.eq(lower), spare_keep.eq(beat.keep)]
        with m.If(beat_valid & advance):
            m.d.sync += staged.eq(~completes)

        row = Signal.like(self.o.payload, name="row", reset_less=True)
        m.d.comb += self.o.payload.eq(row)
        kept = Cat(Mux(staged, spare_keep, beat.keep), Mux(staged, beat.keep, 0))
        pairs = Cat(kept[n] | kept[n + 1] for n in range(0, 2 * lanes, 2))
        with m.If(self.o.ready | ~self.o.valid):
            m.d.sync += [
                self.o.valid.eq(beat_valid & completes),
                row.elements.as_value()[:half].eq(Mux(staged, spare, lower)),
                row.elements.as_value()[half:].eq(
                    Mux(self.packed_state, Mux(staged, lower, 0), upper)),
                row.keep.eq(Mux(self.packed_state, pairs, beat.keep)),
                row.last.eq(beat.last),
            ]
        return m
