"""Decoder that expands zero-value groups to elements."""

import functools
import operator

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.compression.zero_value.encoder import _OnesSequence
from hdl.compression.zero_value.groups import LUT_ROWS, slices
from hdl.group import GROUP
from hdl.streams.stream import beat_layout, check_lanes, word_layout

__all__ = ["Decoder"]


class Decoder(wiring.Component):
    """Expand a compressed stream, in whole groups of 32 / lanes beats.

    All elements are kept; ``o.last`` marks the last beat of the last group. One word is taken and one beat is output
    per cycle, so that a group takes max(32 / lanes, 1 + non-zeros) cycles, without bubbles between groups. A beat is
    offered as soon as its words have arrived: :attr:`latency` cycles after its last value is accepted, but at least
    :attr:`latency` + 1 cycles after the mask. ``i.ready`` depends only on registers.

    A stream that ends inside a group raises ``error``; from the first incomplete beat on, the rest of the group is
    zero, and the next stream is processed normally.

    Parameters
    ----------
    lanes : int
        Number of elements per beat: 1, 2, 4 or 8.

    Members
    -------
    i : In(stream of {data, last})
    o : Out(stream of {elements, keep, last})
    error : Out(1)
        Pulse: a stream ended inside a group.
    """

    latency = 3

    def __init__(self, *, lanes):
        check_lanes(lanes)
        self._lanes = lanes
        super().__init__({
            "i": In(stream.Signature(word_layout())),
            "o": Out(stream.Signature(beat_layout(lanes))),
            "error": Out(1),
        })

    @property
    def lanes(self):
        """Elements per beat."""
        return self._lanes

    @property
    def depth(self):
        """Number of stored beats with non-zero elements, not counting the one being collected."""
        return max(GROUP // self._lanes, LUT_ROWS)

    def elaborate(self, platform):
        m = Module()
        # These registers are not reset, so that the flip-flops' reset inputs can be used to produce zeros.
        elements = Signal.like(self.o.payload.elements, reset_less=True)

        # `walker` visits a mask row by row; each row covers one or more beats.
        width = max(self._lanes, 4)
        m.submodules.walker = walker = _OnesSequence(masks=1, width=width)
        positions = slices(walker.place, self._lanes)
        rests = slices(walker.rest, self._lanes)
        lanes = functools.reduce(operator.or_, positions)
        beat_end = Cat(position.any() & ~rest.any() for position, rest in zip(positions, rests, strict=True)).any()

        m.submodules.beats = memory = Memory(shape=elements.shape(), depth=self.depth, init=[])
        write = memory.write_port(granularity=1)
        read = memory.read_port(domain="comb")
        # Numbers of beats written and read, modulo twice the depth: one bit wider than an address.
        written = Signal(range(2 * self.depth))
        taken = Signal.like(written)

        # Hold one word and, in case it is a mask, a flag per row that shows whether the row contains ones.
        word = Signal(data.StructLayout({"data": GROUP, "last": 1, "valid": 1, "occupied": GROUP // width}))
        room = Signal()
        m.d.comb += self.i.ready.eq(~word.valid | room)
        with m.If(self.i.ready):
            m.d.sync += [
                word.data.eq(self.i.payload.data),
                word.last.eq(self.i.payload.last),
                word.occupied.eq(Cat(bits.any() for bits in slices(self.i.payload.data, width))),
                word.valid.eq(self.i.valid),
            ]

        # Collect the values of a beat in its lanes. Beats with only zeros are not stored.
        mask = Signal(GROUP)
        mask_valid = Signal()
        walking = Signal()
        broken = Signal()
        last = Signal()
        last_before = Signal()
        accept = Signal()
        breaking = Signal()
        m.d.comb += [
            room.eq(~broken & Mux(walking, (written ^ taken) != self.depth, ~mask_valid)),
            accept.eq(word.valid & room),
            breaking.eq(accept & word.last & Mux(walking, ~walker.end, word.occupied.any())),
            walker.start.eq(~walking),
            walker.masks[0].eq(word.data),
            walker.occupied.eq(word.occupied),
            walker.step.eq(accept),
            write.addr.eq(written),
            write.en.eq(Mux(accept & walking, lanes, 0)),
            *(write.data[lane].eq(word.data) for lane in range(self._lanes)),
        ]
        m.d.sync += self.error.eq(breaking)
        with m.If(accept):
            m.d.sync += last.eq(word.last)
            with m.If(walking):
                m.d.sync += [
                    written.eq(written + beat_end),
                    walking.eq(~(walker.end | word.last)),
                ]
            with m.Else():
                m.d.sync += [
                    mask.eq(word.data),
                    mask_valid.eq(1),
                    walking.eq(word.occupied.any() & ~word.last),
                    last_before.eq(last),
                ]

        # Write stage: outputs all beats of a group, including those with only zeros, while the next mask waits.
        ahead = Signal(GROUP)
        active = Signal()
        beat = Signal(range(GROUP // self._lanes))
        present = ahead[:self._lanes]
        stored = written != taken
        final = beat.all()
        go = Signal()
        m.d.comb += [
            read.addr.eq(taken),
            go.eq(active & (self.o.ready | ~self.o.valid) & (~present.any() | stored | broken)),
            self.o.payload.elements.eq(elements),
            self.o.payload.keep.eq(~0),
        ]
        with m.If(self.o.ready | ~self.o.valid):
            m.d.sync += self.o.valid.eq(go)
            m.d.sync += self.o.payload.last.eq(final & Mux(mask_valid, last_before, last))
            for lane in range(self._lanes):
                m.d.sync += elements[lane].eq(Mux(present[lane] & stored, read.data[lane], 0))
        with m.If(go):
            m.d.sync += [
                ahead.eq(ahead[self._lanes:]),
                beat.eq(beat + 1),
                taken.eq(taken + (present.any() & stored)),
            ]
            with m.If(final):
                m.d.sync += active.eq(0)
        with m.If(mask_valid & (~active | (go & final))):
            m.d.sync += [ahead.eq(mask), active.eq(1), mask_valid.eq(0)]

        # After a truncated group, no input is accepted until the group has been written.
        with m.If(breaking):
            m.d.sync += broken.eq(1)
        with m.Elif(go & final & ~mask_valid):
            m.d.sync += broken.eq(0)
        return m
