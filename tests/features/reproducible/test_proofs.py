"""Proofs about the units that sum integers: hdl/features/reproducible.

Units neither lose nor invent words, integers stay within their limits, and sums are never mistaken for the codes of
infinities and NaN."""

import pytest
from amaranth.hdl import Assert, Assume, Cat, Const, Module, Mux, ResetSignal, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.reproducible.layout import SPARE, WIDTHS, codes_of, integers_layout, integers_of
from hdl.features.reproducible.prefix import MAX_WORDS, PrefixCutter, PrefixJoiner, prefix_layout
from hdl.features.reproducible.quantizer import Quantizer
from hdl.features.reproducible.rows import RowNarrower, RowWidener
from hdl.streams.stream import beat_layout, connect_stream, word_layout
from sim.formal import holds, prove
from tests.proofs import held, refuted

#: Width of word and element numbers, which do not overflow within the depth of a proof.
NUMBER = 4


def transfer(port):
    """Whether a beat of a stream is transferred in this cycle."""
    return port.valid & port.ready


def counted(m, name, step):
    """Sum of ``step`` over all earlier cycles."""
    number = Signal(NUMBER, name=f"{name}_number")
    m.d.sync += number.eq(number + step)
    return number


def kept(payload):
    """Number of elements that are kept in a beat."""
    return sum(payload.keep)


# --- order of elements and words


class Elements(wiring.Component):
    """Specification: elements leave in order, and each packet ends with its last element.

    The value of each element is its number. The elements that end a packet are given by ``ends``, a constant chosen
    by the solver. The unit contains at most ``depth`` elements.
    """

    def __init__(self, unit, depth):
        self._unit = unit
        self._depth = depth
        super().__init__({"ends": In(1 << NUMBER), "i": unit.signature.members["i"],
                          "o": unit.signature.members["o"]})

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = self._unit
        connect_stream(m, self.i, unit.i)
        connect_stream(m, unit.o, self.o)
        held(m, self.ends)
        came, gone = (counted(m, name, Mux(transfer(port), kept(port.payload), 0))
                      for name, port in (("came", self.i), ("gone", self.o)))
        m.d.comb += [
            Assume(~ResetSignal()), Assume(holds(m, "i", self.i)), Assume(self._right(m, "i", self.i, came)),
            # All slices are full, except the last slice of a packet.
            Assume(~self.i.valid | self.i.payload.keep.all() | self.i.payload.last),
            Assert(holds(m, "o", self.o)), Assert(self._right(m, "o", self.o, gone)),
            Assert(~self.o.valid | (gone + kept(self.o.payload) <= came)),
            Assert(came - gone <= self._depth),
        ]
        return m

    def _right(self, m, name, port, first):
        """Whether the lowest lanes of a beat hold consecutive elements of one packet, from element ``first`` on."""
        payload = port.payload
        right = Signal(name=f"{name}_right")
        checks = [payload.keep[0]]
        for lane, element in enumerate(payload.elements):
            number, more = Signal(NUMBER, name=f"{name}_{lane}"), Const(0)
            m.d.comb += number.eq(first + lane)
            if lane + 1 < len(payload.elements):
                more = payload.keep[lane + 1]
                checks.append(payload.keep[lane] | ~more)
            end = self.ends.bit_select(number, 1)
            checks.append(~payload.keep[lane] | ((element == number) & (end == (payload.last & ~more))))
        m.d.comb += right.eq(~port.valid | Cat(checks).all())
        return right


@pytest.mark.parametrize(("unit", "depth"), [(RowNarrower, 2), (RowWidener, 3)])
def test_elements(unit, depth):
    prove(Elements(unit(lanes=2, slice_lanes=1), depth), depth=6, mode="bmc")


