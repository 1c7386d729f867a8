"""Zero-value compression: streams of words in which only the elements that are not zero take any room.

Elements are compressed in groups of :data:`~hdl.group.GROUP`. A group is one mask word, whose bit j tells that
element j is not zero, and then the non-zero elements in order; ``last`` marks the last word of the last group. A
group of zeros is its mask word alone, and no group takes more than 33 words.

An element is zero when all its bits except the sign are: -0.0 is compressed like +0.0, and comes back as +0.0.
"""

import functools
import operator
from types import SimpleNamespace

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.floating.add import FloatAdder
from hdl.floating.format import FP32, FloatFormat
from hdl.group import GROUP
from hdl.streams.stream import Queue, beat_layout, check_lanes, connect_stream, word_layout

__all__ = ["Adder", "Decoder", "Encoder"]

#: Rows of one column of LUT memory: a memory with fewer takes as many LUTs.
_LUT_ROWS = 16


def _lowest(bits):
    """The lowest one of some bits, alone."""
    return Cat(bit & ~bits[:place].any() for place, bit in enumerate(bits))


def _above_lowest(bits):
    """All ones of some bits except the lowest."""
    return Cat(bit & bits[:place].any() for place, bit in enumerate(bits))


def _slices(value, width):
    """A value in slices of one width, lowest first."""
    return [value[start:start + width] for start in range(0, len(value), width)]


def _first(flags, values):
    """The value of the lowest flag that is set, or the last value if none is."""
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    return Mux(flags[:half].any(), _first(flags[:half], values[:half]), _first(flags[half:], values[half:]))


def _index(one_hot):
    """The number of the bit that is set."""
    places = range((len(one_hot) - 1).bit_length())
    return Cat(Cat(bit for number, bit in enumerate(one_hot) if number >> place & 1).any() for place in places)


def _group_layout():
    """What is known of a compressed group once it is complete."""
    return data.StructLayout({"mask": GROUP, "count": range(GROUP + 1), "last": 1})


class _Joiner(wiring.Component):
    """Write groups as words: the mask, then as many values as it has ones.

    Throughput is one word per cycle. ``groups.ready`` and ``values.ready`` depend combinationally on ``o.ready``.

    Parameters
    ----------
    width : int
        Bits of a value.

    Members
    -------
    groups : In(stream of {mask, count, last})
    values : In(stream of width)
    o : Out(stream of {data, last})
    """

    def __init__(self, *, width):
        super().__init__({
            "groups": In(stream.Signature(_group_layout())),
            "values": In(stream.Signature(unsigned(width))),
            "o": Out(stream.Signature(word_layout())),
        })

    def elaborate(self, platform):
        m = Module()
        group = self.groups.payload
        # Values of the present group which are still to be written, and whether there are any.
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


