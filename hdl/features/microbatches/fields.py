"""Units for exponent fields of groups with several addends: one takes the maximum over all addends, the other repeats
a field for each addend."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.microbatches.layout import ADDENDS
from hdl.features.reproducible.exponents import MAX_GROUPS
from hdl.streams.stream import SkidBuffer, connect_stream, word_layout

__all__ = ["AddendMaximum", "FieldRepeater"]

_FIELD = 8
_PER_WORD = 4


class AddendMaximum(wiring.Component):
    """Take the largest exponent field of all addends of each group, and join the fields of a packet in words.

    Latency is :attr:`latency` cycle from the field that completes a word, throughput one field per cycle with no
    bubble. ``i.ready`` depends combinationally on ``groups.valid``, and ``groups.ready`` on ``i`` and ``groups``.
    No path runs from ``o.ready`` to an input, and the output is a register.

    Members
    -------
    i : In(stream of word_layout())
        Words with one field each, in the lowest byte: a field for each addend of a group, then the next group.
        ``last`` is ignored.
    addends : In(ADDENDS)
        Number of addends, at least 1. It must be stable while fields are in the unit.
    groups : In(stream of range(MAX_GROUPS + 1))
        Number of groups of a packet, at least 1, taken with its last field.
    o : Out(stream of word_layout())
        Fields of a packet's groups, four per word. Bytes after the last field are zero.
    """

    i: In(stream.Signature(word_layout()))
    addends: In(ADDENDS)
    groups: In(stream.Signature(range(MAX_GROUPS + 1)))
    o: Out(stream.Signature(word_layout()))

    latency = SkidBuffer.latency

    def elaborate(self, platform):
        m = Module()
        m.submodules.output = output = SkidBuffer(shape=word_layout())
        connect_stream(m, output.o, self.o)
        addend, group = Signal(ADDENDS), Signal(range(MAX_GROUPS))
        field = self.i.payload.data[:_FIELD]
        before, largest = Signal(_FIELD), Signal(_FIELD)  # largest field without and with the current one
        earlier = Signal(_FIELD * (_PER_WORD - 1))  # fields of earlier groups for the same word
        index = Signal(range(_PER_WORD))
        taken, final, ends = Signal(), Signal(), Signal()
        m.d.comb += [
            self.i.ready.eq(output.i.ready & self.groups.valid),
            taken.eq(self.i.valid & self.i.ready),
            final.eq(addend == self.addends - 1),
            ends.eq(group == self.groups.payload - 1),
            largest.eq(Mux(field > before, field, before)),
            self.groups.ready.eq(taken & final & ends),
            index.eq(group),
            output.i.valid.eq(self.i.valid & self.groups.valid & final & (ends | index.all())),
            output.i.payload.data.eq(earlier),
            output.i.payload.last.eq(ends),
        ]
        for position in range(_PER_WORD):
            with m.If(index == position):
                m.d.comb += output.i.payload.data.word_select(position, _FIELD).eq(largest)
        with m.If(taken):
            m.d.sync += [addend.eq(addend + 1), before.eq(largest)]
            with m.If(final):
                m.d.sync += [addend.eq(0), before.eq(0), group.eq(Mux(ends, 0, group + 1)),
                             earlier.eq(Mux(ends | index.all(), 0, output.i.payload.data))]
        return m


class FieldRepeater(wiring.Component):
    """Repeat each exponent field for each addend of its group.

    There is no latency, and throughput is one field per cycle: ``o.valid`` and ``o.payload`` depend combinationally
    on ``i``, and ``i.ready`` on ``o.ready``.

    Members
    -------
    i : In(stream of 8 bits)
    addends : In(ADDENDS)
        Number of addends, at least 1. It must be stable while a field is offered.
    o : Out(stream of 8 bits)
    """

    i: In(stream.Signature(_FIELD))
    addends: In(ADDENDS)
    o: Out(stream.Signature(_FIELD))

    latency = 0

    def elaborate(self, platform):
        m = Module()
        addend, final = Signal(ADDENDS), Signal()
        m.d.comb += [
            final.eq(addend == self.addends - 1),
            self.o.valid.eq(self.i.valid),
            self.o.payload.eq(self.i.payload),
            self.i.ready.eq(self.o.ready & final),
        ]
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += addend.eq(Mux(final, 0, addend + 1))
        return m