class Words(wiring.Component):
    """Specification: words leave in order, and each description is accepted with its packet's last word.

    The words of ``whole`` are the words of ``prefix`` followed by those of ``rest``, as given by the descriptions.
    Word number ``watched`` of each output, a constant chosen by the solver, leaves unchanged. Words are limited to 0
    and 1, which loses no generality because the unit only moves them.
    """

    def __init__(self):
        words = stream.Signature(word_layout())
        streams = ("prefix", "rest")
        inputs, outputs = (("whole",), streams) if self.cuts else (streams, ("whole",))
        super().__init__({"watched": In(NUMBER), "described": In(stream.Signature(prefix_layout())),
                          **{name: In(words) for name in inputs}, **{name: Out(words) for name in outputs}})

    def elaborate(self, platform):
        m = Module()
        described = self.described
        m.submodules.unit = unit = PrefixCutter() if self.cuts else PrefixJoiner()
        whole = unit.i if self.cuts else unit.o
        connect_stream(m, described, unit.cut if self.cuts else unit.join)
        for port, inner in ((self.whole, whole), (self.prefix, unit.prefix), (self.rest, unit.rest)):
            connect_stream(m, *((port, inner) if (port is self.whole) is self.cuts else (inner, port)))
        held(m, self.watched)
        inputs = {"whole": self.whole} if self.cuts else {"prefix": self.prefix, "rest": self.rest}
        for name, port in inputs.items():
            m.d.comb += [Assume(port.payload.data[1:] == 0), Assume(holds(m, name, port))]
        m.d.comb += [Assume(~ResetSignal()), Assume(holds(m, "described", described)),
                     Assume(described.payload.words <= MAX_WORDS),
                     Assume((described.payload.words != 0) | described.payload.rest)]

        # An accepted word belongs to the description that is offered.
        position = Signal(range(MAX_WORDS + 1))  # number of accepted words of the prefix
        to_rest = position == described.payload.words
        prefix_ends = position + 1 == described.payload.words
        if self.cuts:
            enters, word, last = transfer(self.whole), self.whole.payload.data, self.whole.payload.last
            # The number of words in a packet matches its description.
            m.d.comb += Assume(~(self.whole.valid & described.valid & ~to_rest) |
                               (last == (prefix_ends & ~described.payload.rest)))
        else:
            m.d.comb += [
                Assume(~(self.prefix.valid & described.valid) | to_rest | (self.prefix.payload.last == prefix_ends)),
                Assert(~transfer(self.prefix) | ~to_rest),
                Assert(~transfer(self.rest) | to_rest),
            ]
            enters = transfer(self.prefix) | transfer(self.rest)
            word = Mux(to_rest, self.rest.payload.data, self.prefix.payload.data)
            last = Mux(to_rest, self.rest.payload.last, prefix_ends & ~described.payload.rest)
        m.d.comb += [Assert(~enters | described.valid), Assert(transfer(described) == (enters & last))]
        with m.If(enters):
            m.d.sync += position.eq(Mux(last, 0, Mux(to_rest, position, position + 1)))

        if self.cuts:
            sinks = [(self.prefix, enters & ~to_rest, prefix_ends), (self.rest, enters & to_rest, last)]
        else:
            sinks = [(self.whole, enters, last)]
        for number, (sink, enters_here, ends) in enumerate(sinks):
            came, gone = counted(m, f"came_{number}", enters_here), counted(m, f"gone_{number}", transfer(sink))
            entered = Signal(word_layout(), name=f"entered_{number}")
            with m.If(enters_here & (came == self.watched)):
                m.d.sync += [entered.data.eq(word), entered.last.eq(ends)]
            m.d.comb += [
                Assert(holds(m, f"sink_{number}", sink)),
                Assert(~sink.valid | (came != gone)),
                Assert(came - gone <= 2),  # the capacity of a skid buffer
                Assert(~(transfer(sink) & (gone == self.watched)) | (sink.payload == entered)),
            ]
        return m


class Cut(Words):
    """Specification of the unit that cuts a packet into its prefix and its rest."""

    cuts = True


class Joined(Words):
    """Specification of the unit that joins a prefix and a rest into one packet."""

    cuts = False


@pytest.mark.parametrize("specification", [Cut, Joined])
def test_words(specification):
    prove(specification(), depth=5, mode="bmc")


# --- limits of integers


