"""Units that cut the first words off a packet, or put words before a packet."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.streams.stream import SkidBuffer, connect_stream, word_layout

__all__ = ["MAX_WORDS", "PrefixCutter", "PrefixJoiner", "prefix_layout"]

#: Maximum number of words in a prefix.
MAX_WORDS = 4


def prefix_layout():
    """Layout of the description of a packet: number of words in its prefix, and whether more words follow.

    A packet has at least one word, so ``words`` is not 0 unless ``rest`` is set.
    """
    return data.StructLayout({"words": range(MAX_WORDS + 1), "rest": 1})


class PrefixCutter(wiring.Component):
    """Split each packet into its prefix and the rest.

    Latency is :attr:`latency` cycle, throughput one word per cycle with no bubble between packets. ``i.ready``
    depends combinationally on ``cut``, and ``cut.ready`` on ``i`` and ``cut``. No path runs from an output's
    ``ready`` to an input. Outputs are registers.

    Members
    -------
    cut : In(stream of prefix_layout())
        Taken with the packet's last word.
    i : In(stream of word_layout())
    prefix : Out(stream of word_layout())
        The packet's first ``words`` words, with ``last`` on the last one of them.
    rest : Out(stream of word_layout())
        All later words, with the packet's own ``last``.
    """

    cut: In(stream.Signature(prefix_layout()))
    i: In(stream.Signature(word_layout()))
    prefix: Out(stream.Signature(word_layout()))
    rest: Out(stream.Signature(word_layout()))

    latency = SkidBuffer.latency

    def elaborate(self, platform):
        m = Module()
        m.submodules.prefix = prefix = SkidBuffer(shape=word_layout())
        m.submodules.rest = rest = SkidBuffer(shape=word_layout())
        connect_stream(m, prefix.o, self.prefix)
        connect_stream(m, rest.o, self.rest)
        count = Signal(range(MAX_WORDS + 1))  # number of words of this packet's prefix that have been taken
        following = Signal.like(count)
        in_rest = Signal()
        taken = Signal()
        m.d.comb += [
            following.eq(count + 1),
            in_rest.eq(count == self.cut.payload.words),
            prefix.i.payload.data.eq(self.i.payload.data),
            prefix.i.payload.last.eq(following == self.cut.payload.words),
            prefix.i.valid.eq(self.i.valid & self.cut.valid & ~in_rest),
            rest.i.payload.eq(self.i.payload),
            rest.i.valid.eq(self.i.valid & self.cut.valid & in_rest),
            self.i.ready.eq(self.cut.valid & Mux(in_rest, rest.i.ready, prefix.i.ready)),
            taken.eq(self.i.valid & self.i.ready),
            self.cut.ready.eq(taken & self.i.payload.last),
        ]
        with m.If(taken):
            with m.If(self.i.payload.last):
                m.d.sync += count.eq(0)
            with m.Elif(~in_rest):
                m.d.sync += count.eq(following)
        return m


class PrefixJoiner(wiring.Component):
    """Join a prefix and the words that follow it into one packet; the reverse of :class:`PrefixCutter`.

    Latency is :attr:`latency` cycle, throughput one word per cycle with no bubble between packets. ``prefix.ready``
    and ``rest.ready`` depend combinationally on ``join``, and ``join.ready`` on all inputs. No path runs from
    ``o.ready`` to an input, and the output is a register.

    Members
    -------
    join : In(stream of prefix_layout())
        Taken with the packet's last word.
    prefix : In(stream of word_layout())
        A packet of ``words`` words for each description with ``words`` other than 0.
    rest : In(stream of word_layout())
        A packet for each description with ``rest`` set.
    o : Out(stream of word_layout())
    """

    join: In(stream.Signature(prefix_layout()))
    prefix: In(stream.Signature(word_layout()))
    rest: In(stream.Signature(word_layout()))
    o: Out(stream.Signature(word_layout()))

    latency = SkidBuffer.latency

    def elaborate(self, platform):
        m = Module()
        m.submodules.output = output = SkidBuffer(shape=word_layout())
        connect_stream(m, output.o, self.o)
        join, prefix, rest = self.join, self.prefix, self.rest
        after_prefix = Signal()  # the prefix of this packet has been taken
        in_rest = Signal()
        may_take = Signal()
        taken = Signal()
        m.d.comb += [
            in_rest.eq(after_prefix | (join.payload.words == 0)),
            may_take.eq(join.valid & output.i.ready),
            prefix.ready.eq(may_take & ~in_rest),
            rest.ready.eq(may_take & in_rest),
            output.i.valid.eq(join.valid & Mux(in_rest, rest.valid, prefix.valid)),
            output.i.payload.data.eq(Mux(in_rest, rest.payload.data, prefix.payload.data)),
            output.i.payload.last.eq(
                Mux(in_rest, rest.payload.last, prefix.payload.last & ~join.payload.rest)),
            taken.eq(output.i.valid & output.i.ready),
            join.ready.eq(taken & output.i.payload.last),
        ]
        with m.If(taken):
            # The last word of the prefix does not end the packet if more words follow; any other word with `last` set
            # does.
            m.d.sync += after_prefix.eq(~output.i.payload.last & (in_rest | prefix.payload.last))
        return m
