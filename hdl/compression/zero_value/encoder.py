"""Encoder from elements to groups without zeros; see :mod:`hdl.compression.zero_value.groups`."""

import functools
import operator

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.compression.zero_value.groups import LUT_ROWS, above_lowest, first_of, group_layout, lowest, slices
from hdl.group import GROUP
from hdl.streams.stream import beat_layout, check_lanes, connect_stream, word_layout

__all__ = ["Encoder"]


class _Joiner(wiring.Component):
    """Write groups as words: the mask, followed by one value per set bit of the mask.

    Throughput is one word per cycle. ``groups.ready`` and ``values.ready`` depend combinationally on ``o.ready``.

    Parameters
    ----------
    width : int
        Number of bits of a value.

    Members
    -------
    groups : In(stream of {mask, count, last})
    values : In(stream of width)
    o : Out(stream of {data, last})
    """

    def __init__(self, *, width):
        super().__init__({
            "groups": In(stream.Signature(group_layout())),
            "values": In(stream.Signature(unsigned(width))),
            "o": Out(stream.Signature(word_layout())),
        })

    def elaborate(self, platform):
        m = Module()
        group = self.groups.payload
        # Number of values of the current group still to be written, and whether there are any.
        left = Signal.like(group.count)
        busy = Signal()
        last = Signal()

        with m.If(self.o.ready | ~self.o.valid):
            with m.If(~busy):
                m.d.comb += self.groups.ready.eq(1)
                m.d.sync += [
                    self.o.valid.eq(self.groups.valid),
                    self.o.payload.data.eq(group.mask),
                    self.o.payload.last.eq(group.last & (group.count == 0)),
                    last.eq(group.last),
                ]
                with m.If(self.groups.valid):
                    m.d.sync += [left.eq(group.count), busy.eq(group.count != 0)]
            with m.Else():
                m.d.comb += self.values.ready.eq(1)
                m.d.sync += [
                    self.o.payload.data.eq(self.values.payload),
                    self.o.payload.last.eq(last & (left == 1)),
                    self.o.valid.eq(self.values.valid),
                ]
                with m.If(self.values.valid):
                    m.d.sync += [left.eq(left - 1), busy.eq(left != 1)]
        return m