class Limited(wiring.Component):
    """Specification: a quantizer's integers are within their limits if no finite element's exponent exceeds its
    group's.

    The output is always ready, since the contents of the unit do not depend on when they advance.
    """

    def __init__(self, width, *, excess=0):
        lanes = 32 // width
        self._width = width
        self._excess = excess
        super().__init__({"i": In(stream.Signature(beat_layout(lanes))), "fields": In(stream.Signature(8)),
                          "spare": In(SPARE)})

    def elaborate(self, platform):
        m = Module()
        width = self._width
        m.submodules.unit = unit = Quantizer(width=width)
        connect_stream(m, self.i, unit.i)
        connect_stream(m, self.fields, unit.fields)
        held(m, self.spare)
        m.d.comb += [Assume(~ResetSignal()), unit.o.ready.eq(1), unit.spare.eq(self.spare),
                     Assume(self.spare <= max(SPARE)), Assume(self.fields.payload != 0)]
        for element in self.i.payload.elements:
            exponent = element[23:31]
            m.d.comb += Assume(exponent.all() | (exponent <= self.fields.payload + self._excess))
        limit = Signal(width)
        m.d.comb += limit.eq((Const(1 << width - 1, width) >> self.spare) - 1)
        for lane in range(32 // width):
            integer = unit.o.payload.data.word_select(lane, width).as_signed()
            special = unit.o.payload.special[lane].any()
            m.d.comb += [
                Assert(~unit.o.valid | ((integer <= limit) & (integer >= -limit))),
                Assert(~unit.o.valid | ~special | (integer == 0)),
            ]
        return m


def test_limits():
    prove(Limited(16), depth=Quantizer.latency + 1)


def test_elements_above_the_field_exceed_limits():
    """If an element's exponent may exceed its group's, the specification is refuted."""
    refuted(Limited(16, excess=1), depth=Quantizer.latency + 1)


class Sums(wiring.Component):
    """Specification: sums of up to 2**spare integers within their limits never equal the codes of infinities and NaN.

    On the ring, ``spare`` is at least 1. If it were 0, the largest integer would be equal to the code of infinity.
    """

    def __init__(self):
        super().__init__({"adds": In(1), "spare": In(SPARE), **{f"addend_{width}": In(width) for width in WIDTHS}})

    def elaborate(self, platform):
        m = Module()
        held(m, self.spare)
        m.d.comb += [Assume(~ResetSignal()), Assume((self.spare >= 1) & (self.spare <= max(SPARE)))]
        count = Signal(range((1 << max(SPARE)) + 1))
        adds = Signal()
        m.d.comb += [adds.eq(self.adds & (count < (1 << self.spare))), Assert(count <= (1 << self.spare))]
        m.d.sync += count.eq(count + adds)
        for width in WIDTHS:
            self._add(m, width, count, adds)
        return m

    def _add(self, m, width, count, adds):
        """Add integers of one width, and check that their sum is within its bounds."""
        total, limit = Signal(width, name=f"total_{width}"), Signal(width, name=f"limit_{width}")
        addend = getattr(self, f"addend_{width}").as_signed()
        m.d.comb += [
            limit.eq((Const(1 << width - 1, width) >> self.spare) - 1),
            Assume((addend <= limit) & (addend >= -limit)),
        ]
        with m.If(adds):
            m.d.sync += total.eq(total + addend)

        # Encode the sum for the ring, and decode it again.
        word = Signal(integers_layout(width), name=f"word_{width}")
        m.d.comb += word.data.eq(total.replicate(32 // width))
        integers, flags = integers_of(m, codes_of(word, width), width)
        # The sum of ``count`` integers is at most ``count`` times their limit, computed with a shift and a
        # subtraction.
        bound = Signal(width + 1, name=f"bound_{width}")
        m.d.comb += bound.eq(((count << (width - 1)) >> self.spare) - count)
        m.d.comb += [
            Assert((total.as_signed() <= bound) & (total.as_signed() >= -bound)),
            Assert(flags == 0),
            Assert(integers == word.data),
        ]


def test_sums_are_no_codes():
    prove(Sums(), depth=2)