class _Walker(wiring.Component):
    """Walk the ones of some masks, lowest first, one place per step; a place is a bit that is set in any of them.

    Masks are seen as rows, and the bits of the present row are in registers, so that a step looks at one row and at
    which rows have any ones. No cycle is lost between two rows, nor between the masks and the first place.

    Parameters
    ----------
    masks : int
        Masks that are walked together.
    width : int
        Bits of a row.

    Members
    -------
    start : In(1)
        Walk new masks from the next cycle on.
    masks : In(masks of GROUP bits)
        New masks.
    occupied : In(rows)
        Rows of the new masks that have ones.
    step : In(1)
        Go on to the next place.
    row : Out(range(rows))
        Row of the present place.
    place : Out(width)
        One-hot: the present place in its row.
    hits : Out(masks)
        Masks that are set at the present place.
    rest : Out(width)
        Places after it in its row.
    end : Out(1)
        The present place is the last one.
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
        # Rows after the present one that have ones.
        ahead = Signal.like(self.occupied)
        union = Signal(width)
        # Rows that the next row is one of, and whether it is asked for.
        candidates = Signal.like(self.occupied)
        turn = Signal()
        m.d.comb += [
            self.place.eq(_lowest(union)),
            self.rest.eq(_above_lowest(union)),
            self.end.eq(~self.rest.any() & ~ahead.any()),
            turn.eq(self.start | (self.step & ~self.rest.any())),
            candidates.eq(Mux(self.start, self.occupied, ahead)),
        ]
        with m.If(turn):
            m.d.sync += [self.row.eq(_first(candidates, range(len(candidates)))), ahead.eq(_above_lowest(candidates))]

        present = []
        for number, new in enumerate(self.masks):
            mask = Signal(GROUP, name=f"mask{number}")
            bits = Signal(width, name=f"bits{number}")
            with m.If(self.start):
                m.d.sync += mask.eq(new)
            with m.If(turn):
                m.d.sync += bits.eq(_first(candidates, _slices(Mux(self.start, new, mask), width)))
            with m.Elif(self.step):
                m.d.sync += bits.eq(bits & ~self.place)
            m.d.comb += self.hits[number].eq((bits & self.place).any())
            present.append(bits)
        m.d.comb += union.eq(functools.reduce(operator.or_, present))
        return m


class Encoder(wiring.Component):
    """Compress a stream of elements.

    Elements that are not kept are zeros, and so is what a group lacks that ``last`` cuts short: it takes as long as a
    whole one, with ``i.ready`` low.

    One beat is taken per cycle and one word given, so that a group takes max(32 / lanes, 1 + non-zeros) cycles and no
    bubble is between groups: while one is written, the next is collected. The mask of a group is offered
    :attr:`latency` cycles after its last beat was accepted. ``i.ready`` depends on registers alone.

    Parameters
    ----------
    lanes : int
        Elements per beat: 1, 2, 4 or 8.

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
        """Beats with non-zero elements that are held besides the one being written."""
        return max(GROUP // self._lanes, _LUT_ROWS)

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
        # One bit more than an address: beats that were written and read, modulo twice the depth.
        written = Signal(range(2 * self.depth))
        taken = Signal.like(written)

        # Hold one beat. The last one of a stream is held, as zeros, until its group is whole.
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

        # Collect a group: its beats, except those of zeros only, and its mask.
        beat = Signal(range(GROUP // self._lanes))
        mask = Signal(GROUP - self._lanes)
        count = Signal(range(GROUP + 1))
        group = Signal(_group_layout())
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

        # Write it: element by element, out of one beat after the other.
        chosen = Signal.like(elements)
        waiting = Signal(self._lanes)
        exhausted = Signal()
        m.d.comb += [
            joiner.groups.payload.eq(group),
            joiner.groups.valid.eq(group_valid),
            joiner.values.valid.eq(waiting.any()),
            joiner.values.payload.eq(_first(waiting, [chosen[lane] for lane in lanes])),
            exhausted.eq((waiting == 0) | (joiner.values.ready & (_above_lowest(waiting) == 0))),
            read.addr.eq(taken),
        ]
        with m.If(exhausted & (written != taken)):
            m.d.sync += [
                chosen.eq(read.data.elements),
                waiting.eq(read.data.present),
                taken.eq(taken + 1),
            ]
        with m.Elif(joiner.values.ready):
            m.d.sync += waiting.eq(_above_lowest(waiting))
        connect_stream(m, joiner.o, self.o)
        return m


class Adder(wiring.Component):
    """Add two compressed streams, element by element, without expanding them.

    The ones of either mask are walked, one per cycle: where both are set the elements are added, where one is, its
    element is copied. Copies pass through the adder as well, as sums with +0.0, so that order is kept. A sum of zero
    leaves the mask. The numbers are those of :class:`~hdl.floating.add.FloatAdder`, and NaNs come out canonical.

    A group takes 1 + positions cycles. Its mask is offered :attr:`latency` cycles after the last word of the two
    groups was accepted, its first value in the next cycle, or one later if it is alone. Nothing in the pipeline can
    be held, so a group or a position enters only while a place behind it is free. ``a.ready`` and ``b.ready`` depend
    on registers alone.

    Both streams must have the same number of groups, and each must end with a whole group. Where they do not,
    ``error`` is raised, the output ends with what was summed so far, and the rest of both streams is discarded, up to
    the last word of each; the next pair is sound again.

    Parameters
    ----------
    format : FloatFormat
        Format of the elements, at most 32 bits wide; the bits of a word above them are ignored, and zeros on output.

    Members
    -------
    a, b : In(stream of {data, last})
    o : Out(stream of {data, last})
    position : Out(1)
        Pulse: one position was processed.
    added : Out(1)
        Pulse: one pair of streams was read to its end.
    error : Out(1)
        Pulse: this pair was malformed.
    """

    #: Groups that are held, from their masks' arrival on: those of zeros that come while a dense one is written, in
    #: 33 cycles, and those in the pipeline. With fewer there would be bubbles behind such a burst.
    groups = 1 + 3 * _LUT_ROWS

    #: Values that are held: a group is complete, and written, only when all its sums are known.
    depth = 64

    #: Bits of the mask that are looked at in one cycle.
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
        """Cycles from the acceptance of a group's last word to the offer of its mask."""
        return FloatAdder.latency + 5

    def elaborate(self, platform):
        m = Module()
        m.submodules.adder = adder = FloatAdder(format=self._format)
        m.submodules.walker = walker = _Walker(masks=2, width=self._WIDTH)
        m.submodules.groups = groups = Queue(shape=_group_layout(), depth=self.groups)
        m.submodules.joiner = joiner = _Joiner(width=self._format.width)
        m.submodules.values = values = Queue(shape=unsigned(self._format.width), depth=self.depth, block=True)

        # Places behind the pipeline that are not spoken for.
        group_places = Signal(range(groups.depth + 1), init=groups.depth)
        value_places = Signal(range(self.depth + 1), init=self.depth)
        enter_group = Signal()
        enter_value = Signal()
        cancelled = Signal()
        m.d.sync += [
            group_places.eq(group_places - enter_group + (joiner.groups.valid & joiner.groups.ready)),
            value_places.eq(value_places - enter_value + (joiner.values.valid & joiner.values.ready) + cancelled),
        ]

        # Hold one word of each stream, and which rows it has ones in, in case it is a mask.
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
                    word.occupied.eq(Cat(bits.any() for bits in _slices(port.payload.data, self._WIDTH))),
                    word.valid.eq(port.valid),
                ]
            m.d.sync += done.eq(ending)
            words.append(SimpleNamespace(held=word, take=take, done=done, ending=ending))
        a, b = words

        # Walk: one position per cycle, and of each stream a word where its mask has a one.
        a_hit, b_hit = walker.hits
        short = Signal()
        closing = Signal()
        # Without a reset of their own, so that theirs can make the zeros.
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
            entry.position.eq(Cat(_index(walker.place), walker.row)),
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

        # Collect: what is not zero, and its bit of the mask.
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


class Decoder(wiring.Component):
    """Expand a compressed stream, in whole groups of 32 / lanes beats.

    All elements are kept; ``o.last`` marks the last beat of the last group. One word is taken per cycle and one beat
    given, so that a group takes max(32 / lanes, 1 + non-zeros) cycles and no bubble is between groups. A beat is
    offered as soon as its words are there: :attr:`latency` cycles after the last of its values was accepted, and not
    earlier than :attr:`latency` + 1 cycles after the mask. ``i.ready`` depends on registers alone.

    A stream that ends inside a group raises ``error``; the rest of this group is zeros, from the beat on in which
    something is missing, and the next stream is sound again.

    Parameters
    ----------
    lanes : int
        Elements per beat: 1, 2, 4 or 8.

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
        """Beats with non-zero elements that are held besides the one being collected."""
        return max(GROUP // self._lanes, _LUT_ROWS)

    def elaborate(self, platform):
        m = Module()
        # Without a reset of their own, so that theirs can make the zeros.
        elements = Signal.like(self.o.payload.elements, reset_less=True)

        # A row of the walk is one beat, or several.
        width = max(self._lanes, 4)
        m.submodules.walker = walker = _Walker(masks=1, width=width)
        places = _slices(walker.place, self._lanes)
        rests = _slices(walker.rest, self._lanes)
        lanes = functools.reduce(operator.or_, places)
        beat_end = Cat(place.any() & ~rest.any() for place, rest in zip(places, rests, strict=True)).any()

        m.submodules.beats = memory = Memory(shape=elements.shape(), depth=self.depth, init=[])
        write = memory.write_port(granularity=1)
        read = memory.read_port(domain="comb")
        # One bit more than an address: beats that were written and read, modulo twice the depth.
        written = Signal(range(2 * self.depth))
        taken = Signal.like(written)

        # Hold one word, and which rows it has ones in, in case it is a mask.
        word = Signal(data.StructLayout({"data": GROUP, "last": 1, "valid": 1, "occupied": GROUP // width}))
        room = Signal()
        m.d.comb += self.i.ready.eq(~word.valid | room)
        with m.If(self.i.ready):
            m.d.sync += [
                word.data.eq(self.i.payload.data),
                word.last.eq(self.i.payload.last),
                word.occupied.eq(Cat(bits.any() for bits in _slices(self.i.payload.data, width))),
                word.valid.eq(self.i.valid),
            ]

        # Collect: put values into the lanes of a beat. Beats of zeros are not stored.
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

        # Write: all beats of the group, those of zeros as well. The next group's mask waits meanwhile.
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

        # A group that was cut short holds the input up until it is written.
        with m.If(breaking):
            m.d.sync += broken.eq(1)
        with m.Elif(go & final & ~mask_valid):
            m.d.sync += broken.eq(0)
        return m
