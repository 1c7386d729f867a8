"""Converters between words (one element per cycle) and beats (one row per cycle), and buffers for beats."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.streams.stream import Queue, beat_layout, check_lanes, connect_stream, word_layout

__all__ = ["BlockBuffer", "RowAssembler", "RowSerializer", "SegmentBuffer"]


class RowSerializer(wiring.Component):
    """Serialize beats into words: the kept elements of each beat, starting with the lowest lane.

    Latency is :attr:`latency` cycle; throughput is one word per cycle with no bubble between beats. ``i.ready``
    depends combinationally on ``o.ready``.

    Parameters
    ----------
    lanes : int
        Number of elements per beat: 1, 2, 4 or 8.

    Members
    -------
    i : In(stream of beat_layout(lanes))
        The kept lanes must be contiguous from lane 0, and there must be at least one.
    o : Out(stream of word_layout())
        ``last`` marks the last kept element of the beat with ``last``.
    """

    latency = 1

    def __init__(self, *, lanes):
        check_lanes(lanes)
        self._lanes = lanes
        super().__init__(
            {
                "i": In(stream.Signature(beat_layout(lanes))),
                "o": Out(stream.Signature(word_layout())),
            }
        )

    def elaborate(self, platform):
        m = Module()
        lanes = self._lanes
        elements = Signal(data.ArrayLayout(32, lanes))
        keep = Signal(lanes)  # elements still to be sent, next one in lane 0
        last = Signal()
        final = Signal(init=1)  # the offered element is the last of its beat
        advance = Signal()
        beat_keep = Signal(lanes)

        m.d.comb += [
            self.o.valid.eq(keep[0]),
            self.o.payload.data.eq(elements[0]),
            self.o.payload.last.eq(last & final),
            advance.eq(self.o.ready | ~keep[0]),
            self.i.ready.eq(final & advance),
            beat_keep.eq(Mux(self.i.valid, self.i.payload.keep, 0)),
        ]
        # One register selects, for all bits of the elements, whether this beat advances or the next one is loaded.
        with m.If(advance):
            m.d.sync += [
                keep.eq(Mux(final, beat_keep, keep >> 1)),
                final.eq(Mux(final, beat_keep >> 1, keep >> 2) == 0),
                elements[-1].eq(self.i.payload.elements[-1]),
            ]
            with m.If(final):
                m.d.sync += last.eq(self.i.payload.last)
            for lane in range(lanes - 1):
                m.d.sync += elements[lane].eq(Mux(final, self.i.payload.elements[lane], elements[lane + 1]))
        return m


class RowAssembler(wiring.Component):
    """Assemble words into beats, starting with lane 0.

    Latency is :attr:`latency` cycle from the word that completes a beat; throughput is one word per cycle.
    ``i.ready`` depends combinationally on ``o.ready``.

    Parameters
    ----------
    lanes : int
        Elements in a beat: 1, 2, 4 or 8.

    Members
    -------
    i : In(stream of word_layout())
    o : Out(stream of beat_layout(lanes))
        A word with ``last`` completes its beat; ``keep`` then covers the filled lanes.
    """

    latency = 1

    def __init__(self, *, lanes):
        check_lanes(lanes)
        self._lanes = lanes
        super().__init__(
            {
                "i": In(stream.Signature(word_layout())),
                "o": Out(stream.Signature(beat_layout(lanes))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        lanes = self._lanes
        # Elements waiting for the rest of their beat, lowest lane first. A lane copies the input until it holds its
        # element, and the last lane always copies it; one register per lane enables all of its bits.
        staged = Signal(data.ArrayLayout(32, lanes))
        filled = Signal(lanes)
        completes = Signal()

        m.d.comb += [
            staged[-1].eq(self.i.payload.data),
            completes.eq(Cat(1, filled)[lanes - 1] | self.i.payload.last),
            self.i.ready.eq(~completes | ~self.o.valid | self.o.ready),
        ]
        for n in range(lanes - 1):
            with m.If(~filled[n]):
                m.d.sync += staged[n].eq(self.i.payload.data)
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += filled.eq(Mux(completes, 0, Cat(1, filled)))
            with m.If(completes):
                m.d.sync += [
                    self.o.valid.eq(1),
                    self.o.payload.last.eq(self.i.payload.last),
                    self.o.payload.keep.eq(Cat(1, filled)),
                ]
                for n in range(lanes):
                    m.d.sync += self.o.payload.elements[n].eq(Mux(filled[n], staged[n], self.i.payload.data))
        return m


class SegmentBuffer(wiring.Component):
    """Hold back beats until their whole segment has arrived.

    Only complete segments leave the buffer. A segment truncated by a corrupt packet stays in the buffer until a reset
    discards it.

    Latency is :attr:`latency` cycles from the beat with ``last``; throughput is one beat per cycle. ``i.ready``
    depends only on registers.

    Parameters
    ----------
    lanes : int
        Elements in a beat: 1, 2, 4 or 8.
    depth : int
        Capacity in beats: at least one whole segment, or two segments to receive one while another one leaves.

    Members
    -------
    i : In(stream of beat_layout(lanes))
    o : Out(stream of beat_layout(lanes))
    """

    latency = 3

    def __init__(self, *, lanes, depth):
        check_lanes(lanes)
        if not isinstance(depth, int) or depth < 4:
            raise ValueError(f"Segment buffer depth must be an integer of at least 4, not {depth!r}")
        self._lanes = lanes
        self._depth = depth
        super().__init__(
            {
                "i": In(stream.Signature(beat_layout(lanes))),
                "o": Out(stream.Signature(beat_layout(lanes))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.queue = queue = Queue(shape=beat_layout(self._lanes), depth=self._depth, block=True)
        complete = Signal(range(self._depth + 1))  # number of segments whose last beat is in the queue
        arrives, leaves = Signal(), Signal()
        connect_stream(m, self.i, queue.i)
        m.d.comb += [
            self.o.payload.eq(queue.o.payload),
            self.o.valid.eq(queue.o.valid & (complete != 0)),
            queue.o.ready.eq(self.o.ready & (complete != 0)),
            arrives.eq(self.i.valid & self.i.ready & self.i.payload.last),
            leaves.eq(self.o.valid & self.o.ready & self.o.payload.last),
        ]
        m.d.sync += complete.eq(complete + arrives - leaves)
        return m


class BlockBuffer(wiring.Component):
    """Hold back beats until their whole block has arrived, so that blocks leave without pauses.

    Latency is :attr:`latency` cycle from the beat that completes a block; throughput is one beat per cycle.
    ``i.ready`` depends only on registers.

    Parameters
    ----------
    lanes : int
        Elements in a beat: 1, 2, 4 or 8.
    beats : int
        Number of beats per block, 1 to 32. The last block of a packet may be shorter.

    Members
    -------
    i : In(stream of beat_layout(lanes))
    o : Out(stream of beat_layout(lanes))
    """

    latency = 1

    def __init__(self, *, lanes, beats):
        check_lanes(lanes)
        if not isinstance(beats, int) or not 1 <= beats <= 32:
            raise ValueError(f"Beats of a block must be an integer between 1 and 32, not {beats!r}")
        self._lanes = lanes
        self._beats = beats
        super().__init__(
            {
                "i": In(stream.Signature(beat_layout(lanes))),
                "o": Out(stream.Signature(beat_layout(lanes))),
            }
        )

    @property
    def depth(self):
        """Capacity in beats: two blocks, so that one can arrive while the other leaves."""
        return 2 * self._beats + 1

    def elaborate(self, platform):
        m = Module()
        m.submodules.queue = queue = Queue(shape=beat_layout(self._lanes), depth=self.depth, block=False)
        complete = Signal(range(self.depth + 1))  # number of blocks whose last beat is in the queue
        connect_stream(m, self.i, queue.i)
        m.d.comb += [
            self.o.payload.eq(queue.o.payload),
            self.o.valid.eq(queue.o.valid & (complete != 0)),
            queue.o.ready.eq(self.o.ready & (complete != 0)),
        ]

        def ends(name, port):
            """Return a signal that is high when the port transfers the last beat of a block."""
            position = Signal(range(max(self._beats, 2)), name=f"{name}_place")
            ending = Signal(name=f"{name}_ending")
            taken = port.valid & port.ready
            m.d.comb += ending.eq((position == self._beats - 1) | port.payload.last)
            with m.If(taken):
                m.d.sync += position.eq(Mux(ending, 0, position + 1))
            return taken & ending

        m.d.sync += complete.eq(complete + ends("filling", self.i) - ends("leaving", self.o))
        return m
