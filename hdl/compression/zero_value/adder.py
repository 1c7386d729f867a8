"""Element-wise addition of zero-value packets, without expanding them."""

from types import SimpleNamespace

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.compression.zero_value.encoder import _Joiner, _OnesSequence
from hdl.compression.zero_value.groups import LUT_ROWS, group_layout, index_of, slices
from hdl.floating.add import FloatAdder
from hdl.floating.format import FP32, FloatFormat
from hdl.group import GROUP
from hdl.streams.stream import Queue, connect_stream, word_layout

__all__ = ["Adder"]


class Adder(wiring.Component):
    """Add two compressed streams, element by element, without expanding them.

    The positions set in either mask are processed, one per cycle: if both bits are set the elements are added; if one
    is set, its element is copied. Copies also pass through the adder, as sums with +0.0, to preserve the order. Zeros
    are removed from the mask. Sums are as in :class:`~hdl.floating.add.FloatAdder`; NaNs become canonical.

    A group with n such positions takes 1 + n cycles. Its mask is offered :attr:`latency` cycles after the last word
    of the two groups was accepted, and its first value one cycle later, or two cycles later if it is the only value.
    The pipeline cannot stall, so a group or a position enters only if a slot is free at its output. ``a.ready`` and
    ``b.ready`` depend only on registers.

    Both streams must have the same number of groups, and each must end with a whole group. Otherwise ``error`` is
    raised, the output ends with the sums so far, and the rest of both streams is discarded, up to the last word of
    each; the next pair is processed normally.

    Parameters
    ----------
    format : FloatFormat
        Format of the elements, at most 32 bits wide; higher bits of a word are ignored on input and zero on output.

    Members
    -------
    a, b : In(stream of {data, last})
    o : Out(stream of {data, last})
    position : Out(1)
        Pulse: a position was processed.
    added : Out(1)
        Pulse: a pair of streams was read to its end.
    error : Out(1)
        Pulse: this pair was malformed.
    """

    #: Capacity in groups, counted from the arrival of a mask. It covers the all-zero groups that can arrive while a
    #: dense group is written, which takes 33 cycles, and the groups in the pipeline. Less would stall the pipeline.
    groups = 1 + 3 * LUT_ROWS

    #: Capacity of the queue of sums. A group's sums wait there until all of them are known, as its mask is first.
    depth = 64

    #: Number of mask bits that the search for the next position examines per cycle.
    _WIDTH = 4

    def __init__(self, *, format=FP32):
        if not isinstance(format, FloatFormat):
            raise TypeError(f"Format must be a FloatFormat, not {format!r}")
        if format.width > GROUP:
            raise ValueError(f"Format must be at most {GROUP} bits wide, not {format.width!r}")
        self._format = format
        word = stream.Signature(word_layout())
        super().__init__({
            "a": In(word), "b": In(word), "o": Out(word), "position": Out(1), "added": Out(1), "error": Out(1),
        })

    @property
    def format(self):
        """Format of the elements."""
        return self._format

    @property
    def latency(self):
        """Latency in cycles from accepting a group's last word to offering its mask."""
        return FloatAdder.latency + 5

    def elaborate(self, platform):
        m = Module()
        m.submodules.adder = adder = FloatAdder(format=self._format)
        m.submodules.walker = walker = _OnesSequence(masks=2, width=self._WIDTH)
        m.submodules.groups = groups = Queue(shape=group_layout(), depth=self.groups)
        m.submodules.joiner = joiner = _Joiner(width=self._format.width)
        m.submodules.values = values = Queue(shape=unsigned(self._format.width), depth=self.depth, block=True)

        # Number of free, unreserved slots in the queues at the end of the pipeline.
        group_places = Signal(range(groups.depth + 1), init=groups.depth)
        value_places = Signal(range(self.depth + 1), init=self.depth)
        enter_group = Signal()
        enter_value = Signal()
        cancelled = Signal()
        m.d.sync += [
            group_places.eq(group_places - enter_group + (joiner.groups.valid & joiner.groups.ready)),
            value_places.eq(value_places - enter_value + (joiner.values.valid & joiner.values.ready) + cancelled),
        ]

        # Hold one word of each stream; if it is a mask, also flag which of its rows contain ones.
        words = []
        for name, port in (("a", self.a), ("b", self.b)):
            word = Signal(data.StructLayout({
                "data": GROUP, "last": 1, "valid": 1, "occupied": GROUP // self._WIDTH}), name=f"{name}_word")
            take = Signal(name=f"{name}_take")
            done = Signal(name=f"{name}_done")
            ending = Signal(name=f"{name}_ending")
            m.d.comb += [
                port.ready.eq(~word.valid | take),
                ending.eq(done | (take & word.last)),
            ]
            with m.If(port.ready):
                m.d.sync += [
                    word.data.eq(port.payload.data),
                    word.last.eq(port.payload.last),
                    word.occupied.eq(Cat(bits.any() for bits in slices(port.payload.data, self._WIDTH))),
                    word.valid.eq(port.valid),
                ]
            m.d.sync += done.eq(ending)
            words.append(SimpleNamespace(held=word, take=take, done=done, ending=ending))
        a, b = words

        # Process one position per cycle, and take a word from each stream whose mask has a one at this position.
        a_hit, b_hit = walker.hits
        short = Signal()
        closing = Signal()
        # These registers are not reset, so that the flip-flops' reset inputs can be used to generate zeros.
        left = Signal.like(adder.a, reset_less=True)
        right = Signal.like(adder.b, reset_less=True)
        entry = Signal(data.StructLayout({"value": 1, "closing": 1, "last": 1, "position": range(GROUP)}))
        m.d.comb += [
            walker.masks[0].eq(a.held.data),
            walker.masks[1].eq(b.held.data),
            walker.occupied.eq(a.held.occupied | b.held.occupied),
            walker.step.eq(enter_value),
            adder.a.eq(left),
            adder.b.eq(right),
            short.eq((a_hit & a.done) | (b_hit & b.done)),
        ]
        m.d.sync += [
            entry.value.eq(enter_value),
            entry.closing.eq(closing),
            entry.last.eq(a.ending | b.ending),
            entry.position.eq(Cat(index_of(walker.place), walker.row)),
            left.eq(Mux(a_hit, a.held.data, 0)),
            right.eq(Mux(b_hit, b.held.data, 0)),
            self.position.eq(enter_value),
            self.added.eq(0),
            self.error.eq(0),
        ]

        def close_group(*, short):
            m.next = "Masks"
            m.d.sync += self.error.eq(short | (a.ending ^ b.ending))
            with m.If(a.ending & b.ending):
                close_pair()
            with m.Elif(a.ending | b.ending):
                m.next = "Rest"

        def close_pair():
            m.next = "Masks"
            m.d.sync += [a.done.eq(0), b.done.eq(0), self.added.eq(1)]

        with m.FSM():
            with m.State("Masks"):
                m.d.comb += [
                    enter_group.eq(a.held.valid & b.held.valid & (group_places != 0)),
                    a.take.eq(enter_group),
                    b.take.eq(enter_group),
                    walker.start.eq(1),
                    closing.eq(enter_group & ~walker.occupied.any()),
                ]
                with m.If(enter_group):
                    m.next = "Values"
                with m.If(closing):
                    close_group(short=0)
            with m.State("Values"):
                m.d.comb += [
                    enter_value.eq((a.held.valid | ~a_hit) & (b.held.valid | ~b_hit) & (value_places != 0) & ~short),
                    a.take.eq(enter_value & a_hit),
                    b.take.eq(enter_value & b_hit),
                    closing.eq(short | (enter_value & walker.end)),
                ]
                with m.If(closing):
                    close_group(short=short)
            with m.State("Rest"):
                m.d.comb += [a.take.eq(a.held.valid & ~a.done), b.take.eq(b.held.valid & ~b.done)]
                with m.If(a.ending & b.ending):
                    close_pair()

        # Collect the nonzero sums, and set their mask bits.
        result = entry
        for stage in range(adder.latency + 1):
            following = Signal.like(entry, name=f"entry{stage + 1}")
            m.d.sync += following.eq(result)
            result = following
        total = Signal.like(adder.o)
        non_zero = Signal()
        m.d.sync += [total.eq(adder.o), non_zero.eq(adder.o[:-1].any())]
        mask = Signal(GROUP)
        count = Signal(range(GROUP + 1))
        keep = Signal()
        mask_after = Signal.like(mask)
        count_after = Signal.like(count)
        m.d.comb += [
            keep.eq(result.value & non_zero),
            cancelled.eq(result.value & ~keep),
            mask_after.eq(mask | Cat(keep & (result.position == position) for position in range(GROUP))),
            count_after.eq(count + keep),
            values.i.payload.eq(total),
            values.i.valid.eq(keep),
            groups.i.payload.mask.eq(mask_after),
            groups.i.payload.count.eq(count_after),
            groups.i.payload.last.eq(result.last),
            groups.i.valid.eq(result.closing),
        ]
        m.d.sync += [
            mask.eq(Mux(result.closing, 0, mask_after)),
            count.eq(Mux(result.closing, 0, count_after)),
        ]
        connect_stream(m, groups.o, joiner.groups)
        connect_stream(m, values.o, joiner.values)
        connect_stream(m, joiner.o, self.o)
        return m