class _OnesSequence(wiring.Component):
    """Visit the bit positions set in at least one of several masks, lowest first, one position per step.

    Masks are divided into rows. The bits of the current row are in registers, so that a step examines only this row,
    and one flag per row that shows whether the row contains ones. No cycle is lost between rows or before the first.

    Parameters
    ----------
    masks : int
        Number of masks that are visited together.
    width : int
        Number of bits of a row.

    Members
    -------
    start : In(1)
        Visit new masks, starting in the next cycle.
    masks : In(masks of GROUP bits)
        New masks.
    occupied : In(rows)
        Rows of the new masks that contain ones.
    step : In(1)
        Advance to the next position.
    row : Out(range(rows))
        Row of the current position.
    place : Out(width)
        One-hot: the current position in its row.
    hits : Out(masks)
        Masks that are set at the current position.
    rest : Out(width)
        Positions after the current one in its row.
    end : Out(1)
        The current position is the last one.
    """

    def __init__(self, *, masks, width):
        rows = GROUP // width
        super().__init__({
            "start": In(1), "masks": In(data.ArrayLayout(GROUP, masks)), "occupied": In(rows), "step": In(1),
            "row": Out(range(rows)), "place": Out(width), "hits": Out(masks), "rest": Out(width), "end": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        width = len(self.place)
        # Flags for the rows after the current one: does the row contain ones?
        ahead = Signal.like(self.occupied)
        union = Signal(width)
        # Rows that may be next, and whether to go on to the next row.
        candidates = Signal.like(self.occupied)
        turn = Signal()
        m.d.comb += [
            self.place.eq(lowest(union)),
            self.rest.eq(above_lowest(union)),
            self.end.eq(~self.rest.any() & ~ahead.any()),
            turn.eq(self.start | (self.step & ~self.rest.any())),
            candidates.eq(Mux(self.start, self.occupied, ahead)),
        ]
        with m.If(turn):
            m.d.sync += [
                self.row.eq(first_of(candidates, range(len(candidates)))),
                ahead.eq(above_lowest(candidates)),
            ]

        present = []
        for number, new in enumerate(self.masks):
            mask = Signal(GROUP, name=f"mask{number}")
            bits = Signal(width, name=f"bits{number}")
            with m.If(self.start):
                m.d.sync += mask.eq(new)
            with m.If(turn):
                m.d.sync += bits.eq(first_of(candidates, slices(Mux(self.start, new, mask), width)))
            with m.Elif(self.step):
                m.d.sync += bits.eq(bits & ~self.place)
            m.d.comb += self.hits[number].eq((bits & self.place).any())
            present.append(bits)
        m.d.comb += union.eq(functools.reduce(operator.or_, present))
        return m


class Encoder(wiring.Component):
    """Compress a stream of elements.

    Elements that are not kept are treated as zeros. A group cut short by ``last`` is padded with zeros and takes as
    long as a whole group, with ``i.ready`` low.

    One beat is taken and one word is output per cycle, so that a group takes max(32 / lanes, 1 + non-zeros) cycles,
    without bubbles between groups: while a group is written, the next one is collected. The mask of a group is
    offered :attr:`latency` cycles after its last beat was accepted. ``i.ready`` depends only on registers.

    Parameters
    ----------
    lanes : int
        Number of elements per beat: 1, 2, 4 or 8.

    Members
    -------
    i : In(stream of {elements, keep, last})
    o : Out(stream of {data, last})
    """

    latency = 3

    def __init__(self, *, lanes):
        check_lanes(lanes)
        self._lanes = lanes
        super().__init__({
            "i": In(stream.Signature(beat_layout(lanes))),
            "o": Out(stream.Signature(word_layout())),
        })

    @property
    def lanes(self):
        """Elements per beat."""
        return self._lanes

    @property
    def depth(self):
        """Number of beats with non-zero elements that can be stored, not counting the one being written."""
        return max(GROUP // self._lanes, LUT_ROWS)

    def elaborate(self, platform):
        m = Module()
        lanes = range(self._lanes)
        elements = self.i.payload.elements

        m.submodules.joiner = joiner = _Joiner(width=len(elements[0]))
        m.submodules.beats = memory = Memory(
            shape=data.StructLayout({"elements": elements.shape(), "present": self._lanes}),
            depth=self.depth, init=[])
        write = memory.write_port()
        read = memory.read_port(domain="comb")
        # Number of beats written and number of beats read, modulo twice the depth: one bit wider than an address.
        written = Signal(range(2 * self.depth))
        taken = Signal.like(written)

        # Hold one beat. If a stream ends inside a group, its last beat stays here as zeros until the group is full.
        held = Signal.like(elements)
        present = Signal(self._lanes)
        ending = Signal()
        held_valid = Signal()
        room = Signal()
        closing = Signal()
        m.d.comb += self.i.ready.eq(~held_valid | (room & (closing | ~ending)))
        with m.If(self.i.ready):
            m.d.sync += [
                held.eq(elements),
                present.eq(Cat(self.i.payload.keep[lane] & elements[lane][:-1].any() for lane in lanes)),
                ending.eq(self.i.payload.last),
                held_valid.eq(self.i.valid),
            ]
        with m.Elif(room):
            m.d.sync += present.eq(0)

        # Collect a group: its mask, and all beats except all-zero beats.
        beat = Signal(range(GROUP // self._lanes))
        mask = Signal(GROUP - self._lanes)
        count = Signal(range(GROUP + 1))
        group = Signal(group_layout())
        group_valid = Signal()
        m.d.comb += [
            closing.eq(beat.all()),
            room.eq(((written ^ taken) != self.depth) & ~(closing & group_valid)),
            write.addr.eq(written),
            write.data.elements.eq(held),
            write.data.present.eq(present),
            write.en.eq(held_valid & room & present.any()),
        ]
        m.d.sync += written.eq(written + write.en)
        with m.If(joiner.groups.ready):
            m.d.sync += group_valid.eq(0)
        with m.If(held_valid & room):
            m.d.sync += beat.eq(beat + 1)
            with m.If(closing):
                m.d.sync += [
                    group.mask.eq(Cat(mask, present)),
                    group.count.eq(count + sum(present)),
                    group.last.eq(ending),
                    group_valid.eq(1),
                    count.eq(0),
                ]
            with m.Else():
                m.d.sync += [mask.eq(Cat(mask, present)[self._lanes:]), count.eq(count + sum(present))]

        # Write the group's elements one by one, beat after beat.
        chosen = Signal.like(elements)
        waiting = Signal(self._lanes)
        exhausted = Signal()
        m.d.comb += [
            joiner.groups.payload.eq(group),
            joiner.groups.valid.eq(group_valid),
            joiner.values.valid.eq(waiting.any()),
            joiner.values.payload.eq(first_of(waiting, [chosen[lane] for lane in lanes])),
            exhausted.eq((waiting == 0) | (joiner.values.ready & (above_lowest(waiting) == 0))),
            read.addr.eq(taken),
        ]
        with m.If(exhausted & (written != taken)):
            m.d.sync += [
                chosen.eq(read.data.elements),
                waiting.eq(read.data.present),
                taken.eq(taken + 1),
            ]
        with m.Elif(joiner.values.ready):
            m.d.sync += waiting.eq(above_lowest(waiting))
        connect_stream(m, joiner.o, self.o)
        return m
