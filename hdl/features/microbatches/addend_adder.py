"""Sum of the integers of a node's addends, before they are added to a packet from the ring."""

import functools
import operator

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.microbatches.layout import ADDENDS
from hdl.features.reproducible.exponents import MAX_GROUPS
from hdl.features.reproducible.layout import check_width, integers_layout
from hdl.group import GROUP
from hdl.streams.stream import Queue

__all__ = ["AddendAdder"]

_TOTAL = 32


class AddendAdder(wiring.Component):
    """Sum the integers of several addends, group by group.

    A packet consists of groups of up to 32 elements. The words of a group arrive once for each addend, and leave as
    sums over all addends. An element of the sum is infinite or NaN if it is in any addend; the integer is then the
    sum of the other addends' integers.

    The sum of the integers that enter must equal the sum of the integers that leave, modulo 2**32, so each wrong
    bit of a sum is found. The last word of a packet is offered only after this check. If it fails, the word is never
    offered, and ``wrong`` is high from then on until reset.

    Throughput is one word of an addend per cycle. A word is taken :attr:`turnaround` cycles after the word of the
    previous addend that it is added to, or later, so a group of one word takes two cycles for each addend but the
    last. With one addend, a packet of n words takes n + 1 cycles. A sum is offered :attr:`latency` cycles after the
    word of its last addend, and the last sum of a packet one cycle later.

    ``i.ready`` depends combinationally on ``groups.valid`` and ``o.ready``, and ``groups.ready`` also on ``i`` and
    ``groups``. Other outputs depend only on registers.

    Parameters
    ----------
    width : int
        Width of integers in bits: 16 or 32.

    Members
    -------
    i : In(stream of integers_layout(width))
        ``last`` marks the last word of a group of each addend.
    addends : In(ADDENDS)
        Number of addends, at least 1. It must be stable while words are in the unit.
    groups : In(stream of range(MAX_GROUPS + 1))
        Number of groups of a packet, at least 1, taken with its last word.
    o : Out(stream of integers_layout(width))
        ``last`` marks the last word of a packet.
    wrong : Out(1)
    """

    latency = 2
    #: Number of cycles from a word of an addend to the word of the next addend that is added to it.
    turnaround = 2

    def __init__(self, *, width):
        check_width(width)
        self._width = width
        integers = stream.Signature(integers_layout(width))
        super().__init__({"i": In(integers), "addends": In(ADDENDS),
                          "groups": In(stream.Signature(range(MAX_GROUPS + 1))), "o": Out(integers), "wrong": Out(1)})

    def elaborate(self, platform):
        m = Module()
        word = self.i.payload
        kept = data.StructLayout({"data": 32, "special": word.special.shape()})
        # Sums so far of a group.
        m.submodules.loop = loop = Queue(shape=kept, depth=GROUP * self._width // 32 + 1, block=False)
        addend, group = Signal(ADDENDS), Signal(range(MAX_GROUPS))
        first, final, ends, taken, free = Signal(), Signal(), Signal(), Signal(), Signal()
        there = self.groups.valid & (first | loop.o.valid)
        m.d.comb += [
            first.eq(addend == 0),
            final.eq(addend == self.addends - 1),
            ends.eq(word.last & final & (group == self.groups.payload - 1)),  # last word of a packet
            self.i.ready.eq(free & there),
            taken.eq(self.i.valid & self.i.ready),
            loop.o.ready.eq(free & self.i.valid & self.groups.valid & ~first),
            self.groups.ready.eq(taken & ends),
        ]
        with m.If(taken & word.last):
            m.d.sync += addend.eq(Mux(final, 0, addend + 1))
            with m.If(final):
                m.d.sync += group.eq(Mux(ends, 0, group + 1))

        # First stage: the sum, which returns to the loop or leaves.
        before = loop.o.payload
        total = Signal(kept, reset_less=True)
        held, complete, closes = Signal(), Signal(), Signal()
        free_output = Signal()
        m.d.comb += [
            free.eq(~held | Mux(complete, free_output, loop.i.ready)),
            loop.i.valid.eq(held & ~complete),
            loop.i.payload.eq(total),
        ]
        entered, expected = Signal(_TOTAL), Signal(_TOTAL, reset_less=True)
        following = (entered + self._sum(word.data))[:_TOTAL]
        with m.If(free):
            m.d.sync += [held.eq(taken), complete.eq(final), closes.eq(ends)]
        with m.If(taken):
            m.d.sync += [
                total.data.eq(self._added(word.data, Mux(first, 0, before.data))),
                total.special.as_value().eq(word.special.as_value() | Mux(first, 0, before.special.as_value())),
                entered.eq(Mux(ends, 0, following)),
                expected.eq(following),
            ]
        self._leave(m, total=total, offered=held & complete, closes=closes, expected=expected, free=free_output)
        return m

    def _leave(self, m, *, total, offered, closes, expected, free):
        """Second stage: output the sums; the last sum of a packet leaves only after the check."""
        held, compares, verified = Signal(), Signal(), Signal()
        left, formed = Signal(_TOTAL), Signal(_TOTAL, reset_less=True)
        demanded = Signal(_TOTAL, reset_less=True)
        following = (left + self._sum(total.data))[:_TOTAL]
        row = Signal.like(self.o.payload, reset_less=True)
        m.d.comb += [
            self.o.valid.eq(held & (~row.last | verified)),
            self.o.payload.eq(row),
            free.eq(~held | (self.o.valid & self.o.ready)),
        ]
        m.d.sync += compares.eq(0)
        with m.If(free):
            m.d.sync += [held.eq(offered), verified.eq(0)]
            with m.If(offered):
                m.d.sync += [
                    row.data.eq(total.data), row.special.eq(total.special), row.last.eq(closes), compares.eq(closes),
                    left.eq(Mux(closes, 0, following)), formed.eq(following), demanded.eq(expected),
                ]
        with m.If(compares):
            m.d.sync += [verified.eq(formed == demanded), self.wrong.eq(formed != demanded)]

    def _lanes(self, word):
        return [word.word_select(lane, self._width).as_signed() for lane in range(32 // self._width)]

    def _sum(self, word):
        """Sum of the integers of a word."""
        return functools.reduce(operator.add, self._lanes(word))

    def _added(self, word, before):
        """Add the integers of two words lane by lane; return the word of sums. Tests override this to inject
        faults."""
        return Cat((own + other)[:self._width]
                   for own, other in zip(self._lanes(word), self._lanes(before), strict=True))
