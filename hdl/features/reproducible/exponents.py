"""Units for exponent fields of groups: scan of a segment, maximum of two packets, and reader of single fields.

A group is :data:`~hdl.group.GROUP` consecutive elements; the last group of a packet may be shorter. Fields travel in
packets of words: four fields per word, the first in the lowest byte. A field is at least 1; bytes after the last
field are zero.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.group import GROUP
from hdl.streams.stream import SkidBuffer, beat_layout, check_lanes, connect_stream, word_layout

__all__ = ["MAX_GROUPS", "ExponentScan", "FieldMaximum", "FieldReader"]

#: Maximum number of groups in a packet.
MAX_GROUPS = 16

_FIELD = 8
_PER_WORD = 4


class ExponentScan(wiring.Component):
    """Find the largest exponent field of the finite elements in each group; the result is at least 1.

    Latency is :attr:`latency` cycles from the beat that completes a word, which ends its fourth group or the packet;
    throughput is one beat per cycle. The output is a register, and ``i.ready`` depends only on registers.

    Parameters
    ----------
    lanes : int
        Number of elements per beat: 1, 2, 4 or 8.

    Members
    -------
    i : In(stream of beat_layout(lanes))
        Rows of a segment, in binary32.
    o : Out(stream of word_layout())
        Fields of the segment's groups. ``last`` marks the word with the field of the last group.
    """

    def __init__(self, *, lanes):
        check_lanes(lanes)
        self._lanes = lanes
        super().__init__({
            "i": In(stream.Signature(beat_layout(lanes))),
            "o": Out(stream.Signature(word_layout())),
        })

    @property
    def latency(self):
        """Latency in cycles from the beat that completes a word to the offer of the word."""
        # One cycle to extract the fields, one for each halving of their number, one for the group's maximum, and
        # the output.
        return 1 + (self._lanes.bit_length() - 1) + 1 + SkidBuffer.latency

    def elaborate(self, platform):
        m = Module()
        m.submodules.output = output = SkidBuffer(shape=word_layout())
        connect_stream(m, output.o, self.o)
        advance = output.i.ready  # all stages advance together
        m.d.comb += self.i.ready.eq(advance)

        valid, last, fields = self._largest_of_beat(m, advance)

        # Largest field found in the group so far; `ended` is high once the group is complete.
        largest = Signal(_FIELD, reset_less=True)
        beat = Signal(range(GROUP // self._lanes))  # index of the next beat in its group
        ended, ended_last = Signal(), Signal()
        ends = Signal()
        m.d.comb += ends.eq(beat.all() | last)
        with m.If(advance):
            m.d.sync += [ended.eq(valid & ends), ended_last.eq(last)]
            with m.If(valid):
                m.d.sync += beat.eq(Mux(ends, 0, beat + 1))
                with m.If((beat == 0) | (fields > largest)):
                    m.d.sync += largest.eq(fields)

        # Fields of earlier groups that belong to the same word; bytes without a field are zero.
        earlier = Signal(_FIELD * (_PER_WORD - 1))
        index = Signal(range(_PER_WORD))
        word = Signal(_FIELD * _PER_WORD)
        complete = Signal()
        m.d.comb += [
            word.eq(earlier | Cat(Mux(index == n, largest, 0) for n in range(_PER_WORD))),
            complete.eq(index.all() | ended_last),
            output.i.valid.eq(ended & complete),
            output.i.payload.data.eq(word),
            output.i.payload.last.eq(ended_last),
        ]
        with m.If(advance & ended):
            m.d.sync += [index.eq(Mux(complete, 0, index + 1)), earlier.eq(Mux(complete, 0, word))]
        return m

    def _largest_of_beat(self, m, advance):
        """Return valid, last, and the largest field of a beat, with one register stage per level of comparisons."""
        row = self.i.payload
        fields = []
        for lane in range(self._lanes):
            exponent = row.elements[lane][23:31]
            usable = row.keep[lane] & exponent.any() & ~exponent.all()
            fields.append(Mux(usable, exponent, 1))
        valid, last, stage = self.i.valid, row.last, 0
        while True:
            # The valid bit must be defined after reset; other bits need no reset.
            arrived, ending = Signal(name=f"valid_{stage}"), Signal(name=f"last_{stage}", reset_less=True)
            chosen = Signal(data.ArrayLayout(_FIELD, len(fields)), name=f"fields_{stage}", reset_less=True)
            with m.If(advance):
                m.d.sync += [arrived.eq(valid), ending.eq(last)]
                for n, field in enumerate(fields):
                    m.d.sync += chosen[n].eq(field)
            valid, last, stage = arrived, ending, stage + 1
            if len(fields) == 1:
                return valid, last, chosen[0]
            fields = [Mux(chosen[n] > chosen[n + 1], chosen[n], chosen[n + 1]) for n in range(0, len(fields), 2)]


class FieldMaximum(wiring.Component):
    """Output the larger field of each pair in two packets of equal length; pass packets without a counterpart.

    Latency is :attr:`latency` cycle, throughput one word per cycle with no bubble between packets. Words of ``a`` and
    ``b`` are taken together: ``a.ready`` depends combinationally on ``paired`` and ``b.valid``, ``b.ready`` on
    ``paired`` and ``a.valid``, and ``paired.ready`` on all three inputs. No path runs from ``o.ready`` to an input,
    and the output is a register.

    Members
    -------
    paired : In(stream of 1 bit)
        Whether ``b`` has a packet for the next packet of ``a``. Taken with the packet's last word.
    a : In(stream of word_layout())
        Fields of this node.
    b : In(stream of word_layout())
        Fields from the ring, with the same number of words.
    o : Out(stream of word_layout())
        ``last`` is that of ``a``.
    """

    paired: In(stream.Signature(1))
    a: In(stream.Signature(word_layout()))
    b: In(stream.Signature(word_layout()))
    o: Out(stream.Signature(word_layout()))

    latency = SkidBuffer.latency

    def elaborate(self, platform):
        m = Module()
        m.submodules.output = output = SkidBuffer(shape=word_layout())
        connect_stream(m, output.o, self.o)
        a, b, paired = self.a, self.b, self.paired
        may_take = Signal()
        m.d.comb += [
            may_take.eq(output.i.ready & paired.valid),
            a.ready.eq(may_take & (~paired.payload | b.valid)),
            b.ready.eq(may_take & paired.payload & a.valid),
            paired.ready.eq(a.valid & a.ready & a.payload.last),
            output.i.valid.eq(paired.valid & a.valid & (~paired.payload | b.valid)),
            output.i.payload.last.eq(a.payload.last),
        ]
        for n in range(_PER_WORD):
            own, received = (port.payload.data.word_select(n, _FIELD) for port in (a, b))
            m.d.comb += output.i.payload.data.word_select(n, _FIELD).eq(
                Mux(paired.payload & (received > own), received, own))
        return m


class FieldReader(wiring.Component):
    """Split a packet of exponent fields into single fields.

    Latency is :attr:`latency` cycle to the first field of a word, throughput one field per cycle with no bubble
    between words and packets. A word is taken together with its last field: ``i.ready`` depends combinationally on
    ``groups`` and on ``last``, and ``groups.ready`` on ``i``. No path runs from ``o.ready`` to an input, and the
    output is a register.

    Members
    -------
    groups : In(stream of range(MAX_GROUPS + 1))
        Number of groups of the packet, at least 1; the packet has a field for each. Taken with its last word.
    i : In(stream of word_layout())
    o : Out(stream of 8 bits)
    """

    groups: In(stream.Signature(range(MAX_GROUPS + 1)))
    i: In(stream.Signature(word_layout()))
    o: Out(stream.Signature(_FIELD))

    latency = SkidBuffer.latency

    def elaborate(self, platform):
        m = Module()
        m.submodules.output = output = SkidBuffer(shape=_FIELD)
        connect_stream(m, output.o, self.o)
        word, groups = self.i, self.groups
        index = Signal(range(_PER_WORD))
        final = Signal.like(index)  # index of the word's last field
        ends = Signal()
        m.d.comb += [
            # All words but the last have four fields; the last one has those that remain.
            final.eq(Mux(word.payload.last, groups.payload - 1, _PER_WORD - 1)),
            ends.eq(index == final),
            output.i.valid.eq(word.valid & groups.valid),
            output.i.payload.eq(word.payload.data.word_select(index, _FIELD)),
            word.ready.eq(output.i.ready & groups.valid & ends),
            groups.ready.eq(word.valid & word.ready & word.payload.last),
        ]
        with m.If(output.i.valid & output.i.ready):
            m.d.sync += index.eq(Mux(ends, 0, index + 1))
        return m
